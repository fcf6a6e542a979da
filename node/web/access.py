"""Who may use the pages and the API: a middleware around any application, which knows none of its routes.

The machine pages are open. All else needs a host name of the node, an encrypted way or a trusted proxy, a user, and
for changes from a browser a page of the node that sent them. A user is known by the header of a trusted proxy, by HTTP
Basic, by a session, which a password or single sign-on began, or, where no users are set, by being on this machine.

Two attacks come through the browser of a user. A page of another site sends a form or a script to the node; browsers
say so in `Sec-Fetch-Site` and `Origin`. A name of another site is made to lead to the node's address (DNS rebinding);
then `Host` has that name.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from node import log
from node.net.callers import RefusalKey, Refusals, address_of
from node.settings.http import HttpSettings
from node.settings.rules import is_loopback
from node.web import passwords, single_sign_on
from node.web.passwords import Busy, Passwords
from node.web.problems import Problem, problem_response
from node.web.sign_in import LOGIN, LOGOUT, SignIn
from node.web.users import PROXY, Means, Role, User, client_of, is_forwarded, is_user_name

MACHINE_PATHS: Final = ("/metrics", "/live", "/ready")
STATIC: Final = "/static/"
SEARCH: Final = "/search"
"""Is posted and changes nothing, so that a form without a script may send it; other sites may not."""

_SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing (RFC 9110 9.2.1)."""

_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_USERS: Final = "set http.password_file, http.oidc or http.user_header"

Reason: TypeAlias = Literal["closed", "unencrypted", "host", "other_site", "proxy", "user", "token", "password", "busy"]


class Forbidden(Problem):
    """A request that is not let through; reason: for the log."""

    def __init__(self, status: int, reason: Reason, detail: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)
        self.reason = reason


