"""Counts the labels of stored films that a run does not use, so that none is left out in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from models.lab.training.catalog import Catalog
from models.lab.training.labels import Line


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
