"""Orders for studies that arrive later, in small synced files; and the order that each round used, fixed once.

They are files and not rows: an order was acknowledged, so it must survive the loss of a database. An accession number
belongs to a patient, so it stays where the films are (mode 0700). A file is named by a hash of its search key. Its
orders are of different patients, or for different studies: numbers are given twice, and two hospitals have the same.

    orders/<hash of accession number or study UID>.json     the orders that are named so
    orders/rounds/<study>~<time>[~<part>].json              the order that a round used for a part of the study
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

from models.documents import decode
from node.domain import Json, is_nobodys
from node.hl7.order import Order, Patient, Priority
from node.store import files


class OrderStore:
    """The orders below a node's directory."""

    def __init__(self, directory: Path, *, nobodys: Collection[str] = frozenset()) -> None:
        """Use a folder; nobodys: placeholders among Patient IDs, see `SiteSettings`."""
        self.nobodys = nobodys
        self._directory = directory
        self._orders, self._rounds = directory / "orders", directory / "orders" / "rounds"

    def keep(self, order: Order) -> None:
        """Store an order, or its newest form, and sync it to disk before returning. Raises OSError.

        A newer form without the accession number or the study UID is still found by the earlier value.
        """
        with self._changing():
            known = self._known(order)
            named = order
            for earlier in known:
                named = replace(
                    named,
                    accession=named.accession or earlier.accession,
                    study_uid=named.study_uid or earlier.study_uid,
                )
            for key in _names(named):
                self._write(self._orders / f"{key}.json", _orders_to_json([*self._without(key, known), named]))
            self._remove(known, besides=_names(named))

    def forget(self, order: Order) -> None:
        """Remove a cancelled order, if it is known. Raises OSError."""
        with self._changing():
            self._remove(self._known(order))

    def find(
        self, *, study_uid: str, accession: str, patients: Collection[Patient], is_only_number: bool = True
    ) -> Order | None:
        """Return the order of a study for its patient: by its UID if an order named it, else by its accession number.

        One that names the UID with another accession number is another order; of several that fit it is none.
        patients: see `Order.is_for`; empty if the films name none
        is_only_number: whether no film of the patient in the study has another accession number, or none; otherwise an
            order has to name it
        """
        patients = self._named(patients)
        for key in _keys(study_uid=study_uid, accession=accession):
            own = [
                order
                for order in self._stored(key)
                if order.is_for(patients) and _is_number_of(order, accession, is_only=is_only_number)
            ]
            if len(own) == 1:
                return own[0]
        return None

    def is_known(self, *, study_uid: str, accession: str) -> bool:
        """Return whether an order names a study or its accession number, for any patient."""
        return any(self._stored(key) for key in _keys(study_uid=study_uid, accession=accession))

    def fix(
        self,
        *,
        study_uid: str,
        accession: str,
        patients: Collection[Patient],
        at: datetime,
        is_only_number: bool = True,
        part: str = "",
    ) -> Order | None:
        """Return the order of a study for one round; a repeated call gives the same answer.

        Same arguments as `find`.
        at: the creation time of the round
        part: name of the part of the study, if it has several
        """
        name = "~".join(filter(None, (study_uid, f"{at:%Y%m%dT%H%M%S}", part)))
        path = self._rounds / f"{name}.json"
        with self._changing():
            if not path.exists():
                found = self.find(
                    study_uid=study_uid, accession=accession, patients=patients, is_only_number=is_only_number
                )
                self._write(path, {} if found is None else asdict(found))
        order = _order(files.read_json(path))
        return order if order is not None and order.is_for(self._named(patients)) else None

    def _named(self, patients: Iterable[Patient]) -> list[Patient]:
        """Return the patients whose numbers are theirs."""
        return [patient for patient in patients if not is_nobodys(patient[0], self.nobodys)]

    def counts(self) -> dict[str, int]:
        """Return the number of orders by priority."""
        orders = {order for path in self._orders.glob("*.json") for order in self._stored(path.stem)}
        return {str(priority): sum(order.priority is priority for order in orders) for priority in Priority}

    def remove_older(self, limit: datetime) -> None:
        """Remove orders stored before a time, and incomplete files."""
        for path in self._files():
            with suppress(FileNotFoundError):  # renamed or removed meanwhile
                if path.stat().st_mtime < limit.timestamp():
                    path.unlink()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Be the only thread of all processes that changes orders. Raises OSError."""
        files.make_folder(self._directory)
        with files.lock(self._directory / "orders.lock"):
            yield

    def _files(self) -> Iterator[Path]:
        return (path for folder in (self._orders, self._rounds) for path in folder.glob("*") if path.is_file())

    def _known(self, order: Order) -> list[Order]:
        """Return the earlier forms of an order, each once; of forms for several studies the newest that fits best."""
        named = (other for key in _names(order) for other in self._stored(key))
        forms = list(dict.fromkeys(other for other in named if other.is_form_of(order)))
        if len({form.study_uid for form in forms} - {""}) < 2:
            return forms
        return sorted(forms, key=order.has_number_of)[-1:]

    def _without(self, key: str, orders: Collection[Order]) -> list[Order]:
        return [order for order in self._stored(key) if order not in orders]

    def _write(self, path: Path, content: Mapping[str, object]) -> None:
        files.make_folder(path.parent)
        files.write(path, files.to_json(content))

    def _remove(self, orders: Collection[Order], *, besides: Iterable[str] = ()) -> None:
        """Remove orders from the files that have their names; besides: names of files that are right already."""
        names = {name for order in orders for name in _names(order)}.difference(besides)
        gone = []
        for name in names:
            if others := self._without(name, orders):
                self._write(self._orders / f"{name}.json", _orders_to_json(others))
            else:
                gone.append(self._orders / f"{name}.json")
        files.make_folder(self._orders)
        for path in gone:
            path.unlink(missing_ok=True)
        files.sync_folder(self._orders)

    def _stored(self, key: str) -> list[Order]:
        """Return the readable orders of a file."""
        stored = (files.read_json(self._orders / f"{key}.json") or {}).get("orders")
        return list(filter(None, map(_order, stored if isinstance(stored, list) else [])))


def _orders_to_json(orders: Iterable[Order]) -> dict[str, object]:
    return {"orders": list(map(asdict, orders))}


def _order(content: Json) -> Order | None:
    """Read an order; None if it is missing or damaged."""
    try:
        return decode(Order, content)
    except ValueError:
        return None


def _is_number_of(order: Order, accession: str, *, is_only: bool) -> bool:
    """Return whether an accession number is that of an order; if it is the only one, either may leave it out."""
    is_left_out = not (order.accession and accession)
    return is_only if is_left_out else order.accession == accession


def _names(order: Order) -> Iterator[str]:
    return _keys(study_uid=order.study_uid, accession=order.accession)


def _keys(*, study_uid: str, accession: str) -> Iterator[str]:
    """Return the search keys of a study's order; the UID first, because it is unique."""
    for kind, value in (("study", study_uid), ("accession", accession)):
        if value:
            yield hashlib.sha256(f"{kind} {value}".encode()).hexdigest()
