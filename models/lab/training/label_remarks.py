"""What a run is told of its labels before it trains: which it does not use, and of which classes it learns nothing.

Where mined labels are assumed to be invented at least as often as they are given, the likeliest explanation of all of
them is that no film shows the class, see `objectives.presence`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from models.lab.training.catalog import Catalog
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


def count_unused(lines: Iterable[tuple[Line, int]], catalog: Catalog) -> Counter[str]:
    """Count what no training can use, and the labels and boxes of classes that the run does not ask for.

    lines: the labels of each film, and how often an epoch uses it, which does not count here
    """
    asked = {phrases.name for phrases in catalog.classes} | {phrases.finding for phrases in catalog.classes}
    unused = Counter[str]()
    for line, _times in lines:
        unused.update(line.get("unused", {}))
        for key in line.get("present", {}):
            if key not in asked:
                unused[f"labels of {key}"] += 1
        for key, boxes in line.get("boxes", {}).items():
            if key not in asked:
                unused[f"boxes of {key}"] += len(boxes)
        for found in line.get("region_present", {}).values():
            unused.update(f"findings of regions, {key}" for key in found if key not in asked)
    return unused


def remark_on(unused: Counter[str]) -> Iterator[str]:
    """Yield a line that lists what is not used, or nothing."""
    if unused:
        listed = ", ".join(f"{count} {what}" for what, count in sorted(unused.items()))
        yield f"not used by this run: {listed}"
