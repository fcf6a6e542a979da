"""What all DICOM objects of the node share: they are valid, have stable bytes and one UID for one content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from highdicom.ko import KeyObjectSelectionDocument
from pydicom import dcmread, dcmwrite
from pydicom.dataset import Dataset
from pydicom.uid import MultiFrameGrayscaleByteSecondaryCaptureImageStorage

from docs.statement import written as statement
from node.dicom.header_reading import read_header
from node.dicom.rejection_note import TITLES, RejectionNote
from node.domain import About, Film, OutputObject, Report, Subject, derive_uid, is_uid
from node.output_kinds import OUTPUTS, Written
from node.outputs import answers, document, gsps, rejection, writers
from node.outputs.document import save_bytes
from node.outputs.source import Picture, from_files
from node.outputs.sr import report as sr
from node.outputs.writers import output_of, sop_class_of
from tests.node.outputs.test_answer_objects import QUESTIONS, asked
from tests.node.outputs.test_answer_objects import written as written_answer
from tests.support import films, samples, validators
from tests.support.documents import everything, reference, replaced
from tests.support.samples import BERLIN, absent, bare, cr, film, film_uid, finding, report, several, sources, unread

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

    for dataset in objects(of):
        assert validators.dciodvfy(dataset) == []
        assert {"SR": validators.dsrdump, "PR": validators.dcmpschk}.get(dataset.Modality, lambda _: [])(dataset) == []
        references = (item for child in everything(dataset) for item in child.get("ReferencedSOPSequence", ()))
        assert set(map(named, references)) <= evidence(dataset)
        dates = [element for element in dataset.iterall() if element.VR in ("DA", "DT")]
        assert [str(date) for date in dates if str(date.value).startswith(today)] == []


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


def test_highdicom_reads_what_a_rejection_note_rejects() -> None:
    read = KeyObjectSelectionDocument.from_dataset(note())

    [study] = note().CurrentRequestedProcedureEvidenceSequence
    rejected = {
        (study.StudyInstanceUID, series.SeriesInstanceUID, item.ReferencedSOPInstanceUID)
        for series in study.ReferencedSeriesSequence
        for item in series.ReferencedSOPSequence
    }
    assert {read.resolve_reference(uid) for _, _, uid in rejected} == rejected
    assert len(read.content.get_references()) == len(rejected) == 3


@pytest.mark.parametrize("name", ["Doe", "A^B^C^D^E^F", "山田^太郎"])
def test_no_name_of_a_patient_reaches_a_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    header = films.changed(cr(1), {"SpecificCharacterSet": "ISO_IR 192", "PatientName": name})

    with caplog.at_level("DEBUG"):
        samples.datasets(sr.write, report(several()), sources(header), BERLIN)
        samples.datasets(gsps.write, report(several()), samples.received(header), BERLIN)

    assert name not in caplog.text


def test_a_film_of_a_class_with_several_frames_is_written() -> None:
    header = cr(1)
    header.SOPClassUID = MultiFrameGrayscaleByteSecondaryCaptureImageStorage

    [state] = samples.datasets(gsps.write, report(several()), samples.received(header), BERLIN)
    [document] = samples.datasets(sr.write, report(several()), sources(header), BERLIN)

    assert "ModalityLUTSequence" not in state and "RescaleSlope" in state
    assert document.ContentTemplateSequence[0].TemplateIdentifier == "1500"


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


def test_a_correction_and_its_reversal_are_new_objects() -> None:
    """A, the newest once more in another encoding, B, A, A again, B."""
    corrected = films.changed(cr(1), {"PatientName": "Muller^Jorg"})
    rounds: list[tuple[OutputObject, ...]] = []

    for header in (cr(1), cr(1), corrected, cr(1), cr(1), corrected):
        rounds.append((reference(written(replace(ONE, earlier=tuple(rounds)), header)),))

    uids = [output.sop_instance_uid for (output,) in rounds]
    assert uids == [uids[0], uids[0], uids[2], uids[3], uids[3], uids[5]]
    assert len(set(uids)) == 4


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


def test_a_series_description_names_a_part_of_the_study() -> None:
    described = document.series_description("AI study report", part="0a1b2c3d")

    assert described == "AI study report, part 0a1b2c3d - RESEARCH, NOT FOR DIAGNOSIS"


def test_an_object_that_is_read_and_saved_again_has_its_bytes() -> None:
    [dataset] = samples.datasets(sr.write, ONE, sources(cr(1)), BERLIN)
    saved = save_bytes(dataset)
    read = dcmread(BytesIO(saved))
    assert any(element.VR == "SQ" for element in read.iterall())  # has every element read, and encoded again

    assert save_bytes(read) == saved


def test_items_that_are_copied_from_a_film_keep_their_text(tmp_path: Path) -> None:
    """An output of a package may copy a sequence; its elements are decoded only when they are encoded again."""
    header = films.changed(cr(1), {"SpecificCharacterSet": "ISO_IR 144", "PatientName": "Толстой^Лев"})
    header.RequestAttributesSequence = [
        films.changed(Dataset(), {"ScheduledProcedureStepDescription": "Грудная клетка"})
    ]
    path = tmp_path / "film.dcm"
    dcmwrite(path, header, implicit_vr=False, little_endian=True)
    [dataset] = samples.datasets(sr.write, ONE, sources(cr(1)), BERLIN)

    dataset.RequestAttributesSequence = deepcopy(read_header(path).RequestAttributesSequence)
    document.seal(dataset, ONE, sources=[film_uid(1)], zone=BERLIN)

    [copied] = dcmread(BytesIO(save_bytes(dataset))).RequestAttributesSequence
    assert copied.ScheduledProcedureStepDescription == "Грудная клетка"


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


def test_pictures_are_asked_for_film_by_film_and_for_no_report() -> None:
    of_reports, of_all = list[str](), list[str]()

    made_of(several(), film(3), kinds=("sr",), picture=of_reports.append)
    made = made_of(several(), unread(2), film(3), picture=of_all.append)

    assert of_reports == []
    assert of_all == sorted(of_all)
    assert set(of_all) == {film_uid(1), film_uid(3)}
    assert {each.kind for each in made} == set(KINDS)


def test_films_that_cannot_be_decoded_lose_their_picture_alone() -> None:
    kinds = [made.kind for made in made_of(several(), film(3), kinds=("sr", "gsps", "sc"), picture=lambda _uid: None)]

    assert kinds == ["sr", "sr", "sr", "gsps", "sc", "gsps", "sc"]


def saved(folder: Path, *datasets: Dataset) -> tuple[Mapping[str, Dataset], Mapping[str, Path]]:
    """Save films; returns headers and paths by SOP Instance UID."""
    paths = {str(dataset.SOPInstanceUID): folder / f"{number}.dcm" for number, dataset in enumerate(datasets)}
    for path, dataset in zip(paths.values(), datasets, strict=True):
        path.write_bytes(films.file_bytes(dataset))
    return sources(*datasets), paths


def test_one_picture_is_kept_at_a_time(tmp_path: Path) -> None:
    first, second = films.thumbnail(), films.as_another(films.thumbnail(), "second")
    received = from_files(*saved(tmp_path, first, second))
    ask_first, ask_second = (received[str(dataset.SOPInstanceUID)].picture for dataset in (first, second))

    kept = ask_first()

    assert kept is not None
    assert kept is ask_first()
    assert ask_second() is not None
    assert kept is not ask_first()


def test_a_damaged_file_has_no_picture_and_a_lost_one_is_an_error_of_the_disk(tmp_path: Path) -> None:
    headers, paths = saved(tmp_path, films.thumbnail())
    [path] = paths.values()
    whole = path.read_bytes()

    for content in (b"", b"no film", whole[:-5000]):
        path.write_bytes(content)
        assert next(iter(from_files(headers, paths).values())).picture() is None
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        next(iter(from_files(headers, paths).values())).picture()


@pytest.mark.parametrize("series", [None, "", "1.2.3\\1.2.4", "1.2..3", "none", f"1.{'2' * 64}"])
def test_what_is_no_single_valid_series_is_none(series: str | None) -> None:
    header = films.as_written(cr(1), {"SeriesInstanceUID": None if series is None else series.encode()})
    received = {str(header.SOPInstanceUID): samples.source(header, lambda: GRAY)}
    kinds = ("sr", "text", "gsps")

    made = [each.dataset for each in writers.write_objects(report(film()), received, zone=BERLIN, kinds=kinds)]
    answer = answers.write_objects(asked(), report(film()), *received.values(), zone=BERLIN, kinds=kinds)
    made += [each.dataset for each in answer]

    uids = {str(element.value) for each in made for element in each.iterall() if element.VR == "UI"}
    assert len(made) == 5
    assert all(map(is_uid, uids))


def test_writing_changes_no_received_header() -> None:
    header = films.changed(cr(1), {"SeriesInstanceUID": None})
    before = header.to_json()
    received = {str(header.SOPInstanceUID): samples.source(header, lambda: GRAY)}

    assert list(writers.write_objects(report(film()), received, zone=BERLIN, kinds=KINDS))
    assert header.to_json() == before
