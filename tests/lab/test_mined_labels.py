"""A run that takes every mined label of a class for a mistake says so before it trains."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from threading import Event

import cv2
import numpy as np
import pytest

from models.lab.training.labels import Line, remarks_on, shares_of
from models.lab.training.loop import train_by
from models.lab.training.runfile import FilmSource, read_run
from models.lab.training.stages import MinedLabels, Stage
from tests.support.training import write_run

LINES: list[Line] = [
    {"present": {"edema": number < 2, "pneumonia": number < 5}, "mined": ["edema", "pneumonia"]} for number in range(20)
]
ONCE = [(line, 1) for line in LINES]
READ: Line = {"present": {"edema": True, "fracture": True}}
"""A film that somebody read: nothing of it was mined."""


def stage(mined: MinedLabels, *, losses: tuple[str, ...] = ("presence", "box")) -> Stage:
    return Stage(
        name="joint",
        train=("detector",),
        steps=1,
        batch=1,
        learning_rate=1e-3,
        weight_decay=0.0,
        losses=dict.fromkeys(losses, 1.0),
        mined=mined,
    )


def test_shares_are_those_of_films_with_a_mined_label() -> None:
    assert shares_of([*ONCE, (READ, 1)]) == {"edema": 0.1, "pneumonia": 0.25}


def test_a_film_counts_as_often_as_an_epoch_uses_it() -> None:
    assert shares_of([(LINES[0], 3), (LINES[19], 1)]) == {"edema": 0.75, "pneumonia": 0.75}


@pytest.mark.parametrize(
    ("mined", "lost"),
    [
        (MinedLabels(invented=0.09), []),
        (MinedLabels(invented=0.1), ["edema (invented 0.1, given 0.1)"]),
        (MinedLabels(invented=0.02, invented_by_class={"pneumonia": 0.3}), ["pneumonia (invented 0.3, given 0.25)"]),
        (MinedLabels(invented=0.3), ["edema (invented 0.3, given 0.1)", "pneumonia (invented 0.3, given 0.25)"]),
    ],
)
def test_classes_that_cannot_be_learned_are_named(mined: MinedLabels, lost: list[str]) -> None:
    told = list(remarks_on([stage(mined)], shares_of(ONCE)))

    assert [f"mined labels of {', '.join(lost)}: they" in remark for remark in told] == [True] * bool(lost)
    assert not list(remarks_on([stage(mined, losses=("box",))], shares_of(ONCE)))


def test_a_run_says_what_it_cannot_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cv2.imwrite(str(tmp_path / "film.png"), np.zeros((64, 64), dtype=np.uint8))
    lines = [{"file": "film.png", "nih_labels": ["Edema" if number < 2 else "No Finding"]} for number in range(20)]
    films = tmp_path / "films.jsonl"
    films.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(write_run(tmp_path / "run.toml", store=tmp_path / "store", stages=("joint",), steps=1))
    stages = tuple(replace(each, mined=MinedLabels(invented=0.2)) for each in run.stages)
    data = replace(run.data, phantoms=4, films=(FilmSource(file=str(films)),))

    assert train_by(replace(run, data=data, stages=stages), Event()) is not None

    told = capsys.readouterr().err
    assert "stage joint learns nothing from mined labels of edema (invented 0.2, given 0.1)" in told
    assert "no_finding" not in told and "atelectasis" not in told
