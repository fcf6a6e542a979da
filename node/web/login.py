"""The login page, single sign-on, and the end of a session: plain HTML, without scripts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.templating import Jinja2Templates

from models.program import command_for
from node import log
from node.web.access import LOGIN, LOGOUT, Access, Forbidden
from node.web.origins import is_local_path
from node.web.passwords import Busy, Passwords
from node.web.single_sign_on import Refused, SingleSignOn
from node.web.users import Role

_START: Final = "/"
_CALLBACK: Final = f"{LOGIN}/callback"
_TARGET: Final = "target"
_LONGEST_TARGET: Final = 1024  # a cookie holds it
_MOST_FIELDS: Final = 8
_WRONG: Final = "User or password is wrong."
_PAGES: Final = Jinja2Templates(directory=Path(__file__).parent / "templates")


def routes(access: Access) -> list[Route]:
    """Return the routes for signing in and out; none where nobody signs in."""
    login, found = _Login(access), list[Route]()
    if access.passwords is not None:
        found.append(Route(LOGIN, partial(login.sign_in, access.passwords), methods=["POST"]))
    if access.single_sign_on is not None:
        found.append(Route(f"{LOGIN}/oidc", partial(login.leave, access.single_sign_on), methods=["GET"]))
        found.append(Route(_CALLBACK, partial(login.come_back, access.single_sign_on), methods=["GET"]))
    if found:
        found.append(Route(LOGIN, login.show, methods=["GET"]))
        found.append(Route(LOGOUT, login.sign_out, methods=["POST"]))
    return found


class _Login:
    def __init__(self, access: Access) -> None:
        self._access = access

    async def show(self, request: Request) -> Response:
        """Show the form; whoever has a session goes on to the page that was asked for."""
        target = _target(request.query_params.get("next", ""))
        if self._access.session_of(request) is not None:
            return RedirectResponse(target, status_code=303)
        return self._page(request, target=target)

    async def sign_in(self, passwords: Passwords, request: Request) -> Response:
        """Begin a session by a password."""
        async with request.form(max_fields=_MOST_FIELDS, max_files=0) as form:
            user, password, target = (str(form.get(name, "")) for name in ("user", "password", "next"))
        host, target = self._access.host_of(request), _target(target)
        known = user if user in passwords.users else ""  # an unknown name may be a password
        try:
            found = await passwords.check(user, password, host=host)
        except Busy as busy:
            log.get().warning("session.refused", user=known, host=host, reason="busy")
            message = f"Too many attempts. Try again in {busy.seconds} s."
            return self._page(request, target=target, message=message, status=429, retry_after=busy.seconds)
        if found is None:
            log.get().warning("session.refused", user=known, host=host, reason="password")
            return self._page(request, target=target, message=_WRONG, status=401)
        return self._begin(request, user, role=found.role, credential=found.credential, target=target)

    async def leave(self, single_sign_on: SingleSignOn, request: Request) -> Response:
        """Send the browser to the provider of single sign-on."""
        target = _target(request.query_params.get("next", ""))
        if self._access.session_of(request) is not None:
            return RedirectResponse(target, status_code=303)
        request.session.clear()
        request.session[_TARGET] = target
        callback = f"{self._access.scheme_of(request)}://{request.headers['host']}{_CALLBACK}"
        try:
            return await single_sign_on.begin(request, host=self._access.host_of(request), callback=callback)
        except Refused as refused:
            return self._refused(request, refused, target=target)

    async def come_back(self, single_sign_on: SingleSignOn, request: Request) -> Response:
        """Begin a session for whom the provider of single sign-on has signed in."""
        target = _target(request.session.get(_TARGET, ""))
        try:
            person = await single_sign_on.finish(request, host=self._access.host_of(request))
        except Refused as refused:
            return self._refused(request, refused, target=target)
        credential = single_sign_on.credential
        return self._begin(request, person.name, role=person.role, credential=credential, target=target)

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        self._end(request)
        return RedirectResponse(LOGIN, status_code=303)

    def _end(self, request: Request) -> None:
        """End the session, also one that lets nobody in now: its role may come back."""
        session = self._access.sessions.read(request.session)
        if session is not None:
            self._access.sessions.end(request.session, session)
            log.get().info("session.ended", user=session.user, host=self._access.host_of(request))
        request.session.clear()

    def _begin(self, request: Request, user: str, *, role: Role, credential: str, target: str) -> Response:
        self._end(request)
        self._access.sessions.begin(request.session, user, role=role, credential=credential)
        log.get().info("session.begun", user=user, host=self._access.host_of(request))
        return RedirectResponse(target, status_code=303)

    def _refused(self, request: Request, refused: Refused, *, target: str) -> Response:
        host = self._access.host_of(request)
        if refused.reason in ("busy", "state"):  # anybody may send these
            self._access.note(Forbidden(refused.status, refused.reason, refused.why), request)
        else:
            log.get().warning(
                "session.refused", user=refused.user, host=host, reason=refused.reason, message=refused.why
            )
        return self._page(request, target=target, message=refused.text, status=refused.status)

    def _page(
        self, request: Request, *, target: str, message: str = "", status: int = 200, retry_after: int | None = None
    ) -> Response:
        headers = None if retry_after is None else {"retry-after": str(retry_after)}
        passwords = self._access.passwords
        is_empty = passwords is not None and not passwords.users
        content = {
            "target": target,
            "message": message,
            "command": f"{command_for('node')} password FILE USER" if is_empty else "",
            "has_passwords": passwords is not None,
            "has_single_sign_on": self._access.single_sign_on is not None,
        }
        return _PAGES.TemplateResponse(request, "login.html", content, status_code=status, headers=headers)


def _target(path: str) -> str:
    """Return where to go after signing in: a path of this server that is not the login page itself."""
    is_good = is_local_path(path) and not path.startswith((LOGIN, LOGOUT)) and len(path) <= _LONGEST_TARGET
    return path if is_good else _START
