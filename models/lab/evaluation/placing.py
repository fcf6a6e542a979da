"""Runnable: chooses from which score a box is drawn, and from which certainty a side is told, on films with boxes.

    python -m models.lab.evaluation.placing --model DIR FILMS.jsonl [--held-out FILE] [--finding lung_opacity]

Each rule is the lowest that reaches its goal: of the boxes that it draws 0.8 hit, and of the sides that it tells 0.9
hold a box of the film. It is chosen on the films of four fifths of the patients and reported on the others, five times;
what is printed is chosen on all, with the pooled figures of the five. `--write` puts it into the manifest if these
figures reach the goal, too.
A box hits if its IoU with one of the film is above 0.1, or its center lies in one.
Exit 0: done; 1: a file could not be written; 2: wrong input, or no rule reaches its goal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.boxes import iou, to_corners
from models.command import command_parser, exit_status, run
from models.contract import Side
from models.decisions import Decisions, PlaceRule
from models.engines import ENGINES, FloatArray
from models.errors import ModelError
from models.lab.evaluation.request import DEFAULT
from models.lab.training.split import FOLDS, folds_of
from models.progress import ProgressReport
from models.reading.places import shown_boxes, side_certainty

PRECISION: Final = 0.8
RIGHT_SIDES: Final = 0.9
LEAST_TOLD: Final = 10
"""Fewer places say nothing about a rule."""
_HITS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Something that is told from a number on; number: its score or certainty; right: whether it is so."""

    patient: str
    number: float
    is_right: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedFilm:
    """A film with boxes of a finding.

    true: [n, 4]; shown: boxes [n, 4] and scores [n] as merged; certainties: of each side, by all boxes
    side_of: says on which side a box lies
    """

    patient: str
    true: FloatArray
    shown: tuple[FloatArray, FloatArray]
    certainties: Mapping[Side, float]
    side_of: Callable[[float, float], Side | None]

    def boxes(self) -> Iterable[Told]:
        """Yield each box with its score."""
        corners = to_corners(self.true.astype(np.float64))
        for box, score in zip(*self.shown, strict=True):
            overlap = iou(to_corners(box[np.newaxis].astype(np.float64)), corners).max()
            inside = (corners[:, :2] <= box[:2]) & (box[:2] <= corners[:, 2:])
            hits = bool(overlap > _HITS or inside.all(axis=1).any())
            yield Told(patient=self.patient, number=float(score), is_right=hits)

    def side(self, box_score: float) -> Told | None:
        """Return the one side on which all boxes lie that are drawn, with its certainty; None without one."""
        boxes, scores = self.shown
        sides = {self.side_of(float(x), float(width)) for x, _, width, _ in boxes[scores >= box_score]}
        side = sides.pop() if len(sides) == 1 else None
        if side is None:
            return None
        true = {self.side_of(float(x), 0.0) for x, _, _, _ in self.true}
        return Told(patient=self.patient, number=self.certainties[side], is_right=side in true)


def choose(told: Sequence[Told], goal: float) -> float | None:
    """Return the lowest number from which enough of what is told is right; None if no number reaches the goal."""
    ordered = sorted(told, key=lambda item: item.number)
    for place, item in enumerate(ordered):
        rest = ordered[place:]
        if len(rest) < LEAST_TOLD:
            return None
        if sum(each.is_right for each in rest) >= goal * len(rest):
            return item.number
    return None


def cross(told: Sequence[Told], goal: float, *, measured_on: str) -> PlaceRule | None:
    """Choose a rule on all that is told, with what five rules gave on the patients that each was not chosen on."""
    least = choose(told, goal)
    if least is None:
        return None
    folds = folds_of(np.array([item.patient for item in told]))
    all_told = [item for fold in range(FOLDS) for item in _on_others(told, folds == fold, goal)]
    return PlaceRule(
        measured_on=measured_on, least=least, told=len(all_told), right=sum(item.is_right for item in all_told)
    )


def _on_others(told: Sequence[Told], is_own: NDArray[np.bool_], goal: float) -> list[Told]:
    least = choose(list(compress(told, ~is_own)), goal)
    return [item for item in compress(told, is_own) if least is not None and item.number >= least]


