"""Who may use the pages and the API: a middleware around any application, which knows none of its routes.

The machine pages are open. All else needs a host name of the node, an encrypted way or a trusted proxy, a user, and
for changes from a browser a page of the node that sent them. A user is known by the header of a trusted proxy, by HTTP
Basic, by a session, which a password or single sign-on began, or, where no users are set, by being on this machine.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node import log
from node.net.callers import RefusalKey, Refusals
from node.settings.http import HttpSettings
from node.web import origins, passwords, single_sign_on
from node.web.passwords import Busy, Passwords
from node.web.sessions import Session, Sessions, is_same_token
from node.web.single_sign_on import SingleSignOn
from node.web.users import Means, Role, User, is_user_name

MACHINE_PATHS: Final = ("/metrics", "/live", "/ready")
LOGIN, LOGOUT, STATIC = "/login", "/logout", "/static/"
SEARCH: Final = "/search"
"""Is posted and changes nothing, so that a form without a script may send it; other sites may not."""

_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_USERS: Final = "set http.password_file, http.oidc or http.user_header"

Reason: TypeAlias = Literal[
    "closed", "unencrypted", "host", "other_site", "proxy", "user", "token", "password", "busy", "state"
]


class Forbidden(Exception):
    """A request that is not let through: the status and text of the answer, and the reason for the log."""

    def __init__(self, status: int, reason: Reason, detail: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.reason, self.detail, self.headers = status, reason, detail, headers or {}

    def response(self) -> Response:
        """Return the answer: a problem document (RFC 9457)."""
        content = {"type": "about:blank", "title": self.reason, "status": self.status, "detail": self.detail}
        return JSONResponse(
            content, status_code=self.status, headers=self.headers, media_type="application/problem+json"
        )


class Access:
    """Decides who may use an application. Only the thread of the server calls it.

    storage: the folder of the key that signs sessions
    refusals: logs refused requests
    Raises OSError when the key cannot be read or made.
    """

    def __init__(self, settings: HttpSettings, storage: Path, *, refusals: Refusals) -> None:
        self._settings, self._refusals = settings, refusals
        self._proxies = frozenset(map(origins.address, settings.trusted_proxy))
        self._names = (*settings.hosts, *([] if origins.is_unspecified(settings.host) else [settings.host]))
        self.sessions = Sessions(storage)
        self.passwords = None if settings.password_file is None else Passwords(settings.password_file)
        self.single_sign_on = None if settings.oidc is None else SingleSignOn(settings.oidc)
        if not settings.serves_pages:
            message = f"{_USERS} to serve pages and API on this address"
            log.get().warning("access.closed", name=settings.host, message=message)

    @property
    def has_login(self) -> bool:
        """Whether there is a page to sign in."""
        return self.passwords is not None or self.single_sign_on is not None

    def protected(self, application: ASGIApp) -> ASGIApp:
        """Return the application as other people may see it."""
        return _Protection(application, self)

    async def admit(self, request: Request) -> User | None:
        """Return who sends a request; None for a public path. Raises Forbidden."""
        if not self._settings.serves_pages:
            raise Forbidden(403, "closed", f"this address serves only /metrics, /live and /ready; {_USERS}")
        self._check_way(request)
        user = await self._user(request)
        path = str(request.scope["path"])  # not of request.url, into which Host enters
        if path in (LOGIN, LOGOUT) or path.startswith((f"{LOGIN}/", STATIC)):
            return user
        if user is None:
            raise Forbidden(401, "user", "sign in first", headers=self._challenge(request.headers))
        if request.method not in origins.SAFE_METHODS and path != SEARCH:
            self._check_token(request, user)
        return user

    def note(self, refused: Forbidden, request: Request) -> None:
        """Log a refused request. That nobody has signed in yet is not worth a line."""
        if refused.reason != "user":
            self._refusals.note(RefusalKey("access.refused", refused.reason, self.host_of(request)))

    def host_of(self, request: Request) -> str:
        """Return the address of the client, which a trusted proxy may name."""
        return origins.client_of(_peer(request), request.headers, proxies=self._proxies)

    def scheme_of(self, request: Request) -> str:
        """Return what the browser uses, `http` or `https`, if only to the proxy."""
        scheme = str(request.scope["scheme"])
        if self._is_of_proxy(request):
            scheme = request.headers.get("x-forwarded-proto", scheme).lower()
        return "https" if scheme == "https" else "http"

    def session_of(self, request: Request) -> Session | None:
        """Return the session of a request, if what let its user in, and the role, are as at its beginning."""
        session = self.sessions.read(request.scope["session"])  # by `request.session` caches keep files for each cookie
        if session is None:
            return None
        credentials = set[str]()
        if self.passwords is not None and (found := self.passwords.users.get(session.user)) is not None:
            credentials.add(found.credential)
        if self.single_sign_on is not None:
            credentials.add(self.single_sign_on.credential)
        return session if session.credential in credentials else None

    def _check_way(self, request: Request) -> None:
        """Check encryption, the name that was asked for, and the site that asks. Raises Forbidden."""
        is_of_proxy, peer = self._is_of_proxy(request), _peer(request)
        if request.scope["scheme"] != "https" and not (is_of_proxy or origins.is_loopback(peer)):
            raise Forbidden(403, "unencrypted", "this way is not encrypted; use HTTPS, or the reverse proxy")
        scheme = self.scheme_of(request)
        places = [origins.place_of(value, scheme=scheme) for value in request.headers.getlist("host")]
        local = (request.scope.get("server") or ("", 0))[0]
        if len(places) != 1 or places[0] is None:
            raise Forbidden(400, "host", "the request has no usable Host header")
        if not origins.is_own_name(places[0].host, local=local, names=self._names):
            raise Forbidden(400, "host", "the node is not known by this name; add it to http.hosts")
        own = self._origins(request, places[0], scheme=scheme)
        if origins.is_of_other_site(request.headers, method=request.method, own=own):
            raise Forbidden(403, "other_site", "another site may not send this request")

    def _origins(self, request: Request, asked: origins.Place, *, scheme: str) -> set[str]:
        """Return the origins that pages of the node may have. A proxy may replace Host and hide the scheme."""
        host = f"[{asked.host}]" if ":" in asked.host else asked.host
        own = {f"{scheme}://{host}:{asked.port}"}
        if asked.port == origins.PORTS[scheme]:
            own.add(f"{scheme}://{host}")
        if self._is_of_proxy(request):
            names = (*self._settings.hosts, request.headers["host"])
            own |= {f"{known}://{name}" for known in origins.PORTS for name in names}
        return {origin.lower() for origin in own}

    async def _user(self, request: Request) -> User | None:
        """Find out who sends a request. Raises Forbidden for a user that is wrong instead of missing."""
        if self._settings.user_header and self._is_of_proxy(request):
            names = request.headers.getlist(self._settings.user_header)
            if names:
                return self._proxy_user(names, request)
        if self.passwords is not None and "authorization" in request.headers:
            return await self._basic_user(request, self.passwords)
        if (session := self.session_of(request)) is not None:
            self.sessions.renew(request.scope["session"], session)
            return self._made(session.user, "session", request, role=session.role, owner=session.id)
        if self._settings.knows_users:
            return None
        if not origins.is_loopback(_peer(request)) or origins.is_forwarded(request.headers):
            raise Forbidden(403, "proxy", "a reverse proxy must be listed in http.trusted_proxy")
        return self._made("", "local", request, role=Role.ADMINISTRATOR)

    def _proxy_user(self, names: list[str], request: Request) -> User:
        try:
            name = names[0].encode("latin-1").decode()
        except UnicodeError:
            name = ""
        if len(names) > 1 or not is_user_name(name):
            raise Forbidden(401, "proxy", "the header of the proxy names no user")
        return self._made(name, "proxy", request, role=self._proxy_role(request))

    def _proxy_role(self, request: Request) -> Role:
        """Return the role that the proxy gives; without `http.role_header` its users may do everything."""
        settings = self._settings
        if not settings.role_header:
            return Role.ADMINISTRATOR
        lines = request.headers.getlist(settings.role_header)
        groups = {group.strip() for line in lines for group in (line, *re.split("[,;|]", line))}
        return Role.ADMINISTRATOR if groups & set(settings.administrator_roles) else Role.READER

    async def _basic_user(self, request: Request, passwords: Passwords) -> User:
        """RFC 7617. A browser is not asked for it, so a wrong password was sent by a program."""
        challenge = self._challenge(request.headers)
        scheme, _, encoded = request.headers["authorization"].partition(" ")
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeError):
            name = colon = password = ""
        if scheme.lower() != "basic" or not colon:
            raise Forbidden(401, "password", "send user and password by HTTP Basic", headers=challenge)
        try:
            found = await passwords.check(name, password, host=self.host_of(request), is_repeated=True)
        except Busy as busy:
            detail = f"too many attempts; try again in {busy.seconds} s"
            raise Forbidden(429, "busy", detail, headers={"retry-after": str(busy.seconds)}) from busy
        if found is None:
            raise Forbidden(401, "password", "user or password is wrong", headers=challenge)
        return self._made(name, "password", request, role=found.role)

    def _made(self, name: str, means: Means, request: Request, *, role: Role, owner: str | None = None) -> User:
        token = self.sessions.token(owner or f"{means}:{name}")
        return User(name=name, means=means, host=self.host_of(request), csrf_token=token, role=role)

    def _check_token(self, request: Request, user: User) -> None:
        """Require the token of the user's pages, unless a program sends the request. Raises Forbidden."""
        if user.means != "session" and not origins.is_of_browser(request.headers):
            return
        if not is_same_token(request.headers.get("x-csrf-token", ""), user.csrf_token):
            raise Forbidden(403, "token", "X-CSRF-Token is missing or old; load the page again")

    def _challenge(self, headers: Headers) -> dict[str, str]:
        """Ask a program for HTTP Basic. A browser would open a window of its own, and send the password by itself."""
        scheme = "Session" if self.passwords is None or origins.is_of_browser(headers) else "Basic"
        return {"www-authenticate": f'{scheme} realm="ChEX Node", charset="UTF-8"'}

    def _is_of_proxy(self, request: Request) -> bool:
        return _peer(request) in self._proxies


