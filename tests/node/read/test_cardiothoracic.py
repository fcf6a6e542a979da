"""The cardiothoracic ratio: what is measured and refused, what the header says of it, and its way into a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, Trusted
from models.lab.phantoms import dicom, phantom
from models.reading.cardiothoracic import EDGE, HEART, LEFT_LUNG, RIGHT_LUNG, ChestWidths, measure_chest
from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, MeasuredLine, View
from node.dicom.film_header import FilmHeader, parse_header
from node.domain import Evidence
from node.outputs.folder import write_folder
from node.outputs.source import Source
from node.outputs.writers import write_objects
from node.prompt_set import PromptSet
from node.read import prompts
from node.read.decoding import Radiograph
from node.read.film import answer_film, describe_ratio
from node.read.framing import Framing, Turn
from node.read.model import RadiographReader, Reading, open_configured, open_reader
from node.store.spool import Spool
from tests.node.test_config import GOOD, load
from tests.support import films, samples, senders
from tests.support.fakes import ScriptedReader
from tests.support.samples import SQUARE
from tests.support.scripted_engine import box

PROMPTS = prompts.load("chexpert14")
SEED = 2_000_003
STUDY = "1.2.3"
Edges = tuple[float, float, float, float]


def chest(
    *,
    heart: Edges = (0.36, 0.5, 0.66, 0.8),
    right: Edges = (0.1, 0.1, 0.45, 0.85),
    left: Edges = (0.55, 0.1, 0.9, 0.9),
    without: str = "",
) -> dict[str, Box]:
    """Return the boxes of a chest whose lungs have zones of a third each; the upper zones are narrower."""
    regions = {HEART: box(*heart)}
    for keys, (begin, top, end, bottom), outer in ((RIGHT_LUNG, right, 0.08), (LEFT_LUNG, left, 0.0)):
        third = (bottom - top) / 3
        for number, key in enumerate(keys):
            inset = outer if number == 0 else 0.0
            regions[key] = box(begin + inset, top + number * third, end, top + (number + 1) * third)
    return {key: edges for key, edges in regions.items() if key != without}


def measured(regions: Mapping[str, Box]) -> ChestWidths:
    found = measure_chest(regions)
    assert found is not None
    return found


def test_heart_and_thorax_are_measured_at_their_outer_edges() -> None:
    found = measured(chest())

    assert found.ratio == pytest.approx(0.3 / 0.8, abs=1e-6)
    assert (found.heart.left, found.heart.right) == (pytest.approx(0.36), pytest.approx(0.66))
    assert (found.thorax.left, found.thorax.right) == (pytest.approx(0.1), pytest.approx(0.9))
    assert (found.heart.height, found.thorax.height) == (pytest.approx(0.65), pytest.approx(0.8))
    assert measured(chest(heart=(0.36, 0.5, 0.66, 0.95))).thorax.height == pytest.approx(0.85)  # within both lungs
    assert measured(chest(right=(EDGE + 0.002, 0.1, 0.45, 0.9), left=(0.55, 0.1, 0.998 - EDGE, 0.9))).ratio < 1
    assert chest().keys() <= {prompt.key for prompt in PROMPTS.prompts}, "the node asks for each of them"


@pytest.mark.parametrize(
    "regions",
    [
        *(pytest.param(chest(without=key), id=f"no {key}") for key in (HEART, RIGHT_LUNG[0], LEFT_LUNG[2])),
        pytest.param(chest(heart=(0.05, 0.5, 0.95, 0.8)), id="heart wider than the thorax"),
        pytest.param(chest(heart=(0.09, 0.5, 0.5, 0.8)), id="heart beyond the right lung"),
        pytest.param(chest(heart=(0.5, 0.5, 0.91, 0.8)), id="heart beyond the left lung"),
        pytest.param(chest(right=(0.55, 0.1, 0.85, 0.9)), id="lungs on one side"),
        pytest.param(chest(right=(0.55, 0.1, 0.9, 0.9), left=(0.1, 0.1, 0.45, 0.9)), id="lungs exchanged"),
        pytest.param(chest(heart=(0.3, 0.5, 0.5, 0.8), right=(0.1, 0.1, 0.9, 0.9)), id="right lung on both sides"),
        pytest.param(chest(heart=(0.5, 0.5, 0.7, 0.8), left=(0.1, 0.1, 0.9, 0.9)), id="left lung on both sides"),
        pytest.param(chest(right=(0.1, 0.1, 0.45, 0.4), left=(0.55, 0.5, 0.9, 0.9)), id="lungs share no rows"),
        pytest.param(chest(heart=(0.36, 0.9, 0.66, 0.99)), id="heart shares no rows with the lungs"),
        pytest.param(chest(right=(EDGE - 0.002, 0.1, 0.45, 0.9)), id="cut on the right"),
        pytest.param(chest(left=(0.55, 0.1, 1.002 - EDGE, 0.9)), id="cut on the left"),
        pytest.param(chest(heart=(0.5, 0.5, 0.52, 0.8)), id="a heart as thin as a line"),
        pytest.param(
            chest(heart=(0.45, 0.5, 0.55, 0.8), right=(0.38, 0.1, 0.48, 0.9), left=(0.5, 0.1, 0.6, 0.9)),
            id="a thorax as thin as a spine",
        ),
    ],
)
def test_boxes_that_no_chest_has_give_no_ratio(regions: dict[str, Box]) -> None:
    assert measure_chest(regions) is None


def test_a_line_is_placed_on_the_stored_film() -> None:
    upright = Framing(columns=samples.COLUMNS, rows=samples.ROWS, square=SQUARE)
    side = Turn(transpose=True, mirror_columns=True)
    on_its_side = Framing(columns=samples.ROWS, rows=samples.COLUMNS, square=SQUARE, turn=side)

    lines = [framing.line_to_image(left=0.25, right=0.75, height=0.25) for framing in (upright, on_its_side)]

    assert [(line.start, line.end) for line in lines] == [((560, 440), (1440, 440)), ((440, 560), (440, 1440))]


@pytest.mark.parametrize(
    ("view", "age", "objection"),
    [
        ("PA", 18, None),
        ("PA", 17, Incomparable.CHILD),
        ("PA", None, Incomparable.AGE_UNKNOWN),
        ("AP", 45, Incomparable.VIEW_AP),
        ("AP", 3, Incomparable.VIEW_AP),
        ("", 45, Incomparable.VIEW_UNKNOWN),
    ],
)
def test_only_an_adult_in_pa_view_can_be_compared(view: str, age: int | None, objection: Incomparable | None) -> None:
    measured = samples.ratio(view=None, objection=Incomparable.VIEW_UNKNOWN)

    described = describe_ratio(measured, replace(_header(view), age_years=age), None)

    assert described is not None
    assert described.objection == objection
    assert (described.band is None) == (objection is not None)
    assert described.value == measured.value


def test_millimeters_follow_the_axis_of_the_lines() -> None:
    across = samples.ratio()
    upright = replace(across, heart=_turned(across.heart), thorax=_turned(across.thorax))

    described = [describe_ratio(ratio, _header("PA"), (0.2, 0.1)) for ratio in (across, upright)]

    assert [ratio.mm_per_pixel for ratio in described if ratio] == [0.1, 0.2]  # between columns, between rows
    assert len({ratio.value for ratio in described if ratio}) == 1


def _header(view: str) -> FilmHeader:
    """Return the header of an adult's film."""
    return replace(parse_header(films.changed(samples.cr(), {"ViewPosition": view})), age_years=45)


