"""Destinations that take reports in several forms: what each gets of a study, over rounds, damage and new settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import BasicTextSRStorage, Comprehensive3DSRStorage, ComprehensiveSRStorage

from models.contract import FindingState
from node.domain import Delivery, DeliveryState
from node.output_kinds import MESSAGES, OUTPUTS
from node.prompt_set import PromptSet
from node.read.decoding import Radiograph
from node.read.model import Reading
from node.settings.destinations import DestinationSettings, DicomDestination, Hl7Destination
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.spool import Spool
from tests.support import films, peers, senders
from tests.support.damage import cut
from tests.support.documents import film_of
from tests.support.fakes import ScriptedReader

STUDY = films.thumbnail().StudyInstanceUID
SEVERAL = {"plain": ("sr", "gsps"), "air": ("sr3d", "text"), "words": ("text",), "all": ("sr", "sr3d", "text")}
KINDS = {"plain": ["gsps", "sr"], "air": ["sr3d"], "words": ["text"], "all": ["sr", "sr3d"]}


class DenyingReader(ScriptedReader):
    """Finds nothing on any film."""

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        found = super().read(image, prompts)
        answers = (replace(answer, state=FindingState.ABSENT, probability=0.07) for answer in found.pathologies)
        return replace(found, prompts=tuple(answers))


def destination(name: str, outputs: tuple[str, ...], port: int) -> DestinationSettings:
    if outputs == ("oru",):
        return Hl7Destination(name=name, host=peers.LOOPBACK, port=port)
    return DicomDestination(name=name, ae_title="ARCHIVE", host=peers.LOOPBACK, port=port, outputs=outputs)


class Bench:
    """One study, read step by step for destinations with these outputs."""

    def __init__(
        self,
        folder: Path,
        wanted: Mapping[str, tuple[str, ...]],
        reader: ScriptedReader | None = None,
        *,
        port: int = 104,
    ) -> None:
        self.spool, self.ledger = Spool(folder), Ledger(connect(folder / "ledger.sqlite"))
        destinations = [destination(name, outputs, port) for name, outputs in wanted.items()]
        kinds = {kind for outputs in wanted.values() for kind in outputs}
        pipeline = senders.pipeline(
            self.spool, reader=reader, kinds=[kind for kind in (*OUTPUTS.own, *MESSAGES) if kind in kinds]
        )
        self.steps = senders.steps(pipeline, self.ledger, *destinations)
        self.sending = senders.sending(self.spool, self.ledger, *destinations)

    def receive(self, *names: str) -> None:
        for name in names:
            films.keep(self.spool, films.as_another(films.thumbnail(), name), study_uid=STUDY)

    def round(self) -> dict[str, list[Delivery]]:
        """Read what is new; what is to be delivered to each destination."""
        return senders.run_round(self.steps, STUDY)

    def dataset(self, delivery: Delivery) -> Dataset:
        return dcmread(BytesIO(self.spool.output(delivery) or b""))

    def send(self, delivery: Delivery) -> object:
        return self.sending.send(delivery, 1, time.time()).outcome


def kinds(deliveries: Mapping[str, list[Delivery]]) -> dict[str, list[str]]:
    return {name: sorted(delivery.kind for delivery in several) for name, several in deliveries.items()}


def replaced(dataset: Dataset) -> list[str]:
    return [
        item.ReferencedSOPInstanceUID
        for study in dataset.get("PredecessorDocumentsSequence", ())
        for series in study.ReferencedSeriesSequence
        for item in series.ReferencedSOPSequence
    ]


def outputs(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("outputs/*")}


def test_a_text_on_a_film_goes_out_in_each_form(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SEVERAL, DenyingReader())
    bench.receive("a")

    deliveries = bench.round()

    assert kinds(deliveries) == KINDS
    assert len({delivery.sop_instance_uid for several in deliveries.values() for delivery in several}) == 4
    assert len(outputs(tmp_path)) == 4


def test_no_form_is_written_that_nobody_gets(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"archive": ("sr3d",)})
    bench.receive("a", "b")
    bench.round()

    assert sorted(path.suffixes[-2] for path in outputs(tmp_path)) == [".sr", ".sr3d", ".sr3d"]


def test_damaged_reports_are_written_again_in_their_forms(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SEVERAL)
    bench.receive("a")
    bench.round()
    before = outputs(tmp_path)
    for path in before:
        cut(path)

    assert bench.steps.plan(STUDY) is None

    assert outputs(tmp_path) == before


@pytest.mark.drill(part="peers")
def test_what_was_written_for_other_settings_is_written_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"air": ("sr3d",), "ris": ("oru",)})
    bench.receive("a", "b")
    bench.round()
    before = outputs(tmp_path)
    assert len(before) == 4
    for path in before:
        cut(path)

    Bench(tmp_path, {"words": ("text",)}).steps.pipeline.rewrite(STUDY)

    assert outputs(tmp_path) == before


def test_a_report_in_a_new_form_names_the_one_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"archive": ("sr",)})
    bench.receive("a")
    [before] = bench.round()["archive"]
    for reader in (DenyingReader("2"), ScriptedReader("3")):
        bench = Bench(tmp_path, {"archive": ("sr3d",)}, reader)
        bench.spool.uncover(STUDY)

        [after] = bench.round()["archive"]

        assert after.kind == "sr3d"
        assert replaced(bench.dataset(after)) == [before.sop_instance_uid]
        before = after


def test_every_form_names_its_own_predecessor(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SEVERAL)
    bench.receive("a")
    first = {delivery.kind: delivery.sop_instance_uid for delivery in bench.round()["all"]}
    bench = Bench(tmp_path, SEVERAL, ScriptedReader("2"))
    bench.spool.uncover(STUDY)

    second = bench.round()["all"]

    assert {delivery.kind for delivery in second} == first.keys() == {"sr", "sr3d", "text"}
    assert [replaced(bench.dataset(delivery)) for delivery in second] == [[first[each.kind]] for each in second]


def test_a_lost_report_ends_when_another_form_takes_its_place(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"air": ("sr3d",)}, DenyingReader())
    bench.receive("a")
    [text] = bench.round()["air"]
    [path] = outputs(tmp_path)
    cut(path)
    bench = Bench(tmp_path, {"air": ("sr3d",)}, ScriptedReader("2"))
    bench.spool.uncover(STUDY)

    assert kinds(bench.round()) == {"air": ["sr3d"]}

    assert bench.ledger.delivery_state(text) is DeliveryState.ABANDONED


def test_a_message_names_the_reports_of_every_form(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {**SEVERAL, "ris": ("oru",)})
    bench.receive("a", "b")

    deliveries = bench.round()

    [message] = deliveries.pop("ris")
    content = (bench.spool.output(message) or b"").decode()
    reports = {
        delivery.sop_instance_uid: film_of(bench.dataset(delivery))
        for several in deliveries.values()
        for delivery in several
        if delivery.kind != "gsps"
    }
    named = {fields[5]: fields[4] for line in content.split("\r") if (fields := line.split("|"))[2:3] == ["HD"]}
    assert named.keys() == reports.keys()
    assert len(named) == 8  # two films in three forms, the study in two
    assert {uid for uid, film in named.items() if not film} == {uid for uid, film in reports.items() if not film}


def test_every_form_is_sent_under_its_own_class(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive:
        bench = Bench(tmp_path, SEVERAL, port=archive.port)
        bench.receive("a")

        deliveries = bench.round()

        several = [delivery for name in ("plain", "air", "words") for delivery in deliveries[name]]
        assert {bench.send(delivery) for delivery in several} == {"sent"}
        classes = {kept.sop_class_uid for kept in archive.kept}
        assert classes >= {ComprehensiveSRStorage, Comprehensive3DSRStorage, BasicTextSRStorage}