def check_files(settings: HttpSettings) -> None:
    """Check the files by which users are let in. Raises ConfigError."""
    if settings.password_file is not None:
        passwords.users_in(settings.password_file)
    if settings.oidc is not None:
        single_sign_on.check_files(settings.oidc)


class _Protection:
    """Lets requests through that may pass, and adds the headers that protect what is answered."""

    def __init__(self, application: ASGIApp, access: Access) -> None:
        self._application, self._access = application, access
        self._with_session = {scheme: access.sessions.around(self._serve, scheme=scheme) for scheme in origins.PORTS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in MACHINE_PATHS):
            await self._application(scope, receive, send)
        elif scope["type"] == "http":  # a websocket gets no answer
            await self._with_session[self._access.scheme_of(Request(scope))](scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                _protect(MutableHeaders(scope=message), is_static=scope["path"].startswith(STATIC))
            await send(message)

        try:
            user = await self._access.admit(request)
        except Forbidden as refused:
            self._access.note(refused, request)
            await self._refusal(refused, request)(scope, receive, send_protected)
            return
        scope.setdefault("state", {})["user"] = user
        await self._application(scope, receive, send_protected)

    def _refusal(self, refused: Forbidden, request: Request) -> Response:
        """Return the answer to a refused request: a page that needs a user leads to the login page."""
        is_page = request.method in origins.SAFE_METHODS and "text/html" in request.headers.get("accept", "")
        if refused.reason != "user" or not is_page or not self._access.has_login:
            return refused.response()
        query = request.scope["query_string"].decode("latin-1")
        asked = quote(request.scope["path"]) + (f"?{query}" if query else "")
        return RedirectResponse(f"{LOGIN}?{urlencode({'next': asked})}", status_code=303)


def _protect(headers: MutableHeaders, *, is_static: bool) -> None:
    for name, value in _HEADERS.items():
        headers[name] = value
    if not is_static:
        headers["cache-control"] = "no-store"


def _peer(request: Request) -> str:
    return origins.address(request.client.host) if request.client is not None else ""
