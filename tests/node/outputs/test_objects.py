"""What all DICOM objects of the node share: they are valid, have one UID for one content, and a number a version."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset

from docs.statement import written as statement
from models.contract import Box, FindingState
from models.documents import encode
from node.dicom import identity
from node.dicom.rejection_note import TITLES, RejectionNote
from node.domain import About, Assessment, Film, OutputObject, ReaderMark, Report, Subject, derive_uid, is_uid
from node.jobs import gathering
from node.output_kinds import OUTPUTS, Written
from node.outputs import answers, document, gsps, oru, rejection, report_txt, writers
from node.outputs.document import save_bytes
from node.outputs.source import Picture, from_files
from node.outputs.sr import report as sr
from node.outputs.writers import numbered, output_of, sop_class_of, write_objects
from node.store.correction import CorrectionKind
from tests.node.jobs.test_rounds import STUDY, Bench
from tests.node.outputs.test_answer_objects import QUESTIONS, asked
from tests.node.outputs.test_answer_objects import written as written_answer
from tests.node.outputs.test_corrections import made
from tests.support import films, recorded, samples, validators
from tests.support.documents import everything, reference, replaced, said
from tests.support.lasting import lasting
from tests.support.samples import (
    BERLIN,
    absent,
    bare,
    cr,
    film,
    film_uid,
    finding,
    received,
    report,
    several,
    sources,
    unread,
)

KINDS = tuple(OUTPUTS.own)
GRAY = np.full((samples.ROWS, samples.COLUMNS), 90, np.uint8)
ONE = report(film(findings=(finding(), absent())))


def note() -> Dataset:
    """Write a note that rejects a report, a presentation state and a capture."""
    received = RejectionNote(title=TITLES["113001"], rejected=frozenset((film_uid(1),)), header=cr(1))
    own = [
        OutputObject(
            kind=kind,
            study_uid=samples.STUDY,
            sop_class_uid=sop_class_of(kind),
            sop_instance_uid=derive_uid("written", kind),
            series_instance_uid=derive_uid("series", kind),
            subject=Subject(about=About.FILM, film=film_uid(1)),
        )
        for kind in ("sr", "gsps", "sc")
    ]
    return dcmread(BytesIO(save_bytes(rejection.write(received, own, report(several()), zone=BERLIN).dataset)))


def answered(header: Dataset) -> Iterator[Dataset]:
    for question in QUESTIONS.values():
        yield from (dataset for _, dataset in written_answer(question, "sr", "sr3d", "gsps", header=header))


WRITTEN: Mapping[str, Callable[[], list[Dataset]]] = {
    "study": lambda: [*(dataset for _, dataset in statement.study().objects()), note()],
    "answers": lambda: [*answered(cr(1))],
    "bare study": lambda: [dataset for _, dataset in statement.from_bare_films().objects()],
    "bare answers": lambda: [*answered(bare(1))],
    "another version": lambda: [dataset for _, dataset in statement.after_another_version().objects()],
}
"""Objects of every kind, with every finding in every state, corrections, ratios, answers, and a rejection note."""
LONG = ("bare study", "bare answers", "another version")


@cache
def objects(of: str) -> list[Dataset]:
    return WRITTEN[of]()


@pytest.mark.parametrize(
    "of", [pytest.param(of, marks=pytest.mark.drill(part="objects") if of in LONG else ()) for of in WRITTEN]
)
def test_every_object_is_valid_complete_and_has_no_date_of_the_clock(of: str) -> None:
    today = f"{datetime.now(UTC):%Y%m%d}"

    assert objects(of)
    for dataset in objects(of):
        assert validators.dciodvfy(dataset) == []
        assert {"SR": validators.dsrdump, "PR": validators.dcmpschk}.get(dataset.Modality, lambda _: [])(dataset) == []
        references = (item for child in everything(dataset) for item in child.get("ReferencedSOPSequence", ()))
        assert set(map(named, references)) <= evidence(dataset)
        dates = [element for element in dataset.iterall() if element.VR in ("DA", "DT")]
        assert [str(date) for date in dates if str(date.value).startswith(today)] == []


def lines_of(dataset: Dataset, indent: str = "") -> Iterator[str]:
    """All that an object says but for its pixels: a line for each element, and for each item of a long one."""
    for element in dataset:
        line = f"{indent}{element.keyword}: {text_of(element)}"
        if element.VR != "SQ" or len(line) <= LONGEST_LINE:
            yield line if element.keyword != "PixelData" else f"{element.keyword}"
            continue
        yield f"{indent}{element.keyword}"
        for item in element.value:
            line = f"{indent} {' | '.join(map(text_of, item))}"
            yield from [line] if len(line) <= LONGEST_LINE else lines_of(item, f"{indent}  ")


LONGEST_LINE = 320


def text_of(element: DataElement) -> str:
    if element.VR != "SQ":
        return str(element.value)
    return "; ".join("(" + " ".join(map(text_of, item)) + ")" for item in element.value)


def test_every_object_is_as_recorded() -> None:
    """A film with all kinds of findings, one that was not read, one without boxes; answers, and a rejection note."""
    small = Box(left=1200, top=300, right=1216, bottom=324)
    doubtful = finding(samples.EDEMA, state=FindingState.INDETERMINATE, probability=0.414, site=samples.LUNG, side=None)
    unplaced = replace(doubtful, code=samples.PNEUMOTHORAX, boxes=(), sentence=None)
    reviewed = replace(doubtful, boxes=(replace(doubtful.boxes[0], box=small),))
    findings = (finding(), reviewed, finding(samples.DEVICES, site=None, side=None, sentence=1), unplaced)
    of = replace(film(findings=findings), ratio=samples.ratio(mm_per_pixel=0.143))
    by_rule = replace(of.sentences[1], text="There are support devices.", by="rule")
    of = replace(of, sentences=(of.sentences[0], by_rule, of.sentences[1]))
    without = film(3, findings=(samples.left_out(samples.DEVICES), absent(), replace(unplaced, code=samples.EDEMA)))

    made = made_of(of, unread(2), without, kinds=("sr", "text", "gsps", "sc"))
    objects = {f"{each.kind} {each.subject.about} {each.subject.film[-1:]}": each.dataset for each in made}
    for name in ("prompt", "absent"):
        objects |= {f"answer {name} {kind}": dataset for kind, dataset in written_answer(QUESTIONS[name], "sr", "gsps")}
    objects["rejection"] = note()

    read = {name: [*lines_of(dcmread(BytesIO(save_bytes(dataset))))] for name, dataset in objects.items()}
    of_all = set.intersection(*map(set, read.values()))
    said = {"all": sorted(of_all), **{name: [line for line in read[name] if line not in of_all] for name in read}}
    recorded.check("objects", json.loads(lasting(json.dumps(said).replace(identity.VERSION, "its version"))))


def named(item: Dataset) -> tuple[str, str]:
    return item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID


def evidence(dataset: Dataset) -> set[tuple[str, str]]:
    return {
        named(item)
        for study in dataset.get("CurrentRequestedProcedureEvidenceSequence", ())
        for series in study.ReferencedSeriesSequence
        for item in series.ReferencedSOPSequence
    }


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize("of", WRITTEN)
def test_every_report_keeps_to_its_template_in_pixelmed(of: str) -> None:
    reports = [dataset for dataset in objects(of) if dataset.Modality == "SR"]

    assert validators.pixelmed(reports) == [[] for _ in reports]


def test_no_name_of_a_patient_reaches_a_log(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("Doe", "A^B^C^D^E^F", "山田^太郎"):
        header = films.changed(cr(1), {"SpecificCharacterSet": "ISO_IR 192", "PatientName": name})
        with caplog.at_level("DEBUG"):
            samples.datasets(sr.write, report(several()), sources(header), BERLIN)
            samples.datasets(gsps.write, report(several()), samples.received(header), BERLIN)
        assert name not in caplog.text


# One UID never has two contents.


def written(of: Report, *headers: Dataset, zone: ZoneInfo = BERLIN) -> Dataset:
    """Write a report on one film, and read it back from its bytes."""
    [dataset] = samples.datasets(sr.write, of, sources(*(headers or (cr(1), bare(2)))), zone)
    return dcmread(BytesIO(save_bytes(dataset)))


def objects_of_first(*of: Film) -> dict[tuple[str, str], bytes]:
    """Write all objects of a study, and return those on its first film by kind and by what they are about."""
    headers = samples.received(cr(1), bare(2), cr(3), cr(4), picture=GRAY)
    made = list(writers.write_objects(report(*of), headers, zone=BERLIN, kinds=KINDS))
    return {
        (each.kind, subject.about): save_bytes(each.dataset)
        for each in made
        if (subject := output_of(each).subject).film == film_uid(1)
    }


@pytest.mark.parametrize("of", [several(), film(findings=(absent(),))], ids=["findings", "none"])
def test_what_is_written_of_a_film_is_the_same_each_time_and_beside_any_other_film(of: Film) -> None:
    of = replace(of, ratio=samples.ratio())
    neighbors = (unread(2), replace(several(), source=film_uid(3)), film(4))

    once, again, first, last = (
        objects_of_first(*found) for found in ((of,), (of,), (of, *neighbors), (*neighbors, of))
    )

    assert {kind for kind, _ in once} == set(KINDS)
    assert once == again == first == last


def test_a_later_round_that_says_the_same_has_the_same_uid_and_no_predecessor_of_its_own() -> None:
    first = written(ONE)
    older = replace(reference(first), sop_instance_uid="1.2.3")

    later = written(replace(ONE, created_at=datetime(2025, 1, 1, tzinfo=UTC), predecessors=(older, reference(first))))

    assert later.SOPInstanceUID == first.SOPInstanceUID
    assert replaced(later) == ["1.2.3"]
    assert validators.dciodvfy(later) == []


def test_whatever_is_said_differently_has_another_uid() -> None:
    [film_1] = ONE.films
    surer = replace(film_1.findings[0], probability=0.84)
    other_model = replace(samples.MODEL, weights_sha256="ef" * 32)
    *_, beside_another = samples.datasets(
        sr.write, replace(ONE, films=(film_1, unread(2))), sources(cr(1), bare(2)), BERLIN
    )

    others = [
        written(ONE),
        written(ONE, films.changed(cr(1), {"PatientName": "Muller^Jorg"})),
        written(ONE, zone=ZoneInfo("UTC")),
        written(replace(ONE, films=(replace(film_1, findings=(surer, absent())),))),
        written(replace(ONE, prompts_version="2")),
        written(replace(ONE, model=other_model)),
        written(report(film(findings=(absent(),)))),
        beside_another,
    ]

    assert len({str(dataset.SOPInstanceUID) for dataset in others}) == len(others)


@pytest.mark.parametrize("numbers", [(1, 3), (3, 1)])
def test_the_order_of_equal_films_does_not_decide_the_patient(numbers: tuple[int, int]) -> None:
    headers = sources(bare(2), cr(1), cr(3))
    headers[film_uid(3)].PatientName = "Other^Spelling"

    *_, dataset = samples.datasets(sr.write, report(unread(2), *(film(number) for number in numbers)), headers, BERLIN)

    assert dataset.PatientName == "Müller^Jörg"


@pytest.mark.parametrize(
    ("of", "numbers", "expected"),
    [
        ("AI findings", {"SeriesNumber": 1, "InstanceNumber": 1}, "AI findings S1 - "),
        ("AI findings", {"SeriesNumber": 3, "InstanceNumber": 12}, "AI findings S3 I12 - "),
        ("AI findings", {"SeriesNumber": 3, "InstanceNumber": "-1"}, "AI findings S3 - "),
        ("AI findings", {"SeriesNumber": 2**31 - 1, "InstanceNumber": 2**31 - 1}, "AI findings - "),
        ("AI findings", {"SeriesNumber": "-1", "InstanceNumber": 4}, "AI findings - "),
        ("AI findings", {}, "AI findings - "),
        (f"AI answer: {'w' * 64}", {"SeriesNumber": 3}, f"AI answer: {'w' * 17}... S3 - "),
    ],
)
def test_a_series_description_says_what_and_of_which_film(of: str, numbers: dict[str, object], expected: str) -> None:
    described = document.series_description(of, film=films.changed(Dataset(), numbers))

    assert described == f"{expected}RESEARCH, NOT FOR DIAGNOSIS"
    assert len(described) <= 64
    of_part = document.series_description("AI study report", part="0a1b2c3d")
    assert of_part == "AI study report, part 0a1b2c3d - RESEARCH, NOT FOR DIAGNOSIS"


# The table of writers: pictures are decoded when needed, one at a time, and the loss of one costs no report.


def made_of(
    *of: Film, kinds: tuple[str, ...] = KINDS, picture: Callable[[str], Picture | None] = lambda _uid: GRAY
) -> list[Written]:
    """Write objects of films; picture: what is asked for the picture of each."""
    received = {
        uid: samples.source(header, partial(picture, uid)) for uid, header in sources(cr(1), cr(2), cr(3)).items()
    }
    return list(writers.write_objects(report(*of), received, zone=BERLIN, kinds=kinds))


def test_what_a_writer_says_of_an_object_stands_in_it() -> None:
    made = made_of(replace(several(), ratio=samples.ratio()), unread(2), film(3))

    said = [(each.kind, each.subject, each.template) for each in made]
    found = [reference(each.dataset) for each in made]
    assert said == [(output.kind, output.subject, output.template) for output in found]
    assert {subject.about for _, subject, _ in said} == {About.FILM, About.RATIO, About.STUDY}


def test_pictures_are_asked_for_film_by_film_for_no_report_and_cost_nothing_else_if_there_are_none() -> None:
    of_reports, of_all = list[str](), list[str]()

    made_of(several(), film(3), kinds=("sr",), picture=of_reports.append)
    made = made_of(several(), unread(2), film(3), kinds=("sr", "gsps", "sc"), picture=of_all.append)

    assert of_reports == []
    assert of_all == sorted(of_all)
    assert set(of_all) == {film_uid(1), film_uid(3)}
    assert [each.kind for each in made] == ["sr", "sr", "sr", "gsps", "sc", "sc", "gsps", "sc"]


def test_one_picture_is_kept_at_a_time_a_damaged_file_has_none_and_a_lost_one_is_an_error_of_the_disk(
    tmp_path: Path,
) -> None:
    both = sources(films.thumbnail(), films.as_another(films.thumbnail(), "second"))
    paths = {uid: tmp_path / f"{number}.dcm" for number, uid in enumerate(both)}
    for uid, path in paths.items():
        path.write_bytes(films.file_bytes(both[uid]))
    ask_first, ask_second = (source.picture for source in from_files(both, paths).values())

    kept = ask_first()

    assert kept is not None
    assert kept is ask_first()
    assert ask_second() is not None
    assert kept is not ask_first()
    path = next(iter(paths.values()))
    for content in (b"", b"no film", path.read_bytes()[:-5000]):
        path.write_bytes(content)
        assert next(iter(from_files(both, paths).values())).picture() is None
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        next(iter(from_files(both, paths).values())).picture()


@pytest.mark.parametrize("series", [None, "", "1.2.3\\1.2.4", "1.2..3", "none", f"1.{'2' * 64}"])
def test_what_is_no_single_valid_series_is_none_and_no_received_header_is_changed(series: str | None) -> None:
    header = films.as_written(cr(1), {"SeriesInstanceUID": None if series is None else series.encode()})
    before, received = (
        header.to_json() if not series else "",
        {str(header.SOPInstanceUID): samples.source(header, lambda: GRAY)},
    )
    kinds = ("sr", "text", "gsps")

    made = [each.dataset for each in writers.write_objects(report(film()), received, zone=BERLIN, kinds=kinds)]
    answer = answers.write_objects(asked(), report(film()), *received.values(), zone=BERLIN, kinds=kinds)
    made += [each.dataset for each in answer]

    uids = {str(element.value) for each in made for element in each.iterall() if element.VR == "UI"}
    assert len(made) == 5
    assert all(map(is_uid, uids))
    assert series or header.to_json() == before


VERSIONED = ("sr", "sr3d", "text", "gsps", "sc")
SEVEN = range(1, 8)


def surer(version: int) -> Film:
    """The film of a version: another probability each time, as long as there is a finding at all."""
    return replace(samples.film(findings=(finding(probability=0.5 + version / 100),)), ratio=samples.ratio())


def written_in_turn(
    *of: tuple[Film, ...], kinds: tuple[str, ...] = VERSIONED, numbers: Mapping[int, int | None] | None = None
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
        for each in objects:
            known.append(output := numbered(each, known))
            found.append((output, each.dataset))
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
    """The version that an object says it is: beside its label, or in its description; 1 if it says nothing."""
    if "ContentSequence" in dataset:
        lines = said(dataset).split("\n")
        words = next(line for line in lines if line.startswith("AI RESEARCH - NOT FOR DIAGNOSIS"))
    else:
        words = str(dataset.get("ContentDescription", "") or dataset.get("DerivationDescription", ""))
    _, found, rest = words.lower().partition("version ")
    return int(rest.split(".")[0].split()[0]) if found else 1


@pytest.mark.parametrize("kind", VERSIONED)
def test_each_version_has_a_higher_number_than_those_before(kind: str) -> None:
    of_film = [replace(surer(version), ratio=samples.ratio(mm_per_pixel=version / 10)) for version in SEVEN]
    rounds = written_in_turn(*((film, unread(2)) for film in of_film), kinds=(kind,))

    for versions in by_document(rounds).values():
        if "not drawn" in str(versions[0].get("DerivationDescription", "")):
            continue  # the picture of the film that was not read stays as it is
        assert len(versions) == 7
        numbers = [int(dataset.InstanceNumber) for dataset in versions]
        assert numbers == sorted(set(numbers))
        assert len({str(dataset.SeriesInstanceUID) for dataset in versions}) == 1
        assert len({str(dataset.SeriesDescription) for dataset in versions}) == 1
        assert [stated_version(dataset) for dataset in versions] == list(SEVEN)


def test_what_says_the_same_stays_one_object_with_its_number() -> None:
    first, other = (surer(1),), (surer(2),)

    rounds = written_in_turn(first, first, other, other, first)

    for kind in VERSIONED:
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


FILM = films.as_another(films.thumbnail(), "first")
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
    names = {"study_uid": str(STUDY), "film": str(FILM.SOPInstanceUID)}
    what = {"withdraws": f"{withdraws:032x}"} if withdraws else {"prompt": KEY}
    correction = made(kind, number, **names, **what)
    bench.spool.keep_document(correction.study_uid, "corrections", correction.id, encode(correction))
    gathering.release(bench.spool, correction.study_uid, gathering.waiting(bench.spool, correction.study_uid))


def test_ohif_shows_the_newest_words_and_none_that_a_reader_took_back(tmp_path: Path) -> None:
    """It asks the last report of a series whether boxes are drawn, and otherwise shows the text of the first."""
    bench = Bench(tmp_path, outputs=("text",))
    bench.receive(FILM)
    series = bench.objects(bench.round(), "text")
    for number, kind in enumerate((CorrectionKind.ACCEPT, CorrectionKind.REJECT), 1):
        correct(bench, number, kind)
        newest, copied = bench.objects(bench.round(), "text")
        series = sorted([*series, newest, copied], key=lambda dataset: int(dataset.InstanceNumber))
        assert (series[0].SOPInstanceUID, series[-1].SOPInstanceUID) == (copied.SOPInstanceUID, newest.SOPInstanceUID)
        assert said(copied) == said(newest) != said(series[1])


@pytest.mark.drill(part="objects")
def test_seven_versions_are_written_again_byte_for_byte_and_a_reading_that_says_the_same_sends_nothing(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, outputs=VERSIONED)
    bench.receive(FILM)
    bench.round()
    for number, (kind, withdraws) in enumerate(TURNS, 1):
        correct(bench, number, kind, withdraws=withdraws)
        bench.round()
    folder = tmp_path / "studies" / str(STUDY) / "outputs"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        path.unlink()

    bench.steps.pipeline.rewrite(str(STUDY))

    assert len(before) > 30
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    last = bench.spool.rounds(str(STUDY))[-1]
    parked = {file: "again" for file in last.files}
    again = replace(last, number=last.number + 1, files=(), outputs=(), parked=parked)
    bench.spool.mark_round(str(STUDY), again)
    assert bench.round() == []
    newest = bench.spool.rounds(str(STUDY))[-1].outputs
    assert [asdict(output) for output in newest] == [asdict(output) for output in last.outputs]


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
def test_a_correction_makes_a_version_of_its_film_and_of_no_other_nor_of_the_ratio(
    correct: Callable[[Film], Film], other: Film
) -> None:
    before, after = by_object((FIRST, other), (correct(FIRST), other))

    of_other = {about for about in before if about[0].film == other.source}
    assert of_other == {about for about in after if about[0].film == other.source}
    assert of_other or not other.is_read
    assert {stated_version(after[about]) for about in of_other} <= {1}
    assert not [texts(after[about]) for about in of_other if WITH in texts(after[about])]
    own = Subject(about=About.FILM, film=FIRST.source)
    new = [texts(after[about]) for about in after.keys() - before.keys() if about[0] == own]
    assert [WITH in text for text in new if text] == [True, True, True]  # sr, sr3d and text
    of_ratio = {about for about in before if about[0].about is About.RATIO and about[0].film == FIRST.source}
    assert len(of_ratio) == 2
    assert of_ratio <= after.keys() and all(WITHOUT in texts(after[about]) for about in of_ratio)


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
