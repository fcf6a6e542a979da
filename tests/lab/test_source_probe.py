"""A linear probe that tells two sources of normal films apart, and the same path for all films."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.lab.evaluation.cases import EvaluationCase, Truth
from models.lab.evaluation.source_probe import main
from models.lab.evaluation.sources import NormalFilms, measure, one_path
from models.reading.tokenizers import VOCABULARIES

pytestmark = pytest.mark.drill(part="laboratory")

MODEL = VOCABULARIES.parent


def source(name: str, *, shift: float, seed: int, films: int = 120, called: int = 6) -> NormalFilms:
    """Films whose features lie this far from those of another source, two films a patient."""
    rng = np.random.default_rng(seed)
    return NormalFilms(
        name=name,
        features=rng.normal(size=(films, 16)) + shift,
        patients=np.array([str(number // 2) for number in range(films)]),
        called=called,
    )


def test_sources_are_told_apart_only_if_their_features_differ() -> None:
    same, other = (
        measure(source("a", shift=0.0, seed=1), source("b", shift=shift, seed=2), resamples=20) for shift in (0.0, 0.5)
    )

    assert isinstance(same["source_auroc"], float) and same["source_auroc"] == pytest.approx(0.5, abs=0.1)
    assert isinstance(other["source_auroc"], float) and other["source_auroc"] > 0.85
    intervals = other["intervals"]
    assert isinstance(intervals, dict)
    low, high = intervals["source_auroc"]
    assert low < other["source_auroc"] < high


def test_a_probe_does_not_know_the_other_films_of_a_patient() -> None:
    """A patient's films are equal; a probe that saw one of them would know the source of the other."""
    rng = np.random.default_rng(1)
    first, second = (
        NormalFilms(
            name=name,
            features=np.repeat(rng.normal(size=(20, 40)), 6, axis=0),
            patients=np.repeat(np.arange(20), 6).astype(str),
            called=0,
        )
        for name in ("a", "b")
    )

    auroc = measure(first, second, resamples=0)["source_auroc"]

    assert isinstance(auroc, float) and auroc < 0.75


def test_false_findings_are_stated_for_each_source() -> None:
    made = measure(source("a", shift=0.0, seed=1), source("b", shift=0.0, seed=2, called=30), resamples=0)

    assert made["by_source"] == {
        "a": {"films": 120, "false_findings": 0.05},
        "b": {"films": 120, "false_findings": 0.25},
    }


def test_all_films_pass_one_path() -> None:
    rng = np.random.default_rng(0)
    wide = np.zeros((300, 500), dtype=np.float32)
    wide[:, 100:400] = cv2.resize(rng.random((30, 30)).astype(np.float32), (300, 300))

    seen, small = (
        one_path(EvaluationCase(name="film", gray=gray, truth=Truth()))
        for gray in (wide, np.ascontiguousarray(wide[:, 100:400]))
    )

    assert seen.shape == (224, 224) and seen.dtype == np.float32
    assert np.array_equal(seen, small), "the borders beside the central square do not count"
    assert np.array_equal(seen, np.rint(seen * 255).astype(np.float32) / np.float32(255))


def test_two_files_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    files = []
    for name, level in (("dark", 40), ("bright", 200)):
        lines = []
        for number in range(12):
            picture = rng.normal(level, 10, size=(64, 64)).clip(0, 255).astype(np.uint8)
            cv2.imwrite(str(tmp_path / f"{name}-{number}.png"), picture)
            read_as = "Normal" if number < 10 else "Lung Opacity"
            lines.append(json.dumps({"file": f"{name}-{number}.png", "patient": str(number), "rsna": read_as}))
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_text("\n".join(lines))
    options = ["--model", str(MODEL), "--engine", "torch", "--data", str(files[0]), "--resamples", "2"]

    assert main([*options, "--data", str(files[1]), "--out", str(tmp_path / "out")]) == 0

    document = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert document["count"] == 20, "normal films only"
    assert document["tasks"]["sources"]["source_auroc"] == 1.0
    assert "AUROC of the source" in capsys.readouterr().out
    assert main(options) == 2
    assert "give --data twice" in capsys.readouterr().err


def test_a_mined_label_is_no_reading(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        lines = []
        for number in range(12):
            cv2.imwrite(str(tmp_path / f"{name}-{number}.png"), rng.integers(0, 255, (64, 64), dtype=np.uint8))
            line = {"file": f"{name}-{number}.png", "patient": str(number), "nih_labels": ["No Finding"]}
            lines.append(json.dumps(line | ({"rsna": "Normal"} if number < 7 else {})))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    data = [option for name in ("one", "two") for option in ("--data", str(tmp_path / f"{name}.jsonl"))]

    options = ["--model", str(MODEL), "--engine", "torch", *data, "--resamples", "2"]
    assert main([*options, "--out", str(tmp_path / "out")]) == 0

    document = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert document["count"] == 14
    assert list(document["tasks"]) == ["sources"]
