"""A small application behind the real access rules, and a client that sends what a browser or a program would."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import cast

from argon2 import PasswordHasher
from fastapi.routing import APIRoute, APIRouter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from node.net.callers import Refusals
from node.settings.http import HttpSettings
from node.web.access import Access
from node.web.users import Role, User, audit, user_of

ADDRESS = "http://127.0.0.1:8080"
PASSWORD = "correct horse battery"
BASIC = {"Authorization": f"Basic {b64encode(f'ada:{PASSWORD}'.encode()).decode()}"}
"""What a program of the user ada sends."""
BROWSER = {"sec-fetch-site": "same-origin", "accept": "text/html"}
PEER, PROXY = "10.0.0.7", "10.0.0.2"


def as_user(
    application: ASGIApp, *, name: str = "", host: str = "127.0.0.1", role: Role = Role.ADMINISTRATOR
) -> ASGIApp:
    """Serve an application to one user, whom `Access` would have let in."""
    user = User(name=name, means="session" if name else "local", host=host, csrf_token="a token", role=role)

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})["user"] = user
        await application(scope, receive, send)

    return called


async def _who(request: Request) -> Response:
    user = user_of(request)
    return JSONResponse(
        {"name": user.name, "means": user.means, "host": user.host, "token": user.csrf_token, "role": user.role}
    )


async def _film(request: Request) -> Response:
    audit(request, "film.viewed", study=request.path_params["study"])
    return PlainTextResponse("film")


async def _style(_request: Request) -> Response:
    return PlainTextResponse("p {}", headers={"cache-control": "max-age=60"})


def application(access: Access) -> Starlette:
    """Routes of every kind: pages, API, static files, machine pages, login."""
    return Starlette(
        routes=[
            Route("/", _who),
            Route("/api/v1/who", _who, methods=["GET", "POST"]),
            Route("/api/v1/studies/{study}/film", _film),
            Route("/static/page.css", _style),
            Route("/live", _style),
            *access.sign_in.routes(),
        ]
    )


@contextmanager
def client_of(
    access: Access, *, address: str = ADDRESS, peer: str = "127.0.0.1", local: str | None = None
) -> Iterator[TestClient]:
    """A client at an address; local: the address of the node on which it arrives, where `address` has a name."""
    inner = access.protected(application(access))

    async def at(scope, receive, send):  # type: ignore[no-untyped-def]  # as every ASGI application
        if local is not None and scope["type"] == "http":
            scope = {**scope, "server": (local, 8080)}
        await inner(scope, receive, send)

    with TestClient(at, base_url=address, client=(peer, 50000), follow_redirects=False) as client:
        yield client


@contextmanager
def opened(settings: HttpSettings, storage: Path) -> Iterator[Access]:
    """The access rules of some settings."""
    yield Access(settings, storage, refusals=Refusals())


def users_in(folder: Path, *names: str) -> Path:
    """A password file in which all users have one password; a role stands behind a colon, else it is administrator."""
    path = folder / "users"
    users = [name.partition(":") for name in names]
    path.write_text(
        "".join(f"{name}:{_hash()}:{role or 'administrator'}\n" for name, _, role in users), encoding="utf-8"
    )
    return path


@cache
def _hash() -> str:
    """The hash of the password, which takes time."""
    return PasswordHasher().hash(PASSWORD)


def sign_in(client: TestClient, user: str = "ada", password: str = PASSWORD, target: str = "/") -> int:
    """Send the form of the login page as a browser does; the client keeps the cookie."""
    form = {"user": user, "password": password, "next": target}
    return client.post("/login", data=form, headers=BROWSER).status_code


def routes_of(routes: Sequence[BaseRoute]) -> Iterator[str]:
    """Method and path of each route, also of routers inside."""
    for route in routes:
        if isinstance(route, Route | APIRoute):
            yield from (f"{method} {route.path}" for method in (route.methods or set()) - {"HEAD"})
        elif isinstance(route, Mount):
            yield f"GET {route.path}"
        else:
            yield from routes_of(cast(APIRouter, vars(route)["original_router"]).routes)
