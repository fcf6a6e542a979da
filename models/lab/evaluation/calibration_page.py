"""A calibration in words and tables: what a person sees at its end, and the section of the card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from models.decisions import LEFT_OUT
from models.lab.evaluation.calibrating import Calibrated, FindingReport
from models.lab.evaluation.document import row
from models.rewriting import CALIBRATED

_REST: Final = {
    "auroc": "AUROC",
    "sensitivity": "with it: present",
    "missed": "with it: not reported",
    "called_wrongly": "without it: present",
    "to_review": "to review",
}


def page(made: Calibrated) -> str:
    """Write the section of the card."""
    return "\n".join(_lines(made)) + "\n"


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


def _lines(made: Calibrated) -> Iterator[str]:
    films, patients = made.chosen_on
    yield CALIBRATED
    yield ""
    yield f"On `{made.population}`, at {made.at}. Thresholds and bands were chosen for {made.aim},"
    yield f"on {films} films of {patients} patients{'' if made.reported_on[0] else ', all that there are'}."
    if made.reported_on[0]:
        yield f"These are the patients whose name falls into the first {made.share:g} of all hashes (SHA-256 of"
        yield "`calibrate NAME`, its first 8 bytes modulo 1000). The figures are of the other"
        yield f"{made.reported_on[0]} films, of {made.reported_on[1]} patients."
    yield ""
    yield from _changes(made)
    if made.reported_on[0]:
        yield from _figures(made)
    yield from _off(made)


def _changes(made: Calibrated) -> Iterator[str]:
    before, after = made.before.decisions, made.after.decisions
    needed = made.findings[0].needed
    yield f"Films with and without each finding that thresholds were chosen on ({needed} of each are needed); from"
    yield "which probability it is present and to be reviewed; and on how many of the films reported on it is so."
    yield ""
    yield from row("finding", "with it", "without", "present from", "review from", "present on", "review on")
    yield from row(*["---"] * 7)
    for finding in made.findings:
        key, called = finding.finding, made.called[finding.finding]
        present = [_probability(each.threshold(key)) for each in (before, after)]
        review = ["-" if each.leaves_out(key) else _probability(each.lower(key)) for each in (before, after)]
        yield from row(
            key,
            str(finding.with_it),
            str(finding.without),
            _changed(present),
            _changed(review),
            _changed([str(called[0]), str(called[2])]),
            _changed([str(called[1]), str(called[3])]),
        )
    yield ""


def _figures(made: Calibrated) -> Iterator[str]:
    yield "Shares of the films reported on, with their 95 % intervals by patient."
    yield ""
    yield from row("finding", *_REST.values())
    yield from row(*["---"] * (1 + len(_REST)))
    for finding in made.findings:
        if finding.rest:
            yield from row(finding.finding, *(_figure(finding, name) for name in _REST))
    yield ""
    if made.false_findings is not None:
        value, bounds = made.false_findings
        yield f"Findings called present on the mean film without a finding: {_bounded(value, bounds)}."
        yield ""


def _off(made: Calibrated) -> Iterator[str]:
    off = {finding.finding: finding.off for finding in made.findings if finding.off} | dict(made.off)
    if off:
        yield "What these films did not decide, and why:"
        yield ""
        yield from (f"- {name}: {reason}." for name, reason in off.items())
        yield ""


def _figure(finding: FindingReport, name: str) -> str:
    return _bounded(*finding.rest[name]) if name in finding.rest else "-"


def _bounded(value: float, bounds: Sequence[float]) -> str:
    return f"{value:.2f}" + (f" ({bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else "")


def _probability(value: float) -> str:
    return "left out" if value == LEFT_OUT else f"{max(value, 0.0):.3f}"


def _changed(values: Sequence[str]) -> str:
    return values[0] if values[0] == values[1] else f"{values[0]} -> {values[1]}"
