"""Versions of what the node says about a film: the newest is the one that a workstation shows, and says which it is.

OHIF 3.13.2 shows of a series the report with the highest Instance Number, and of equal numbers the one whose UID comes
last: of seven versions it showed one that the reader had taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from models.documents import encode
from node.domain import About, Delivery, Film, OutputObject
from node.jobs import gathering
from node.outputs import document
from node.outputs.writers import numbered, write_objects
from node.store.correction import Correction, CorrectionKind
from node.store.rounds import RoundMark
from tests.node.jobs.test_rounds import STUDY, Bench, film
from tests.node.outputs.test_rejection import dcmtk_note, highdicom_note
from tests.support import films, samples
from tests.support.documents import said
from tests.support.samples import BERLIN, absent, cr, finding, received, report, unread

KINDS = ("sr", "sr3d", "text", "gsps", "sc")
SEVEN = range(1, 8)


def surer(version: int) -> Film:
    """The film of a version: another probability each time, as long as there is a finding at all."""
    return replace(samples.film(findings=(finding(probability=0.5 + version / 100),)), ratio=samples.ratio())


def written_in_turn(
    *of: tuple[Film, ...], kinds: tuple[str, ...] = KINDS, numbers: Mapping[int, int | None] | None = None
) -> list[list[tuple[OutputObject, Dataset]]]:
    """Write rounds one after the other, each with what came before it; numbers: Instance Numbers of films, from 1."""
    headers = [cr(number) for number in range(1, 4)]
    for number, own in (numbers or {}).items():
        headers[number - 1].InstanceNumber = own
    rounds: list[list[tuple[OutputObject, Dataset]]] = []
    for films_of_round in of:
        earlier = tuple(tuple(output for output, _ in found) for found in rounds)
        known = [output for outputs in earlier for output in outputs]
        found = []
        objects = write_objects(
            replace(report(*films_of_round), earlier=earlier), received(*headers), zone=BERLIN, kinds=kinds
        )
        for made in objects:
            known.append(output := numbered(made, known))
            found.append((output, made.dataset))
        rounds.append(found)
    return rounds


def by_document(rounds: list[list[tuple[OutputObject, Dataset]]]) -> dict[tuple[str, ...], list[Dataset]]:
    """The versions of each document: a kind, what it is about, and which of two pictures."""
    found: dict[tuple[str, ...], list[Dataset]] = {}
    for outputs in rounds:
        for output, dataset in outputs:
            which = str(dataset.get("DerivationDescription", ""))[:60]
            found.setdefault((output.kind, output.subject.about, output.subject.film, which), []).append(dataset)
    return found


def stated_version(dataset: Dataset) -> int:
    """The version that an object says it is: in its first text, or in its description; 1 if it says nothing."""
    if "ContentSequence" in dataset:
        words = said(dataset).split("\n")[first_text(dataset)]
    else:
        words = str(dataset.get("ContentDescription", "") or dataset.get("DerivationDescription", ""))
    _, found, rest = words.lower().partition("version ")
    return int(rest.split(".")[0].split()[0]) if found else 1


def first_text(dataset: Dataset) -> int:
    """The place of the first text that no program or person is named by."""
    texts = said(dataset).split("\n")
    return next(place for place, words in enumerate(texts) if words.startswith("AI RESEARCH - NOT FOR DIAGNOSIS"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_version_has_a_higher_number_than_those_before(kind: str) -> None:
    rounds = written_in_turn(*((surer(version),) for version in SEVEN), kinds=(kind,))

    for versions in by_document(rounds).values():
        if len({str(dataset.SOPInstanceUID) for dataset in versions}) == 1:
            continue  # the report on the ratio stays as it is
        assert len(versions) == 7
        numbers = [int(dataset.InstanceNumber) for dataset in versions]
        assert numbers == sorted(set(numbers))
        assert len({str(dataset.SeriesInstanceUID) for dataset in versions}) == 1
        assert len({str(dataset.SeriesDescription) for dataset in versions}) == 1
        assert [stated_version(dataset) for dataset in versions] == list(SEVEN)


def test_versions_of_the_ratio_and_of_the_study_are_told_too() -> None:
    of_ratio = [replace(surer(1), ratio=samples.ratio(mm_per_pixel=width)) for width in (0.1, 0.2)]
    of_study = [(surer(1), unread(2)), (surer(2), unread(2)), (surer(2),), (surer(3), unread(2))]

    ratios = by_document(written_in_turn(*((item,) for item in of_ratio), kinds=("sr",)))
    studies = written_in_turn(*of_study, kinds=("sr",))

    (versions,) = (found for (_, about, *_), found in ratios.items() if about == About.RATIO)
    assert [(int(item.InstanceNumber), stated_version(item)) for item in versions] == [(1, 1), (2, 2)]
    reports = [dataset for outputs in studies for output, dataset in outputs if output.subject.about is About.STUDY]
    assert [(int(item.InstanceNumber), stated_version(item)) for item in reports] == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize("kind", ["sr", "sr3d", "text"])
@pytest.mark.parametrize("is_found", [(True, False, True), (False, True, False)])
def test_a_report_of_text_counts_after_one_with_boxes(kind: str, is_found: tuple[bool, ...]) -> None:
    """All findings were rejected, or the first was added: it is the next version, in the same series."""
    turns = [(surer(1) if found else samples.film(findings=(absent(),)),) for found in is_found]

    rounds = written_in_turn(*turns, kinds=(kind,))

    reports = [dataset for outputs in rounds for output, dataset in outputs if output.subject.about is not About.RATIO]
    assert [stated_version(dataset) for dataset in reports] == [1, 2, 3]
    assert [int(dataset.InstanceNumber) for dataset in reports] == [1, 2, 3]
    assert len({(str(dataset.SeriesInstanceUID), int(dataset.SeriesNumber)) for dataset in reports}) == 1


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize(
    ("kind", "is_found"),
    [("text", (True, True, False)), ("sr", (True, False, True, False)), ("sr3d", (False, True, False))],
)
def test_ohif_shows_the_newest_words_of_a_series(tmp_path: Path, kind: str, is_found: tuple[bool, ...]) -> None:
    """It asks the last report of a series whether boxes are drawn, and otherwise shows the text of the first."""
    bench = Bench(tmp_path, outputs=(kind,))
    bench.receive(FILM)
    series = list(bench.objects(bench.round(), kind))
    for number, found in enumerate(is_found, 1):
        correct(bench, number, CorrectionKind.ACCEPT if found else CorrectionKind.REJECT)
        made = bench.objects(bench.round(), kind)
        series = sorted([*series, *made], key=lambda dataset: int(dataset.InstanceNumber))

        first, last = series[0], series[-1]
        assert last.SOPInstanceUID == made[0].SOPInstanceUID, "the newest report is the last"
        if last.ContentTemplateSequence[0].TemplateIdentifier == "2000":
            assert said(first) == said(last)
            assert len(made) == 2
        else:
            assert len(made) == 1


def test_what_says_the_same_stays_one_object_with_its_number() -> None:
    first, other = (surer(1),), (surer(2),)

    rounds = written_in_turn(first, first, other, other, first)

    for kind in KINDS:
        objects = [next(item for output, item in outputs if output.kind == kind) for outputs in rounds]
        assert [len({str(item.SOPInstanceUID) for item in objects[:end]}) for end in (2, 4, 5)] == [1, 2, 3]
        assert [stated_version(item) for item in objects] == [1, 1, 2, 2, 3]
        assert document.save_bytes(objects[0]) == document.save_bytes(objects[1])


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize(
    ("numbers", "first", "late"),
    [
        ({1: 5, 2: 3}, [5], 6),
        ({1: None, 2: None}, [1], 2),
        ({1: 3, 2: 2**31 - 1}, [3], 4),
        ({1: 2**31 - 1, 2: 1}, [1], 2),
    ],
)
def test_states_of_all_films_share_one_series(numbers: dict[int, int | None], first: list[int], late: int) -> None:
    """A film that comes late has a number above that of the film that was there, and so has each later version."""
    film, second = surer(1), replace(surer(1), source=samples.film_uid(2))

    rounds = written_in_turn((film,), (film, second), (surer(2), second), kinds=("gsps",), numbers=numbers)

    found = [[int(dataset.InstanceNumber) for _, dataset in outputs] for outputs in rounds]
    assert found == [first, [*first, late], [late + 1, late]]


def test_films_of_one_round_get_different_numbers() -> None:
    both = [(surer(version), replace(surer(version), source=samples.film_uid(2))) for version in (1, 2)]

    rounds = written_in_turn(*both, kinds=("gsps", "sc"))

    for kind in ("gsps", "sc"):
        by_series: dict[str, list[int]] = {}
        for output, dataset in (pair for outputs in rounds for pair in outputs if pair[0].kind == kind):
            by_series.setdefault(output.series_instance_uid, []).append(int(dataset.InstanceNumber))
        assert all(numbers == sorted(set(numbers)) for numbers in by_series.values()), kind


def test_the_description_of_a_state_stays_within_its_length() -> None:
    nothing = [(samples.film(findings=(replace(absent(), probability=n / 1000),)),) for n in range(2)]
    rounds = written_in_turn(*(nothing[n % 2] for n in range(2)), kinds=("gsps",))

    words = str(rounds[-1][0][1].ContentDescription)

    assert words == "AI RESEARCH - NOT FOR DIAGNOSIS: no finding drawn"  # no probability is in a state: it is the same
    assert len(f"{words}, version 9999") <= 64


FILM = film("first")
KEY = "atelectasis"
TURNS: tuple[tuple[CorrectionKind, int], ...] = (
    (CorrectionKind.ACCEPT, 0),
    (CorrectionKind.REJECT, 0),
    (CorrectionKind.WITHDRAW, 2),
    (CorrectionKind.WITHDRAW, 1),
    (CorrectionKind.REJECT, 0),
    (CorrectionKind.WITHDRAW, 5),
)


def correct(bench: Bench, number: int, kind: CorrectionKind, *, withdraws: int = 0) -> None:
    """Store what a reader says, as the page does; withdraws: the number of what is taken back."""
    made = Correction(
        id=f"{number:032x}",
        study_uid=str(STUDY),
        film=str(FILM.SOPInstanceUID),
        kind=kind,
        at=datetime(2026, 11, 23, 12, tzinfo=UTC) + timedelta(seconds=number),
        by="anna",
        source="page",
        prompt="" if withdraws else KEY,
        withdraws=f"{withdraws:032x}" if withdraws else "",
    )
    bench.spool.keep_document(made.study_uid, "corrections", made.id, encode(made))
    gathering.release(bench.spool, made.study_uid, gathering.waiting(bench.spool, made.study_uid))


def corrected_rounds(bench: Bench, *, is_sent: bool = True) -> list[list[Delivery]]:
    """The rounds of a film that a reader corrects six times, back and forth: seven versions."""
    bench.receive(FILM)
    deliveries = [bench.round(is_sent=is_sent)]
    for number, (kind, withdraws) in enumerate(TURNS, 1):
        correct(bench, number, kind, withdraws=withdraws)
        deliveries.append(bench.round(is_sent=is_sent))
    return deliveries


@pytest.mark.drill(part="objects")
def test_lost_versions_are_written_again_byte_for_byte(tmp_path: Path) -> None:
    bench = Bench(tmp_path, outputs=KINDS)
    corrected_rounds(bench, is_sent=False)
    before = contents(tmp_path)
    for path in (tmp_path / "studies" / str(STUDY) / "outputs").iterdir():
        path.unlink()

    Bench(tmp_path, outputs=KINDS).steps.plan(str(STUDY))

    assert len(before) > 30
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[str, bytes]:
    """What is stored of the study for its destinations, by the name of the file."""
    return {path.name: path.read_bytes() for path in (folder / "studies" / str(STUDY) / "outputs").iterdir()}


@pytest.mark.drill(part="objects")
def test_a_reading_that_says_the_same_sends_nothing_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, outputs=KINDS)
    corrected_rounds(bench)
    spool, marks = bench.spool, bench.spool.rounds(str(STUDY))
    again = RoundMark(
        number=marks[-1].number + 1, created_at=marks[-1].created_at, files=(), outputs=(),
        parked={file: "again" for file in marks[-1].files}, corrections=marks[-1].corrections,
    )  # fmt: skip
    spool.mark_round(str(STUDY), again)

    assert bench.round() == []
    newest = spool.rounds(str(STUDY))[-1].outputs
    assert [asdict(output) for output in newest] == [asdict(output) for output in marks[-1].outputs]


def test_numbers_outlive_the_objects_that_have_them(tmp_path: Path) -> None:
    """Retention removed the study; a corrected film comes again, and the archive still has the versions before it."""
    bench = Bench(tmp_path)
    bench.receive(films.thumbnail({"PatientName": "Wrong^Name"}))
    bench.round()
    bench.ledger.forget(STUDY)
    assert bench.spool.remove_study(STUDY)
    bench.receive(films.thumbnail({"PatientName": "Right^Name"}))

    (dataset,) = bench.objects(bench.round(), "sr")

    assert (int(dataset.InstanceNumber), stated_version(dataset)) == (2, 2)


@pytest.mark.drill(part="objects")
def test_notes_of_every_origin_are_in_order_in_their_series(tmp_path: Path) -> None:
    """A note of an archive, a film that comes again as another patient's, and another note: all lie in one series."""
    bench = Bench(tmp_path)
    for name in ("first", "second", "third"):
        bench.receive(film(name))
    bench.round()
    notes: list[Dataset] = []
    steps: tuple[Callable[[], None], ...] = (
        lambda: bench.receive(highdicom_note(film("first"))),
        lambda: bench.receive(films.changed(film("third"), {"PatientID": "P-9"})),
        lambda: bench.receive(dcmtk_note(tmp_path, film("second"))),
    )
    for step in steps:
        step()
        notes += bench.objects(bench.round(), "rejection")

    assert len(notes) == 3
    assert len({str(note.SeriesInstanceUID) for note in notes}) == 1
    assert [int(note.InstanceNumber) for note in notes] == [1, 2, 3]
