"""The administrator's page: troubles, destinations, refused callers, disk, certificates, clock, model, queues.

It shows no patient, and of the settings no password, key or token.
"""

from __future__ import annotations

import platform
from datetime import datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from node import config, log
from node.check_result import Check, run_check
from node.domain import DELIVERY_STATES, STUDY_STATES, DeliveryState
from node.errors import ConfigError, InputError
from node.health.checks import check_certificates, check_clock, check_room, examine
from node.net import callers
from node.orders.store import OrderStore
from node.outputs import vocabulary, wording
from node.read.manifest import Threshold, read_thresholds
from node.store import ledger_queries
from node.web import page, passwords
from node.web.dependencies import Parts, WebParts
from node.web.problems import Problem, responses
from node.web.users import name_of

router = APIRouter(include_in_schema=False)
api = APIRouter(prefix="/api/v1", tags=["system"])


@router.get("/system")
def show_system(parts: Parts, request: Request) -> Response:
    """Show the state of the node."""
    settings = parts.settings
    overview = ledger_queries.overview(settings.storage)
    about = {
        "destinations": settings.destinations,
        "delivery_states": (*DELIVERY_STATES, DeliveryState.ABANDONED),
        "nothing_is_sent": config.NOTHING_IS_SENT,
        "refused": callers.read_all(settings.storage.directory)[::-1],
        "to_do": partial(callers.to_do, own_title=settings.listener.ae_title),
        "settings_for": callers.settings_for,
        "checks": (  # as `doctor` does
            *run_check("storage", lambda: (check_room(settings.storage),)),
            *run_check("certificates", lambda: check_certificates(settings)),
            *run_check("clock", lambda: check_clock(settings, last_change=overview.last_change)),
        ),
        "studies": {state: overview.studies.get(state, 0) for state in STUDY_STATES},
        "overview": overview,
        "moment": ledger_queries.moment,
        "of_text": datetime.fromisoformat,
        "orders": OrderStore(settings.storage.directory).counts(),
        "python": platform.python_version(),
        **_about_model(parts),
    }
    return page.render(parts, request, "system.html", about)


@router.get("/system/settings")
def show_settings(parts: Parts, request: Request) -> Response:
    """Show the settings in force as they would stand in node.toml, without secrets."""
    return page.render(parts, request, "settings.html", {"settings": config.render(parts.settings)})


@router.get("/users")
def show_users(parts: Parts, request: Request) -> Response:
    """Show the users and their permissions."""
    http = parts.settings.http
    try:
        users = {} if http.password_file is None else passwords.users_in(http.password_file)
    except ConfigError as error:
        return page.refuse(parts, request, 503, str(error), back="/system")
    return page.render(parts, request, "users.html", {"http": http, "users": sorted(users.items())})


@api.post("/destinations/{name}/echo", responses=responses(403, 404, 422))
def echo(
    parts: Parts, request: Request, name: Annotated[str, Path(max_length=200, description="name of the destination")]
) -> list[Check]:
    """Ask a destination whether it answers, by C-ECHO or as its type does it: a line for each test. Sends no object."""
    found = [destination for destination in parts.settings.destinations if destination.name == name]
    if not found:
        raise Problem(404, "the settings have no such destination")
    log.get().info("destination.examined", destination=name, user=name_of(request))
    return list(examine(found, ae_title=parts.settings.listener.ae_title))


def _about_model(parts: WebParts) -> dict[str, object]:
    """Return the model that is open in this process with its thresholds; they may be those of another one on disk."""
    model, settings = parts.model(), parts.settings.model
    thresholds: tuple[Threshold, ...] = ()
    complaint = ""
    try:
        thresholds = read_thresholds(
            settings.directory, parts.prompts(), trusted=settings.trusted, reader=settings.reader
        )
    except InputError as error:
        complaint = str(error)
    return {
        "identity": None if model is None else model.reader.identity,
        "fallbacks": () if model is None else tuple(model.reader.fallbacks),
        "prompts": parts.prompts(),
        "thresholds": thresholds,
        "names": vocabulary.names(parts.prompts()),
        "states": vocabulary.STATES,
        "percent": wording.percent,
        "complaint": complaint,
    }
