"""The log of a run: a CSV table, and events for TensorBoard if the run file asks for them.

When a run continues from a checkpoint, later rows are dropped, so that every step is in the table once.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models.errors import ModelError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

TABLE = "log.csv"
_FIXED = ("stage", "step", "seconds", "pictures_per_second", "learning_rate", "gradient", "total")


class Records:
    """The table and the events of one run."""

    def __init__(
        self, folder: Path, *, losses: Sequence[str], stages: Sequence[str], position: tuple[int, int], events: bool
    ) -> None:
        """Continue after a position (stage, step). Raises ModelError if TensorBoard is asked for but not installed."""
        self._path = folder / TABLE
        self._columns = [*_FIXED, *losses]
        self._stages = list(stages)
        rows = self._rows_until(position)
        with self._path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
        self._events = _open_events(folder / "events") if events else None

    def add(self, row: Mapping[str, float | str], *, update: int) -> None:
        """Write one row; update: the number of the step in the whole run."""
        rounded = {key: value if isinstance(value, str) else f"{value:.6g}" for key, value in row.items()}
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(rounded)
        if self._events is not None:
            for key, value in row.items():
                if not isinstance(value, str) and key not in ("step", "seconds"):
                    self._events.add_scalar(f"{row['stage']}/{key}", float(value), update)

    def close(self) -> None:
        """Write what is still buffered."""
        if self._events is not None:
            self._events.close()

    def _rows_until(self, position: tuple[int, int]) -> list[dict[str, str]]:
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8", newline="") as file:
            # A row that was interrupted by a kill is incomplete.
            rows = [row for row in csv.DictReader(file) if None not in row.values() and row["stage"] in self._stages]
        return [row for row in rows if (self._stages.index(row["stage"]), int(row["step"])) <= position]


def _open_events(folder: Path) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ModelError(
            "machine.events needs TensorBoard: run pip install -c constraints.txt '.[train]', or remove the setting"
        ) from error
    return SummaryWriter(str(folder))
