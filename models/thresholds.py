"""Runnable: shows the thresholds of a model directory, and changes one of them by hand.

    python -m models.thresholds DIR [--json]
    python -m models.thresholds DIR --set edema=0.6 --reason "three false alarms a day" [--by NAME]

The change, its reason and its date go into manifest and card. A node takes the changed directory for another model.
Exit 0: done; 1: a file could not be written; 2: wrong input, with one line that says what to do.
"""

from __future__ import annotations

import argparse
import getpass
import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from language.labels import RuleLabeler
from models.checkpoint.card import open_to_change, rewrite
from models.command import aligned, command_parser, exit_status, run
from models.contract import COMPARISON, LEAST_COMPARED
from models.decisions import LEFT_OUT, Decisions, ThresholdChange
from models.errors import ModelError
from models.manifest import Manifest, read_manifest
from models.program import command_for

_LONGEST_REASON: Final = 200
_NOBODY: Final = "nobody"
_UNMEASURED: Final = (
    "A finding that was measured on nothing, or on phantoms alone, is never present on a patient film, whatever its "
    "first number: it is possible from the second."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table; review_from: the probability from which the finding is to be reviewed.

    threshold: probability from which it is present; 1 if the model leaves it out
    measured_on: films; None if nobody measured it. with_finding, without: how many of them show it or do not
    by: who chose the threshold, when and why
    """

    finding: str
    threshold: float
    review_from: float
    measured_on: str | None
    with_finding: int
    without: int
    by: str


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    options = _parser().parse_args(arguments)
    return exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if (options.set is None) != (options.reason is None):
        raise ModelError('--set and --reason belong together: --set edema=0.6 --reason "why"')
    if options.set is not None:
        said = change_by_hand(options.directory, *options.set, reason=options.reason, by=options.by or user())
        if not options.json:
            print(said, end="\n\n")
    manifest = read_manifest(options.directory)
    rows = rows_of(manifest)
    if options.json:
        print(json.dumps({"model": manifest.name, "version": manifest.version, "thresholds": list(map(asdict, rows))}))
        return 0
    print(f"{manifest.name} {manifest.version}, {options.directory}", end="\n\n")
    print("\n".join([*_table(rows), "", _UNMEASURED]))
    if options.set is not None:
        print("\n" + "\n".join(next_steps(options.directory)))
    return 0


def change_by_hand(directory: Path, finding: str, threshold: float, *, reason: str, by: str) -> str:
    """Write another threshold of a finding into a model directory; returns what was changed.

    Raises ModelError for a finding that is not known, and for a threshold that it cannot have.
    """
    manifest = open_to_change(directory)
    if finding not in (known := _findings(manifest.decisions)):
        raise ModelError(f"there is no finding {finding!r}; choose from {', '.join(known)}")
    before = manifest.decisions.threshold(finding)
    try:
        change = ThresholdChange(finding=finding, before=before, after=threshold, reason=reason, by=by, at=now())
        changed = replace(
            manifest,
            decisions=manifest.decisions.set_by_hand(finding, threshold),
            history=(*manifest.history, change),
        )
    except ValueError as error:
        raise ModelError(str(error)) from error
    rewrite(directory, changed)
    return f"{finding}: threshold {before:g} before, {threshold:g} now."


def now() -> str:
    """Return the time of a change."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def user() -> str:
    """Return the user of this process. Raises ModelError if the system has no name for them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise ModelError("this user has no name; give --by NAME") from error


def next_steps(directory: Path) -> list[str]:
    """Return instructions for serving a changed model directory."""
    return [
        "Next: a node refuses this directory until it is accepted, as any other model. Compare it with DIR, the model",
        f"in use, on {LEAST_COMPARED} films of the site or more, which FILMS.csv lists:",
        f"    {command_for('models.evaluate')} --model {directory} --against DIR --data FILMS.csv "
        f"--out {directory / COMPARISON}",
        'and name it in the settings (model.directory), or accept it unseen with model.uncompared = "accept".',
    ]


def rows_of(manifest: Manifest) -> list[Row]:
    """Return the row of each finding."""
    decisions, last = manifest.decisions, {change.finding: change for change in manifest.history}
    rows = []
    for key in _findings(decisions):
        measurement, change = decisions.measurements.get(key), last.get(key)
        rows.append(
            Row(
                finding=key,
                threshold=decisions.threshold(key),
                review_from=round(max(decisions.lower(key), 0.0), 6),
                measured_on=None if measurement is None else measurement.measured_on,
                with_finding=0 if measurement is None else measurement.positives,
                without=0 if measurement is None else measurement.negatives,
                by=f"{change.by}, {change.at[:10]}: {change.reason}"
                if change
                else _NOBODY
                if measurement is None
                else "the maker of the model",
            )
        )
    return rows


def _findings(decisions: Decisions) -> list[str]:
    """Name CheXpert's classes, which the node asks for, and whatever else the model has a threshold of."""
    return sorted({*RuleLabeler().classes, *decisions.thresholds})


def _table(rows: list[Row]) -> list[str]:
    cells = [("finding", "present from", "possible from", "measured on", "by whom")]
    for row in rows:
        left_out = row.threshold == LEFT_OUT
        films = f"{row.measured_on} ({row.with_finding} with, {row.without} without)"
        cells.append(
            (
                row.finding,
                "left out" if left_out else f"{row.threshold:.3f}",
                "-" if left_out else f"{row.review_from:.3f}",
                "nothing" if row.measured_on is None else films,
                row.by,
            )
        )
    return aligned(cells)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("models.thresholds", description="Show the thresholds of a model, or change one.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="the model directory")
    parser.add_argument("--set", type=_setting, metavar="FINDING=THRESHOLD", help="the new threshold; 1 leaves it out")
    parser.add_argument(
        "--reason", type=_reason, metavar="TEXT", help="why; card and audit trail keep it, so name no patient"
    )
    parser.add_argument("--by", metavar="NAME", help="who changes it; default: the user of this process")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _setting(text: str) -> tuple[str, float]:
    finding, _, number = text.partition("=")
    try:
        threshold = float(number)
    except ValueError:
        threshold = 0.0
    if not finding or not 0 < threshold <= 1:  # nor is NaN
        raise argparse.ArgumentTypeError(f"{text} must be FINDING=THRESHOLD, above 0 and at most 1, as edema=0.6")
    return finding, threshold


def _reason(text: str) -> str:
    said = " ".join(text.split())
    if not said or len(said) > _LONGEST_REASON or not said.isprintable():
        raise argparse.ArgumentTypeError(f"a reason has 1 to {_LONGEST_REASON} printed characters")
    return said


if __name__ == "__main__":
    run(main)
