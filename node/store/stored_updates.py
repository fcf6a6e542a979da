"""Updates of patients as documents of the studies that follow them, or in which they wait for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from node.codec import decode, encode
from node.domain import JsonObject
from node.store.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUpdate:
    """The part of an update that a study follows.

    id: a number in the order of arrival, and a hash of the message
    at: when it came
    files: of the films that it changes
    changes: the new values, by keyword
    """

    id: str
    event: str
    at: datetime
    files: frozenset[str]
    changes: Mapping[str, str]


def to_json(update: StoredUpdate) -> JsonObject:
    """Return an update as it is stored."""
    return {**encode(update), "files": [*sorted(update.files)]}


def of_study(spool: Spool, study_uid: str, kind: Literal["patients", "held"] = "patients") -> list[StoredUpdate]:
    """Return the updates of a study in the order of arrival; kind: `held` for those that wait for a person."""
    stored = (decode(StoredUpdate, content) for content in spool.documents(study_uid, kind))
    return sorted(stored, key=lambda update: update.id)
