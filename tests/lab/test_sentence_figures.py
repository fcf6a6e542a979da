"""How many sentences are withheld and replaced, and how many findings have their own, counted by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from models.contract import (
    By,
    Contradiction,
    FilmReading,
    FindingState,
    PromptKind,
    PromptReading,
    Sentence,
    WithheldSentence,
)
from models.decisions import Decisions
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.reports import measure_sentences
from models.lab.evaluation.statistics import Bootstrap

DECISIONS = Decisions(temperature=1.0, default_threshold=0.6, review_band=0.1, box_threshold=0.5, region_threshold=0.5)


def prompt(
    key: str,
    state: FindingState | None,
    *,
    generated: str = "Words.",
    sentence: int | None = None,
    probability: float = 0.9,
    contradiction: Contradiction | None = None,
) -> PromptReading:
    return PromptReading(
        key=key,
        kind=PromptKind.REGION if state is None else PromptKind.PATHOLOGY,
        probability=None if state is None else probability,
        state=state,
        sentence=sentence,
        generated=generated,
        contradiction=contradiction,
    )


def film(*prompts: PromptReading, said: tuple[By, ...] = (), withheld: tuple[str, ...] = ()) -> FilmReading:
    return FilmReading(
        sentences=tuple(Sentence(text="S.", prompt="", score=1.0, boxes=(), by=by) for by in said),
        prompts=prompts,
        withheld=tuple(WithheldSentence(text="W.", prompt=key, reason="denied") for key in withheld),
    )


ONE = film(
    prompt("edema", FindingState.PRESENT, sentence=0),
    prompt("fracture", FindingState.PRESENT, sentence=1),
    prompt("pneumonia", FindingState.INDETERMINATE, sentence=2, contradiction="other_side"),
    prompt("pneumothorax", FindingState.ABSENT),
    prompt("left_lung", None),
    prompt("right_lung", None, generated=""),
    said=("network", "rule", "network"),
    withheld=("fracture", "pneumonia", "left_lung"),
)
"""Of two present findings one has its own sentence; the third one got another of the network."""


def measured(*readings: FilmReading, truth: Truth | None = None) -> dict[str, object]:
    return measure_sentences(
        readings, [truth or Truth()] * len(readings), [DECISIONS] * len(readings), Bootstrap(resamples=0)
    )


def test_sentences_are_counted_by_what_became_of_them() -> None:
    figures = measured(ONE, film(prompt("edema", FindingState.ABSENT)))

    assert {name: figures[name] for name in ("generated", "withheld", "by_rule", FindingState.PRESENT, "reported")} == {
        "generated": 6,
        "withheld": 3,
        "by_rule": 1,
        FindingState.PRESENT: 2,
        "reported": 3,
    }
    assert figures["withheld_share"] == pytest.approx(3 / 6)
    assert figures["replaced_by_rule"] == pytest.approx(1 / 3)
    assert figures["own_present_share"] == pytest.approx(1 / 2)
    assert figures["own_reported_share"] == pytest.approx(1 / 3)
    assert figures["by_network_share"] == pytest.approx(2 / 3)
    assert figures["per_reason"] == {"denied": 3}


def test_only_what_would_be_present_counts_as_contradicted() -> None:
    figures = measured(
        ONE,
        film(prompt("edema", FindingState.INDETERMINATE, probability=0.55, contradiction="other_side")),
        film(prompt("edema", FindingState.UNCALIBRATED, contradiction="other_side")),
    )

    assert (figures["contradicted"], figures["per_contradiction"]) == (1, {"other_side": 1})


@pytest.mark.parametrize(
    ("labels", "rightly", "wrongly"),
    [({"pneumonia": False}, 1, 0), ({"pneumonia": True}, 0, 1), ({"edema": True}, 0, 0)],
)
def test_a_contradiction_is_right_if_the_finding_is_wrong(
    labels: Mapping[str, bool], rightly: int, wrongly: int
) -> None:
    figures = measured(ONE, truth=Truth(labels=labels))

    assert (figures["contradicted_rightly"], figures["contradicted_wrongly"]) == (rightly, wrongly)


def test_a_sentence_that_was_not_generated_is_no_own_one() -> None:
    figures = measured(film(prompt("edema", FindingState.PRESENT, generated="")))

    assert (figures["own_present_share"], figures["withheld_share"]) == (0.0, None)


@pytest.mark.parametrize(
    ("truth", "false", "found"),
    [
        (Truth(labels={"no_finding": True}), 2.0, None),
        (Truth(labels={"lung_opacity": True}, read_as="Lung Opacity"), None, 0.0),
        (Truth(labels={"edema": True}), None, None),
    ],
)
def test_what_is_present_is_false_on_a_normal_film(truth: Truth, false: float | None, found: float | None) -> None:
    figures = measured(ONE, truth=truth)

    assert (figures["false_findings"], figures["opacity_sensitivity"]) == (false, found)