def _turned(line: MeasuredLine) -> MeasuredLine:
    return MeasuredLine(start=line.start[::-1], end=line.end[::-1])


def across(width: float) -> MeasuredLine:
    return MeasuredLine(start=(0.0, 10.0), end=(width, 10.0))


@pytest.mark.parametrize(
    ("heart", "band"), [(494, 0), (495, 1), (500, 1), (544, 1), (545, 2), (595, 3), (600, 3), (990, 3)]
)
def test_the_band_follows_from_the_number_that_people_read(heart: float, band: int) -> None:
    ratio = replace(samples.ratio(), heart=across(heart), thorax=across(1000))

    assert ratio.band == band
    assert ratio.hundredths == math.floor(heart / 10 + 0.5)


UPRIGHT = MeasuredLine(start=(5.0, 0.0), end=(5.0, 9.0))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        *((partial(MeasuredLine, start=(0, 0), end=end), "a line") for end in ((0, 0), (-5, 0), (5, 5), (math.inf, 0))),
        (partial(MeasuredLine, start=(0, math.nan), end=(5, math.nan)), "a line"),
        (partial(CardiothoracicRatio, heart=across(100), thorax=across(100)), "a heart"),
        (partial(CardiothoracicRatio, heart=UPRIGHT, thorax=across(100)), "along one axis"),
        *((partial(samples.ratio, view=view, objection=None), "PA view") for view in (View.AP, None)),
        *((partial(samples.ratio, mm_per_pixel=size), "mm_per_pixel") for size in (0.0, -1.0, math.inf, math.nan)),
        *((partial(Evidence, zone=None, extent=extent), "an extent") for extent in (-0.01, 1.01)),
    ],
)
def test_no_measurement_has_values_that_cannot_be(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


class RatioReader(ScriptedReader):
    """Measures the same ratio on every film."""

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        return replace(super().read(image, prompts), ratio=samples.ratio_on(image.framing))


@pytest.fixture(scope="module")
def reader(phantom_model: Path) -> RadiographReader:
    return open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1, unmeasured_ratio=True)


