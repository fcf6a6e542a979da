"""Sessions, with the pages that begin and end them: plain HTML, without scripts.

Starlette keeps a session in a signed cookie: the user with the role, a random id, two times, and a sign of what let the
user in. So a session survives a restart, and any process on the storage folder accepts it. A session that was ended is
an empty file in a folder of all processes until it would end by itself; its name is the session's id.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from itsdangerous import Signer
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.templating import Jinja2Templates
from starlette.types import ASGIApp, Receive, Scope, Send

from models.program import command_for
from node import log
from node.net.callers import RefusalKey, Refusals
from node.settings.http import HttpSettings
from node.store import files
from node.web.passwords import Busy, Passwords
from node.web.single_sign_on import Refused, SingleSignOn
from node.web.users import Role, client_of

LOGIN, LOGOUT = "/login", "/logout"
IDLE_SECONDS: Final = 30 * 60
LONGEST_SECONDS: Final = 8 * 3600
_RENEW_SECONDS: Final = 60
_KEY_BYTES: Final = 32
_SESSION, _TARGET = "session", "target"
_START: Final = "/"
_CALLBACK: Final = f"{LOGIN}/callback"
_LONGEST_TARGET: Final = 1024  # a cookie holds it
_MOST_FIELDS: Final = 8
_PAGES: Final = Jinja2Templates(directory=Path(__file__).parent / "templates")


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
    """Begins, reads and ends sessions in what `Request.session` holds. Not thread-safe: for the server's thread only.

    storage: the folder of the key that signs, and of ended sessions; clock: Unix time in seconds
    Raises OSError when the key cannot be read or made.
    """

    def __init__(self, storage: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._ended, self._clock = storage / "ended-sessions", clock
        self._key = files.secret(storage / "session-key", length=_KEY_BYTES)  # anew if it is damaged
        self._tokens = Signer(self._key, salt="csrf", key_derivation="hmac", digest_method=hashlib.sha256)

    def around(self, application: ASGIApp) -> ASGIApp:
        """Return an application whose requests have a session, in a cookie that no script reads and no form sends.

        The browser drops it when it ends; with its prefix, only this host can set it (RFC 6265bis 4.1.3).
        """
        key = self._key.hex()
        plain = SessionMiddleware(application, key, "chex-session", max_age=None, same_site="lax")
        secure = SessionMiddleware(
            application, key, "__Host-chex-session", max_age=None, same_site="lax", https_only=True
        )

        async def by_scheme(scope: Scope, receive: Receive, send: Send) -> None:
            await (secure if scope["scheme"] == "https" else plain)(scope, receive, send)

        return by_scheme

    def begin(self, kept: MutableMapping[str, Any], user: str, *, role: Role, credential: str) -> None:
        """Begin a session with an id of its own."""
        now = int(self._clock())
        made = Session(user=user, role=role, id=secrets.token_urlsafe(16), credential=credential, began=now, seen=now)
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
        return None if is_over or (self._ended / session.id).exists() else session

    def renew(self, kept: MutableMapping[str, Any], session: Session) -> None:
        """Note that a session is in use, once a minute."""
        now = int(self._clock())
        if now - session.seen >= _RENEW_SECONDS:
            kept[_SESSION] = {**asdict(session), "seen": now}

    def end(self, session: Session) -> None:
        """End a session: every process refuses its cookies from now on. Raises OSError."""
        self._ended.mkdir(mode=0o700, exist_ok=True)
        for path in self._ended.iterdir():
            with suppress(OSError):  # another process removes it
                if time.time() - path.stat().st_mtime > LONGEST_SECONDS:
                    path.unlink(missing_ok=True)
        (self._ended / session.id).touch(mode=0o600)

    def token(self, owner: str) -> str:
        """Return the token of an owner, which no other site can know; owner: a session's id, or another user."""
        return self._tokens.get_signature(owner).decode()


