"""The card's table of the shares of right boxes, sides and zones on patient films."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from models.lab.evaluation.document import Table, inner
from models.lab.evaluation.request import SHARES

HEAD: Final = (
    "places on patient films",
    "reports with a box",
    "boxes right",
    "one side right",
    "both sides right",
    "zone right",
    "mAP above two constant boxes",
)
_BOXES: Final = "boxes_right"


def tables(places: Mapping[str, object]) -> Iterator[Table]:
    """Yield the table, if places were measured: findings at the score in use, at the chosen one and cross-validated.

    places: the result of `placing.judge`; a score from which no report has a box has no row
    """
    if places:
        yield list(HEAD), list(_rows(places))


def _rows(places: Mapping[str, object]) -> Iterator[list[str]]:
    boxed, limits = inner(places, "boxed"), inner(places, "limits")
    for key in limits:
        name, fits = key.replace("_", " "), {part: _gain(inner(inner(boxed, part), key)) for part in boxed}
        own = inner(limits, key)
        for part, limit, what in (("before", "before", "in use"), ("chosen", "chosen", "chosen")):
            made = inner(inner(places, part), key)
            if made.get("with_box"):
                yield [f"{name}, limit {what}: {own.get(limit):.3f}", *_cells(made), fits["held_out"]]
        folds = inner(inner(places, "folds"), key)
        yield [f"{name}, in the folds", *_cells(folds, is_by_fold=True), fits["folds"]]
    together = inner(places, "all")
    yield ["all findings, limits in use", *_cells(inner(together, "before")), ""]
    if any(inner(limits, key).get("is_better") for key in limits):
        yield ["all findings, better limits", *_cells(inner(together, "after")), ""]


def _cells(made: Mapping[str, object], *, is_by_fold: bool = False) -> Iterator[str]:
    """Yield each count; that of right boxes with its 95 % interval, or with the counts of each fold."""
    bounds, by_fold = inner(made, "intervals").get(_BOXES), made.get("by_fold")
    for part, whole in SHARES.items():
        after = ""
        if part == _BOXES and is_by_fold and isinstance(by_fold, list):
            after = f" ({', '.join(f'{fold[part]}/{fold[whole]}' for fold in by_fold)})"
        elif part == _BOXES and isinstance(bounds, list):
            after = f" ({bounds[0]:.2f} to {bounds[1]:.2f})"
        yield f"{made.get(part)}/{made.get(whole)}{after}" if made.get(whole) else "-"


def _gain(made: Mapping[str, object]) -> str:
    bounds, gain = inner(made, "intervals").get("gain_on_positives"), made.get("gain_on_positives")
    if not isinstance(bounds, list) or not isinstance(gain, float):
        return "-"
    return f"{gain:.2f} ({bounds[0]:.2f} to {bounds[1]:.2f})"
