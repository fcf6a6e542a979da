"""The login page and the end of a session: plain HTML forms, without scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.templating import Jinja2Templates

from node import command_for, log
from node.web.access import LOGIN, LOGOUT, Access
from node.web.origins import is_local_path
from node.web.sign_in import Busy, SignIn

_START: Final = "/"
_MOST_FORM_BYTES: Final = 16 * 1024
_MOST_FIELDS: Final = 8
_WRONG: Final = "User or password is wrong."
_PAGES: Final = Jinja2Templates(directory=Path(__file__).parent / "templates")


def routes(access: Access) -> list[Route]:
    """Return the routes for signing in and out; none where no passwords are set."""
    if access.sign_in is None:
        return []
    login = _Login(access, access.sign_in)
    return [
        Route(LOGIN, login.show, methods=["GET"]),
        Route(LOGIN, login.sign_in, methods=["POST"]),
        Route(LOGOUT, login.sign_out, methods=["POST"]),
    ]


class _Login:
    def __init__(self, access: Access, sign_in: SignIn) -> None:
        self._access, self._sign_in = access, sign_in

    async def show(self, request: Request) -> Response:
        """Show the form; whoever has a session goes on to the page that was asked for."""
        target = _target(request.query_params.get("next", ""))
        if self._access.session_of(request) is not None:
            return RedirectResponse(target, status_code=303)
        return self._form(request, target=target)

    async def sign_in(self, request: Request) -> Response:
        """Begin a session."""
        fields = await _fields(request)
        user, password, target = fields.get("user", ""), fields.get("password", ""), _target(fields.get("next", ""))
        host = self._access.host_of(request)
        known = user if self._sign_in.credential(user) is not None else ""  # an unknown name may be a password
        try:
            credential = await self._sign_in.check(user, password, host=host)
        except Busy as busy:
            log.get().warning("session.refused", user=known, host=host, reason="busy")
            message = f"Too many attempts. Try again in {busy.seconds} s."
            return self._form(request, target=target, message=message, status=429, retry_after=busy.seconds)
        if credential is None:
            log.get().warning("session.refused", user=known, host=host, reason="password")
            return self._form(request, target=target, message=_WRONG, status=401)
        log.get().info("session.begun", user=user, host=host)
        answer = RedirectResponse(target, status_code=303)
        self._access.set_cookie(answer, self._access.sessions.begin(user, credential=credential), request=request)
        return answer

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        session = self._access.session_of(request)
        if session is not None:
            self._access.sessions.end(session)
            log.get().info("session.ended", user=session.user, host=self._access.host_of(request))
        answer = RedirectResponse(LOGIN, status_code=303)
        answer.delete_cookie(
            self._access.cookie_name(request), httponly=True, samesite="strict", secure=self._access.is_secure(request)
        )
        return answer

    def _form(
        self, request: Request, *, target: str, message: str = "", status: int = 200, retry_after: int | None = None
    ) -> Response:
        headers = None if retry_after is None else {"retry-after": str(retry_after)}
        command = f"{command_for('node')} password FILE USER" if self._sign_in.has_no_user else ""
        content = {"target": target, "message": message, "command": command}
        return _PAGES.TemplateResponse(request, "login.html", content, status_code=status, headers=headers)


async def _fields(request: Request) -> dict[str, str]:
    """Read a short form. Raises HTTPException for a long one, or for anything else."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > _MOST_FORM_BYTES:
            raise HTTPException(413)
    try:
        return dict(parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise HTTPException(400) from error


def _target(path: str) -> str:
    """Return where to go after signing in: a path of this server that is not the login page itself."""
    return path if is_local_path(path) and not path.startswith((LOGIN, LOGOUT)) else _START
