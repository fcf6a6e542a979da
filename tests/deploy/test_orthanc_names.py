"""Patient names in other scripts, as the Orthanc of deploy/orthanc answers them to a viewer that asks by DICOMweb."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from tests.drills.conformance import cases, studies
from tests.support.orthanc import Orthanc
from tests.support.peers import DIRECT, LOOPBACK

pytestmark = pytest.mark.drill(part="deployment")


@pytest.fixture(scope="module")
def orthanc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    with Orthanc(tmp_path_factory.mktemp("names"), node_port=1, settings={"LuaScripts": []}) as running:
        yield running


@pytest.mark.parametrize("name", ["japanese", "korean"])
def test_names_of_films_and_results_are_answered_as_written(orthanc: Orthanc, tmp_path: Path, name: str) -> None:
    study = studies.write(cases.make(name), tmp_path)
    (film,) = study.films

    for dataset in (film, *(written for kind in study.objects.values() for written in kind)):
        orthanc.upload(dataset)

    answered = asked(orthanc, f"studies?StudyInstanceUID={study.uid}")
    series = asked(orthanc, f"studies/{study.uid}/series?includefield=PatientName")
    assert answered == [parts_of(film)]
    assert {tuple(names.items()) for names in series} == {tuple(parts_of(film).items())}
    assert len(series) == 1 + len(
        {str(written.SeriesInstanceUID) for kind in study.objects.values() for written in kind}
    )


def asked(orthanc: Orthanc, question: str) -> list[dict[str, str]]:
    """The patient's name in each answer to a question by QIDO-RS."""
    with DIRECT.open(f"http://{LOOPBACK}:{orthanc.http_port}/dicom-web/{question}", timeout=30) as answer:
        return [found["00100010"]["Value"][0] for found in json.load(answer)]


def parts_of(film: Dataset) -> dict[str, str]:
    """The parts of the name in three scripts (PS3.18 F.2.2)."""
    name = film.PatientName
    parts = {"Alphabetic": name.alphabetic, "Ideographic": name.ideographic, "Phonetic": name.phonetic}
    return {kind: str(part) for kind, part in parts.items() if part}
