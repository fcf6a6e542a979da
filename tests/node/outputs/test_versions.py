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
from node.domain import About, Assessment, Delivery, Film, OutputObject, ReaderMark, Subject
from node.jobs import gathering
from node.outputs import document, oru, report_txt
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
    only, second = surer(1), replace(surer(1), source=samples.film_uid(2))

    rounds = written_in_turn((only,), (only, second), (surer(2), second), kinds=("gsps",), numbers=numbers)

    found = [[int(dataset.InstanceNumber) for _, dataset in outputs] for outputs in rounds]
    assert found == [first, [*first, late], [late + 1, late]]


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


# What a reader said of one film stands in no text that is about another: a film's objects speak of that film.

MARK = ReaderMark(what=Assessment.ACCEPTED, by="anna", at=datetime(2026, 11, 23, tzinfo=UTC))
WITHOUT = "without review by a person"
WITH = "with corrections by a reader"


def accepted(read: Film) -> Film:
    first, *others = read.findings
    return replace(read, findings=(replace(first, reader=MARK), *others))


def rejected(read: Film) -> Film:
    return replace(read, findings=(replace(absent(), reader=replace(MARK, what=Assessment.REJECTED)),))


def reworded(read: Film) -> Film:
    first, *others = read.sentences
    worded = replace(first, by="reader", reader=replace(MARK, what=Assessment.REWORDED))
    return replace(read, sentences=(worded, *others))


OTHERS = {
    "with a finding": replace(samples.film(2, findings=(finding(), absent())), ratio=samples.ratio()),
    "without a finding": samples.film(2, findings=(absent(),)),
    "not read": unread(2),
}
FIRST = replace(samples.film(1, findings=(finding(), absent())), ratio=samples.ratio())
TEXTS = ("sr", "sr3d", "text", "gsps")  # a drawn film takes longer, and says nothing of other films


def texts(dataset: Dataset) -> str:
    return " ".join(said(dataset).split()) if "ContentSequence" in dataset else ""


def by_object(*of: tuple[Film, ...], kinds: tuple[str, ...] = TEXTS) -> list[dict[tuple[Subject, str], Dataset]]:
    """The objects of each round, by what they are about and by their UID."""
    return [
        {(output.subject, output.sop_instance_uid): dataset for output, dataset in outputs}
        for outputs in written_in_turn(*of, kinds=kinds)
    ]


@pytest.mark.parametrize(
    ("correct", "other"),
    [(accepted, OTHERS["with a finding"]), (rejected, OTHERS["without a finding"]), (reworded, OTHERS["not read"])],
)
def test_a_correction_makes_a_version_of_its_film_and_of_no_other(correct: Callable[[Film], Film], other: Film) -> None:
    before, after = by_object((FIRST, other), (correct(FIRST), other))

    of_other = {about for about in before if about[0].film == other.source}
    assert of_other == {about for about in after if about[0].film == other.source}
    assert of_other or not other.is_read
    assert {stated_version(after[about]) for about in of_other} <= {1}
    assert not [texts(after[about]) for about in of_other if WITH in texts(after[about])]
    own = Subject(about=About.FILM, film=FIRST.source)
    new = [texts(after[about]) for about in after.keys() - before.keys() if about[0] == own]
    assert [WITH in text for text in new if text] == [True, True, True]  # sr, sr3d and text


@pytest.mark.parametrize("correct", [accepted, rejected, reworded])
def test_a_ratio_that_nobody_corrected_stays_as_it_was(correct: Callable[[Film], Film]) -> None:
    before, after = by_object((FIRST,), (correct(FIRST),), kinds=("sr", "sr3d"))

    of_ratio = {about for about in before if about[0].about is About.RATIO}
    assert len(of_ratio) == 2
    assert of_ratio == {about for about in after if about[0].about is About.RATIO}
    assert all(WITHOUT in texts(after[about]) for about in of_ratio)


WHOLE = {
    "nobody": ((FIRST, samples.film(2)), WITHOUT),
    "all films": ((accepted(FIRST), reworded(samples.film(2))), f"{WITH}, who did not verify it"),
    "the only film": ((accepted(FIRST),), f"{WITH}, who did not verify it"),
    "one film": ((accepted(FIRST), samples.film(2)), f"{WITH} on film 1 of 2, who did not verify it"),
    "two films": (
        (accepted(FIRST), unread(2), reworded(samples.film(3))),
        f"{WITH} on films 1 and 3 of 3, who did not verify it",
    ),
}


@pytest.mark.parametrize(("films", "expected"), WHOLE.values(), ids=WHOLE)
def test_a_text_on_several_films_names_the_corrected(films: tuple[Film, ...], expected: str) -> None:
    of = report(*films)
    headers = samples.sources(*(cr(number) for number in range(1, 4)))
    _, message = oru.write(of, headers, BERLIN, order=None, documents=[])
    [study] = by_object(films, kinds=("text",))

    found = [report_txt.render(of), *(texts(study[about]) for about in study if not about[0].film)]
    assert [expected in text for text in found] == [True] * len(found)
    # A message breaks its lines after some 90 characters; the end of the sentence stands in another line.
    assert expected.split(", who")[0] in " ".join(
        line.split("|")[5].strip() for line in message.decode().split("\r") if line.startswith("OBX") and "|TX|" in line
    )
