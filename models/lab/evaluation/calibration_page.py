"""A calibration in words and tables: what a person sees at its end, and the section of the card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from models.checkpoint.card import section
from models.decisions import LEFT_OUT
from models.lab.evaluation.calibrating import Calibrated, FindingReport

_REST: Final = {
    "auroc": "AUROC",
    "sensitivity": "with it: present",
    "missed": "with it: not reported",
    "called_wrongly": "without it: present",
    "to_review": "to review",
}


def page(made: Calibrated) -> str:
    """Write the section of the card."""
    return section(
        "calibrated",
        made=made,
        changes=[_changes(made, finding) for finding in made.findings],
        names=list(_REST.values()),
        figures=[
            (finding.finding, *(_figure(finding, name) for name in _REST)) for finding in made.findings if finding.rest
        ],
        false_findings=None if made.false_findings is None else _bounded(*made.false_findings),
        off={finding.finding: finding.off for finding in made.findings if finding.off} | dict(made.off),
    )


def figures(made: Calibrated) -> list[str]:
    """Return three figures with their intervals, for the first lines of the card: of the most frequent findings."""
    films = f"{made.reported_on[0]} films, `{made.population}`"
    known = sorted((finding for finding in made.findings if "auroc" in finding.rest), key=lambda each: -each.with_it)
    lines = [f"AUROC of {each.finding.replace('_', ' ')}: {_figure(each, 'auroc')}, {films}." for each in known[:3]]
    if made.false_findings is not None:
        lines[2:] = [f"findings called present on a normal film: {_bounded(*made.false_findings)}, {films}."]
    return lines


def document(made: Calibrated) -> dict[str, object]:
    """Return a calibration as one JSON object."""
    before, after = made.before.decisions, made.after.decisions
    return {
        "measured_on": made.population,
        "chosen_on": dict(zip(("films", "patients"), made.chosen_on, strict=True)),
        "reported_on": dict(zip(("films", "patients"), made.reported_on, strict=True)),
        "share": made.share,
        "aim": made.aim,
        "temperature": {"before": before.temperature, "after": after.temperature},
        "findings": {
            finding.finding: asdict(finding)
            | {
                "threshold": {"before": before.threshold(finding.finding), "after": after.threshold(finding.finding)},
                "review_from": {"before": before.lower(finding.finding), "after": after.lower(finding.finding)},
            }
            for finding in made.findings
        },
        "false_findings": made.false_findings,
        "off": dict(made.off),
    }


def _changes(made: Calibrated, finding: FindingReport) -> tuple[object, ...]:
    """Return the changes of a finding as cells of a row."""
    both, called = (made.before.decisions, made.after.decisions), made.called[finding.finding]
    key = finding.finding
    return (
        key,
        finding.with_it,
        finding.without,
        _changed([_probability(each.threshold(key)) for each in both]),
        _changed(["-" if each.leaves_out(key) else _probability(each.lower(key)) for each in both]),
        _changed([str(called[0]), str(called[2])]),
        _changed([str(called[1]), str(called[3])]),
    )


def _figure(finding: FindingReport, name: str) -> str:
    return _bounded(*finding.rest[name]) if name in finding.rest else "-"


def _bounded(value: float, bounds: Sequence[float]) -> str:
    return f"{value:.2f}" + (f" ({bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else "")


def _probability(value: float) -> str:
    return "left out" if value == LEFT_OUT else f"{max(value, 0.0):.3f}"


def _changed(values: Sequence[str]) -> str:
    return values[0] if values[0] == values[1] else f"{values[0]} -> {values[1]}"
