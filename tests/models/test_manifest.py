"""The manifest: what is written is read, and every mistake in it is told by its key."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.decisions import Band, Decisions, Measurement, PhantomThreshold, RatioError
from models.errors import ModelError
from models.manifest import (
    MANIFEST,
    PUBLISHED_SIZES,
    DetectionRule,
    InputRule,
    Manifest,
    ReportRule,
    read_manifest,
    write_manifest,
)

texts = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Cf"]), max_size=40)
fractions = st.floats(0, 1)


def manifest(
    *, card: str = "nothing", thresholds: dict[str, float] | None = None, files: dict[str, str] | None = None
) -> Manifest:
    return Manifest(
        name="tiny",
        version="1",
        licence="Apache-2.0",
        trained_on=card,
        intended_use="tests",
        gray="voi",
        input=InputRule(size=224, mean=0.505, std=0.248, resize="via_256"),
        sizes=PUBLISHED_SIZES,
        decisions=Decisions(
            temperature=0.5,
            default_threshold=0.5,
            thresholds=thresholds or {},
            review_band=0.1,
            box_threshold=0.3,
            region_threshold=0.5,
        ),
        report=ReportRule(max_sentences=7, emphasis=0.25),
        files=files or {},
    )


@given(texts, st.dictionaries(texts, fractions, max_size=3), st.dictionaries(texts, texts, max_size=3))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, card: str, thresholds: dict[str, float], files: dict[str, str]
) -> None:
    directory = tmp_path_factory.mktemp("model")
    written = manifest(card=card, thresholds=thresholds, files=files)

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
        (
            'stem = "patch"\npatch_size = 32',
            'stem = "conv"\npatch_size = 28',
            r"patch_size \(28\) must be a power of 2 with stem conv",
        ),
        ('pooling = "sum"', 'pooling = "mean"', r"sizes\.detector\.pooling: 'mean' is unknown; use 'sum'"),
        ('gray = "voi"', 'gray = "linear"', "gray: 'linear' is unknown; use 'voi' or 'mimic_jpg'"),
        ("temperature = 0.5", "temperature = 0.5\ntop_k = 3", r"decisions\.top_k: unknown key"),
        ("std = 0.248\n", "", r"input\.std: is missing"),
        ("size = 224", "size = 256", r"input\.size \(256\) must equal sizes\.image_encoder\.image_size \(224\)"),
        ("heads = 12", "heads = 13", r"sizes\.image_encoder\.width \(768\) must be a multiple of heads \(13\)"),
        ("layers = 12", "layers = 0", r"sizes\.image_encoder\.layers \(0\) must be above 0"),
        ("layers = 3", "layers = 257", r"sizes\.post_decoder\.layers \(257\) must be at most 256"),
        ("dim = 512", "dim = 1024", r"sizes\.image_encoder\.output, prompt_encoder\.output \(512, 512\)"),
        ("max_length = 128", "max_length = 1025", r"sizes\.generator\.max_length \(1025\) must not exceed"),
        ("temperature = 0.5", "temperature = 0", r"decisions\.temperature \(0\.0\) must be above 0"),
        ("review_band = 0.1", "review_band = 0.1\nmerge_overlap = 1.5", r"decisions\.merge_overlap \(1\.5\) must lie"),
        ("emphasis = 0.25", "emphasis = -0.25", r"report\.emphasis \(-0\.25\) must lie in 0\.\.1"),
        ("beta = 2.0", "beta = nan", r"sizes\.detector\.beta \(nan\) must be above 0 and finite"),
        ("mean = 0.505", "mean = nan", r"input\.mean \(nan\) must be finite"),
        ("review_band = 0.1", "review_band = nan", r"decisions\.review_band \(nan\) must lie in 0\.\.1"),
        ("Edema = 0.4", "Edema = nan", r"decisions\.thresholds\.Edema \(nan\) must lie in 0\.\.1"),
        ('name = "tiny"', 'name = " "', "name must not be blank"),
        ('name = "tiny"', "name = tiny", "is not TOML"),
    ],
)
def test_a_mistake_is_told_by_its_key(tmp_path: Path, good: str, bad: str, complaint: str) -> None:
    write_manifest(tmp_path, manifest(thresholds={"Edema": 0.4}))
    text = (tmp_path / MANIFEST).read_text()
    assert good in text

    (tmp_path / MANIFEST).write_text(text.replace(good, bad, 1))

    with pytest.raises(ModelError, match=complaint):
        read_manifest(tmp_path)


def test_every_mistake_in_a_manifest_is_listed_at_once(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest())
    path = tmp_path / MANIFEST
    text = path.read_text().replace('gray = "voi"', 'gray = "linear"\ncolor = 1').replace("std = 0.248\n", "")
    path.write_text(text.replace("width = 768", 'width = "wide"').replace("temperature = 0.5", "temperature = 0", 1))

    with pytest.raises(ModelError) as refused:
        read_manifest(tmp_path)

    assert sorted(str(refused.value).splitlines()) == [
        f"{path}: color: unknown key; remove it, correct its spelling, or use a newer program",
        f"{path}: decisions.temperature (0.0) must be above 0 and finite",
        f"{path}: gray: 'linear' is unknown; use 'voi' or 'mimic_jpg'",
        f"{path}: input.std: is missing; add it",
        f"{path}: sizes.image_encoder.width: must be a whole number, got 'wide'",
    ]


def test_a_folder_without_manifest_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="name a model directory"):
        read_manifest(tmp_path)


def test_a_manifest_that_is_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MANIFEST)

    with pytest.raises(ModelError, match="is not a regular file"):
        read_manifest(tmp_path)


def test_a_manifest_of_many_bytes_is_not_read(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b"#" * 1_048_577)

    with pytest.raises(ModelError, match="has more than 1048576 bytes"):
        read_manifest(tmp_path)


def test_threshold_of_a_prompt_is_its_own_or_the_default() -> None:
    decisions = manifest(thresholds={"Edema": 0.4}).decisions

    assert decisions.threshold("Edema") == 0.4
    assert decisions.threshold("Fracture") == 0.5


def test_only_a_tuned_detection_is_written_to_the_manifest(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest())
    assert "[detection]" not in (tmp_path / MANIFEST).read_text()
    rule = DetectionRule(scored_by="weights", temperature=0.2, scales={"edema": 1.3}, overlap=0.1)

    write_manifest(tmp_path, replace(manifest(), detection=rule))

    assert read_manifest(tmp_path) == replace(manifest(), detection=rule)
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


@pytest.mark.parametrize(
    "wrong", [{"films": 0}, {"measured_on": " "}, {"mean_absolute_error": 2.0}, {"bias": 0.06}, {"lower": float("nan")}]
)
def test_an_error_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    sound = RatioError(measured_on="phantoms", films=9, mean_absolute_error=0.02, bias=0.0, lower=-0.05, upper=0.05)

    with pytest.raises(ValueError, match="must"):
        replace(sound, **wrong)


def test_thresholds_of_both_kinds_of_films_are_kept(tmp_path: Path) -> None:
    band = Band(lower=0.35, below=60, missed=3, within=20, shown=6)
    measured = Measurement(measured_on="hospital", positives=20, negatives=80, band=band)
    before = replace(manifest().decisions, thresholds={"edema": 0.7}, measurements={"edema": measured})
    both = replace(
        manifest(),
        decisions=replace(before, phantoms={"edema": PhantomThreshold(threshold=0.4, positives=3, negatives=7)}),
    )

    write_manifest(tmp_path, both)

    assert read_manifest(tmp_path) == both
    assert both.on_phantoms().decisions.threshold("edema") == 0.4


def test_a_band_of_a_finding_that_is_left_out_is_refused() -> None:
    band = Band(lower=0.35, below=60, missed=3, within=20, shown=6)
    measured = Measurement(measured_on="hospital", positives=20, negatives=80, band=band)

    with pytest.raises(ValueError, match="left out; remove it"):
        replace(manifest().decisions, thresholds={"edema": 1.0}, measurements={"edema": measured})