class Access:
    """Decides who may use an application. Only the thread of the server calls it.

    storage: the folder of the key that signs sessions
    refusals: logs refused requests
    Raises OSError when the key cannot be read or made.
    """

    def __init__(self, settings: HttpSettings, storage: Path, *, refusals: Refusals) -> None:
        self._settings, self._refusals = settings, refusals
        names = {address_of(name) or name.lower() for name in (*settings.hosts, settings.host)}
        self._names = names - {"0.0.0.0", "::"}  # which stand for all addresses of a machine
        self.sign_in = SignIn(settings, storage, refusals=refusals)
        if not settings.serves_pages:
            message = f"{_USERS} to serve pages and API on this address"
            log.get().warning("access.closed", name=settings.host, message=message)

    def protected(self, application: ASGIApp) -> ASGIApp:
        """Return the application as other people may see it: allowed requests alone, with the protective headers."""
        proxies = tuple(map(address_of, self._settings.trusted_proxy))
        with_session = self.sign_in.sessions.around(partial(self._serve, application))
        as_sent = ProxyHeadersMiddleware(with_session, list(proxies))  # type: ignore[arg-type]  # types of its own

        async def protection(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in MACHINE_PATHS):
                await application(scope, receive, send)
            elif scope["type"] == "http":  # a websocket gets no answer
                peer = address_of((scope.get("client") or ("", 0))[0])
                scope = {**scope, "client": (peer, 0), PROXY: peer if peer in proxies else ""}
                await as_sent(scope, receive, send)  # type: ignore[arg-type]

        return protection

    async def _serve(self, application: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if not scope["path"].startswith(STATIC):
                    headers["cache-control"] = "no-store"
            await send(message)

        try:
            scope.setdefault("state", {})["user"] = await self._admit(request)
        except Forbidden as refused:
            await self._refusal(refused, request)(scope, receive, send_protected)
            return
        await application(scope, receive, send_protected)

    async def _admit(self, request: Request) -> User | None:
        """Return the user of a request; None for a public path. Raises Forbidden."""
        if not self._settings.serves_pages:
            raise Forbidden(403, "closed", f"this address serves only /metrics, /live and /ready; {_USERS}")
        self._check_way(request)
        user = await self._user(request)
        path = str(request.scope["path"])  # not of request.url, into which Host enters
        if path in (LOGIN, LOGOUT) or path.startswith((f"{LOGIN}/", STATIC)):
            return user
        if user is None:
            raise Forbidden(401, "user", "sign in first", headers=self._challenge(request.headers))
        if request.method not in _SAFE_METHODS and path != SEARCH:
            _check_token(request, user)
        return user

    def _refusal(self, refused: Forbidden, request: Request) -> Response:
        """Log a refused request, and return its answer: a page that needs a user leads to the login page.

        A request before sign-in is not logged.
        """
        if refused.reason != "user":
            self._refusals.note(RefusalKey("access.refused", refused.reason, client_of(request)))
        is_page = request.method in _SAFE_METHODS and "text/html" in request.headers.get("accept", "")
        if refused.reason != "user" or not is_page or not self.sign_in.is_offered:
            return problem_response(refused.status_code, refused.detail, refused.headers, title=refused.reason)
        query = request.scope["query_string"].decode("latin-1")
        asked = quote(request.scope["path"]) + (f"?{query}" if query else "")
        return RedirectResponse(f"{LOGIN}?{urlencode({'next': asked})}", status_code=303)

    def _check_way(self, request: Request) -> None:
        """Check encryption, the name that was asked for, and the site that asks. Raises Forbidden."""
        url, is_of_proxy = request.base_url, request.scope[PROXY]
        if url.scheme != "https" and not (is_of_proxy or is_loopback(client_of(request))):
            raise Forbidden(403, "unencrypted", "this way is not encrypted; use HTTPS, or the reverse proxy")
        if not url.netloc or request.headers.getlist("host") != [url.netloc]:  # Starlette takes no other Host
            raise Forbidden(400, "host", "the request has no usable Host header")
        host = (url.hostname or "").rstrip(".")
        if (address_of(host) or host) not in self._names | _names_of((request.scope.get("server") or ("", 0))[0]):
            raise Forbidden(400, "host", "the node is not known by this name; add it to http.hosts")
        own = {f"{url.scheme}://{url.netloc}"}
        if is_of_proxy:  # it may replace Host and hide the scheme
            own |= {
                f"{scheme}://{name}" for scheme in ("http", "https") for name in (url.netloc, *self._settings.hosts)
            }
        if _is_of_other_site(request, {origin.lower() for origin in own}):
            raise Forbidden(403, "other_site", "another site may not send this request")

    async def _user(self, request: Request) -> User | None:
        """Find out who sends a request. Raises Forbidden for a user that is wrong instead of missing."""
        if request.scope[PROXY] and (names := request.headers.getlist(self._settings.user_header)):
            return self._proxy_user(names, request)
        if self.sign_in.passwords is not None and "authorization" in request.headers:
            return await self._basic_user(request, self.sign_in.passwords)
        if (session := self.sign_in.session_of(request)) is not None:
            return self._made(session.user, "session", request, role=session.role, owner=session.id)
        if self._settings.knows_users:
            return None
        if not is_loopback(client_of(request)) or is_forwarded(request.headers):
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
            found = await passwords.check(name, password, host=client_of(request))
        except Busy as busy:
            detail = f"too many attempts; try again in {busy.seconds} s"
            raise Forbidden(429, "busy", detail, headers={"retry-after": str(busy.seconds)}) from busy
        if found is None:
            raise Forbidden(401, "password", "user or password is wrong", headers=challenge)
        return self._made(name, "password", request, role=found.role)

    def _made(self, name: str, means: Means, request: Request, *, role: Role, owner: str | None = None) -> User:
        token = self.sign_in.sessions.token(owner or f"{means}:{name}")
        return User(name=name, means=means, host=client_of(request), csrf_token=token, role=role)

    def _challenge(self, headers: Headers) -> dict[str, str]:
        """Ask a program for HTTP Basic. A browser would open a window of its own, and send the password by itself."""
        scheme = "Session" if self.sign_in.passwords is None or _is_of_browser(headers) else "Basic"
        return {"www-authenticate": f'{scheme} realm="ChEX Node", charset="UTF-8"'}


def check_files(settings: HttpSettings) -> None:
    """Check the files by which users are let in. Raises ConfigError."""
    if settings.password_file is not None:
        passwords.users_in(settings.password_file)
    if settings.oidc is not None:
        single_sign_on.check_files(settings.oidc)


def _check_token(request: Request, user: User) -> None:
    """A program that sends its password with each request needs no token: no other site can make it send one."""
    if user.means in ("local", "password") and not _is_of_browser(request.headers):
        return
    sent = request.headers.get("x-csrf-token", "")
    if not hmac.compare_digest(sent.encode(errors="replace"), user.csrf_token.encode()):
        raise Forbidden(403, "token", "X-CSRF-Token is missing or old; load the page again")


def _is_of_other_site(request: Request, own: set[str]) -> bool:
    """Whether a browser sent a request for a page of another site. A link to a page of the node is no such request.

    own: the origins of the node
    """
    headers = request.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin", "none"):
        is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return not (is_link and request.method in _SAFE_METHODS)
    if origin is None or (origin == "null" and site is not None):
        return False  # `null` stands for our own origin where a form is sent with the policy `no-referrer`
    return origin.lower() not in own


def _is_of_browser(headers: Headers) -> bool:
    """Whether a browser may have sent a request: browsers add `Origin` to every request that changes something."""
    return any(name in headers for name in ("origin", "sec-fetch-site", "cookie"))


def _names_of(address: str) -> set[str]:
    """Return by which names a browser on this machine reaches the address of the node on which its request came."""
    return {"localhost", "127.0.0.1", "::1", address} if is_loopback(address) else {address_of(address)}