def ratio_of(film: Dataset, folder: Path, reader: RadiographReader) -> CardiothoracicRatio | None:
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


@pytest.mark.parametrize(
    ("trusted", "is_asked_for", "has_ratio", "objection"),
    [
        ("real", False, False, None),
        ("real", True, True, Incomparable.UNMEASURED),
        ("any", False, False, None),
        ("any", True, True, None),
        ("phantoms", False, True, None),
    ],
)
def test_films_of_people_have_no_ratio_of_phantoms_and_a_band_needs_an_error_of_such_films(
    trusted: Trusted,
    is_asked_for: bool,
    has_ratio: bool,
    objection: Incomparable | None,
    tmp_path: Path,
    phantom_model: Path,
) -> None:
    opened = open_reader(
        phantom_model, prompts=PROMPTS, engine="onnx", threads=1, trusted=trusted, unmeasured_ratio=is_asked_for
    )
    ratio = ratio_of(films.changed(dicom.film(SEED).dataset, {"PatientAge": "045Y"}), tmp_path, opened)

    assert (ratio is not None) is has_ratio
    if ratio is not None:
        assert (ratio.objection, ratio.band is None) == (objection, objection is not None)


def test_the_setting_reaches_the_reader(tmp_path: Path, phantom_model: Path) -> None:
    model = f'[model]\ndirectory = "{phantom_model}"\nthreads = 1\n'

    opened = open_configured(load(tmp_path, f"{GOOD}{model}[report]\nunmeasured_ratio = true\n"), PROMPTS)

    assert opened.identity.unmeasured_ratio is True


def test_a_film_stored_in_another_way_has_the_same_ratio_as_drawn(tmp_path: Path, reader: RadiographReader) -> None:
    film = dicom.film(SEED).dataset
    columns = int(film.Columns)

    upright = ratio_of(film, tmp_path, reader)
    on_its_side = ratio_of(turned(dicom.film(SEED).dataset), tmp_path, reader)
    in_a_mirror = ratio_of(mirrored(dicom.film(SEED).dataset), tmp_path, reader)

    assert upright is not None and on_its_side is not None and in_a_mirror is not None
    assert upright.value == pytest.approx(phantom(SEED).cardiothoracic_ratio, abs=0.06)
    assert upright.error is not None
    assert upright.error.measured_on == "phantoms"
    assert upright.error.lower < 0 < upright.error.upper
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

    comparable, too_young = (ratio_of(film, tmp_path, RatioReader()) for film in (spaced, child))

    assert comparable is not None
    assert (comparable.view, comparable.objection, comparable.band) == (View.PA, None, 0)
    assert comparable.mm_per_pixel == 0.4
    assert too_young is not None
    assert (too_young.objection, too_young.band) == (Incomparable.CHILD, None)


def test_a_round_writes_the_ratio_unless_the_settings_say_no(tmp_path: Path) -> None:
    report, ratio = (f"AI {what} S1 - RESEARCH, NOT FOR DIAGNOSIS" for what in ("findings", "heart size"))
    for has_ratio, expected in ((True, [report, ratio]), (False, [report])):
        spool = Spool(tmp_path / str(has_ratio))
        films.keep(spool, films.thumbnail(), study_uid=STUDY)
        pipeline = replace(senders.pipeline(spool, reader=RatioReader(), kinds=("sr",)), has_ratio=has_ratio)
        plan = pipeline.plan(STUDY)
        assert plan is not None
        pipeline.write(plan)
        written = spool.directory.rglob("outputs/*.sr.dcm")
        assert sorted(str(dcmread(path).SeriesDescription) for path in written) == expected


def test_a_folder_has_the_ratio_under_the_films_name(tmp_path: Path) -> None:
    answered = answer_film(films.saved(tmp_path, films.thumbnail()), RatioReader(), PROMPTS)
    assert answered.film is not None
    report, sources = samples.report(answered.film), {answered.film.source: Source(header=answered.dataset)}
    objects = write_objects(report, sources, zone=ZoneInfo("UTC"), kinds=("sr", "gsps"))

    content = write_folder(tmp_path / "out", report, objects, sources)

    name = f"{answered.film.source}.ratio.dcm"
    assert name in str(content["outputs"])
    assert {"sr.dcm", name} <= {path.name for path in (tmp_path / "out" / report.study_uid).iterdir()}
