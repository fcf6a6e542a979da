"""How long each test file took in a recorded whole run: its name and seconds in durations.json beside this file.

`make test` begins with the slowest file: a long one that began last would leave the other core without work. `make
quick` leaves out whatever took `QUICK_SECONDS` or longer. `make durations` runs all tests and records them anew; a file
that was never recorded counts as quick and runs last.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

QUICK_SECONDS: Final = 5
_FILE: Final = Path(__file__).with_suffix(".json")
_SECONDS: Final[dict[str, int]] = json.loads(_FILE.read_text(encoding="utf-8"))


def seconds_of(path: Path) -> int:
    """Return how long a test file took when it was recorded; 0 if it was not."""
    return _SECONDS.get(path.name, 0)


def is_quick(path: Path) -> bool:
    """Say whether `make quick` runs a test file."""
    return seconds_of(path) < QUICK_SECONDS


def record(durations: Iterable[tuple[str, float]]) -> None:
    """Write how long each file took, of those that took a second; durations: node id and seconds of parts of tests."""
    found: dict[str, float] = defaultdict(float)
    for node_id, seconds in durations:
        found[Path(node_id.partition("::")[0]).name] += seconds
    content = {name: round(seconds) for name, seconds in sorted(found.items()) if seconds >= 1}
    _FILE.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
