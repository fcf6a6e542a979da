"""Sessions, and the tokens that pages send with what they change.

Starlette keeps a session in a signed cookie: the user with the role, a random id, two times, and a sign of what let the
user in. So a session survives a restart, and any process on the storage folder accepts it. A session that was ended is
an empty file in a folder of all processes until it would end by itself; its name is a hash of the session's id.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from itsdangerous import Signer
from starlette.middleware.sessions import SessionMiddleware
from starlette.types import ASGIApp

from node.store import files
from node.web.users import Role

IDLE_SECONDS: Final = 30 * 60
LONGEST_SECONDS: Final = 8 * 3600
_RENEW_SECONDS: Final = 60
_KEY_BYTES: Final = 32
_SESSION: Final = "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session. began, seen: Unix times in seconds; credential: changes with what let the user in, and the role."""

    user: str
    role: Role
    id: str
    credential: str
    began: int
    seen: int


class Sessions:
    """Begins, reads and ends sessions in what `Request.session` holds. Only the thread of the server calls it.

    storage: the folder of the key that signs, and of ended sessions; clock: Unix time in seconds
    Raises OSError when the key cannot be read or made.
    """

    def __init__(self, storage: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._key, self._ended, self._clock = load_key(storage), storage / "ended-sessions", clock
        self._tokens = Signer(self._key, salt="csrf", key_derivation="hmac", digest_method=hashlib.sha256)

    def around(self, application: ASGIApp, *, scheme: str) -> ASGIApp:
        """Return an application whose requests have a session, in a cookie that no script reads and no form sends.

        The browser drops it when it ends; with its prefix, only this host can set it (RFC 6265bis 4.1.3).
        """
        is_secure, key = scheme == "https", self._key.hex()
        name = "__Host-chex-session" if is_secure else "chex-session"
        return SessionMiddleware(application, key, name, max_age=None, same_site="lax", https_only=is_secure)

    def begin(self, kept: MutableMapping[str, Any], user: str, *, role: Role, credential: str) -> None:
        """Begin a session with an id of its own, in place of everything that was kept."""
        now = int(self._clock())
        made = Session(user=user, role=role, id=secrets.token_urlsafe(16), credential=credential, began=now, seen=now)
        kept.clear()
        kept[_SESSION] = asdict(made)

    def read(self, kept: Mapping[str, Any]) -> Session | None:
        """Return the session; None if there is none, or it has ended, or was idle for too long."""
        try:
            fields = kept[_SESSION]
            session = Session(**{**fields, "role": Role(fields["role"])})
        except (KeyError, TypeError, ValueError):  # of another version
            return None
        now = self._clock()
        is_over = now - session.seen > IDLE_SECONDS or now - session.began > LONGEST_SECONDS
        return None if is_over or self._end_of(session).exists() else session

    def renew(self, kept: MutableMapping[str, Any], session: Session) -> None:
        """Note that a session is in use, once a minute."""
        now = int(self._clock())
        if now - session.seen >= _RENEW_SECONDS:
            kept[_SESSION] = {**asdict(session), "seen": now}

    def end(self, kept: MutableMapping[str, Any], session: Session) -> None:
        """End a session: every process refuses its cookies from now on. Raises OSError."""
        self._ended.mkdir(mode=0o700, exist_ok=True)
        for path in self._ended.iterdir():
            with suppress(OSError):  # another process removes it
                if time.time() - path.stat().st_mtime > LONGEST_SECONDS:
                    path.unlink(missing_ok=True)
        self._end_of(session).touch(mode=0o600)
        kept.clear()

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
    if len(path.read_bytes()) != _KEY_BYTES:
        files.write(path, secrets.token_bytes(_KEY_BYTES))
    return path.read_bytes()
