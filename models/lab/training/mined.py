"""Finds rates of invented labels with which nothing is learned of a class.

Where labels are assumed to be invented at least as often as they are given, the likeliest explanation of all of them is
that no film shows the class, see `objectives.presence`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from models.lab.training.labels import Line
from models.lab.training.stages import Stage


def shares_of(lines: Iterable[tuple[Line, int]]) -> dict[str, float]:
    """Return which share of the films with a mined label of a class are labelled as showing it, by class.

    lines: the labels of each film, and how often an epoch uses it
    """
    mined, there = Counter[str](), Counter[str]()
    for line, times in lines:
        for key in line.get("mined", ()):
            mined[key] += times
            there[key] += times * line["present"][key]
    return {key: there[key] / count for key, count in mined.items()}


def remarks_on(stages: Sequence[Stage], shares: Mapping[str, float]) -> Iterator[str]:
    """Yield a remark on each stage that can learn nothing of some classes from their mined labels.

    shares: as in `shares_of`
    """
    for stage in stages:
        rates = stage.mined
        lost = [
            f"{key} (invented {rate:.3g}, given {share:.3g})"
            for key, share in sorted(shares.items())
            if 0 < share <= (rate := rates.invented_by_class.get(key, rates.invented))
        ]
        if lost and "presence" in stage.losses:
            yield (
                f"stage {stage.name} learns nothing from mined labels of {', '.join(lost)}: they are assumed to be "
                "invented at least as often as they are given; correct its mined"
            )
