"""The permissions of each role: one table of the routes for readers; all others are for administrators.

Pages leave out actions that their user may not do.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from node import log
from node.web.problems import Problem
from node.web.users import Role, user_of

FOR_READERS: Final = frozenset(
    (
        "GET /",
        "GET /interface",
        "GET /notices/{notice_id}",
        "GET /review",
        "GET /review/next",
        "GET /statistics",
        "GET /statistics.csv",
        "GET /studies/{uid}",
        "GET /upload",
        "GET /upload/{look_id}",
        "GET /static",
        "GET /api/openapi.json",
        "GET /api/v1/events",
        "GET /api/v1/films/{uid}/corrections",
        "GET /api/v1/films/{uid}/picture",
        "GET /api/v1/films/{uid}/questions",
        "GET /api/v1/findings",
        "GET /api/v1/looks/{look_id}/picture",
        "GET /api/v1/outputs/{uid}",
        "GET /api/v1/prompts",
        "GET /api/v1/review",
        "GET /api/v1/studies",
        "GET /api/v1/studies/{study}/films/{uid}/corrections",
        "GET /api/v1/studies/{study}/films/{uid}/picture",
        "GET /api/v1/studies/{study}/films/{uid}/questions",
        "GET /api/v1/studies/{uid}",
        "POST /api/v1/films/{uid}/corrections",
        "POST /api/v1/films/{uid}/questions",
        "POST /api/v1/films/{uid}/replies",
        "POST /api/v1/looks",
        "POST /api/v1/looks/{look_id}/questions",
        "POST /api/v1/looks/{look_id}/replies",
        "POST /api/v1/questions/{question_id}/send",
        "POST /api/v1/studies/{study}/films/{uid}/corrections",
        "POST /api/v1/studies/{study}/films/{uid}/questions",
        "POST /api/v1/studies/{study}/films/{uid}/replies",
        "POST /api/v1/studies/{uid}/finish",
        "POST /search",
        "DELETE /api/v1/questions/{question_id}",
    )
)
"""The routes that a reader may use, by method and path."""


def role_of(route: str) -> Role:
    """Return the role that a route needs; one that the table does not have is for administrators."""
    return Role.READER if route in FOR_READERS else Role.ADMINISTRATOR


def require_role(request: Request) -> None:
    """Raise Problem if the user's role may not use the route."""
    route = f"{'GET' if request.method == 'HEAD' else request.method} {request.scope['route'].path}"
    user = user_of(request)
    if user.role not in (role_of(route), Role.ADMINISTRATOR):
        log.get().warning("access.denied", user=user.name, host=user.host, reason=route)
        raise Problem(403, "this is for administrators; ask one of them, or have your role changed")