def rules_of(films: Sequence[PlacedFilm], *, measured_on: str) -> tuple[PlaceRule | None, PlaceRule | None]:
    """Return the rule of boxes and that of sides; sides are those of the boxes that the first rule draws."""
    boxes = cross([told for film in films for told in film.boxes()], PRECISION, measured_on=measured_on)
    if boxes is None:
        return None, None
    sides = [told for film in films if (told := film.side(boxes.least)) is not None]
    return boxes, cross(sides, RIGHT_SIDES, measured_on=measured_on)


def with_rules(decisions: Decisions, key: str, boxes: PlaceRule | None, sides: PlaceRule | None) -> Decisions:
    """Return decisions with new rules of a finding; what reached no goal has none."""
    return replace(decisions, boxes=_with(decisions.boxes, key, boxes), sides=_with(decisions.sides, key, sides))


def _with(rules: Mapping[str, PlaceRule], key: str, rule: PlaceRule | None) -> dict[str, PlaceRule]:
    others = {name: own for name, own in rules.items() if name != key}
    return others if rule is None else others | {key: rule}


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.lab.evaluation.placing", description="Choose which boxes and sides are told.")
    parser.add_argument("films", type=Path, metavar="FILMS.jsonl", help="films with boxes of the finding")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("--held-out", metavar="SHARE_OR_FILE", help="only the patients that a training run held out")
    parser.add_argument("--finding", default="lung_opacity", metavar="KEY", help="default: %(default)s")
    parser.add_argument("--engine", choices=ENGINES, default="onnx", help="default: %(default)s")
    parser.add_argument("--write", action="store_true", help="write the rules into the manifest")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _place(options))


def _place(options: argparse.Namespace) -> int:
    from models import progress
    from models.checkpoint.card import open_to_change, rewrite

    manifest = open_to_change(options.model)
    with progress.on(sys.stderr) as report:
        films = _read(options, report)
    boxes, sides = rules_of(films, measured_on=options.films.stem)
    if boxes is None:
        raise ModelError(f"no score draws {LEAST_TOLD} boxes of {options.finding} of which {PRECISION:.0%} hit")
    rules = {"boxes": _described(boxes, PRECISION), "sides": _described(sides, RIGHT_SIDES)}
    print(json.dumps({"finding": options.finding, "films": len(films), **rules}))
    if options.write:
        reached = _if_reached(boxes, PRECISION), _if_reached(sides, RIGHT_SIDES)
        decisions = with_rules(manifest.decisions, options.finding, *reached)
        rewrite(options.model, replace(manifest, decisions=decisions))
    return 0


def _described(rule: PlaceRule | None, goal: float) -> dict[str, object] | None:
    return None if rule is None else {**asdict(rule), "reached": _if_reached(rule, goal) is not None}


def _if_reached(rule: PlaceRule | None, goal: float) -> PlaceRule | None:
    """Return a rule that reaches its goal on patients that chose nothing, too; another one is no rule."""
    return rule if rule is not None and rule.right >= goal * rule.told else None


def _read(options: argparse.Namespace, report: ProgressReport) -> list[PlacedFilm]:
    from models.lab.evaluation.boxes_file import read_films
    from models.lab.evaluation.evaluated_model import open_model, read_questions, side_of
    from models.lab.training.split import read_held_out

    model = open_model(options.model, engine=options.engine, questions=read_questions(DEFAULT))
    held_out = None if options.held_out is None else read_held_out(options.held_out)
    source = read_films(options.films, model.manifest, held_out=held_out)
    films = []
    for index in range(len(source)):
        case = source.load(index)
        true = case.truth.boxes.get(options.finding)
        if true is None or not len(true):
            continue
        look = model.reader.look(case.gray)
        by_spine = partial(side_of, middle=model.reader.middle(look))
        found = model.found(look)[options.finding]
        films.append(
            PlacedFilm(
                patient=case.truth.patient,
                true=true,
                shown=shown_boxes(*found, model.manifest.decisions),
                certainties=side_certainty(*found, side_of=by_spine),
                side_of=by_spine,
            )
        )
        report("films with boxes", index + 1, len(source))
    return films


if __name__ == "__main__":
    run(main)
