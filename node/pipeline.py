"""One study from files to stored outputs, in plain calls that are safe to repeat; the table of writers.

`answer_film` and `write_objects` know nothing of spool or network; `Pipeline` puts them on the spool, so that the
workflow hands on UIDs, file names and small numbers only. A film that was read before is not read again: its reading
is kept under a key that changes with its bytes, the model, the prompt set and the program.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.filereader import read_file_meta_info

from node import attributes, findings, imaging, routing
from node.domain import (
    MESSAGE_KIND,
    Film,
    ModelIdentity,
    ObjectReference,
    OutputObject,
    Priority,
    PromptSet,
    Reason,
    Report,
    derive_uid,
)
from node.errors import Undecodable
from node.identity import VERSION
from node.inference import Reader
from node.order_store import OrderStore
from node.outputs import document, gsps, oru, record, sr
from node.rounds import RoundMark
from node.spool import Spool, sop_instance_uid_of
from node.urgency import Waiting

_ATTEMPTS: Final = 4

Writer = Callable[[Report, Mapping[str, Dataset], ZoneInfo], list[Dataset]]

Timed = Callable[[str], AbstractContextManager[None]]

WRITERS: Final[Mapping[str, Writer]] = {"sr": sr.write, "gsps": gsps.write}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answered:
    """What became of one object: a film with its answer, or nothing when it is left alone.

    picture: [row, column] uint8 as displayed, in stored orientation; only for a film that was read
    """

    header: Dataset
    film: Film | None
    reason: Reason | None
    picture: NDArray[np.uint8] | None = None


def _untimed(_step: str) -> AbstractContextManager[None]:
    return nullcontext()


def answer_film(path: Path, reader: Reader, prompts: PromptSet, *, timed: Timed = _untimed) -> Answered:
    """Decide on one object and read it if it is a frontal chest film.

    timed: times the steps route, decode and read
    Raises Undecodable only when the file is no DICOM object at all.
    """
    with timed("route"):
        header = imaging.read_header(path)
        decision = routing.choose(header)
    if decision.action is routing.Action.LEAVE:
        return Answered(header=header, film=None, reason=decision.reason)
    source = str(header.SOPInstanceUID)
    if decision.action is routing.Action.ANSWER:
        film = Film(source=source, reason=decision.reason, notes=decision.notes)
        return Answered(header=header, film=film, reason=decision.reason)
    try:
        with timed("decode"):
            image = imaging.load(imaging.read_file(path), gray=reader.gray, square=reader.square)
    except Undecodable as error:
        reason = Reason(error.reason)
        return Answered(header=header, film=Film(source=source, reason=reason, notes=decision.notes), reason=reason)
    with timed("read"):
        reading = reader.read(image, prompts)
    film = Film(
        source=source,
        notes=decision.notes,
        columns=image.framing.columns,
        rows=image.framing.rows,
        analyzed=image.framing.analyzed,
        sentences=reading.sentences,
        findings=findings.find(
            reading,
            prompts,
            source=source,
            framing=image.framing,
            model=reader.identity,
            sides_known=imaging.sides_known(header),
        ),
    )
    return Answered(header=header, film=film, reason=None, picture=image.picture)


def write_objects(
    report: Report, sources: Mapping[str, Dataset], *, zone: ZoneInfo, kinds: Iterable[str]
) -> list[tuple[str, Dataset]]:
    """Write every object of the wanted kinds for one report."""
    if not report.films:
        return []
    named = {uid: _with_series(header) for uid, header in sources.items()}
    return [(kind, dataset) for kind in kinds for dataset in WRITERS[kind](report, named, zone)]


def _with_series(header: Dataset) -> Dataset:
    """A film that names no series cannot be referred to without one (PS3.3 10.8): derive it from the film."""
    if attributes.text(header, "SeriesInstanceUID"):
        return header
    named = copy.copy(header)
    # Put in as a new element, since the old one may have a value that cannot even be looked at.
    named.add_new("SeriesInstanceUID", "UI", derive_uid("series of", str(header.SOPInstanceUID)))
    return named


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One look at a study: which of its files, and when it began. Fixed once, in a checkpointed step."""

    study_uid: str
    number: int
    files: tuple[str, ...]
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The calls of one round, on the spool. Each may be repeated after a crash.

    on_read: hears every film that the network has read, with its header
    """

    spool: Spool
    orders: OrderStore
    reader: Reader
    prompts: PromptSet
    zone: ZoneInfo
    kinds: tuple[str, ...]
    timed: Timed = _untimed
    on_read: Callable[[Film, Dataset], None] = lambda _film, _header: None

    def waiting(self, study_uid: str) -> Waiting:
        """Since when a study has a film that no finished round covers, and whether anybody called it urgent."""
        unread = self.spool.unread(study_uid)
        return Waiting(
            arrived_at=min((one.received_at for one in unread), default=datetime.now(UTC)),
            is_urgent=self.spool.is_urgent(study_uid)
            or any(self._is_ordered_urgently(study_uid, one.path.name) for one in unread),
        )

    def plan(self, study_uid: str) -> Round | None:
        """Fix what a round covers; None when nothing came since the last one."""
        if not self.spool.has_unread(study_uid):
            return None
        instances = self.spool.study(study_uid).instances
        return Round(
            study_uid=study_uid,
            number=max((mark.number for mark in self.spool.rounds(study_uid)), default=0) + 1,
            files=tuple(instance.path.name for instance in instances),
            created_at=datetime.now(UTC).replace(microsecond=0),
        )

    def read(self, study_uid: str, file: str) -> str:
        """Answer one file and keep the answer.

        Returns `read`, the reason why not, or `left:` and the reason for an object that gets no answer.
        """
        film, left = self._film(study_uid, file)
        if film is None:
            return f"left:{left}"
        return "read" if film.reason is None else str(film.reason)

    def report(self, plan: Round) -> tuple[Report, dict[str, Dataset]]:
        """Put the answers of a round together, with the header of each film.

        A film whose answer was given by another model or program, before an upgrade, is read again here.
        """
        films, sources = [], {}
        for file in plan.files:
            film, _ = self._film(plan.study_uid, file)
            if film is not None:
                films.append(film)
                sources[film.source] = self._header(plan.study_uid, file)
        rounds = self.spool.rounds(plan.study_uid)
        report = make_report(
            plan.study_uid,
            films,
            model=self.reader.identity,
            prompts=self.prompts,
            created_at=plan.created_at,
            predecessors=_predecessors(rounds),
            earlier=tuple(tuple(output.sop_instance_uid for output in mark.outputs) for mark in rounds),
        )
        return report, sources

    def write(self, plan: Round) -> list[OutputObject]:
        """Write and keep every output of a round; the report names the newest earlier one as predecessor."""
        report, sources = self.report(plan)
        kinds = [kind for kind in WRITERS if kind in self.kinds]
        outputs = [
            self._keep(_output(kind, dataset), document.save_bytes(dataset), report)
            for kind, dataset in write_objects(report, sources, zone=self.zone, kinds=kinds)
        ]
        if MESSAGE_KIND in self.kinds and report.films:
            accession = oru.accession_of(sources.values())
            order = self.orders.fix(study_uid=plan.study_uid, accession=accession, at=plan.created_at)
            message, content = oru.write(report, sources, self.zone, order=order, documents=outputs)
            outputs.append(self._keep(message, content, report))
        return outputs

    def finish(self, plan: Round, outputs: Sequence[OutputObject]) -> None:
        """Mark a round as finished."""
        mark = RoundMark(number=plan.number, created_at=plan.created_at, files=plan.files, outputs=tuple(outputs))
        self.spool.mark_round(plan.study_uid, mark)

    def _is_ordered_urgently(self, study_uid: str, file: str) -> bool:
        accession = oru.accession_of([self._header(study_uid, file)])
        order = self.orders.find(study_uid=study_uid, accession=accession)
        return order is not None and order.priority is not Priority.ROUTINE

    def _film(self, study_uid: str, file: str) -> tuple[Film | None, Reason | None]:
        """The answer to a received object, given once and kept, or the reason why it gets none."""
        key = self._key(file)
        kept = self.spool.reading(study_uid, key)
        if kept is not None:
            return record.film_from_json(kept), None
        film, left = self._answer(study_uid, file, key)
        if film is not None:
            self.spool.keep_reading(study_uid, key, record.film_to_json(film))
        self.spool.end_reading(study_uid, key)
        return film, left

    def _answer(self, study_uid: str, file: str, key: str) -> tuple[Film | None, Reason | None]:
        """Read a received object. One that ended the process several times, in a decoder say, is not tried again."""
        unreadable = Film(source=sop_instance_uid_of(file), reason=Reason.UNDECODABLE)
        if self.spool.begin_reading(study_uid, key) > _ATTEMPTS:
            return unreadable, None
        try:
            path = self.spool.received_path(study_uid, file)
            answered = answer_film(path, self.reader, self.prompts, timed=self.timed)
        except Undecodable:
            return unreadable, None
        if answered.film is not None and answered.film.is_read:
            self.on_read(answered.film, answered.header)
        return answered.film, answered.reason

    def _header(self, study_uid: str, file: str) -> Dataset:
        """The header of a received object; of one that cannot be parsed, what its file meta and its place tell."""
        path = self.spool.received_path(study_uid, file)
        try:
            return imaging.read_header(path)
        except Undecodable:
            header = Dataset()
            header.SOPClassUID = read_file_meta_info(path).MediaStorageSOPClassUID
            header.SOPInstanceUID = sop_instance_uid_of(file)
            header.StudyInstanceUID = study_uid
            return header

    def _key(self, file: str) -> str:
        """Name what was said about a file's bytes by this program with this model and these prompts."""
        model = self.reader.identity
        weights = (model.name, model.version, model.weights_sha256, model.manifest_sha256, model.engine)
        return derive_uid("reading", file, VERSION, *weights, self.prompts.sha256)

    def _keep(self, output: OutputObject, content: bytes, report: Report) -> OutputObject:
        """Keep an output, but none of an earlier round: that is there, or was removed after its delivery."""
        if not any(output.sop_instance_uid in written for written in report.earlier):
            self.spool.keep_output(output, content)
        return output


