"""Maps patients, UIDs and days by a secret key: the same key maps alike, and without it nothing leads back (HMAC)."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from pydicom._uid_dict import UID_dictionary

from node.dicom.dates import read_date
from node.errors import InputError
from node.outputs.study_parts import Part
from node.store import files

KEY_FILE: Final = "export-key"
"""In the node's folder (mode 0600). Who has it and the films of the node can tell whose the exported films are."""
_KEY: Final = re.compile(rb"[0-9a-f]{64}\n?")
_MOST_DAYS: Final = 3650
_UID: Final = re.compile(r"(?<![0-9])(?:2\.25\.[0-9]+(?:\.[0-9]+)*|[0-9]+(?:\.[0-9]+){3,})")
"""A UID in a text: of the root 2.25 (PS3.5 B.2), or with so many components that it is no number and no version."""
_DAY: Final = re.compile(r"[0-9]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pseudonyms:
    """A mapping by a key: that of a node has 64 hexadecimal digits."""

    key: bytes = field(repr=False)

    def name(self, *said: str) -> str:
        """Return 16 hexadecimal digits for texts."""
        return self._digest(*said).hex()[:16]

    def patient(self, part: Part, study_uid: str) -> str:
        """Return the patient of a part of a study; without a number, patients differ within the study alone."""
        return self.name("patient", *(() if part.identity.number else (study_uid,)), *part.patient)

    def uid(self, uid: str) -> str:
        """Return the UID in place of another; those of the standard, such as a SOP class, stay (PS3.6 A)."""
        if uid in UID_dictionary:
            return uid
        return f"2.25.{uuid.UUID(bytes=self._digest('uid', uid)[:16], version=5).int}"

    def text(self, text: str) -> str:
        """Return a text of this program with every UID mapped that may be one of an object."""
        return _UID.sub(lambda found: self.uid(found[0]), text)

    def day(self, text: str, patient: str) -> str:
        """Return the day of a DA or DT as DA, earlier by the hidden number of days of a patient; "" if it is none."""
        days = read_date(text) or (read_date(text[:8]) if _DAY.match(text) else None)
        if days is None or days.only is None:
            return ""
        hidden = int.from_bytes(self._digest("days", patient)[:8]) % _MOST_DAYS + 1
        try:
            return f"{days.only - timedelta(days=hidden):%Y%m%d}".zfill(8)
        except OverflowError:
            return ""

    def _digest(self, *said: str) -> bytes:
        return hmac.new(self.key, "\0".join(said).encode("utf-8", "surrogateescape"), hashlib.sha256).digest()


def of_node(directory: Path) -> Pseudonyms:
    """Return the mapping of a node, whose key is made when it is asked for first. Raises InputError, OSError."""
    path = directory / KEY_FILE
    if not path.exists():
        files.write_new(path, secrets.token_hex(32).encode())
    key = path.read_bytes()
    if not _KEY.fullmatch(key):
        raise InputError(f"{path}: is no key; restore it from a backup, or remove it: then nothing is mapped as before")
    return Pseudonyms(key=key.strip())
