"""The demonstration: a node and a small archive on loopback, real chest films through both, results in a folder.

It uses the product itself: the archive is the node's own listener and spool, and films are sent by the node's own
C-STORE. The films are two PA films of ChestX-ray14, of patients whom no training of the shipped model saw: on one a
radiologist saw an opacity in the right lower lung, the other was read as normal. `films/README.md` names their sources.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pydicom import dcmread

from node.config import Caller, ListenerSettings, ModelSettings, Settings, StorageSettings, StudySettings
from node.deliver import dicom
from node.deliver.kinds import Calling
from node.domain import OutputObject
from node.errors import NodeError
from node.metrics import Metrics
from node.orders.store import OrderStore
from node.output_kinds import Written
from node.outputs.folder import write_folder
from node.pipeline import Pipeline
from node.read import prompts
from node.read.model import RadiographReader, open_reader
from node.receive.listener import Listener
from node.rounds.films import FilmReader
from node.rounds.round_plan import Round
from node.service import app
from node.settings.destinations import DicomDestination
from node.settings.http import HttpSettings
from node.store.received import Instance
from node.store.rounds import covered
from node.store.spool import Spool

FILMS = tuple(Path(__file__).with_name("films") / name for name in ("opacity.dcm", "normal.dcm"))

_ARCHIVE, _MODALITY, _NODE = "DEMO-ARCHIVE", "DEMO-CR", "CHEX"
_LIMIT_SECONDS = 120.0
_POLL_SECONDS = 0.1
_HERE = ("127.0.0.1",)

Say = Callable[[str], None]


def run(out: Path, *, model: ModelSettings, say: Say, stay: Callable[[str], None] | None = None) -> None:
    """Send the films, wait for SR and GSPS at the archive, write the results below `out`; one line per stage.

    stay: is called at the end with the address of the study's page, which is there until it returns; None to end
    Raises NodeError when results are missing at the time limit.
    """
    with ExitStack() as parts:
        work = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="chex-demo-")))
        with _stage("open model", say):
            prompt_set = prompts.load(model.prompts)
            reader = open_reader(
                model.directory,
                prompts=prompt_set,
                engine=model.engine,
                reader=model.reader,
                threads=model.threads,
                trusted=model.trusted,
            )
        archive = Spool(work / "archive")
        listener = Listener(
            ListenerSettings(ae_title=_ARCHIVE, port=0, callers=(Caller(ae_title=_NODE, hosts=_HERE),)),
            archive,
            Metrics(),
            on_kept=lambda _study: None,
        )
        parts.callback(listener.close)
        settings = _settings(work / "node", model=model, archive_port=listener.port)
        with _stage("start node and archive", say):
            running = parts.enter_context(app.run(settings, reader=lambda: reader))
        with _stage(f"send {len(FILMS)} films by C-STORE", say):
            for path in FILMS:
                dicom.send(path.read_bytes(), _to(_NODE, running.ports["dicom_port"]), Calling(ae_title=_MODALITY))
        with _stage("read, write and deliver SR and GSPS", say):
            _await(Spool(settings.storage.directory), archive, count=len(FILMS))
        with _stage(f"write {out}", say):
            _write(out, archive, settings, reader)
        if stay is not None:
            study_uid = dcmread(FILMS[0], stop_before_pixels=True).StudyInstanceUID
            stay(f"http://{_HERE[0]}:{running.ports['http_port']}/studies/{study_uid}")


@contextmanager
def _stage(name: str, say: Say) -> Iterator[None]:
    began = time.monotonic()
    yield
    say(f"{name:<40} {time.monotonic() - began:6.2f} s")


def _settings(directory: Path, *, model: ModelSettings, archive_port: int) -> Settings:
    return Settings(
        listener=ListenerSettings(ae_title=_NODE, port=0, callers=(Caller(ae_title=_MODALITY, hosts=_HERE),)),
        storage=StorageSettings(directory=directory, min_free_mib=64),
        study=StudySettings(quiet_seconds=1.0, max_seconds=30.0),
        model=replace(model, uncompared="accept"),
        http=HttpSettings(port=0),
        destinations=(_to(_ARCHIVE, archive_port),),
    )


def _to(ae_title: str, port: int) -> DicomDestination:
    return DicomDestination(name="demo", ae_title=ae_title, host=_HERE[0], port=port)


def _await(spool: Spool, archive: Spool, *, count: int) -> None:
    """Wait until rounds cover all films, and every output of them has arrived; count: how many films there are."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while True:
        marks = [mark for study_uid in spool.studies() for mark in spool.rounds(study_uid)]
        wanted = {output.sop_instance_uid for mark in marks for output in mark.outputs}
        arrived = {film.sop_instance_uid for study_uid in archive.studies() for film in archive.instances(study_uid)}
        if len(covered(marks)) == count and wanted <= arrived:
            return
        if time.monotonic() > deadline:
            raise NodeError(
                f"{len(covered(marks))} of {count} films were answered, and {len(arrived)} of {len(wanted)} results "
                f"came back in {_LIMIT_SECONDS:g} s; see the log above"
            )
        time.sleep(_POLL_SECONDS)


def _write(out: Path, archive: Spool, settings: Settings, reader: RadiographReader) -> None:
    """Write the objects that the archive received, and the node's own report of the same round."""
    spool = Spool(settings.storage.directory)
    pipeline = Pipeline(
        films=FilmReader(spool=spool, reader=reader, prompts=prompts.load(settings.model.prompts)),
        orders=OrderStore(settings.storage.directory, nobodys=settings.site.nobodys),
        zone=settings.site.zone,
        kinds=(),
    )
    for study_uid in archive.studies():
        shutil.rmtree(out / study_uid, ignore_errors=True)
        instances = spool.instances(study_uid)
        files = tuple(instance.path.name for instance in instances)
        answers = pipeline.answers(
            Round(study_uid=study_uid, number=1, files=files, created_at=datetime.now(UTC).replace(microsecond=0))
        )
        names = [part.report.part for part in answers.parts]
        sent = {output.sop_instance_uid: output for mark in spool.rounds(study_uid) for output in mark.outputs}
        objects = [_received(instance, sent, names) for instance in archive.instances(study_uid)]
        sources = {uid: source for part in answers.parts for uid, source in part.sources.items()}
        write_folder(out, answers.report, objects, sources, sections=[part.report for part in answers.parts])


def _received(instance: Instance, sent: Mapping[str, OutputObject], parts: Sequence[str]) -> Written:
    """Return an object that the archive received, as the node wrote it; parts: their names."""
    output = sent[instance.sop_instance_uid]
    return Written(
        kind=output.kind,
        dataset=dcmread(instance.path),
        subject=output.subject,
        template=output.template,
        part=parts[output.part],
    )
