"""The user of a request, the permissions of the roles, and the audit events about users' actions.

One table has the routes for readers; all others are for administrators. Pages leave out actions that their user may not
do. An audit event has a user, an address and UIDs. It never has a name, number or date of a patient.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request

from node import log
from node.domain import is_uid
from node.net.callers import address_of
from node.web.problems import Problem
from node.web.rate_limit import network_of

Means: TypeAlias = Literal["none", "local", "password", "session", "proxy"]
"""How a user is known: not at all, on this machine, by HTTP Basic, by a session's cookie, by a trusted proxy's header.
"""

AuditEvent: TypeAlias = Literal[
    "study.viewed",
    "film.viewed",
    "output.downloaded",
    "questions.viewed",
    "question.asked",
    "question.sent",
    "question.removed",
    "study.deleted",
    "study.reread",
    "corrections.viewed",
    "correction.made",
    "corrections.finished",
    "study.retried",
    "film.submitted",
]
Outcome: TypeAlias = Literal["done", "not_found", "refused", "failed"]

PROXY: Final = "trusted_proxy"
"""The key of a request's scope for the address of the trusted proxy that sent it; "" if none did."""

_OF_PROXIES: Final = ("forwarded", "via", "x-real-ip")
_NAME: Final = re.compile(r"[^\s:](?:[^:]{0,126}[^\s:])?")


class Role(StrEnum):
    """The roles of users: a reader looks, asks and corrects; an administrator also runs the node (`FOR_READERS`)."""

    READER = "reader"
    ADMINISTRATOR = "administrator"


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
        "GET /api/v1/studies/{uid}",
        "POST /api/v1/films/{uid}/corrections",
        "POST /api/v1/films/{uid}/questions",
        "POST /api/v1/films/{uid}/replies",
        "POST /api/v1/looks",
        "POST /api/v1/looks/{look_id}/questions",
        "POST /api/v1/looks/{look_id}/replies",
        "POST /api/v1/questions/{question_id}/send",
        "POST /api/v1/studies/{uid}/finish",
        "POST /search",
        "DELETE /api/v1/questions/{question_id}",
    )
)
"""The routes that a reader may use, by method and path; those of a film by its short address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who sends a request. The name is empty for a user of this machine who needs no password.

    host: the IP address of the client; behind a trusted proxy, the one that the proxy names
    csrf_token: sent by this user's pages as `X-CSRF-Token` with each request that changes something
    role: None if the user may do nothing
    """

    name: str
    means: Means
    host: str
    csrf_token: str
    role: Role | None


def client_of(connection: HTTPConnection) -> str:
    """Return the address of the client, which a trusted proxy may name; else that of the proxy."""
    named = address_of(connection.client.host) if connection.client is not None else ""
    return named or str(connection.scope.get(PROXY, ""))


def is_forwarded(headers: Headers) -> bool:
    """Return whether a request came through a proxy that says so."""
    return any(name in _OF_PROXIES or name.startswith("x-forwarded-") for name in headers)


def is_user_name(name: str) -> bool:
    """Return whether a name is possible: 1 to 128 printable characters without a colon (RFC 7617 2)."""
    return name.isprintable() and _NAME.fullmatch(name) is not None


_NOBODY: Final = User(name="", means="none", host="", csrf_token="", role=None)


def user_of(connection: HTTPConnection) -> User:
    """Return the user of a request; without sign-in (`access.Access`), a user without name and role."""
    user = connection.scope.get("state", {}).get("user")
    return user if isinstance(user, User) else _NOBODY


def role_of(route: str) -> Role:
    """Return the role that a route needs; one that the table does not have is for administrators."""
    short = route.replace("/studies/{study}/films/", "/films/")
    return Role.READER if short in FOR_READERS else Role.ADMINISTRATOR


def require_role(request: Request) -> None:
    """Raise Problem if the user's role may not use the route."""
    route = f"{'GET' if request.method == 'HEAD' else request.method} {request.scope['route'].path}"
    user = user_of(request)
    if user.role not in (role_of(route), Role.ADMINISTRATOR):
        log.get().warning("access.denied", user=user.name, host=user.host, reason=route)
        raise Problem(403, "this is for administrators; ask one of them, or have your role changed")


def name_of(connection: HTTPConnection) -> str:
    """Return the name of who sends a request; "" if the node does not ask for one."""
    return user_of(connection).name


def host_of(connection: HTTPConnection) -> str:
    """Return the network that a request counts for where requests are limited."""
    return network_of(user_of(connection).host)


def audit(
    connection: HTTPConnection,
    event: AuditEvent,
    *,
    study: str | None,
    sop_instance_uid: str | None = None,
    outcome: Outcome = "done",
    reason: str | None = None,
) -> None:
    """Log a user's action on a study or film. A text that is not a UID is not logged: it may name a patient.

    reason: out of a closed list
    """
    user = user_of(connection)
    uids = {"study": study, "sop_instance_uid": sop_instance_uid}
    known = {name: uid for name, uid in uids.items() if uid is not None and is_uid(uid)}
    if reason is not None:
        known["reason"] = reason
    log.get().info(event, user=user.name, host=user.host, outcome=outcome, **known)


def audit_list(connection: HTTPConnection, *, studies: int) -> None:
    """Log that a user saw the patients of some studies in a list; studies: how many."""
    user = user_of(connection)
    log.get().info("worklist.viewed", user=user.name, host=user.host, outcome="done", studies=studies)
