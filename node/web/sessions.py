"""Sessions in signed cookies, and the tokens that pages send with what they change.

A cookie holds the user, a random id, two times and a sign of the password, and the node stores nothing about it. So a
session survives a restart, and any process on the storage folder accepts it. A session that was ended is an empty file
in a folder of all processes until it would end by itself; its name is a hash of the session's id.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from itsdangerous import BadData, Signer, URLSafeSerializer

from node.store import files

IDLE_SECONDS: Final = 30 * 60
LONGEST_SECONDS: Final = 12 * 3600
_RENEW_SECONDS: Final = 60
_KEY_BYTES: Final = 32
_SIGNING: Final = {"key_derivation": "hmac", "digest_method": hashlib.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session. began, seen: Unix times in seconds; credential: changes when the user's password does."""

    user: str
    id: str
    credential: str
    began: int
    seen: int


class Sessions:
    """Begins, reads and ends sessions. Only the thread of the server calls it.

    key: signs cookies and tokens; ended: the folder of ended sessions; clock: Unix time in seconds
    """

    def __init__(self, key: bytes, ended: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._cookies = URLSafeSerializer(key, salt="session", signer_kwargs=_SIGNING)
        self._tokens = Signer(key, salt="csrf", key_derivation="hmac", digest_method=hashlib.sha256)
        self._clock = clock
        self._ended = ended

    def begin(self, user: str, *, credential: str) -> Session:
        """Begin a session with an id of its own."""
        now = int(self._clock())
        return Session(user=user, id=secrets.token_urlsafe(16), credential=credential, began=now, seen=now)

    def cookie(self, session: Session) -> str:
        """Return the value of the cookie of a session."""
        return str(self._cookies.dumps(asdict(session)))

    def read(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None if it is forged, has ended, or was idle for too long."""
        try:
            session = Session(**self._cookies.loads(cookie))
        except (BadData, TypeError):
            return None
        now = self._clock()
        is_over = now - session.seen > IDLE_SECONDS or now - session.began > LONGEST_SECONDS
        return None if is_over or self._end_of(session).exists() else session

    def renewed(self, session: Session) -> Session | None:
        """Return the session as seen now; None while its cookie is younger than a minute."""
        now = int(self._clock())
        return replace(session, seen=now) if now - session.seen >= _RENEW_SECONDS else None

    def end(self, session: Session) -> None:
        """End a session: every process refuses its cookies from now on. Raises OSError."""
        self._ended.mkdir(mode=0o700, exist_ok=True)
        for path in self._ended.iterdir():
            with suppress(OSError):  # another process removes it
                if time.time() - path.stat().st_mtime > LONGEST_SECONDS:
                    path.unlink(missing_ok=True)
        self._end_of(session).touch(mode=0o600)

    def _end_of(self, session: Session) -> Path:
        return self._ended / hashlib.sha256(session.id.encode()).hexdigest()

    def token(self, owner: str) -> str:
        """Return the token of an owner, which no other site can know; owner: a session's id, or another user."""
        return self._tokens.get_signature(owner).decode()


def is_same_token(sent: str, token: str) -> bool:
    """Compare two tokens without telling by the time where they differ."""
    return hmac.compare_digest(sent.encode(errors="replace"), token.encode())


def load_key(storage: Path) -> bytes:
    """Return the key of a storage folder, made at first use (mode 0600) and anew if it is damaged. Raises OSError."""
    path = storage / "session-key"
    files.write_new(path, secrets.token_bytes(_KEY_BYTES))
    key = path.read_bytes()
    if len(key) == _KEY_BYTES:
        return key
    files.write(path, secrets.token_bytes(_KEY_BYTES))
    return path.read_bytes()