def _output(kind: str, dataset: Dataset) -> OutputObject:
    return OutputObject(
        kind=kind,
        study_uid=str(dataset.StudyInstanceUID),
        sop_class_uid=str(dataset.SOPClassUID),
        sop_instance_uid=str(dataset.SOPInstanceUID),
        series_instance_uid=str(dataset.SeriesInstanceUID),
    )


def _predecessors(rounds: Iterable[RoundMark]) -> tuple[ObjectReference, ...]:
    """The newest structured report of the finished rounds, if they wrote any."""
    reports = [
        ObjectReference(
            sop_class_uid=output.sop_class_uid,
            sop_instance_uid=output.sop_instance_uid,
            series_instance_uid=output.series_instance_uid,
        )
        for mark in rounds
        for output in mark.outputs
        if output.kind == "sr"
    ]
    return tuple(reports[-1:])


def make_report(
    study_uid: str,
    films: Iterable[Film],
    *,
    model: ModelIdentity,
    prompts: PromptSet,
    created_at: datetime,
    predecessors: tuple[ObjectReference, ...] = (),
    earlier: tuple[tuple[str, ...], ...] = (),
) -> Report:
    """Put films, model and prompt set together; the order in which films came does not matter to what is said."""
    return Report(
        study_uid=study_uid,
        films=tuple(sorted(films, key=lambda film: film.source)),
        model=model,
        prompts_name=prompts.name,
        prompts_version=prompts.version,
        prompts_sha256=prompts.sha256,
        created_at=created_at,
        predecessors=predecessors,
        earlier=earlier,
    )
