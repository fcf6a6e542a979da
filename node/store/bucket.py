"""The objects of one node in a bucket of an S3 server: put, get, list, delete, and a lock by conditional PUT.

An object that was put is complete or absent, and is read as soon as its PUT is answered (Amazon S3 API, consistency
model). With each object goes the SHA-256 of its bytes, and when its file was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from node.errors import BucketAway, InputError
from node.settings.s3 import S3Settings

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Credential  # only in its stubs

_CONNECT_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 30.0
_RETRIES: Final = 2
_RETRY_SECONDS: Final = 3.0
_HASH: Final = "sha256"
_MODIFIED: Final = "modified-ns"
_OWNER: Final = "owner"
_PROBE: Final = "probe"


class BucketRefuses(BucketAway):
    """The server answers, and will refuse until a person changes something: the bucket is missing, a key is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An object as the bucket lists it. e_tag: the MD5 of its bytes on most servers."""

    name: str
    size: int
    e_tag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An object of the bucket. modified_ns: when its file was written, since the epoch."""

    content: bytes
    sha256: str
    modified_ns: int

    @property
    def is_intact(self) -> bool:
        """Whether these are the bytes that were put."""
        return hashlib.sha256(self.content).hexdigest() == self.sha256


class Bucket:
    """The objects below one prefix; may be used from any thread. Every call raises BucketAway."""

    def __init__(self, settings: S3Settings) -> None:
        """Open nothing yet. Raises InputError when a file of the settings cannot be read."""
        self.place = f"storage.s3 {settings.endpoint}, bucket {settings.bucket}"
        client: ClientConfig = {
            "allow_http": settings.endpoint.startswith("http:"),
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "timeout": timedelta(seconds=_ANSWER_SECONDS),
        }
        if settings.ca is not None:
            client["root_certificate"] = _line_of("ca", settings.ca)
        credential: S3Credential = {
            "access_key_id": _line_of("access_key_file", settings.access_key_file),
            "secret_access_key": _line_of("secret_key_file", settings.secret_key_file),
            "token": None,
            "expires_at": None,
        }
        self._objects = S3Store(
            settings.bucket,
            prefix=settings.prefix,
            endpoint=settings.endpoint,
            region=settings.region,
            virtual_hosted_style_request=False,
            # What stands here is not read from variables of the environment (AWS_...).
            credential_provider=lambda: credential,
            skip_signature=False,
            unsigned_payload=False,
            conditional_put="etag",
            s3_express=False,
            client_options=client,
            retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)},
        )

    def put(self, name: str, content: bytes, *, modified_ns: int) -> None:
        """Store an object; it replaces one of this name."""
        self._put(name, content, modified_ns, is_new=False)

    def put_new(self, name: str, content: bytes, *, modified_ns: int) -> bool:
        """Store an object unless its name is taken (If-None-Match: *); returns whether it was stored."""
        return self._put(name, content, modified_ns, is_new=True)

    def get(self, name: str) -> Stored | None:
        """Return an object; None if there is none of this name."""
        try:
            found = obstore.get(self._objects, name)
            content = bytes(found.bytes())
        except (BaseError, OSError) as error:
            if _is_missing(error):
                return None
            raise self._failed(error) from error
        known = {str(key): str(value) for key, value in found.attributes.items()}
        modified = known.get(_MODIFIED, "")
        return Stored(
            content=content,
            sha256=known.get(_HASH, ""),
            modified_ns=int(modified) if modified.isdigit() else int(found.meta["last_modified"].timestamp() * 1e9),
        )

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yield the objects below a folder."""
        try:
            for chunk in obstore.list(self._objects, prefix):
                for item in chunk:
                    yield Listed(name=item["path"], size=item["size"], e_tag=(item["e_tag"] or "").strip('"'))
        except (BaseError, OSError) as error:
            raise self._failed(error) from error

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        try:
            obstore.delete(self._objects, name)
        except (BaseError, OSError) as error:
            if not _is_missing(error):
                raise self._failed(error) from error

    def lock(self, owner: str) -> bool:
        """Say whether this owner holds the lock on the prefix; takes it if it is free. It is kept until deleted."""
        self.put_new(_OWNER, owner.encode(), modified_ns=0)
        return self.is_held_by(owner)

    def is_held_by(self, owner: str) -> bool:
        """Say whether an owner holds the lock, without taking it."""
        held = self.get(_OWNER)
        return held is not None and held.content == owner.encode()

    def fault(self) -> str | None:
        """Try put, get, conditional put, list and delete; returns what is wrong and what to do, or None."""
        name = f"{_PROBE}/{uuid4().hex}"
        try:
            self.put_new(name, b"first", modified_ns=1)
            is_replaced = self.put_new(name, b"second", modified_ns=2)
            found = self.get(name)
            listed = [item.name for item in self.list(_PROBE)]
            self.delete(name)
            rest = self.get(name)
        except BucketAway as error:
            return f"{error.strerror}"
        if is_replaced or found is None or found.content != b"first":
            return "replaces an object in spite of If-None-Match; use a server that supports conditional writes"
        if not found.is_intact or found.modified_ns != 1:
            return "does not keep the metadata of an object; use another server"
        if name not in listed or rest is not None:
            return "does not list or remove objects at once; use a server with strong consistency"
        return None

    def _put(self, name: str, content: bytes, modified_ns: int, *, is_new: bool) -> bool:
        return self._put_with(
            name,
            content,
            sha256=hashlib.sha256(content).hexdigest(),
            modified_ns=modified_ns,
            mode="create" if is_new else "overwrite",
        )

    def _put_with(
        self, name: str, content: bytes, *, sha256: str, modified_ns: int, mode: Literal["create", "overwrite"]
    ) -> bool:
        facts = {_HASH: sha256, _MODIFIED: str(modified_ns)}
        try:
            obstore.put(self._objects, name, content, attributes=facts, mode=mode, use_multipart=False)
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise self._failed(error) from error
        return True

    def _failed(self, error: Exception) -> BucketAway:
        """Name a failure; the text of the client's error is not used but for the code of the server."""
        if isinstance(error, UnauthenticatedError | PermissionDeniedError):
            return BucketRefuses(
                "the server refuses the access key; correct storage.s3.access_key_file and secret_key_file, "
                "or allow the key to put, get, list and delete objects"
            )
        if "<Code>NoSuchBucket</Code>" in str(error):
            return BucketRefuses("the bucket does not exist; create it, or correct storage.s3.bucket")
        return BucketAway("the bucket cannot be reached; look at the S3 server and the network")


def _is_missing(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) and "<Code>NoSuchBucket</Code>" not in str(error)


def _line_of(key: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"storage.s3.{key} {path}: cannot be read; name a readable file") from error
