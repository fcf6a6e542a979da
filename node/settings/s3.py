"""The settings of a bucket of an S3 server that holds what the spool holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.settings.file import NOT_BLANK, WEB_URL, setting

_MOST_MIB: Final = 5 * 1024
"""What one PUT may hold (Amazon S3 API, PutObject)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """A bucket, the place of this node's objects in it, and two files with one line each: access key and secret key.

    ca: trusted in addition to the authorities of the system (PEM)
    """

    endpoint: str = setting(WEB_URL)
    bucket: str = setting(NOT_BLANK)
    prefix: str = setting(NOT_BLANK, default="chex-node")
    region: str = setting(NOT_BLANK, default="us-east-1")
    access_key_file: Path
    secret_key_file: Path
    ca: Path | None = None


def unusable_s3(s3: S3Settings | None, *, database_url: str, max_object_mib: int) -> Iterator[str]:
    """Return a complaint for settings that a bucket does not go with."""
    if s3 is None:
        return
    if database_url:
        yield (
            "storage.s3: one process uses a bucket, and a storage.database_url is for several, which share a folder; "
            "remove one of them"
        )
    if max_object_mib > _MOST_MIB:
        yield f"listener.max_object_mib: an object in storage.s3 has at most {_MOST_MIB} MiB; lower it"
    if s3.prefix.startswith("/") or s3.prefix.endswith("/") or "//" in s3.prefix:
        yield "storage.s3.prefix: must not begin or end with /, nor have // in it"
