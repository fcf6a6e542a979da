"""Who may use the pages and the API: a middleware around any application, which knows none of its routes.

The machine pages are open. All else needs a host name of the node, an encrypted way or a trusted proxy, a user, and
for changes from a browser a page of the node that sent them. A user is known by the header of a trusted proxy, by HTTP
Basic, by a session, or, where no users are set, by being on this machine.
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
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node import log
from node.net.callers import RefusalKey, Refusals
from node.settings.http import HttpSettings
from node.web import origins
from node.web.sessions import Session, Sessions, is_same_token, load_key
from node.web.sign_in import Busy, SignIn
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
_NO_STORE: Final = "no-store"
_AGAIN: Final = '<!doctype html><html lang="en"><title>ChEX Node</title><meta http-equiv="refresh" content="0"></html>'

Reason: TypeAlias = Literal["closed", "unencrypted", "host", "other_site", "proxy", "user", "token", "password", "busy"]


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
        self.sessions = Sessions(load_key(storage), storage / "ended-sessions")
        self.sign_in = None if settings.password_file is None else SignIn(settings.password_file)
        if not settings.serves_pages:
            message = "set http.password_file or http.user_header to serve pages and API on this address"
            log.get().warning("access.closed", name=settings.host, message=message)

    def protected(self, application: ASGIApp) -> ASGIApp:
        """Return the application as other people may see it."""
        return _Protection(application, self)

    def close(self) -> None:
        """Stop checking passwords."""
        if self.sign_in is not None:
            self.sign_in.close()

    async def admit(self, request: Request) -> User | None:
        """Return who sends a request; None for a public path. Raises Forbidden."""
        if not self._settings.serves_pages:
            detail = "this address serves only /metrics, /live and /ready; set http.password_file or http.user_header"
            raise Forbidden(403, "closed", detail)
        self._check_way(request)
        user = await self._user(request)
        path = str(request.scope["path"])  # not of request.url, into which Host enters
        if path in (LOGIN, LOGOUT) or path.startswith(STATIC):
            return user
        if user is None:
            raise Forbidden(401, "user", "sign in first", headers=_challenge(request.headers))
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

    def is_secure(self, request: Request) -> bool:
        """Whether the browser uses HTTPS, if only to the proxy."""
        if self._is_of_proxy(request) and "x-forwarded-proto" in request.headers:
            return request.headers["x-forwarded-proto"].lower() == "https"
        return str(request.scope["scheme"]) == "https"

    def cookie_name(self, request: Request) -> str:
        """Return the name of the session's cookie; with the prefix, only this host can set it (RFC 6265bis 4.1.3)."""
        return "__Host-chex-session" if self.is_secure(request) else "chex-session"

    def set_cookie(self, response: Response, session: Session, *, request: Request) -> None:
        """Give the browser the cookie of a session, which it drops when it ends."""
        response.set_cookie(
            self.cookie_name(request),
            self.sessions.cookie(session),
            max_age=None,
            httponly=True,
            samesite="strict",
            secure=self.is_secure(request),
        )

    def session_of(self, request: Request) -> Session | None:
        """Return the session of a request, if its user still has the password of its beginning."""
        session = self.sessions.read(request.cookies.get(self.cookie_name(request), ""))
        if session is None or self.sign_in is None or self.sign_in.credential(session.user) != session.credential:
            return None
        return session

    def _check_way(self, request: Request) -> None:
        """Check encryption, the name that was asked for, and the site that asks. Raises Forbidden."""
        is_of_proxy, peer = self._is_of_proxy(request), _peer(request)
        if request.scope["scheme"] != "https" and not (is_of_proxy or origins.is_loopback(peer)):
            raise Forbidden(403, "unencrypted", "this way is not encrypted; use HTTPS, or the reverse proxy")
        scheme = "https" if self.is_secure(request) else "http"
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
        if self.sign_in is not None:
            if "authorization" in request.headers:
                return await self._basic_user(request, self.sign_in)
            session = self.session_of(request)
            return (
                None
                if session is None
                else self._made(
                    session.user, "session", request, role=self.sign_in.role(session.user), owner=session.id
                )
            )
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

    async def _basic_user(self, request: Request, sign_in: SignIn) -> User:
        """RFC 7617. A browser is not asked for it, so a wrong password was sent by a program."""
        scheme, _, encoded = request.headers["authorization"].partition(" ")
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeError):
            name = colon = password = ""
        if scheme.lower() != "basic" or not colon:
            raise Forbidden(
                401, "password", "send user and password by HTTP Basic", headers=_challenge(request.headers)
            )
        host = self.host_of(request)
        try:
            credential = await sign_in.check(name, password, host=host, is_repeated=True)
        except Busy as busy:
            seconds = str(busy.seconds)
            detail = f"too many attempts; try again in {seconds} s"
            raise Forbidden(429, "busy", detail, headers={"retry-after": seconds}) from busy
        if credential is None:
            raise Forbidden(401, "password", "user or password is wrong", headers=_challenge(request.headers))
        return self._made(name, "password", request, role=sign_in.role(name))

    def _made(self, name: str, means: Means, request: Request, *, role: Role, owner: str | None = None) -> User:
        token = self.sessions.token(owner or f"{means}:{name}")
        return User(name=name, means=means, host=self.host_of(request), csrf_token=token, role=role)

    def _check_token(self, request: Request, user: User) -> None:
        """Require the token of the user's pages, unless a program sends the request. Raises Forbidden."""
        if user.means != "session" and not origins.is_of_browser(request.headers):
            return
        if not is_same_token(request.headers.get("x-csrf-token", ""), user.csrf_token):
            raise Forbidden(403, "token", "X-CSRF-Token is missing or old; load the page again")

    def _is_of_proxy(self, request: Request) -> bool:
        return _peer(request) in self._proxies


