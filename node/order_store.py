"""Orders for studies that come later, in small synced files; what a round made of them, fixed once.

Files and not our tables: an order was acknowledged, so it must not be lost with a database, and an accession number
belongs to a patient, so it stays where the films are (mode 0700). A file is named by a hash of what finds it.

    orders/<hash of accession number or study UID>.json     the order
    orders/rounds/<study>~<time>.json                       what was known when a round was written
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import cast

from node import durable
from node.domain import Json, Order, Priority


class OrderStore:
    """The orders below a node's directory."""

    def __init__(self, directory: Path) -> None:
        self._orders, self._rounds = directory / "orders", directory / "orders" / "rounds"
        self._lock = threading.Lock()

    def keep(self, order: Order) -> None:
        """Keep an order, or its newest form, and sync it to disk before returning. Raises OSError."""
        for key in _keys(accession=order.accession, study_uid=order.study_uid):
            self._write(self._orders / f"{key}.json", asdict(order))

    def forget(self, order: Order) -> None:
        """Remove an order that was cancelled, if it is known. Raises OSError."""
        with self._lock:
            durable.make_folder(self._orders)
            for key in _keys(accession=order.accession, study_uid=order.study_uid):
                (self._orders / f"{key}.json").unlink(missing_ok=True)
            durable.sync_folder(self._orders)

    def find(self, *, study_uid: str, accession: str) -> Order | None:
        """The order of a study: by its UID if one was named, else by its accession number."""
        kept = (self._read(self._orders / f"{key}.json") for key in _keys(study_uid=study_uid, accession=accession))
        return next((order for order in kept if order is not None), None)

    def fix(self, *, study_uid: str, accession: str, at: datetime) -> Order | None:
        """Find the order of a study for one round; asked again, the answer is the same, whatever came in between.

        at: the time that the round has for its own
        """
        path = self._rounds / f"{study_uid}~{at:%Y%m%dT%H%M%S}.json"
        if not path.exists():
            order = self.find(study_uid=study_uid, accession=accession)
            self._write(path, {} if order is None else asdict(order))
        return self._read(path)

    def counts(self) -> dict[str, int]:
        """Number of orders by priority."""
        orders = {order for path in self._orders.glob("*.json") if (order := self._read(path)) is not None}
        return {str(priority): sum(order.priority is priority for order in orders) for priority in Priority}

    def remove_older(self, limit: datetime) -> None:
        """Remove what was kept before a time, files that were never finished included."""
        for path in self._files():
            if path.stat().st_mtime < limit.timestamp():
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        return (path for folder in (self._orders, self._rounds) for path in folder.glob("*") if path.is_file())

    def _write(self, path: Path, content: Mapping[str, object]) -> None:
        with self._lock:
            durable.make_folder(path.parent)
            durable.write(path, durable.to_json(content))

    def _read(self, path: Path) -> Order | None:
        content = durable.read_json(path)
        if not content:
            return None
        return Order(
            accession=str(content["accession"]),
            study_uid=str(content["study_uid"]),
            placer_number=_texts(content["placer_number"]),
            filler_number=_texts(content["filler_number"]),
            priority=Priority(str(content["priority"])),
        )


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(str(one) for one in cast(list[object], value))


def _keys(*, study_uid: str, accession: str) -> Iterator[str]:
    """The names under which a study's order lies; the UID first, which is never given twice."""
    for kind, value in (("study", study_uid), ("accession", accession)):
        if value:
            yield hashlib.sha256(f"{kind} {value}".encode()).hexdigest()
