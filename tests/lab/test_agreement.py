"""How much of two readings of the same films is the same, and what a model directory says about it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.checkpoint.files import CARD, verify
from models.contract import FilmReading, FindingState, PromptKind, PromptReading
from models.decisions import Decisions
from models.lab.evaluation.agreement import (
    TABLES,
    Agreement,
    ChangedState,
    FewBits,
    agreement_of,
    main,
    write_agreement,
)
from models.lab.evaluation.prompt_set import DEFAULT, read_questions
from models.manifest import MANIFEST, read_manifest
from models.network.products import int8_fault
from tests.support.directories import linked_copy

pytestmark = pytest.mark.drill(part="laboratory")

SAME = Agreement(
    precision="int8",
    data="phantoms:1000000:2",
    films=2,
    states=100,
    same_states=100,
    sentences=100,
    same_sentences=95,
    same_reports=1,
)
REAL = replace(SAME, data="boxes:films.jsonl", same_states=99)
DECISIONS = Decisions(temperature=1.0, default_threshold=0.6, review_band=0.1, box_threshold=0.5, region_threshold=0.5)


def change(distance: float) -> ChangedState:
    return ChangedState(
        film=3,
        prompt="heart",
        probability=0.6,
        float32=FindingState.PRESENT,
        few_bits=FindingState.ABSENT,
        distance=distance,
    )


def reading(state: FindingState | None, generated: str, probability: float = 0.5) -> FilmReading:
    prompt = PromptReading(
        key="heart",
        kind=PromptKind.REGION if state is None else PromptKind.PATHOLOGY,
        probability=None if state is None else probability,
        state=state,
        sentence=None,
        generated=generated,
    )
    return FilmReading(sentences=(), prompts=(prompt,))


def test_agreement_within_the_limits_has_no_shortfall() -> None:
    assert SAME.shortfalls() == []
    assert replace(REAL, changed=(change(0.01),)).shortfalls() == []


@pytest.mark.parametrize(
    ("agreement", "complaint"),
    [
        (replace(SAME, same_states=99), "phantoms:1000000:2: 99.00 % of states"),
        (replace(SAME, same_sentences=94), "phantoms:1000000:2: 94.00 % of sentences"),
        (replace(REAL, same_states=98), "boxes:films.jsonl: 98.00 % of states"),
        (
            replace(REAL, changed=(change(0.02),)),
            "boxes:films.jsonl, film 3: heart changed from present to absent 0.020",
        ),
    ],
)
def test_too_little_agreement_is_named(agreement: Agreement, complaint: str) -> None:
    (shortfall,) = agreement.shortfalls()

    assert shortfall.startswith(complaint)


def test_states_and_sentences_are_counted_apart() -> None:
    plain, other = reading(FindingState.PRESENT, "A large heart."), reading(FindingState.ABSENT, "A large heart.")
    region, reworded = reading(None, "Clear lungs."), reading(None, "Lungs are clear.")
    readings = [(plain, plain), (plain, other), (region, reworded), (reading(None, ""), region)]

    agreement = agreement_of(readings, DECISIONS, precision="int4", data="phantoms:1:4")

    assert (agreement.states, agreement.same_states) == (2, 1)
    assert (agreement.sentences, agreement.same_sentences) == (4, 2)
    assert agreement.films == 4


@pytest.mark.parametrize(
    ("first", "second", "distance"), [(0.599, 0.602, 0.002), (0.504, 0.496, 0.004), (0.57, 0.57, 0.03)]
)
def test_a_changed_state_has_its_distance_from_a_limit(first: float, second: float, distance: float) -> None:
    readings = [(reading(FindingState.PRESENT, "", first), reading(FindingState.INDETERMINATE, "", second))]

    (changed,) = agreement_of(readings, DECISIONS, precision="int4", data="phantoms:1:1").changed

    assert (changed.film, changed.prompt, changed.probability) == (0, "heart", first)
    assert changed.distance == pytest.approx(distance)


@pytest.mark.parametrize("precision", TABLES)
def test_the_command_compares_phantoms_and_films_of_a_file(
    phantom_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], precision: FewBits
) -> None:
    if precision == "int8" and (fault := int8_fault()):
        pytest.skip(fault)
    model, films = _copy(phantom_model, tmp_path), tmp_path / "films.jsonl"
    cv2.imwrite(str(tmp_path / "film.png"), np.random.default_rng(1).integers(0, 255, (64, 64), dtype=np.uint8))
    films.write_text("".join(json.dumps({"file": "film.png", "patient": name}) + "\n" for name in "AB"))
    held_out = tmp_path / "held.txt"
    held_out.write_text("B\n")
    data = ["--data", "phantoms:1000000:1", "--data", f"boxes:{films}", "--held-out", str(held_out)]

    main(["--model", str(model), "--precision", precision, *data, "--write"])

    drawn, real = json.loads((model / TABLES[precision]).read_text())["data"]
    assert (drawn["data"], drawn["films"], drawn["held_out"]) == ("phantoms:1000000:1", 1, "")
    assert (real["data"], real["films"], real["held_out"]) == ("boxes:films.jsonl", 1, "held.txt")
    assert drawn["states"] == drawn["same_states"] > 0
    assert capsys.readouterr().out.splitlines()[1].split()[-3:] == [str(drawn["states"]), "of", str(drawn["states"])]
    verify(model, read_manifest(model))


def test_data_that_is_neither_is_refused(phantom_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(phantom_model), "--data", "films"]) == 2
    assert "or boxes:FILE.jsonl" in capsys.readouterr().err


def test_the_card_has_one_table_before_what_was_measured(phantom_model: Path, tmp_path: Path) -> None:
    model = _copy(phantom_model, tmp_path)
    questions = read_questions(DEFAULT)

    for agreement in (SAME, replace(SAME, precision="int4"), replace(REAL, changed=(change(0.004),))):
        write_agreement(model, [agreement], engine="onnx", questions=questions)

    card = (model / CARD).read_text()
    before, _, measured = card.partition("\n## Measured\n")
    assert before.count("## int8 beside float32") == before.count("## int4 beside float32") == 1
    [written] = json.loads((model / "agreement.json").read_text())["data"]
    assert written["changed"][0]["int8"] == "absent"
    assert "precision" not in written
    assert "| `boxes:films.jsonl` | states of findings | 99 (99.0%) | 100 |" in before
    assert "at most 0.004 from" in before
    assert measured == (phantom_model / CARD).read_text().partition("\n## Measured\n")[2]
    verify(model, read_manifest(model))


def _copy(model: Path, folder: Path) -> Path:
    """Copy a model directory, of which the card and the manifest may be changed."""
    copy = linked_copy(model, folder / "model")
    for name in (CARD, MANIFEST):
        (copy / name).unlink()
        shutil.copyfile(model / name, copy / name)
    return copy
