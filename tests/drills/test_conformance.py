"""The short form of `make conformance`: a few studies in OHIF and DICOMscope, and drawn ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from models.progress import quiet
from tests.drills.conformance import cases, studies, validation, viewing
from tests.drills.conformance.ohif import Ohif, ohif
from tests.drills.conformance.studies import Study

pytestmark = pytest.mark.drill(part="conformance")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conformance")


@pytest.fixture(scope="module")
def viewer(browser: Browser, folder: Path) -> Iterator[Ohif]:
    with ohif(browser, folder) as running:
        yield running


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


def test_dicomscope_shows_boxes_labels_what_to_review_side_marker_and_shutter(folder: Path) -> None:
    shown = [study("abdomen", folder), study("marked", folder)]

    seen = viewing.view_in_dicomscope(shown, folder, scratch=folder / "scratch")

    assert (seen["abdomen"].faults, seen["marked"].faults) == ([], [])
    assert len(seen["abdomen"].deviations) == 5


def test_drawn_studies_are_valid(folder: Path) -> None:
    drawn = [validation.drawn(number) for number in (2, 5)]

    done = validation.validate(drawn, folder, say=quiet, total=len(drawn))

    assert done.complaints == []
    assert len(done.objects) > 1
