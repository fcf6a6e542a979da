"""The cardiothoracic ratio of a film on its way: from the shipped network's boxes to the outputs of a round."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Trusted
from models.lab.phantoms import dicom, phantom
from node import config
from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, View
from node.orders.store import OrderStore
from node.outputs.folder import write_folder
from node.outputs.source import Source
from node.outputs.writers import make_report, write_objects
from node.pipeline import Pipeline
from node.prompt_set import PromptSet
from node.read import prompts
from node.read.decoding import Radiograph
from node.read.film import answer_film
from node.read.model import RadiographReader, Reading, open_configured, open_reader
from node.store.spool import Spool
from tests.support import films, samples
from tests.support.fakes import ScriptedReader
from tests.support.output_texts import texts_of

PROMPTS = prompts.load("chexpert14")
SEED = 2_000_003
STUDY = "1.2.3"


class RatioReader(ScriptedReader):
    """Measures the same ratio on every film."""

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        return replace(super().read(image, prompts), ratio=samples.ratio_on(image.framing))


@pytest.fixture(scope="module")
def reader(phantom_model: Path) -> RadiographReader:
    return open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1, unmeasured_ratio=True)


def measured(film: Dataset, folder: Path, reader: RadiographReader) -> CardiothoracicRatio | None:
    """Read a film from its file."""
    film.save_as(folder / "film.dcm", enforce_file_format=True)
    answer = answer_film(folder / "film.dcm", reader, PROMPTS).film
    assert answer is not None
    return answer.ratio


def turned(film: Dataset) -> Dataset:
    """Store a film on its side, with the head to the left."""
    pixels = np.rot90(film.pixel_array)
    film.PatientOrientation = ["F", "R"]
    film.Rows, film.Columns = pixels.shape
    film.PixelData = pixels.tobytes()
    return film


def mirrored(film: Dataset) -> Dataset:
    film.PatientOrientation = ["R", "F"]
    film.PixelData = film.pixel_array[:, ::-1].tobytes()
    return film


@pytest.mark.drill(part="objects")
def test_the_network_measures_about_what_is_drawn(tmp_path: Path, reader: RadiographReader) -> None:
    ratio = measured(dicom.film(SEED).dataset, tmp_path, reader)

    assert ratio is not None
    assert ratio.value == pytest.approx(phantom(SEED).cardiothoracic_ratio, abs=0.06)
    assert ratio.error is not None
    assert ratio.error.measured_on == "phantoms"
    assert ratio.error.lower < 0 < ratio.error.upper


def test_a_band_needs_an_error_of_such_films(tmp_path: Path, reader: RadiographReader, phantom_model: Path) -> None:
    among_phantoms = open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1, trusted="phantoms")

    for opened, objection in ((reader, Incomparable.UNMEASURED), (among_phantoms, None)):
        film = films.changed(dicom.film(SEED).dataset, {"PatientAge": "045Y"})
        ratio = measured(film, tmp_path, opened)

        assert ratio is not None
        assert ratio.objection == objection
        assert (ratio.band is None) == (objection is not None)


@pytest.mark.parametrize(
    ("trusted", "is_asked_for", "has_ratio"),
    [
        ("real", False, False),
        ("real", True, True),
        ("any", False, False),
        ("any", True, True),
        ("phantoms", False, True),
    ],
)
def test_films_of_people_have_no_ratio_of_phantoms(
    trusted: Trusted, is_asked_for: bool, has_ratio: bool, tmp_path: Path, phantom_model: Path
) -> None:
    opened = open_reader(
        phantom_model, prompts=PROMPTS, engine="onnx", threads=1, trusted=trusted, unmeasured_ratio=is_asked_for
    )

    assert (measured(dicom.film(SEED).dataset, tmp_path, opened) is not None) is has_ratio


def test_a_film_without_a_ratio_says_nothing_of_one(
    tmp_path: Path, reader: RadiographReader, phantom_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_default = open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1)
    dicom.film(SEED).dataset.save_as(tmp_path / "film.dcm", enforce_file_format=True)

    def told(opened: RadiographReader) -> set[str]:
        film = answer_film(tmp_path / "film.dcm", opened, PROMPTS).film
        assert film is not None
        said = texts_of(replace(film, source=samples.film_uid(1)), monkeypatch)
        return {name for name, text in said.items() if re.search("cardiothoracic|CTRATIO|error': 0", text, re.I)}

    assert told(by_default) == set()
    assert told(reader) == {"fhir", "oru", "report.json", "study page"}


def test_the_setting_reaches_the_reader(tmp_path: Path, phantom_model: Path) -> None:
    settings = config.parse(
        {
            "listener": {"callers": [{"ae_title": "PACS", "hosts": ["127.0.0.1"]}]},
            "storage": {"directory": str(tmp_path)},
            "model": {"directory": str(phantom_model), "threads": 1},
            "report": {"unmeasured_ratio": True},
        }
    )

    opened = open_configured(settings, PROMPTS)

    assert opened.identity.unmeasured_ratio is True


def test_a_film_stored_in_another_way_has_the_same_ratio(tmp_path: Path, reader: RadiographReader) -> None:
    film = dicom.film(SEED).dataset
    columns = int(film.Columns)

    upright = measured(film, tmp_path, reader)
    on_its_side = measured(turned(dicom.film(SEED).dataset), tmp_path, reader)
    in_a_mirror = measured(mirrored(dicom.film(SEED).dataset), tmp_path, reader)

    assert upright is not None
    assert on_its_side is not None
    assert in_a_mirror is not None
    assert on_its_side.heart.is_vertical
    assert [ratio.value for ratio in (on_its_side, in_a_mirror)] == [pytest.approx(upright.value, abs=1e-3)] * 2
    (left, row), (right, _) = upright.thorax.start, upright.thorax.end
    # Column c of row r is stored in row columns - c of column r, and in column columns - c of row r.
    assert on_its_side.thorax.start == pytest.approx((row, columns - right), abs=0.01 * columns)
    assert on_its_side.thorax.end == pytest.approx((row, columns - left), abs=0.01 * columns)
    assert in_a_mirror.thorax.start == pytest.approx((columns - right, row), abs=0.01 * columns)


def test_the_header_says_what_a_ratio_is_worth(tmp_path: Path) -> None:
    adult = {"ViewPosition": "PA", "PatientAge": "045Y", "PixelSpacingCalibrationType": "FIDUCIAL"}
    spaced = films.thumbnail(adult | {"PixelSpacing": [0.8, 0.4]})
    child = films.thumbnail(adult | {"PatientAge": "012Y", "PatientBirthDate": ""})

    comparable, too_young = (measured(film, tmp_path, RatioReader()) for film in (spaced, child))

    assert comparable is not None
    assert (comparable.view, comparable.objection, comparable.band) == (View.PA, None, 0)
    assert comparable.mm_per_pixel == 0.4
    assert too_young is not None
    assert (too_young.objection, too_young.band) == (Incomparable.CHILD, None)


def outputs(folder: Path, *, has_ratio: bool) -> list[str]:
    """Return the series description of every structured report of a round."""
    spool = Spool(folder)
    films.keep(spool, films.thumbnail(), study_uid=STUDY)
    pipeline = Pipeline(
        spool=spool,
        orders=OrderStore(folder),
        reader=RatioReader(),
        prompts=PROMPTS,
        zone=ZoneInfo("UTC"),
        kinds=("sr",),
        has_ratio=has_ratio,
    )
    plan = pipeline.plan(STUDY)
    assert plan is not None
    pipeline.write(plan)
    return sorted(str(dcmread(path).SeriesDescription) for path in folder.rglob("outputs/*.sr.dcm"))


def test_a_round_writes_the_ratio_unless_the_settings_say_no(tmp_path: Path) -> None:
    report, ratio = (f"AI {what} S1 - RESEARCH, NOT FOR DIAGNOSIS" for what in ("findings", "heart size"))

    assert outputs(tmp_path / "with", has_ratio=True) == [report, ratio]
    assert outputs(tmp_path / "without", has_ratio=False) == [report]


def test_a_folder_has_the_ratio_under_the_films_name(tmp_path: Path) -> None:
    source = films.thumbnail()
    source.save_as(tmp_path / "film.dcm", enforce_file_format=True)
    answered = answer_film(tmp_path / "film.dcm", RatioReader(), PROMPTS)
    film = answered.film
    assert film is not None

    for ratio in (film.ratio, None):
        shown = replace(film, ratio=ratio)
        report = make_report(
            STUDY, [shown], model=RatioReader().identity, prompts=PROMPTS, created_at=datetime(2024, 1, 31, tzinfo=UTC)
        )
        sources = {film.source: Source(header=answered.dataset)}
        objects = write_objects(report, sources, zone=ZoneInfo("UTC"), kinds=("sr", "gsps"))
        content = write_folder(tmp_path / "out", report, objects, sources)

        name = f"{film.source}.ratio.dcm"
        assert (name in str(content["outputs"])) == (tmp_path / "out" / STUDY / name).exists() == (ratio is not None)
        assert (tmp_path / "out" / STUDY / "sr.dcm").exists()
