"""Destinations that take reports in several forms: what each gets of a study, over rounds, damage and new settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydicom.uid import BasicTextSRStorage, Comprehensive3DSRStorage, ComprehensiveSRStorage

from models.contract import FindingState
from node.domain import Delivery, DeliveryState
from node.prompt_set import PromptSet
from node.read.decoding import Radiograph
from node.read.model import Reading
from node.settings.destinations import DestinationSettings, DicomDestination, Hl7Destination
from tests.node.jobs.test_rounds import STUDY, Bench, film, predecessor
from tests.support import peers, senders
from tests.support.damage import cut
from tests.support.documents import film_of
from tests.support.fakes import ScriptedReader

Forms = Mapping[str, tuple[str, ...]]

SEVERAL: Forms = {"plain": ("sr", "gsps"), "air": ("sr3d", "text"), "words": ("text",), "all": ("sr", "sr3d", "text")}
KINDS = {"plain": ["gsps", "sr"], "air": ["sr3d"], "words": ["text"], "all": ["sr", "sr3d"]}


class DenyingReader(ScriptedReader):
    """Finds nothing on any film."""

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        found = super().read(image, prompts)
        answers = (replace(answer, state=FindingState.ABSENT, probability=0.07) for answer in found.pathologies)
        return replace(found, prompts=tuple(answers))


def destinations(wanted: Forms, port: int = 104) -> list[DestinationSettings]:
    return [
        Hl7Destination(name=name, host=peers.LOOPBACK, port=port)
        if outputs == ("oru",)
        else DicomDestination(name=name, ae_title="ARCHIVE", host=peers.LOOPBACK, port=port, outputs=outputs)
        for name, outputs in wanted.items()
    ]


def benched(folder: Path, wanted: Forms, reader: ScriptedReader | None = None, *received: str) -> Bench:
    """The rounds of a study with these films, for destinations with these outputs."""
    bench = Bench(folder, destinations=destinations(wanted), reader=reader)
    for name in received:
        bench.receive(film(name))
    return bench


def read(bench: Bench) -> dict[str, list[Delivery]]:
    """Read what is new; what is to be delivered to each destination."""
    return senders.run_round(bench.steps, STUDY)


def read_again(folder: Path, wanted: Forms, reader: ScriptedReader) -> tuple[Bench, dict[str, list[Delivery]]]:
    """Have the study read again by another model; what is to be delivered then."""
    bench = benched(folder, wanted, reader)
    bench.spool.uncover(STUDY)
    return bench, read(bench)


def kinds(deliveries: Mapping[str, list[Delivery]]) -> dict[str, list[str]]:
    return {name: sorted(delivery.kind for delivery in several) for name, several in deliveries.items()}


def outputs(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("outputs/*")}


def damage_all(folder: Path) -> dict[Path, bytes]:
    """Damage every output; what they were before."""
    before = outputs(folder)
    for path in before:
        cut(path)
    return before


def test_a_text_on_a_film_goes_out_in_each_form(tmp_path: Path) -> None:
    deliveries = read(benched(tmp_path, SEVERAL, DenyingReader(), "a"))

    assert kinds(deliveries) == KINDS
    assert len({delivery.sop_instance_uid for several in deliveries.values() for delivery in several}) == 4
    assert len(outputs(tmp_path)) == 4


def test_no_form_is_written_that_nobody_gets(tmp_path: Path) -> None:
    read(benched(tmp_path, {"archive": ("sr3d",)}, None, "a", "b"))

    assert sorted(path.suffixes[-2] for path in outputs(tmp_path)) == [".sr", ".sr3d", ".sr3d"]


def test_damaged_reports_are_written_again_in_their_forms_also_for_other_settings(tmp_path: Path) -> None:
    bench = benched(tmp_path, {**SEVERAL, "ris": ("oru",)}, None, "a", "b")
    read(bench)
    before = damage_all(tmp_path)

    assert bench.steps.plan(STUDY) is None
    assert outputs(tmp_path) == before

    damage_all(tmp_path)
    benched(tmp_path, {"words": ("text",)}).steps.pipeline.rewrite(STUDY)
    assert outputs(tmp_path) == before


def test_a_report_in_a_new_form_names_the_one_before(tmp_path: Path) -> None:
    [before] = read(benched(tmp_path, {"archive": ("sr",)}, None, "a"))["archive"]
    for reader in (DenyingReader("2"), ScriptedReader("3")):
        bench, deliveries = read_again(tmp_path, {"archive": ("sr3d",)}, reader)

        [report] = bench.objects(deliveries["archive"], "sr3d")
        assert predecessor(report) == before.sop_instance_uid
        [before] = deliveries["archive"]


def test_every_form_names_its_own_predecessor(tmp_path: Path) -> None:
    first = {each.kind: each.sop_instance_uid for each in read(benched(tmp_path, SEVERAL, None, "a"))["all"]}

    bench, deliveries = read_again(tmp_path, SEVERAL, ScriptedReader("2"))

    assert first.keys() == {"sr", "sr3d", "text"}
    again = {kind: bench.objects(deliveries["all"], kind) for kind in first}
    assert {kind: [predecessor(report) for report in reports] for kind, reports in again.items()} == {
        kind: [uid] for kind, uid in first.items()
    }


def test_a_lost_report_ends_when_another_form_takes_its_place(tmp_path: Path) -> None:
    [text] = read(benched(tmp_path, {"air": ("sr3d",)}, DenyingReader(), "a"))["air"]
    damage_all(tmp_path)

    bench, deliveries = read_again(tmp_path, {"air": ("sr3d",)}, ScriptedReader("2"))

    assert kinds(deliveries) == {"air": ["sr3d"]}
    assert bench.ledger.delivery_state(text) is DeliveryState.ABANDONED


def test_a_message_names_the_reports_of_every_form(tmp_path: Path) -> None:
    bench = benched(tmp_path, {**SEVERAL, "ris": ("oru",)}, None, "a", "b")
    deliveries = read(bench)
    [message] = deliveries.pop("ris")
    sent = [delivery for several in deliveries.values() for delivery in several]

    content = (bench.spool.output(message) or b"").decode()

    reports = [report for kind in ("sr", "sr3d", "text") for report in bench.objects(sent, kind)]
    named = {fields[5]: fields[4] for line in content.split("\r") if (fields := line.split("|"))[2:3] == ["HD"]}
    assert named.keys() == {report.SOPInstanceUID for report in reports}
    assert len(named) == 8  # two films in three forms, the study in two
    assert {uid for uid, film in named.items() if not film} == {
        report.SOPInstanceUID for report in reports if not film_of(report)
    }


def test_every_form_is_sent_under_its_own_class(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive:
        bench = benched(tmp_path, SEVERAL, None, "a")
        deliveries = read(bench)
        sending = senders.sending(bench.spool, bench.ledger, *destinations(SEVERAL, archive.port))

        several = [delivery for name in ("plain", "air", "words") for delivery in deliveries[name]]
        assert {sending.send(delivery, 1, time.time()).outcome for delivery in several} == {"sent"}
    classes = {kept.sop_class_uid for kept in archive.kept}
    assert classes >= {ComprehensiveSRStorage, Comprehensive3DSRStorage, BasicTextSRStorage}
