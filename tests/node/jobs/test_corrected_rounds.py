"""A stored correction makes a round: a new report with the older one as predecessor, until it is taken back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

import pytest
from highdicom.sr import MeasurementReport, srread
from pydicom.dataset import Dataset

from models.contract import Box
from models.documents import encode
from node.domain import Delivery
from node.jobs import answered_film, gathering
from node.outputs import wording
from node.outputs.document import save_bytes
from node.store.correction import Correction, CorrectionKind
from node.store.study_facts import films_of
from node.web.study_outputs import outputs_of
from tests.node.jobs.test_rounds import STUDY, Bench, film, predecessor
from tests.support import validators

KEY = "atelectasis"  # present on every film of the scripted reader
START = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
FILM = film("first")


def correct(
    bench: Bench,
    number: int,
    kind: CorrectionKind,
    *,
    prompt: str = "",
    box: Box | None = None,
    text: str = "",
    withdraws: str = "",
    by: str = "anna",
    is_released: bool = True,
) -> str:
    """Store a correction; is_released: whether it may leave."""
    made = Correction(
        id=f"{number:032x}",
        study_uid=str(STUDY),
        film=str(FILM.SOPInstanceUID),
        kind=kind,
        at=START + timedelta(seconds=number),
        by=by,
        source="page",
        prompt=prompt,
        box=box,
        text=text,
        withdraws=withdraws,
    )
    bench.spool.keep_document(made.study_uid, "corrections", made.id, encode(made))
    if is_released:
        gathering.release(bench.spool, made.study_uid, gathering.waiting(bench.spool, made.study_uid))
    return made.id


def rounds(tmp_path: Path) -> tuple[Bench, list[Delivery]]:
    bench = Bench(tmp_path)
    bench.receive(FILM)
    return bench, bench.round()


def report_of(bench: Bench, deliveries: list[Delivery]) -> Dataset:
    (report,) = bench.objects(deliveries, "sr")
    return report


def persons(report: Dataset) -> list[str]:
    return [str(item.value) for item in report.iterall() if item.keyword == "PersonName"]


def texts(report: Dataset) -> list[str]:
    return [str(item.value) for item in report.iterall() if item.keyword == "TextValue"]


def observations(report: Dataset) -> list[tuple[str, list[str]]]:
    """When each item was observed that says so (PS3.3 C.17.3), with the persons below it."""
    return [
        (str(item.ObservationDateTime), persons(item)) for item in all_items(report) if "ObservationDateTime" in item
    ]


def all_items(item: Dataset) -> Iterator[Dataset]:
    yield item
    for child in item.get("ContentSequence", ()):
        yield from all_items(child)


def meanings(report: Dataset) -> set[str]:
    return {str(item.value) for item in report.iterall() if item.keyword == "CodeMeaning"}


def test_a_correction_makes_a_new_version_of_report_and_overlay(tmp_path: Path) -> None:
    bench, first = rounds(tmp_path)
    correct(bench, 1, CorrectionKind.REJECT, prompt=KEY)
    assert bench.spool.has_unread(str(STUDY))

    second = bench.round()
    old, new = report_of(bench, first), report_of(bench, second)

    assert bench.reader.count == 1  # the film is not read again
    assert sorted(delivery.kind for delivery in second) == ["gsps", "sr"]
    assert predecessor(new) == old.SOPInstanceUID
    assert "Rejected by a reader" in meanings(new) - meanings(old)
    assert persons(new) == ["anna^"]
    assert (new.VerificationFlag, new.CompletionFlag) == ("UNVERIFIED", "COMPLETE")
    assert validators.dciodvfy(new) == []
    assert not bench.spool.has_unread(str(STUDY))


@pytest.mark.drill(part="objects")
def test_the_results_of_a_study_have_the_versions_that_the_reports_tell(tmp_path: Path) -> None:
    bench = Bench(tmp_path, outputs=("sr", "sr3d", "text", "gsps"))
    bench.receive(FILM)
    sent = bench.round()
    for number, kind in enumerate((CorrectionKind.REJECT, CorrectionKind.ACCEPT), 1):
        correct(bench, number, kind, prompt=KEY)
        sent += bench.round()

    listed = list(outputs_of(str(STUDY), bench.spool))

    assert {(output.kind, output.version) for output in listed} == {
        (kind, version) for kind in ("sr", "sr3d", "text", "gsps") for version in (1, 2, 3)
    }
    versions = {output.uid: output.version for output in listed}
    for report in (report for kind in ("sr", "sr3d", "text") for report in bench.objects(sent, kind)):
        said = [int(number) for number in re.findall(r"Version (\d)\. It replaces", " ".join(texts(report)))]
        assert said == [version for version in (versions[report.SOPInstanceUID],) if version > 1]


@pytest.mark.drill(part="objects")
def test_a_corrected_item_says_who_said_it_and_when(tmp_path: Path) -> None:
    bench = Bench(tmp_path, outputs=("sr", "sr3d"), zone="Europe/Berlin")
    bench.receive(FILM)
    first = bench.round()
    correct(bench, 1, CorrectionKind.ACCEPT, prompt=KEY)
    correct(bench, 2, CorrectionKind.REJECT, prompt="edema", by="bert")

    second = bench.round()
    written = [bench.objects(deliveries, kind)[0] for deliveries in (first, second) for kind in ("sr", "sr3d")]

    said = [*2 * [("20261123080001-0400", ["anna^"])], ("20261123080002-0400", ["bert^"])]  # the first has two boxes
    assert [observations(report) for report in written] == [[], [], said, said]
    assert [validators.dciodvfy(report) for report in written] == [[]] * 4
    assert any("Confirmed by a reader." in words for words in texts(written[2]))


@pytest.mark.drill(part="objects")
def test_a_report_of_text_says_who_rejected_a_finding_and_when(tmp_path: Path) -> None:
    reports = []
    for kind in ("sr", "text"):
        bench = Bench(tmp_path / kind, outputs=(kind,))
        bench.receive(FILM)
        bench.round()
        (film,) = films_of(bench.spool, str(FILM.SOPInstanceUID))
        answer = answered_film.read_film(bench.spool, film).answer
        reported = [finding.prompt for finding in wording.reported(answer)]
        for number, prompt in enumerate(reported, 1):
            correct(bench, number, CorrectionKind.REJECT, prompt=prompt)
        reports += bench.objects(bench.round(), kind)

    said = [(f"2026112308000{number}-0400", ["anna^"]) for number in range(1, len(reported) + 1)]
    assert len(reports) == 4, "each twice: `writers.first_of_series`"
    assert [sorted(observations(report)) for report in reports] == [said] * 4
    assert all("Atelectasis: rejected by a reader." in texts(report) for report in reports)
    assert [validators.dciodvfy(report) for report in reports] == [[]] * 4


@pytest.mark.drill(part="objects")
def test_a_reworded_sentence_says_who_wrote_it_and_when(tmp_path: Path) -> None:
    reports = []
    for kind in ("sr", "sr3d", "text"):
        bench = Bench(tmp_path / kind, outputs=(kind,))
        bench.receive(FILM)
        bench.round()
        correct(bench, 1, CorrectionKind.ACCEPT, prompt=KEY)
        correct(bench, 2, CorrectionKind.REWORD, prompt=KEY, text="A small band.", by="bert")
        reports += bench.objects(bench.round(), kind)

    sentence, group = ("20261123080002-0400", ["bert^"]), ("20261123080001-0400", ["bert^", "anna^"])
    in_groups = 2 * [group, sentence]  # the finding has two boxes
    assert [observations(report) for report in reports[:2]] == [in_groups, in_groups]
    assert observations(reports[2]) == [("20261123080001-0400", ["anna^"]), sentence]
    assert "A small band. (written by a reader)" in texts(reports[0])
    assert "Atelectasis: A small band. (written by a reader)" in texts(reports[2])
    assert len(reports) == 4, "the text twice: `writers.first_of_series`"
    assert [validators.dciodvfy(report) + validators.dsrdump(report) for report in reports] == [[]] * 4
    assert validators.pixelmed([reports[0], reports[2]]) == [[], []]


@pytest.mark.drill(part="objects")
def test_highdicom_reads_groups_with_a_reworded_sentence(tmp_path: Path) -> None:
    bench, _ = rounds(tmp_path)
    correct(bench, 1, CorrectionKind.REWORD, prompt=KEY, text="A small band.", by="")

    content = srread(BytesIO(save_bytes(report_of(bench, bench.round())))).content
    assert isinstance(content, MeasurementReport)
    groups = content.get_planar_roi_measurement_groups()

    written = [
        item
        for group in groups
        for item in all_items(group[0])
        if item.get("TextValue") == "A small band. (written by a reader)"
    ]
    assert len(written) == 2
    assert [persons(item) for item in written] == [["Reader^"], ["Reader^"]]
    assert any("with corrections by a reader" in said for said in texts(content[0]))


def test_a_correction_taken_back_restores_what_the_report_said(tmp_path: Path) -> None:
    bench, first = rounds(tmp_path)
    rejection = correct(bench, 1, CorrectionKind.REJECT, prompt=KEY)
    second = bench.round()
    correct(bench, 2, CorrectionKind.WITHDRAW, withdraws=rejection)

    third = bench.round()
    reports = [report_of(bench, deliveries) for deliveries in (first, second, third)]

    assert len({report.SOPInstanceUID for report in reports}) == 3
    assert predecessor(reports[2]) == reports[1].SOPInstanceUID
    assert texts(reports[2]) != texts(reports[0])
    restored = [words.replace("\r\n".join(["", *wording.version(3)]), "") for words in texts(reports[2])]
    assert restored == texts(reports[0])


@pytest.mark.drill(part="objects")
def test_a_correction_survives_a_restart_before_its_round(tmp_path: Path) -> None:
    bench, _ = rounds(tmp_path)
    correct(bench, 1, CorrectionKind.REJECT, prompt=KEY)

    again = Bench(tmp_path)

    assert again.spool.has_unread(str(STUDY))
    assert "Rejected by a reader" in meanings(report_of(again, again.round()))
    assert again.steps.plan(str(STUDY)) is None


@pytest.mark.drill(part="objects")
def test_a_lost_output_is_written_again_with_its_corrections(tmp_path: Path) -> None:
    bench, _ = rounds(tmp_path)
    correct(bench, 1, CorrectionKind.REJECT, prompt=KEY)
    second = bench.round(is_sent=False)
    written = {delivery: bench.spool.output(delivery) for delivery in second}
    for path in (tmp_path / "studies" / str(STUDY) / "outputs").iterdir():
        path.unlink()

    bench.steps.plan(str(STUDY))

    assert {delivery: bench.spool.output(delivery) for delivery in second} == written
