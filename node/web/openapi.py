"""The description of the interface for programs (OpenAPI 3.1), and a page that shows it without a script or a network.

FastAPI describes what a route takes and gives. Added is what no route says of itself: who may use it, the problem
documents of `Access` and of the roles, and a summary out of its first sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from node.settings.http import HttpSettings
from node.web import page, problems
from node.web.dependencies import Parts
from node.web.problems import ProblemDocument
from node.web.users import Role, role_of

_SCHEMES: Final = {
    "password": {"type": "http", "scheme": "basic", "description": "a user of http.password_file, for programs"},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-chex-session",
        "description": "a browser that has signed in; without HTTPS, on this machine, its name is `chex-session`",
    },
    "token": {
        "type": "apiKey",
        "in": "header",
        "name": "X-CSRF-Token",
        "description": "beside a session, for what changes something: the token of a page of the node",
    },
}
_READING: Final = ("get", "head")

router = APIRouter(include_in_schema=False)


def describe(make: Callable[[], dict[str, Any]], http: HttpSettings) -> dict[str, Any]:
    """Complete the description that FastAPI made and keeps."""
    made = make()
    components = made.setdefault("components", {})
    components["securitySchemes"] = _SCHEMES
    components.setdefault("schemas", {})[ProblemDocument.__name__] = ProblemDocument.model_json_schema()
    made["servers"] = [{"url": "/", "description": "this node"}]
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            operation["summary"] = operation["description"].partition("\n")[0].partition(". ")[0].rstrip(".")
            operation["security"] = _security(method, http)
            _add_problems(operation, role_of(f"{method.upper()} {path}"))
    return made


def _security(method: str, http: HttpSettings) -> list[dict[str, list[str]]]:
    """Return the ways to sign a request; none on a node without users, which serves its own machine alone."""
    token: dict[str, list[str]] = {} if method in _READING else {"token": []}
    ways: list[dict[str, list[str]]] = []
    if http.password_file is not None:
        ways.append({"password": []})
    if http.password_file is not None or http.oidc is not None:
        ways.append({"session": []} | token)
    if http.user_header:
        ways.append(token)  # the proxy names the user
    return ways or [{}]


def _add_problems(operation: dict[str, Any], role: Role) -> None:
    found = operation["responses"]
    if "HTTPValidationError" in str(found.get("422", {})):
        found["422"] = problems.responses(422)[422]
    statuses = (400, 401, 403, 413) if "requestBody" in operation else (401, 403)
    for status, described in problems.responses(*statuses).items():
        found.setdefault(str(status), described)
    found["401"] = {**found["401"], "description": "the node does not know who asks"}
    why = "the way, the address or the token is wrong"
    found["403"] |= {"description": f"for administrators; or {why}" if role is Role.ADMINISTRATOR else why}


@router.get("/interface")
def show_interface(parts: Parts, request: Request) -> Response:
    """Show every route of the interface for programs."""
    described = request.app.openapi()
    found: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            found.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    has_passwords = parts.settings.http.password_file is not None
    about = {"groups": found, "has_passwords": has_passwords, "role_of": role_of}
    return page.render(parts, request, "interface.html", about)
