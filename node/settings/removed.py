"""The settings keys that this program once had, and what serves instead; each is refused in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REMOVED: Final[Mapping[str, str]] = {
    "orders.patient_updates": "the archive, which reconciles its objects (docs/integrate/hl7.md)",
    "storage.s3": "snapshots of the volume, or restic (docs/operate/backup.md)",
}
"""By full key, without the number of a table."""
