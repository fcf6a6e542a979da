"""Orders for studies that arrive later, in small synced files; and the order that each round used, fixed once.

They are files and not rows: an order was acknowledged, so it must survive the loss of a database. An accession number
belongs to a patient, so it stays where the films are (mode 0700). A file is named by a hash of its search key.

    orders/<hash of accession number or study UID>.json     the order
    orders/rounds/<study>~<time>.json                       the order that a round used
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import cast

from node.domain import Json
from node.hl7.order import Order, Priority
from node.store import files
from node.store.place import PlainFolder, SafePlace


class OrderStore:
    """The orders below a node's directory; place: makes them safe."""

    def __init__(self, directory: Path, *, place: SafePlace | None = None) -> None:
        self._directory, self._place = directory, place or PlainFolder()
        self._orders, self._rounds = directory / "orders", directory / "orders" / "rounds"

    def keep(self, order: Order) -> None:
        """Store an order, or its newest form, and sync it to disk before returning. Raises OSError.

        A newer form without the accession number or the study UID is still found by the earlier value.
        """
        with self._changing():
            known = self._known(order)
            if known is not None:
                order = replace(
                    order,
                    accession=order.accession or known.accession,
                    study_uid=order.study_uid or known.study_uid,
                )
            for key in _names(order):
                self._write(self._orders / f"{key}.json", asdict(order))
            if known is not None:
                self._remove(set(_names(known)).difference(_names(order)))

    def forget(self, order: Order) -> None:
        """Remove a cancelled order, if it is known. Raises OSError."""
        with self._changing():
            known = self._known(order)
            self._remove({*_names(order), *(_names(known) if known is not None else ())})

    def find(self, *, study_uid: str, accession: str) -> Order | None:
        """Return the order of a study: by its UID if an order named it, else by its accession number."""
        kept = (self._read(self._orders / f"{key}.json") for key in _keys(study_uid=study_uid, accession=accession))
        return next((order for order in kept if order is not None), None)

    def fix(self, *, study_uid: str, accession: str, at: datetime) -> Order | None:
        """Return the order of a study for one round; a repeated call gives the same answer, whatever arrived since.

        at: the creation time of the round
        """
        path = self._rounds / f"{study_uid}~{at:%Y%m%dT%H%M%S}.json"

        def fix() -> None:
            with self._changing():
                if not path.exists():
                    order = self.find(study_uid=study_uid, accession=accession)
                    self._write(path, {} if order is None else asdict(order))

        self._place.patiently(fix)
        return self._read(path)

    def counts(self) -> dict[str, int]:
        """Return the number of orders by priority."""
        orders = {order for path in self._orders.glob("*.json") if (order := self._read(path)) is not None}
        return {str(priority): sum(order.priority is priority for order in orders) for priority in Priority}

    def remove_older(self, limit: datetime) -> None:
        """Remove orders stored before a time, and incomplete files."""
        for path in self._files():
            with suppress(FileNotFoundError):  # renamed or removed meanwhile
                if path.stat().st_mtime < limit.timestamp():
                    self._place.withdraw([path])
                    path.unlink()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Be the only thread of all processes that changes orders. Raises OSError."""
        files.make_folder(self._directory)
        with files.lock(self._directory / "orders.lock"):
            yield

    def _files(self) -> Iterator[Path]:
        return (path for folder in (self._orders, self._rounds) for path in folder.glob("*") if path.is_file())

    def _known(self, order: Order) -> Order | None:
        """Return the earlier form of an order.

        One accession number may belong to several studies, so an order for another study is another order.
        """
        found = self.find(study_uid=order.study_uid, accession=order.accession)
        if found is not None and found.study_uid and order.study_uid and found.study_uid != order.study_uid:
            return None
        return found

    def _write(self, path: Path, content: Mapping[str, object]) -> None:
        files.make_folder(path.parent)
        self._place.write(path, files.to_json(content))

    def _remove(self, names: Iterable[str]) -> None:
        files.make_folder(self._orders)
        paths = [self._orders / f"{name}.json" for name in names]
        self._place.withdraw(paths)
        for path in paths:
            path.unlink(missing_ok=True)
        files.sync_folder(self._orders)

    def _read(self, path: Path) -> Order | None:
        """Read an order; None if it is missing or damaged."""
        content = files.read_json(path)
        if not content:
            return None
        try:
            return Order(
                accession=str(content["accession"]),
                study_uid=str(content["study_uid"]),
                placer_number=_texts(content["placer_number"]),
                filler_number=_texts(content["filler_number"]),
                priority=Priority(str(content["priority"])),
            )
        except (KeyError, TypeError, ValueError):
            return None


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(str(item) for item in cast(list[object], value))


def _names(order: Order) -> Iterator[str]:
    return _keys(study_uid=order.study_uid, accession=order.accession)


def _keys(*, study_uid: str, accession: str) -> Iterator[str]:
    """Return the search keys of a study's order; the UID first, because it is unique."""
    for kind, value in (("study", study_uid), ("accession", accession)):
        if value:
            yield hashlib.sha256(f"{kind} {value}".encode()).hexdigest()
