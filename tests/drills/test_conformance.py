"""The short form of `make conformance`: a few studies in OHIF, dwv and DICOMscope, and drawn ones before validators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from models.progress import quiet
from tests.drills.conformance import cases, studies, validation, viewing
from tests.drills.conformance.ohif import Ohif, ohif
from tests.drills.conformance.studies import Study
from tests.drills.conformance.viewing import MOST_DEVIATION, Seen

pytestmark = pytest.mark.drill(part="conformance")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conformance")


@pytest.fixture(scope="module")
def viewer(browser: Browser, folder: Path) -> Iterator[Ohif]:
    with ohif(browser, folder) as running:
        yield running


@pytest.fixture(scope="module")
def in_dwv(browser: Browser, folder: Path) -> Seen:
    return viewing.view_in_dwv(browser, study("many", folder), folder, kind="sr")


@pytest.fixture(scope="module")
def in_dicomscope(folder: Path) -> Seen:
    return drawn_by_dicomscope(folder)["abdomen"]


@cache
def drawn_by_dicomscope(folder: Path) -> Mapping[str, Seen]:
    """Show two studies in one run of DICOMscope."""
    shown = [study("abdomen", folder), study("marked", folder)]
    return viewing.view_in_dicomscope(shown, folder, scratch=folder / "scratch")


def study(name: str, folder: Path) -> Study:
    return studies.write(cases.make(name), folder)


def test_ohif_names_who_said_what_of_a_corrected_film(viewer: Ohif, folder: Path) -> None:
    seen = viewing.view_in_ohif(viewer, study("corrected", folder), kinds=("sr",), folder=folder)

    assert seen.faults == []
    assert len(seen.deviations) == len(cases.BY_A_READER) + 1


def test_ohif_shows_the_newest_version_and_answers(viewer: Ohif, folder: Path) -> None:
    versions = studies.versions("missed", folder, kinds=("sr3d",))

    seen = viewing.view_versions_in_ohif(viewer, versions, kinds=("sr3d",), folder=folder)

    assert seen.faults == []
    assert len(seen.deviations) == len(cases.VERSIONS["missed"][1][-1]) + 1


def test_dwv_draws_every_box_at_its_place(in_dwv: Seen) -> None:
    assert len(in_dwv.deviations) == sum(len(answer.boxes) for answer in cases.MANY)
    assert max(in_dwv.deviations) < MOST_DEVIATION


def test_dwv_labels_every_box(in_dwv: Seen) -> None:
    assert in_dwv.faults == []


def test_dwv_names_who_said_what_of_a_corrected_film(browser: Browser, folder: Path) -> None:
    seen = viewing.view_in_dwv(browser, study("corrected", folder), folder, kind="sr")

    assert seen.faults == []
    assert len(seen.deviations) == len(cases.BY_A_READER) + 1


def test_dicomscope_draws_every_box_at_its_place(in_dicomscope: Seen) -> None:
    assert len(in_dicomscope.deviations) == 5
    assert max(in_dicomscope.deviations) < MOST_DEVIATION


def test_dicomscope_shows_labels_and_what_to_review(in_dicomscope: Seen) -> None:
    assert in_dicomscope.faults == []


def test_dicomscope_shows_side_marker_and_shutter(folder: Path) -> None:
    assert drawn_by_dicomscope(folder)["marked"].faults == []


def test_drawn_studies_are_valid_and_read_back(folder: Path) -> None:
    drawn = [validation.drawn(number) for number in (2, 5)]

    done = validation.validate(drawn, folder, say=quiet, total=len(drawn))

    assert done.complaints == []
    assert done.boxes_read_back > 2
    assert len(done.objects) > 1
