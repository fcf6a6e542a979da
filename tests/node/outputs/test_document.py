"""What all objects share: one UID never has two contents, times are local, bytes are stable."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pydicom import dcmread, dcmwrite
from pydicom.dataset import Dataset

from node.dicom import identity
from node.dicom.header_reading import read_header
from node.domain import Film, OutputObject, Report
from node.outputs import document
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.outputs.writers import output_of, write_objects
from tests.support import samples, validators
from tests.support.documents import reference
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

ONE = report(film(findings=(finding(), absent())))


def written(of: Report, *headers: Dataset) -> Dataset:
    """Write a report on one film, and read it back from its bytes."""
    [dataset] = samples.datasets(sr.write, of, sources(*(headers or (cr(1), bare(2)))), BERLIN)
    return dcmread(BytesIO(save_bytes(dataset)))


def test_times_are_those_of_the_site() -> None:
    dataset = written(ONE)

    assert (dataset.ContentDate, dataset.ContentTime) == ("20240201", "003015")  # 23:30:15 UTC the day before
    assert dataset.TimezoneOffsetFromUTC == "+0100"


KINDS = ("sr", "sr3d", "text", "gsps", "sc")
GRAY = np.full((samples.ROWS, samples.COLUMNS), 90, np.uint8)


def objects_of_first(*films: Film) -> dict[tuple[str, str], bytes]:
    """Write all objects of a study, and return those on its first film by kind and by what they are about."""
    headers = received(cr(1), bare(2), cr(3), cr(4), picture=GRAY)
    objects = write_objects(report(*films), headers, zone=BERLIN, kinds=KINDS)
    outputs = [(output_of(made).subject, made) for made in objects]
    return {
        (made.kind, subject.about): save_bytes(made.dataset) for subject, made in outputs if subject.film == film_uid(1)
    }


@pytest.mark.parametrize("of", [several(), film(findings=(absent(),))], ids=["findings", "none"])
def test_what_is_written_of_a_film_is_the_same_each_time_and_beside_any_other_film(of: Film) -> None:
    of = replace(of, ratio=samples.ratio())
    neighbors = (unread(2), replace(several(), source=film_uid(3)), film(4))

    once, again, first, last = (
        objects_of_first(*films) for films in ((of,), (of,), (of, *neighbors), (*neighbors, of))
    )

    assert {kind for kind, _ in once} == set(KINDS)
    assert once == again == first == last


def test_a_later_round_that_says_the_same_has_the_same_uid() -> None:
    older = OutputObject(
        kind="sr",
        study_uid=samples.STUDY,
        sop_class_uid="1.2.840.10008.5.1.4.1.1.88.33",
        sop_instance_uid="1.2.3",
        series_instance_uid="1.2",
    )
    later = replace(ONE, created_at=datetime(2025, 1, 1, tzinfo=UTC), predecessors=(older,))

    dataset = written(later)

    assert dataset.SOPInstanceUID == written(ONE).SOPInstanceUID
    [study] = dataset.PredecessorDocumentsSequence
    assert study.ReferencedSeriesSequence[0].ReferencedSOPSequence[0].ReferencedSOPInstanceUID == "1.2.3"
    assert validators.dciodvfy(dataset) == []


def test_the_same_reading_in_summer_and_in_winter_is_one_object() -> None:
    summer = written(replace(ONE, created_at=datetime(2024, 7, 1, tzinfo=UTC)))

    assert (summer.TimezoneOffsetFromUTC, summer.ContentTime) == ("+0100", "010000")  # as when the film was taken
    assert summer.SOPInstanceUID == written(ONE).SOPInstanceUID


def test_another_time_zone_is_another_object() -> None:
    uids = {
        samples.datasets(sr.write, ONE, sources(cr(1)), zone)[0].SOPInstanceUID for zone in (BERLIN, ZoneInfo("UTC"))
    }

    assert len(uids) == 2


@pytest.mark.parametrize("numbers", [(1, 3), (3, 1)])
def test_the_order_of_equal_films_does_not_decide_the_patient(numbers: tuple[int, int]) -> None:
    headers = sources(bare(2), cr(1), cr(3))
    headers[samples.film_uid(3)].PatientName = "Other^Spelling"

    *_, dataset = samples.datasets(sr.write, report(unread(2), *(film(number) for number in numbers)), headers, BERLIN)

    assert dataset.PatientName == "Müller^Jörg"


def test_a_document_never_names_itself_as_its_predecessor() -> None:
    first = written(ONE)
    itself = reference(first)

    assert "PredecessorDocumentsSequence" not in written(replace(ONE, predecessors=(itself,)))


def test_a_correction_and_its_reversal_are_new_objects() -> None:
    """A, the newest once more in another encoding, B, A, A again, B."""
    corrected = cr(1)
    corrected.PatientName = "Muller^Jorg"
    rounds: list[tuple[OutputObject, ...]] = []

    for header in (cr(1), cr(1), corrected, cr(1), cr(1), corrected):
        rounds.append((reference(written(replace(ONE, earlier=tuple(rounds)), header)),))

    uids = [output.sop_instance_uid for (output,) in rounds]
    assert uids == [uids[0], uids[0], uids[2], uids[3], uids[3], uids[5]]
    assert len(set(uids)) == 4


def test_whatever_is_said_differently_has_another_uid() -> None:
    renamed = cr(1)
    renamed.PatientName = "Muller^Jorg"
    [film_1] = ONE.films
    surer = replace(film_1.findings[0], probability=0.84)

    several_films = replace(ONE, films=(*ONE.films, unread(2)))
    *_, beside_another = samples.datasets(sr.write, several_films, sources(cr(1), bare(2)), BERLIN)

    uids = {
        written(ONE).SOPInstanceUID,
        written(ONE, renamed).SOPInstanceUID,
        written(replace(ONE, films=(replace(film_1, findings=(surer, absent())),))).SOPInstanceUID,
        written(replace(ONE, prompts_version="2")).SOPInstanceUID,
        written(replace(ONE, model=replace(samples.MODEL, weights_sha256="ef" * 32))).SOPInstanceUID,
        written(report(film(findings=(absent(),)))).SOPInstanceUID,
        beside_another.SOPInstanceUID,
    }

    assert len(uids) == 7


@pytest.mark.parametrize(
    ("of", "numbers", "expected"),
    [
        ("AI findings", {"SeriesNumber": 1, "InstanceNumber": 1}, "AI findings S1 - "),
        ("AI findings", {"SeriesNumber": 3}, "AI findings S3 - "),
        ("AI findings", {"SeriesNumber": 3, "InstanceNumber": 12}, "AI findings S3 I12 - "),
        ("AI findings", {"SeriesNumber": 3, "InstanceNumber": "-1"}, "AI findings S3 - "),
        ("AI findings", {"SeriesNumber": 2**31 - 1, "InstanceNumber": 2**31 - 1}, "AI findings - "),
        ("AI findings", {"SeriesNumber": "-1", "InstanceNumber": 4}, "AI findings - "),
        ("AI findings", {}, "AI findings - "),
        (f"AI answer: {'w' * 64}", {"SeriesNumber": 3}, f"AI answer: {'w' * 17}... S3 - "),
    ],
)
def test_a_series_description_says_what_and_of_which_film(of: str, numbers: dict[str, object], expected: str) -> None:
    film = Dataset()
    for keyword, number in numbers.items():
        setattr(film, keyword, number)

    described = document.series_description(of, film=film)

    assert described == f"{expected}RESEARCH, NOT FOR DIAGNOSIS"
    assert len(described) <= 64


def test_a_series_description_names_a_part_of_the_study() -> None:
    described = document.series_description("AI study report", part="0a1b2c3d")

    assert described == "AI study report, part 0a1b2c3d - RESEARCH, NOT FOR DIAGNOSIS"
    assert identity.part_in(described) == identity.part_in("AI RESEARCH: ChEX Node, part 0a1b2c3d") == "0a1b2c3d"


def test_an_object_that_is_read_and_saved_again_has_its_bytes() -> None:
    [dataset] = samples.datasets(sr.write, ONE, sources(cr(1)), BERLIN)
    saved = save_bytes(dataset)
    read = dcmread(BytesIO(saved))
    assert any(element.VR == "SQ" for element in read.iterall())  # has every element read, and encoded again

    assert save_bytes(read) == saved


def test_items_that_are_copied_from_a_film_keep_their_text(tmp_path: Path) -> None:
    """An output of a package may copy a sequence; its elements are decoded only when they are encoded again."""
    header = cr(1)
    header.SpecificCharacterSet, header.PatientName = "ISO_IR 144", "Толстой^Лев"
    step = Dataset()
    step.ScheduledProcedureStepDescription = "Грудная клетка"
    header.RequestAttributesSequence = [step]
    path = tmp_path / "film.dcm"
    dcmwrite(path, header, implicit_vr=False, little_endian=True)
    [dataset] = samples.datasets(sr.write, ONE, sources(cr(1)), BERLIN)

    dataset.RequestAttributesSequence = deepcopy(read_header(path).RequestAttributesSequence)
    document.seal(dataset, ONE, sources=[film_uid(1)], zone=BERLIN)

    [copied] = dcmread(BytesIO(save_bytes(dataset))).RequestAttributesSequence
    assert copied.ScheduledProcedureStepDescription == "Грудная клетка"
