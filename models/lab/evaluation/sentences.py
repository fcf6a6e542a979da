"""What the rules do to sentences: how many are withheld and replaced, and how often the network's own one would do.

A finding's own sentence is the one that was generated for it at first; it passes if it was not withheld. Sentences are
compared with decisions, so labels are needed only to say which contradicted findings were right, and what is called
present on films that are normal or show an opacity, after all that speaks against a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from models.contract import FilmReading, PromptReading
from models.decisions import Decisions
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.films import drawn_by_patient, interval
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices
from models.lab.evaluation.thresholds import OPACITY

_COUNTS: Final = (
    "generated",
    "withheld",
    "by_rule",
    "present",
    "own_present",
    "reported",
    "own_reported",
    "by_network",
    "normal",
    "present_on_normal",
    "opacities",
    "opacities_present",
)
_SHARES: Final = {
    "withheld_share": ("withheld", "generated"),
    "replaced_by_rule": ("by_rule", "withheld"),
    "own_present_share": ("own_present", "present"),
    "own_reported_share": ("own_reported", "reported"),
    "by_network_share": ("by_network", "reported"),
    "false_findings": ("present_on_normal", "normal"),
    "opacity_sensitivity": ("opacities_present", "opacities"),
}
"""Figures by the counts that they are the quotients of."""


def measure(
    readings: Sequence[FilmReading], truths: Sequence[Truth], decisions: Sequence[Decisions], bootstrap: Bootstrap
) -> dict[str, object]:
    """Compute the figures of checked readings; decisions: by which each film was read."""
    counted = [counts_of(*film) for film in zip(readings, truths, strict=True)]
    table = np.array([[film[name] for name in _COUNTS] for film in counted], dtype=np.int64)

    def figures(films: Indices) -> Figures:
        totals = dict(zip(_COUNTS, table[films].sum(axis=0).tolist(), strict=True))
        return {
            name: totals[part] / totals[whole] if totals[whole] else None for name, (part, whole) in _SHARES.items()
        }

    patients = np.array([truth.patient or f"film {number}" for number, truth in enumerate(truths)])
    reasons = Counter(withheld.reason for reading in readings for withheld in reading.withheld)
    against = [
        (prompt.contradiction, truth.labels.get(prompt.key))
        for reading, truth, own in zip(readings, truths, decisions, strict=True)
        for prompt in reading.prompts
        if _is_doubted(prompt, own)
    ]
    return {
        **figures(np.arange(len(readings))),
        **{name: int(count) for name, count in zip(_COUNTS, table.sum(axis=0), strict=True)},
        "contradicted": len(against),
        "contradicted_rightly": sum(label is False for _, label in against),
        "contradicted_wrongly": sum(label is True for _, label in against),
        "per_reason": dict(sorted(reasons.items())),
        "per_contradiction": dict(sorted(Counter(str(reason) for reason, _ in against).items())),
        "deviations": bootstrap.deviations(figures, len(readings)),
        "intervals": interval([figures(some) for some in drawn_by_patient(patients, resamples=bootstrap.resamples)]),
    }


def counts_of(reading: FilmReading, truth: Truth) -> dict[str, int]:
    """Count the sentences of one film, and its findings, by what became of their sentences."""
    withheld = {sentence.prompt for sentence in reading.withheld}
    reported = [prompt for prompt in reading.pathologies if prompt.state is not None and prompt.state.is_reported]
    own = [prompt for prompt in reported if prompt.generated and prompt.key not in withheld]
    present = _present(reported)
    is_normal, is_read = truth.is_normal, truth.read_as == "Lung Opacity"
    makers = [reading.sentences[prompt.sentence].by for prompt in reported if prompt.sentence is not None]
    return {
        "generated": sum(bool(prompt.generated) for prompt in reading.prompts),
        "withheld": len(reading.withheld),
        "by_rule": makers.count("rule"),
        "present": len(present),
        "own_present": len(_present(own)),
        "reported": len(reported),
        "own_reported": len(own),
        "by_network": sum(maker.startswith("network") for maker in makers),
        "normal": int(is_normal),
        "present_on_normal": len(present) if is_normal else 0,
        "opacities": int(is_read),
        "opacities_present": int(is_read and OPACITY in [prompt.key for prompt in present]),
    }


def _is_doubted(prompt: PromptReading, decisions: Decisions) -> bool:
    """Say whether a finding would be present if nothing spoke against it."""
    return (
        prompt.contradiction is not None
        and prompt.state == "indeterminate"
        and (prompt.probability or 0.0) >= decisions.threshold(prompt.key)
    )


def _present(prompts: Sequence[PromptReading]) -> list[PromptReading]:
    return [prompt for prompt in prompts if prompt.state == "present"]
