"""Sessions in signed cookies, and the tokens that pages send with what they change.

A cookie holds the user, a random id, two times and a sign of the password, and the node stores nothing about it. So a
session survives a restart, and any process on the storage folder accepts it. Sessions that were ended are remembered
until they would end by themselves, by the process that ended them and not beyond its end.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from itsdangerous import BadData, Signer, URLSafeSerializer

from node.store import files

IDLE_SECONDS: Final = 30 * 60
LONGEST_SECONDS: Final = 12 * 3600
_RENEW_SECONDS: Final = 60
_MOST_ENDED: Final = 10_000
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

    key: signs cookies and tokens; clock: Unix time in seconds
    """

    def __init__(self, key: bytes, *, clock: Callable[[], float] = time.time) -> None:
        self._cookies = URLSafeSerializer(key, salt="session", signer_kwargs=_SIGNING)
        self._tokens = Signer(key, salt="csrf", key_derivation="hmac", digest_method=hashlib.sha256)
        self._clock = clock
        self._ended: OrderedDict[str, None] = OrderedDict()

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
        return None if is_over or session.id in self._ended else session

    def renewed(self, session: Session) -> Session | None:
        """Return the session as seen now; None while its cookie is younger than a minute."""
        now = int(self._clock())
        return replace(session, seen=now) if now - session.seen >= _RENEW_SECONDS else None

    def end(self, session: Session) -> None:
        """End a session: its cookies are refused from now on."""
        self._ended[session.id] = None
        if len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)

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
