"""Runnable: chooses on patient films from which score a box is drawn, and from which certainty a side is named.

    python -m models.lab.evaluation.placing --model DIR FILMS.jsonl --held-out LIST --normals FILMS.jsonl [--write]

It chooses on the patients that LIST does not name, for each finding with boxes on enough of their films. A rule is the
lowest score at which half of the drawn boxes are right, or the lowest certainty at which nine of ten named sides are
right, each with its zone. A rule is kept only if rules from five-fold cross-validation reach the same goal on the
patients of the left-out folds.
Then it measures boxes, sides and zones on the films of LIST, by the model's rules and by the chosen ones, and prints
which of these are better (`is_better`). `--write` puts these into the manifest; all others stay as they are.
Exit 0: done; 1: a file could not be written; 2: wrong input.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from models.command import command_parser, exit_status, run
from models.decisions import Decisions, PlaceRule
from models.engines import ENGINES
from models.lab.evaluation.cases import Truth
from models.lab.evaluation.document import inner, rounded
from models.lab.evaluation.place_accuracy import Figures, PlacedFilm, Told, figures, placed
from models.lab.evaluation.request import DEFAULT
from models.lab.evaluation.statistics import Bootstrap
from models.lab.evaluation.thresholds import LEAST_POSITIVES
from models.lab.phantoms import FINDINGS
from models.lab.training.split import FOLDS, Outside, Patients, folds_of, read_held_out
from models.progress import ProgressReport

if TYPE_CHECKING:
    from models.lab.evaluation.detection import Detections
    from models.lab.evaluation.evaluated_model import EvaluatedModel
    from models.network.detector import Detection

PRECISION: Final = 0.5
RIGHT_SIDES: Final = 0.9
LEAST_TOLD: Final = 10
"""The fewest boxes or sides on which a rule is chosen or checked."""
MOST_ON_NORMAL: Final = 0.05
"""The mean number of boxes, of all findings together, that a normal film may have."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Films:
    """Films with the model's answers; places: films by finding; located: unscored detections, empty if not needed."""

    truths: Sequence[Truth]
    places: Mapping[str, Sequence[PlacedFilm]]
    located: Sequence[Detection] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a finding; limits: see `by_folds`, for boxes."""

    boxes: PlaceRule | None
    sides: PlaceRule | None
    limits: Sequence[float]


def choose(told: Sequence[Told], goal: float) -> float | None:
    """Return the least score or certainty from which a share `goal` of the items is right; None if none reaches it."""
    ordered = sorted(told, key=lambda item: item.number)
    for place, item in enumerate(ordered):
        rest = ordered[place:]
        if len(rest) < LEAST_TOLD:
            return None
        if sum(each.is_right for each in rest) >= goal * len(rest):
            return item.number
    return None


def by_folds(told: Sequence[Told], goal: float) -> list[float]:
    """Return for each fold the threshold that `choose` takes from the other folds; infinite where it takes none."""
    folds = folds_of(np.array([item.patient for item in told], dtype=np.str_))
    chosen = [choose(list(compress(told, folds != fold)), goal) for fold in range(FOLDS)]
    return [math.inf if least is None else least for least in chosen]


def cross(told: Sequence[Told], goal: float, *, measured_on: str) -> PlaceRule | None:
    """Choose a rule on all items; None unless cross-validated rules reach the goal on left-out patients, too."""
    least = choose(told, goal)
    if least is None:
        return None
    limits, folds = by_folds(told, goal), folds_of(np.array([item.patient for item in told]))
    others = [item for item, fold in zip(told, folds, strict=True) if item.number >= limits[fold]]
    right = sum(item.is_right for item in others)
    if len(others) < LEAST_TOLD or right < goal * len(others):
        return None
    return PlaceRule(measured_on=measured_on, least=least, told=len(others), right=right)


def rules_of(films: Sequence[PlacedFilm], *, measured_on: str) -> Rules:
    """Choose the score for boxes, then the certainty for the sides of the boxes that this score draws."""
    told = [box for film in films for box in film.boxes()]
    limits, boxes = by_folds(told, PRECISION), cross(told, PRECISION, measured_on=measured_on)
    if boxes is None:
        return Rules(boxes=None, sides=None, limits=limits)
    one = [side for film in films if (side := _side_told(film, boxes.least)) is not None]
    both = [is_right for film in films if (is_right := film.both(boxes.least)) is not None]
    sides = cross(one, RIGHT_SIDES, measured_on=measured_on)
    if sum(both) < RIGHT_SIDES * len(both):  # a rule of sides tells both at any certainty
        sides = None
    return Rules(boxes=boxes, sides=sides, limits=limits)


def is_better(
    before: Mapping[str, int], chosen: Mapping[str, int], *, gain: float | None, least_in_folds: float | None
) -> bool:
    """Return whether a new score for boxes is better than the model's, by counts on held-out films.

    gain: average precision above two constant boxes, on held-out films with the finding; least_in_folds: lower bound of
    the 95 % interval of this gain, cross-fitted on the films that rules were chosen on
    """
    is_right = chosen["boxes"] > 0 and chosen["boxes_right"] >= PRECISION * chosen["boxes"]
    fits = gain is not None and gain > 0 and least_in_folds is not None and least_in_folds > 0
    return is_right and fits and chosen["with_box"] > before["with_box"]


def with_rules(decisions: Decisions, rules: Mapping[str, Rules]) -> Decisions:
    """Return decisions with new rules for some findings."""
    boxes = {key: own.boxes for key, own in rules.items() if own.boxes is not None}
    sides = {key: own.sides for key, own in rules.items() if own.sides is not None}
    kept = {key: rule for key, rule in decisions.sides.items() if key not in rules}
    return replace(decisions, boxes=dict(decisions.boxes) | boxes, sides=kept | sides)


def judge(
    model: EvaluatedModel, chosen_on: Films, held_out: Films, normal: Films, *, population: str, resamples: int
) -> tuple[dict[str, object], dict[str, Rules]]:
    """Choose rules, measure them on held-out films, and return the figures and the rules that are better."""
    decisions = model.manifest.decisions
    enough: list[str] = [
        key for key in FINDINGS if sum(key in truth.boxes for truth in chosen_on.truths) >= LEAST_POSITIVES
    ]
    rules = {key: rules_of(chosen_on.places[key], measured_on=population) for key in enough}
    fits = {
        "folds": _fits(model, chosen_on, enough, resamples=resamples),
        "held_out": _fits(model, held_out, enough, resamples=resamples),
    }
    before = {key: _at(films, decisions.box_score(key), resamples) for key, films in held_out.places.items()}
    chosen = {
        key: _at(held_out.places[key], own.boxes.least, resamples)
        for key, own in rules.items()
        if own.boxes is not None
    }
    better = {
        key: rules[key]
        for key, own in chosen.items()
        if is_better(
            before[key].counts,
            own.counts,
            gain=_gain(inner(fits["held_out"], key)),
            least_in_folds=_gain(inner(fits["folds"], key), bound=0),
        )
    }
    boxes_on_normal = _on_normal(normal, with_rules(decisions, better))
    if boxes_on_normal > MOST_ON_NORMAL * len(normal.truths):
        better = {}
    new = with_rules(decisions, better)
    made: dict[str, object] = {
        "limits": {
            key: {
                "before": decisions.box_score(key),
                "chosen": None if own.boxes is None else own.boxes.least,
                "side": None if own.sides is None else own.sides.least,
                "is_better": key in better,
            }
            for key, own in rules.items()
        },
        "folds": {
            key: _in_folds(chosen_on.places[key], own.limits, resamples).document() for key, own in rules.items()
        },
        "before": {key: own.document() for key, own in before.items() if own.counts["reported"]},
        "chosen": {key: own.document() for key, own in chosen.items()},
        "all": {
            "before": _all(held_out, decisions, resamples).document(),
            "after": _all(held_out, new, resamples).document(),
        },
        "normal": {
            "films": len(normal.truths),
            "reported": sum(film.is_reported for films in normal.places.values() for film in films),
            "before": _on_normal(normal, decisions),
            "with_better": boxes_on_normal,
        },
        "boxed": fits,
    }
    return made, better


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.lab.evaluation.placing", description="Choose which boxes and sides are reported.")
    parser.add_argument("films", type=Path, metavar="FILMS.jsonl", help="patient films with boxes of findings")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("--held-out", required=True, metavar="SHARE_OR_FILE", help="the patients to measure on")
    parser.add_argument("--normals", type=Path, required=True, metavar="FILMS.jsonl", help="films without any finding")
    parser.add_argument("--set-aside", metavar="SHARE_OR_FILE", help="those of them that count; default: all")
    parser.add_argument("--population", metavar="NAME", help="name of the films in the manifest; default: the file's")
    parser.add_argument("--engine", choices=ENGINES, default="onnx", help="default: %(default)s")
    parser.add_argument("--resamples", type=int, default=500, metavar="N", help="for intervals; default: %(default)s")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where all figures go, for the card")
    parser.add_argument("--write", action="store_true", help="write the rules that are better into the manifest")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _place(options))


def _place(options: argparse.Namespace) -> int:
    from models import progress
    from models.checkpoint.card import open_to_change, rewrite
    from models.lab.evaluation.evaluated_model import open_model, read_questions

    manifest = open_to_change(options.model)
    model = open_model(options.model, engine=options.engine, questions=read_questions(DEFAULT))
    held_out = read_held_out(options.held_out)
    set_aside = None if options.set_aside is None else read_held_out(options.set_aside)
    with progress.on(sys.stderr) as report:
        films = _read(model, options.films, Outside(others=held_out), report)
        judged = _read(model, options.films, held_out, report)
        normal = _read(model, options.normals, set_aside, report, is_located=False)
        report("figures")
        population = options.population or options.films.stem
        made, better = judge(model, films, judged, normal, population=population, resamples=options.resamples)
    document: dict[str, object] = {
        "data": f"boxes:{options.films}",
        "count": len(judged.truths),
        "chosen_on": len(films.truths),
        "held_out": Path(options.held_out).name,
        "model": {
            "name": manifest.name,
            "version": manifest.version,
            "weights_sha256": model.reader.weights_sha256,
            "engine": model.reader.engine,
        },
        "resamples": options.resamples,
        "tasks": {"places": made},
    }
    if options.out is not None:
        options.out.write_text(json.dumps(rounded(document), indent=2) + "\n", encoding="utf-8")
    print(json.dumps(rounded(made["limits"])))
    if options.write and better:
        rewrite(options.model, replace(manifest, decisions=with_rules(manifest.decisions, better)))
    return 0


def _read(
    model: EvaluatedModel,
    path: Path,
    patients: Patients | None,
    report: ProgressReport,
    *,
    is_located: bool = True,
) -> Films:
    from models.lab.evaluation.boxes_file import read_films

    source = read_films(path, model.manifest, held_out=patients)
    truths: list[Truth] = []
    located: list[Detection] = []
    places: dict[str, list[PlacedFilm]] = {}
    for index in range(len(source)):
        case = source.load(index)
        truths.append(case.truth)
        for key, film in placed(model, case).items():
            places.setdefault(key, []).append(film)
        if is_located:
            located.extend(found for found in [model.weigh(case, located=True).located] if found is not None)
        report(f"films of {path.name}", index + 1, len(source))
    return Films(truths=truths, places=places, located=located)


def _side_told(film: PlacedFilm, box_score: float) -> Told | None:
    """Return the side that a node reports, right only if a zone reported with it is right, too; None without a side."""
    side, zone = film.side(box_score), film.zone(box_score)
    if side is None or zone is None:
        return side
    return replace(side, is_right=side.is_right and zone.is_right)


def _at(films: Sequence[PlacedFilm], limit: float, resamples: int) -> Figures:
    return figures(films, [limit] * len(films), resamples=resamples)


def _in_folds(films: Sequence[PlacedFilm], limits: Sequence[float], resamples: int) -> Figures:
    folds = folds_of(np.array([film.patient for film in films]))
    return figures(films, [limits[fold] for fold in folds], resamples=resamples)


def _all(films: Films, decisions: Decisions, resamples: int) -> Figures:
    """Count all findings together."""
    limits = chain.from_iterable([decisions.box_score(key)] * len(own) for key, own in films.places.items())
    return figures(list(chain.from_iterable(films.places.values())), list(limits), resamples=resamples)


def _on_normal(films: Films, decisions: Decisions) -> int:
    """Count the boxes of reported findings on normal films."""
    return sum(
        len(film.drawn(decisions.box_score(key)))
        for key, own in films.places.items()
        for film in own
        if film.is_reported
    )


def _gain(made: Mapping[str, object], *, bound: int | None = None) -> float | None:
    """Return the gain in average precision above constant boxes, or a bound of its interval; None if not measured."""
    name = "gain_on_positives"
    value = made.get(name)
    if bound is not None:
        interval = inner(made, "intervals").get(name)
        value = interval[bound] if isinstance(interval, list) else None
    return float(value) if isinstance(value, float) else None


def _fits(model: EvaluatedModel, films: Films, keys: Sequence[str], *, resamples: int) -> dict[str, object]:
    """Compute the average precision of boxes, and its gain above two constant boxes."""
    from models.lab.evaluation.evaluated_model import settings_of
    from models.lab.evaluation.localization import measure

    settings = settings_of(model.manifest.detection)

    def scaled(scale: float) -> list[Detections]:
        own = replace(settings, scales=(scale,) * len(FINDINGS))
        return [model.detections(found, own) for found in films.located]

    made = measure(films.truths, scaled, Bootstrap(resamples=resamples), least=LEAST_TOLD)
    return {key: own for key, own in made.items() if key in keys}


if __name__ == "__main__":
    run(main)
