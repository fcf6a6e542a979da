"""Runnable: calibrates a model on a site's films, and writes what it chose into the model directory.

    python -m models.calibrate --model DIR FILMS.csv
    python -m models.calibrate --model DIR CORRECTIONS.jsonl

FILMS.csv lists DICOM files or pictures with labels (`models.site_films`); CORRECTIONS.jsonl is what `node corrections`
exports, or a file of films as `models.evaluate` takes. Phantoms are taken, too: phantoms:1000000:COUNT.
It stands above `node.read`, as `site_films` does. Exit 0: done; 1: a file could not be written; 2: wrong input, with
one line that says what to do.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from models.command import above_zero, command_parser, exit_status, run, share
from models.decisions import PHANTOMS
from models.engines import ENGINES
from models.errors import ModelError
from models.manifest import Manifest, read_manifest
from models.thresholds import next_steps, now, user

if TYPE_CHECKING:
    from models.lab.evaluation.calibrating import Calibrated, Request
    from models.lab.evaluation.cases import CaseSource
    from models.progress import ProgressReport


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    options = _parser().parse_args(arguments)
    return exit_status(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from models import progress

    with progress.on(sys.stderr) as report:
        made = _calibrate(options, report)
    print(json.dumps(_document(made)) if options.json else _page(made))
    if not options.json:
        print("\n".join(next_steps(options.model)))
    return 0


def _calibrate(options: argparse.Namespace, report: ProgressReport) -> Calibrated:
    from models.lab.evaluation.calibrating import Request, calibrate
    from models.lab.evaluation.request import DEFAULT
    from models.site_films import SiteFilms

    films, population = _films(options, read_manifest(options.model))
    request = Request(
        model=options.model,
        population=population,
        share=options.share,
        by=options.by or user(),
        at=now(),
        engine=options.engine,
        prompts=options.prompts or DEFAULT,
        sensitivity=options.sensitivity,
        false_findings=options.false_findings,
        resamples=options.resamples,
    )
    made = calibrate(request, films, report)
    off = dict(made.off)
    if isinstance(films, SiteFilms):
        off |= {f"films that a node does not read ({name})": str(count) for name, count in films.skipped.items()}
    made = replace(made, off=off)
    _write(options.model, made)
    if isinstance(films, SiteFilms) and films.pairs:
        made = _with_change(made, films.pairs, request, report)
        _write(options.model, made)
    return made


def _with_change(
    made: Calibrated, pairs: Sequence[tuple[Path, Path]], request: Request, report: ProgressReport
) -> Calibrated:
    """Measure the error of a change between two films with the thresholds that were just written."""
    from models.site_films import LEAST_PAIRS, change_error

    name = "change between two films"
    if len(pairs) < LEAST_PAIRS:
        why = f"{len(pairs)} pairs of films say where nothing changed; {LEAST_PAIRS} are needed"
        return replace(made, off=dict(made.off) | {name: why})
    error = change_error(
        request.model,
        pairs,
        population=request.population,
        engine=request.engine,
        prompt_set=str(request.prompts),
        report=report,
    )
    manifest = replace(read_manifest(request.model), change=error)
    return replace(made, after=manifest, off={key: why for key, why in made.off.items() if key != name})


def _write(directory: Path, made: Calibrated) -> None:
    from models.checkpoint.card import rewrite, section

    figures = section("calibrated_figures", made=made).splitlines()
    rewrite(directory, made.after, calibrated=_page(made), figures=figures)


def _page(made: Calibrated) -> str:
    """Return the section of the card, which a person sees at the end, too."""
    from models.checkpoint.card import section

    reasons = {finding.finding: finding.off for finding in made.findings if finding.off} | dict(made.off)
    return section("calibrated", made=made, reasons=reasons)


def _document(made: Calibrated) -> dict[str, object]:
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


def _films(options: argparse.Namespace, manifest: Manifest) -> tuple[CaseSource, str]:
    """Open the films; returns the name of their population, too."""
    from models.lab.evaluation.boxes_file import read_films
    from models.lab.evaluation.cases import Phantoms
    from models.lab.evaluation.tuning import check_tunable
    from models.lab.phantoms import parse_set
    from models.lab.training.split import read_held_out
    from models.site_films import read_list

    held_out = None if options.held_out is None else read_held_out(options.held_out)
    if not options.films.startswith(f"{PHANTOMS}:"):
        path = Path(options.films)
        if path.stem == PHANTOMS:
            raise ModelError(f"{path}: its name would be taken for drawn films; rename it")
        if path.suffix == ".jsonl":
            return read_films(path, manifest, held_out=held_out), path.stem
        if held_out is not None:
            raise ModelError("--held-out is for a file of a training run (.jsonl); leave it out")
        return read_list(path, manifest), path.stem
    if find_spec("pycocotools") is None:
        raise ModelError("phantoms need the extra evaluate; run pip install -c constraints.txt '.[evaluate]'")
    try:
        drawn = parse_set(options.films)
    except ValueError as error:
        raise ModelError(str(error)) from error
    check_tunable(drawn)
    return Phantoms(drawn, manifest), PHANTOMS


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("models.calibrate", description="Calibrate a model on films with labels.")
    parser.add_argument("films", metavar="FILMS", help="FILMS.csv, CORRECTIONS.jsonl, or phantoms:1000000:COUNT")
    parser.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="the model directory, which is changed"
    )
    parser.add_argument(
        "--share",
        type=share,
        default=0.6,
        metavar="SHARE",
        help="of the patients whose films thresholds are chosen on; the others are reported on; default: %(default)s",
    )
    parser.add_argument(
        "--false-findings",
        type=above_zero,
        metavar="NUMBER",
        help="expected present findings on the average film without a finding; default: 0.05. Above 0.5, "
        "or beside --sensitivity: the most that are accepted; default: 0.5",
    )
    parser.add_argument("--sensitivity", type=share, metavar="SHARE", help="choose each threshold at this sensitivity")
    parser.add_argument("--engine", choices=ENGINES, default="onnx", help="default: %(default)s")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="default: the node's chexpert14")
    parser.add_argument(
        "--held-out",
        metavar="SHARE_OR_FILE",
        help="only the patients that a training run held out, as its run file says",
    )
    parser.add_argument(
        "--resamples", type=int, default=500, metavar="N", help="for the intervals; default: %(default)s"
    )
    parser.add_argument("--by", metavar="NAME", help="who calibrates; default: the user of this process")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


if __name__ == "__main__":
    run(main)
