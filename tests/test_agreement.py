"""How much of two readings of the same films is the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.evaluation.agreement import Agreement, agreement_of, main
from models.network.products import int8_fault
from models.reading.answers import FilmReading, PromptReading
from models.reading.decision import State

SAME = Agreement(films=2, states=100, same_states=100, sentences=100, same_sentences=95, same_reports=1)


def reading(state: State | None, generated: str) -> FilmReading:
    prompt = PromptReading(
        key="heart",
        kind="region" if state is None else "pathology",
        probability=None if state is None else 0.5,
        state=state,
        boxes=np.zeros((1, 4), dtype=np.float32),
        box_scores=np.ones(1, dtype=np.float32),
        sentence=None,
        generated=generated,
    )
    return FilmReading(sentences=(), prompts=(prompt,))


def test_agreement_within_the_limits_has_no_shortfall() -> None:
    assert SAME.shortfalls() == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"same_states": 99}, "99.00 % of states"), ({"same_sentences": 94}, "94.00 % of sentences")],
)
def test_too_little_agreement_is_named(change: dict[str, int], complaint: str) -> None:
    (shortfall,) = replace(SAME, **change).shortfalls()

    assert shortfall.startswith(complaint)


def test_states_and_sentences_are_counted_apart() -> None:
    plain, other = reading("present", "A large heart."), reading("absent", "A large heart.")
    region, reworded = reading(None, "Clear lungs."), reading(None, "Lungs are clear.")

    agreement = agreement_of([(plain, plain), (plain, other), (region, reworded), (reading(None, ""), region)])

    assert (agreement.states, agreement.same_states) == (2, 1)
    assert (agreement.sentences, agreement.same_sentences) == (4, 2)
    assert agreement.films == 4


def test_the_command_compares_the_shipped_model(
    phantom_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if fault := int8_fault():
        pytest.skip(fault)
    out = tmp_path / "agreement.json"

    main(["--model", str(phantom_model), "--films", "2", "--out", str(out)])

    figures = json.loads(out.read_text())
    assert figures["films"] == 2
    assert figures["states"] == figures["same_states"] > 0
    assert capsys.readouterr().out.splitlines()[0].split() == [
        "states",
        str(figures["states"]),
        "of",
        str(figures["states"]),
    ]
