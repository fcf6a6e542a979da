"""The manifest and its decisions: what is written is read, a mistake is told by its key, what a probability says."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contract import ChangeError, FindingState, Trusted
from models.decisions import (
    Band,
    Decisions,
    Measurement,
    PhantomThreshold,
    PlaceRule,
    RatioError,
    Readout,
    ThresholdChange,
)
from models.errors import ModelError
from models.manifest import (
    MANIFEST,
    PUBLISHED_SIZES,
    Ages,
    DetectionRule,
    InputRule,
    ReportRule,
    ViewSizes,
    read_manifest,
    write_manifest,
)
from models.reading.decision import decide, is_ratio_measured, is_ratio_trusted
from models.views import ViewRule
from tests.support.scripted_engine import ScriptedEngine, reader_of

texts = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Cf"]), max_size=40)

PLAIN = reader_of(ScriptedEngine([], [])).manifest


@given(texts, st.dictionaries(texts, st.floats(0, 1), max_size=3), st.dictionaries(texts, texts, max_size=3))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, card: str, thresholds: dict[str, float], files: dict[str, str]
) -> None:
    directory = tmp_path_factory.mktemp("model")
    decisions = replace(PLAIN.decisions, thresholds=thresholds)
    written = replace(PLAIN, trained_on=card, decisions=decisions, files=files)

    write_manifest(directory, written)

    assert read_manifest(directory) == written


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        (
            'stem = "patch"',
            'stem = "convolution"',
            r"sizes\.image_encoder\.stem: 'convolution' is unknown; use 'patch'",
        ),
        ('pooling = "sum"', 'pooling = "mean"', r"sizes\.detector\.pooling: 'mean' is unknown; use 'sum'"),
        ("temperature = 1.0", "temperature = 1.0\ntop_k = 3", r"decisions\.top_k: unknown key"),
        ("size = 224", "size = 256", r"input\.size \(256\) must equal sizes\.image_encoder\.image_size \(224\)"),
        ("dim = 512", "dim = 1024", r"sizes\.image_encoder\.output, prompt_encoder\.output \(512, 512\)"),
        ("max_length = 128", "max_length = 1025", r"sizes\.generator\.max_length \(1025\) must not exceed"),
        ("fracture = 0.7", "fracture = nan", r"decisions\.thresholds\.fracture \(nan\) must lie in 0\.\.1"),
        ('name = "scripted"', 'name = " "', "name must not be blank"),
        ('name = "scripted"', "name = scripted", "is not TOML"),
    ],
)
def test_a_mistake_is_told_by_its_key(tmp_path: Path, good: str, bad: str, complaint: str) -> None:
    write_manifest(tmp_path, PLAIN)
    text = (tmp_path / MANIFEST).read_text()
    assert good in text

    (tmp_path / MANIFEST).write_text(text.replace(good, bad, 1))

    with pytest.raises(ModelError, match=complaint):
        read_manifest(tmp_path)


def test_every_mistake_in_a_manifest_is_listed_at_once(tmp_path: Path) -> None:
    write_manifest(tmp_path, PLAIN)
    path = tmp_path / MANIFEST
    text = path.read_text().replace('gray = "voi"', 'gray = "linear"\ncolor = 1').replace("std = 0.25\n", "")
    path.write_text(text.replace("width = 768", 'width = "wide"').replace("temperature = 1.0", "temperature = 0", 1))

    with pytest.raises(ModelError) as refused:
        read_manifest(tmp_path)

    assert sorted(str(refused.value).splitlines()) == [
        f"{path}: color: unknown key; remove it, correct its spelling, or use a newer program",
        f"{path}: decisions.temperature (0.0) must be above 0 and finite",
        f"{path}: gray: 'linear' is unknown; use 'voi' or 'mimic_jpg'",
        f"{path}: input.std: is missing; add it",
        f"{path}: sizes.image_encoder.width: must be a whole number, got 'wide'",
    ]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (Path.exists, "name a model directory"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.write_bytes(b"#" * 1_048_577), "has more than 1048576 bytes"),
    ],
    ids=["none", "a pipe", "many bytes"],
)
def test_what_is_no_manifest_is_not_read(tmp_path: Path, make: Callable[[Path], object], complaint: str) -> None:
    make(tmp_path / MANIFEST)

    with pytest.raises(ModelError, match=complaint):
        read_manifest(tmp_path)


def test_what_a_manifest_may_have_is_read_as_it_was_written(tmp_path: Path) -> None:
    band = Band(lower=0.35, below=60, missed=60, within=20, shown=20)  # a bound itself is allowed
    decisions = replace(
        PLAIN.decisions,
        thresholds={"edema": 0.7},
        measurements={"edema": Measurement(measured_on="hospital", positives=20, negatives=80, band=band)},
        phantoms={"edema": PhantomThreshold(threshold=0.4, positives=3, negatives=7)},
        merge_overlap=0.4,
        most_boxes=2,
    )
    rule = DetectionRule(scored_by="weights", temperature=0.2, scales={"edema": 1.3}, overlap=0.1)
    views = ViewRule(temperature=2.0, certain=0.9, mirrored=0.5, rotated=0.5)
    words = replace(WORDS, max_length=WORDS.positions, own_tokens=(0, WORDS.vocabulary - 1))
    images = replace(IMAGES, layers=256)
    sizes = replace(PLAIN.sizes, views=ViewSizes(cells=7, width=8), generator=words, image_encoder=images)
    whole = replace(PLAIN, decisions=decisions, detection=rule, views=views, sizes=sizes)

    write_manifest(tmp_path, whole)
    assert read_manifest(tmp_path) == whole
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]
    write_manifest(tmp_path, PLAIN)
    assert read_manifest(tmp_path) == PLAIN
    assert not {"detection", "views"} & tomllib.loads((tmp_path / MANIFEST).read_text(encoding="utf-8")).keys()
    with pytest.raises(ValueError, match="belong together"):
        replace(PLAIN, views=views)


DECISIONS = Decisions(
    temperature=1.0,
    default_threshold=0.5,
    thresholds={"edema": 0.7, "fracture": 0.7, "nodule": 0.7},
    measurements={
        "edema": Measurement(measured_on="hospital", positives=20, negatives=80),
        "fracture": Measurement(measured_on="phantoms", positives=20, negatives=80),
    },
    review_band=0.1,
    box_threshold=0.5,
    region_threshold=0.5,
)


@pytest.mark.parametrize(
    ("key", "trusted", "above", "near"),
    [
        ("edema", "real", FindingState.PRESENT, FindingState.INDETERMINATE),
        ("edema", "phantoms", FindingState.UNCALIBRATED, FindingState.UNCALIBRATED),
        ("edema", "any", FindingState.PRESENT, FindingState.INDETERMINATE),
        ("fracture", "real", FindingState.UNCALIBRATED, FindingState.UNCALIBRATED),
        ("fracture", "phantoms", FindingState.PRESENT, FindingState.INDETERMINATE),
        ("nodule", "real", FindingState.UNCALIBRATED, FindingState.UNCALIBRATED),
        ("nodule", "phantoms", FindingState.UNCALIBRATED, FindingState.UNCALIBRATED),
        ("nodule", "any", FindingState.PRESENT, FindingState.INDETERMINATE),
    ],
)
def test_only_a_measured_threshold_calls_a_finding_present(
    key: str, trusted: Trusted, above: FindingState, near: FindingState
) -> None:
    states = [decide(DECISIONS, key, probability, trusted=trusted) for probability in (0.7, 0.65, 0.6, 0.5999)]

    assert states == [above, near, near, FindingState.ABSENT]
    for unknown in (None, "pneumonia"):  # what has no threshold of its own
        assert decide(DECISIONS, unknown, 0.5, trusted="any") is FindingState.PRESENT
        assert decide(DECISIONS, unknown, 0.39, trusted=trusted) is FindingState.ABSENT
        assert trusted == "any" or decide(DECISIONS, unknown, 0.9, trusted=trusted) is FindingState.UNCALIBRATED


def test_phantoms_have_thresholds_and_bands_of_their_own() -> None:
    drawn = replace(DECISIONS, phantoms={"edema": replace(DRAWN, threshold=0.8, band=HIGH)}).on_phantoms()

    states = [decide(drawn, "edema", probability, trusted="phantoms") for probability in (0.74, 0.75, 0.8)]

    assert states == [FindingState.ABSENT, FindingState.INDETERMINATE, FindingState.PRESENT]


@pytest.mark.parametrize(
    ("measured_on", "trusting"),
    [("hospital", {"real", "any"}), ("phantoms", {"phantoms", "any"}), (None, set())],
)
def test_a_ratio_is_trusted_where_its_error_was_measured(measured_on: str | None, trusting: set[str]) -> None:
    error = measured_on and RatioError(
        measured_on=measured_on, films=9, mean_absolute_error=0.02, bias=0.0, lower=-0.05, upper=0.05
    )
    ways: tuple[Trusted, ...] = ("real", "phantoms", "any")

    assert {trusted for trusted in ways if is_ratio_trusted(error or None, trusted)} == trusting
    measured = {trusted for trusted in ways if is_ratio_measured(error or None, trusted)}
    assert measured == (trusting - {"any"} if measured_on == "phantoms" else trusting)


HOSPITAL = Measurement(measured_on="hospital", positives=20, negatives=80)
BAND = Band(lower=0.2, below=40, missed=2, within=9, shown=9)
HIGH = replace(BAND, lower=0.75)
ERROR = RatioError(measured_on="phantoms", films=9, mean_absolute_error=0.02, bias=0.0, lower=-0.05, upper=0.05)
PLACE = PlaceRule(measured_on="hospital", least=0.5, told=2, right=1)
DRAWN = PhantomThreshold(threshold=0.4, positives=3, negatives=7)
CHANGE = ThresholdChange(finding="edema", before=0.5, after=0.6, reason="why", by="anna", at="2026-01-01T00:00:00Z")
IMAGES, PROMPTS, WORDS = PUBLISHED_SIZES.image_encoder, PUBLISHED_SIZES.prompt_encoder, PUBLISHED_SIZES.generator
UNSORTED = (1, 1), (2, 1), (-1, 0), (0, 50257)
UNCHANGED = ChangeError(measured_on="hospital", films=30, extent=0.1, probability=0.1)
VIEWS = ViewRule(temperature=1.0, certain=0.9, mirrored=0.5, rotated=0.5)


@pytest.mark.parametrize(
    ("sound", "wrong"),
    [
        (
            ERROR,
            [("films", 0), ("measured_on", " "), ("mean_absolute_error", 2.0), ("bias", 0.06), ("lower", math.nan)],
        ),
        (BAND, [("lower", 1.2), ("normal", 1.2), ("missed", 41), ("shown", 10), ("shown", -1)]),
        (HOSPITAL, [("measured_on", " "), ("positives", 0), ("negatives", 0), ("threshold", 1.2)]),
        (PLACE, [("measured_on", "phantoms"), ("measured_on", " "), ("right", 3), ("least", 1.2)]),
        (DRAWN, [("threshold", 1.2), ("negatives", 0)]),
        (Readout(slope=1.0, offset=0.0), [("slope", 0.0), ("offset", math.inf)]),
        (CHANGE, [("finding", " "), ("reason", " "), ("by", " "), ("after", 1.2)]),
        (UNCHANGED, [("measured_on", ""), ("films", 0), ("extent", 1.2)]),
        (VIEWS, [("temperature", 0.0), ("rotated", 1.2)]),
        (Ages(least=18), [("least", -1), ("most", 17)]),
        (DetectionRule(), [("temperature", 0.0), ("overlap", 1.1), ("scales", {"edema": 0.0})]),
        (DetectionRule(), [("scales", {"edema": math.inf})]),
        (ReportRule(), [("max_sentences", 0), ("remove_above", 1.1), ("soft_remove_above", -0.1), ("emphasis", -0.25)]),
        (
            InputRule(size=224, mean=0.5, std=0.2, resize="direct"),
            [("std", 0.0), ("mean", math.inf), ("mean", math.nan)],
        ),
        (IMAGES, [("layers", 0), ("layers", 257), ("output", 1 << 21), ("heads", 13)]),
        (PROMPTS, [("heads", 7), *(("own_tokens", tokens) for tokens in UNSORTED)]),
        (WORDS, [("heads", 15), *(("own_tokens", tokens) for tokens in UNSORTED)]),
        (PUBLISHED_SIZES.detector, [("heads", 7), ("beta", math.nan)]),
        (PUBLISHED_SIZES.post_decoder, [("layers", -1), ("layers", 257)]),
        (DECISIONS, [(f"{name}_threshold", 1.1) for name in ("default", "box", "region")]),
        (DECISIONS, [("merge_overlap", 1.1), ("most_boxes", 0), ("review_band", math.nan)]),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_its_name(sound: object, wrong: list[tuple[str, object]]) -> None:
    for name, value in wrong:
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            replace(sound, **{name: value})  # type: ignore[type-var] # any of these dataclasses


@pytest.mark.parametrize(
    ("sound", "wrong", "complaint"),
    [
        (CHANGE, {"at": "yesterday"}, "isoformat"),
        (IMAGES, {"image_size": 225}, "image_size (225) must be a multiple of patch_size (32)"),
        (IMAGES, {"stem": "conv", "patch_size": 28}, "patch_size (28) must be a power of 2 with stem conv"),
        (IMAGES, {"stem": "conv", "width": 780}, "width (780) must be a multiple of patch_size / 2 (16)"),
        (PUBLISHED_SIZES, {"views": ViewSizes(cells=2, width=8)}, "grid (7) must be a multiple of views.cells (2)"),
        (DECISIONS, {"readout": {"fracture": Readout(slope=1.0, offset=0.0)}}, "readout.fracture needs measurements."),
        (DECISIONS, {"thresholds": {"fracture": 0.7}}, "measurements.edema belongs to no threshold"),
        (DECISIONS, {"measurements": {"edema": replace(HOSPITAL, band=HIGH)}}, "edema.band.lower (0.75) must not be"),
        (DECISIONS, {"phantoms": {"edema": replace(DRAWN, band=HIGH)}}, "edema.band.lower (0.75) must not be above"),
        (
            DECISIONS,
            {"thresholds": {"edema": 1.0}, "measurements": {"edema": replace(HOSPITAL, band=BAND)}},
            "left out; remove it",
        ),
        *(
            (DECISIONS, {"phantoms": {key: DRAWN}}, f"phantoms.{key} needs measurements.{key}, on real films")
            for key in ("fracture", "nodule", "pneumonia")
        ),
    ],
)
def test_numbers_that_do_not_fit_each_other_are_refused(sound: object, wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        replace(sound, **wrong)  # type: ignore[type-var] # any of these dataclasses