class _Protection:
    """Lets requests through that may pass, and adds the headers that protect what is answered."""

    def __init__(self, application: ASGIApp, access: Access) -> None:
        self._application, self._access = application, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in MACHINE_PATHS):
            await self._application(scope, receive, send)
        elif scope["type"] == "http":  # a websocket gets no answer
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                self._renew(request, headers)
                _protect(headers, is_static=scope["path"].startswith(STATIC))
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
        """Return the answer to a refused request: a page that needs a user leads to the login page.

        Browsers send no strict cookie with a link from another site. Such a page asks for itself again, then with it.
        """
        is_page = request.method in origins.SAFE_METHODS and "text/html" in request.headers.get("accept", "")
        if refused.reason != "user" or not is_page or self._access.sign_in is None:
            return refused.response()
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return HTMLResponse(_AGAIN, status_code=401, headers=refused.headers)
        query = request.scope["query_string"].decode("latin-1")
        asked = quote(request.scope["path"]) + (f"?{query}" if query else "")
        return RedirectResponse(f"{LOGIN}?{urlencode({'next': asked})}", status_code=303)

    def _renew(self, request: Request, headers: MutableHeaders) -> None:
        """Send the cookie of a session again, seen now, unless the application begins or ends a session."""
        user = request.scope.get("state", {}).get("user")
        if not isinstance(user, User) or user.means != "session" or "set-cookie" in headers:
            return
        session = self._access.session_of(request)
        renewed = None if session is None else self._access.sessions.renewed(session)
        if renewed is not None:
            carrier = Response()
            self._access.set_cookie(carrier, renewed, request=request)
            headers.append("set-cookie", carrier.headers["set-cookie"])


def _challenge(headers: Headers) -> dict[str, str]:
    """Ask a program for HTTP Basic. A browser would open a window of its own, and send the password by itself then."""
    scheme = "Session" if origins.is_of_browser(headers) else "Basic"
    return {"www-authenticate": f'{scheme} realm="ChEX Node", charset="UTF-8"'}


def _protect(headers: MutableHeaders, *, is_static: bool) -> None:
    for name, value in _HEADERS.items():
        headers[name] = value
    if not is_static:
        headers["cache-control"] = _NO_STORE


def _peer(request: Request) -> str:
    return origins.address(request.client.host) if request.client is not None else ""
