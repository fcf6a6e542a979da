"""Which structured reports a study gets: one a read film, and one on the study; what each of them replaces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydicom.dataset import Dataset

from node.dicom.film_header import parse_header
from node.domain import About, Film, OutputObject, Reason, Subject
from node.output_kinds import OUTPUTS
from node.outputs import wording
from tests.support import samples, validators
from tests.support.documents import MIXED, all_written, contents, evidence, film_of, groups, said
from tests.support.samples import film, report, several, unread


def test_each_read_film_has_a_report_in_a_series_of_its_own() -> None:
    first, third, study = all_written(MIXED)

    assert [film_of(dataset) for dataset in (first, third, study)] == [samples.film_uid(1), samples.film_uid(3), ""]
    assert len({dataset.SeriesInstanceUID for dataset in (first, third, study)}) == 3
    assert [dataset.SeriesNumber for dataset in (first, third, study)] == [9001, 9001, 9003]
    assert all(parse_header(dataset).is_own for dataset in (first, third, study))
    assert [evidence(dataset) for dataset in (first, third)] == [[samples.film_uid(1)], [samples.film_uid(3)]]
    assert [len(groups(dataset)) for dataset in (first, third)] == [4, 1]


@pytest.mark.parametrize(
    ("films", "count"),
    [
        ((several(),), 1),
        ((unread(1),), 1),
        ((several(), unread(2)), 2),
        ((several(), film(3)), 3),
        ((unread(1), unread(2)), 1),
    ],
)
def test_a_study_has_a_report_of_its_own_if_a_films_does_not_do(films: tuple[Film, ...], count: int) -> None:
    documents = all_written(report(*films))

    assert len(documents) == count
    assert evidence(documents[-1]) == [film.source for film in films]


def test_the_studys_report_has_every_impression_and_reason() -> None:
    dataset = all_written(MIXED)[-1]

    [section] = contents(dataset, "19005-8")
    lines = contents(section, "121073")[0].TextValue.split("\r\n")
    assert lines[:2] == ["AI RESEARCH - NOT FOR DIAGNOSIS", "Film 1 of 3:"]
    assert wording.REASONS[Reason.UNDECODABLE] in said(dataset)
    for number in (1, 2, 3):
        assert f"Film {number} of 3 (SOP Instance UID {samples.film_uid(number)})" in said(dataset)


def earlier(uid: str, film: str = "") -> OutputObject:
    """Name a report of an earlier round."""
    return OutputObject(
        kind="sr", study_uid=samples.STUDY, sop_class_uid=OUTPUTS.own["sr"].sop_class, sop_instance_uid=uid,
        series_instance_uid=f"{uid}.1", subject=Subject(about=About.FILM, film=film) if film else Subject(),
    )  # fmt: skip


def replaced(dataset: Dataset) -> list[str]:
    """Return what a document names as its predecessors."""
    return [
        reference.ReferencedSOPInstanceUID
        for study in dataset.get("PredecessorDocumentsSequence", ())
        for series in study.ReferencedSeriesSequence
        for reference in series.ReferencedSOPSequence
    ]


@pytest.mark.parametrize(
    ("films", "before", "expected"),
    [
        ((several(),), ("1.9",), [["1.9"]]),  # not processed
        ((several(), film(3)), ("1.9",), [[], [], ["1.9"]]),
        ((several(),), ("1.9", 1), [["1.9", "1.1"]]),
        ((several(), film(3)), ("1.9", 1, 3), [["1.1"], ["1.3"], ["1.9"]]),
        ((several(), film(3)), (1,), [["1.1"], [], []]),
        ((several(), unread(3)), ("1.9", 1, 3), [["1.1"], ["1.9", "1.3"]]),
        ((unread(1),), (1,), [["1.1"]]),
    ],
)  # fmt: skip
def test_each_document_names_those_that_it_replaces(
    films: tuple[Film, ...], before: tuple[str | int, ...], expected: list[list[str]]
) -> None:
    older = tuple(
        earlier(name) if isinstance(name, str) else earlier(f"1.{name}", samples.film_uid(name)) for name in before
    )

    documents = all_written(replace(report(*films), predecessors=older))

    assert [replaced(dataset) for dataset in documents] == expected
    assert all(validators.dciodvfy(dataset) == [] for dataset in documents)
