"""What the spool holds: received objects, and the studies that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from node.domain import JsonObject, is_uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One received object, stored byte for byte; number counts the versions of one UID from 1."""

    study_uid: str
    sop_instance_uid: str
    number: int
    sha256: str
    path: Path
    received_at: datetime

    def __post_init__(self) -> None:
        for uid in (self.study_uid, self.sop_instance_uid):
            if not is_uid(uid):
                raise ValueError("an instance needs valid UIDs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The received objects of one study. Never a patient's name."""

    uid: str
    instances: tuple[Instance, ...]

    @property
    def last_arrival(self) -> datetime:
        """When the newest object of the study was stored."""
        return max(instance.received_at for instance in self.instances)


def newest_reading(
    readings: Sequence[tuple[datetime, JsonObject]], instance: Instance
) -> tuple[datetime, JsonObject] | None:
    """Return the newest reading of this version of an object, with its time; None if nothing has read it.

    readings: of its study, oldest first
    """
    return next((found for found in reversed(readings) if found[1].get("file") == instance.path.name), None)