class SignIn:
    """The pages for signing in and out, by passwords and by single sign-on. Not thread-safe.

    storage: see `Sessions`; refusals: logs requests without sign-in
    """

    def __init__(self, settings: HttpSettings, storage: Path, *, refusals: Refusals) -> None:
        self._refusals, self.sessions = refusals, Sessions(storage)
        self.passwords = None if settings.password_file is None else Passwords(settings.password_file)
        self.single_sign_on = None if settings.oidc is None else SingleSignOn(settings.oidc)

    @property
    def is_offered(self) -> bool:
        """Whether there is a page to sign in."""
        return self.passwords is not None or self.single_sign_on is not None

    def routes(self) -> list[Route]:
        """Return the routes for signing in and out; none where nobody signs in."""
        found = list[Route]()
        if self.passwords is not None:
            found.append(Route(LOGIN, partial(self._sign_in, self.passwords), methods=["POST"]))
        if self.single_sign_on is not None:
            found.append(Route(f"{LOGIN}/oidc", partial(self._leave, self.single_sign_on), methods=["GET"]))
            found.append(Route(_CALLBACK, partial(self._come_back, self.single_sign_on), methods=["GET"]))
        if self.is_offered:
            found.append(Route(LOGIN, self._show, methods=["GET"]))
            found.append(Route(LOGOUT, self._sign_out, methods=["POST"]))
        return found

    def session_of(self, request: Request) -> Session | None:
        """Return the session of a request, if the user's credential and role are unchanged since its beginning."""
        kept = request.scope["session"]  # by `request.session` caches keep files for each cookie
        session = self.sessions.read(kept)
        if session is None:
            return None
        credentials = set[str]()
        if self.passwords is not None and (found := self.passwords.users.get(session.user)) is not None:
            credentials.add(found.credential)
        if self.single_sign_on is not None:
            credentials.add(self.single_sign_on.credential)
        if session.credential not in credentials:
            return None
        self.sessions.renew(kept, session)
        return session

    async def _show(self, request: Request) -> Response:
        """Show the form; a user with a session is redirected to the requested page."""
        target = _target(request.query_params.get("next", ""))
        if self.session_of(request) is not None:
            return RedirectResponse(target, status_code=303)
        return self._page(request, target=target)

    async def _sign_in(self, passwords: Passwords, request: Request) -> Response:
        """Begin a session by a password."""
        async with request.form(max_fields=_MOST_FIELDS, max_files=0) as form:
            user, password, target = (str(form.get(name, "")) for name in ("user", "password", "next"))
        host, target = client_of(request), _target(target)
        known = user if user in passwords.users else ""  # an unknown name may be a password
        try:
            found = await passwords.check(user, password, host=host)
        except Busy as busy:
            log.get().warning("session.refused", user=known, host=host, reason="busy")
            message = f"Too many attempts. Try again in {busy.seconds} s."
            return self._page(request, target=target, message=message, status=429)
        if found is None:
            log.get().warning("session.refused", user=known, host=host, reason="password")
            return self._page(request, target=target, message="User or password is wrong.", status=401)
        return self._begin(request, user, role=found.role, credential=found.credential, target=target)

    async def _leave(self, single_sign_on: SingleSignOn, request: Request) -> Response:
        """Send the browser to the provider of single sign-on."""
        target = _target(request.query_params.get("next", ""))
        if self.session_of(request) is not None:
            return RedirectResponse(target, status_code=303)
        request.session.clear()
        request.session[_TARGET] = target
        callback = str(request.base_url.replace(path=_CALLBACK))
        try:
            return await single_sign_on.begin(request, host=client_of(request), callback=callback)
        except Refused as refused:
            return self._refused(request, refused, target=target)

    async def _come_back(self, single_sign_on: SingleSignOn, request: Request) -> Response:
        """Begin a session for whom the provider of single sign-on has signed in."""
        target = _target(request.session.get(_TARGET, ""))
        try:
            user, role = await single_sign_on.finish(request, host=client_of(request))
        except Refused as refused:
            return self._refused(request, refused, target=target)
        return self._begin(request, user, role=role, credential=single_sign_on.credential, target=target)

    async def _sign_out(self, request: Request) -> Response:
        """End the session."""
        self._end(request)
        return RedirectResponse(LOGIN, status_code=303)

    def _end(self, request: Request) -> None:
        """End the session, also an invalid one: its role may come back. Nothing of it is kept."""
        if (session := self.sessions.read(request.session)) is not None:
            self.sessions.end(session)
            log.get().info("session.ended", user=session.user, host=client_of(request))
        request.session.clear()

    def _begin(self, request: Request, user: str, *, role: Role, credential: str, target: str) -> Response:
        self._end(request)
        self.sessions.begin(request.session, user, role=role, credential=credential)
        log.get().info("session.begun", user=user, host=client_of(request))
        return RedirectResponse(target, status_code=303)

    def _refused(self, request: Request, refused: Refused, *, target: str) -> Response:
        host = client_of(request)
        if refused.reason in ("busy", "state"):  # possible without sign-in
            self._refusals.note(RefusalKey("access.refused", refused.reason, host))
        else:
            log.get().warning(
                "session.refused", user=refused.user, host=host, reason=refused.reason, message=refused.why
            )
        return self._page(request, target=target, message=refused.text, status=refused.status)

    def _page(self, request: Request, *, target: str, message: str = "", status: int = 200) -> Response:
        is_empty = self.passwords is not None and not self.passwords.users
        content = {
            "target": target,
            "message": message,
            "command": f"{command_for('node')} password FILE USER" if is_empty else "",
            "has_passwords": self.passwords is not None,
            "has_single_sign_on": self.single_sign_on is not None,
        }
        return _PAGES.TemplateResponse(request, "login.html", content, status_code=status)


def _target(path: str) -> str:
    """Return the path to redirect to after sign-in: one of this server that is not the login page itself."""
    # For a browser, a path that begins with two slashes is the address of another server.
    is_local = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable() and path.isascii()
    is_good = is_local and not path.startswith((LOGIN, LOGOUT)) and len(path) <= _LONGEST_TARGET
    return path if is_good else _START
