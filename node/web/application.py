"""Builds the application: the pages for people, and the interface for programs."""

from __future__ import annotations

from functools import cache, partial
from typing import Final

from fastapi import Depends, FastAPI
from starlette.staticfiles import StaticFiles

from node.dicom.identity import VERSION
from node.web import (
    api,
    corrections,
    findings,
    looks,
    openapi,
    page,
    problems,
    questions,
    replies,
    review_queue,
    statistics,
    study_actions,
    study_page,
    submit,
    system,
    worklist,
)
from node.web.access import Access
from node.web.dependencies import WebParts
from node.web.request_body import BodyLimit
from node.web.users import require_role

_BODIES: Final = {
    "/api/v1/instances": submit.MOST_BYTES,
    "/api/v1/dicomweb/studies": submit.MOST_BYTES,
    "/api/v1/looks": looks.MOST_BYTES,
}


def build(parts: WebParts, access: Access | None = None) -> FastAPI:
    """Build the application of one process; access: has its pages for signing in (`Access.protected` protects it)."""
    application = FastAPI(
        title="ChEX Node",
        version=VERSION,
        summary="Chest X-rays read by ChEX: worklist, films, answers.",
        description="For research, not for diagnosis. Every error is a problem document (RFC 9457).",
        openapi_url="/api/openapi.json",
        docs_url=None,  # their scripts come from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(require_role)],
        # An environment variable could make FastAPI send traces; the node only calls its own peers.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    problems.install(application, lambda request, status, text: page.refuse(parts, request, status, text))
    application.state.parts = parts
    application.add_middleware(BodyLimit, limits=_BODIES)
    application.include_router(api.router)
    application.include_router(findings.router)
    application.include_router(corrections.router)
    application.include_router(questions.router)
    application.include_router(replies.router)
    application.include_router(submit.router)
    application.include_router(review_queue.api)
    application.include_router(study_actions.api)
    application.include_router(worklist.router)
    application.include_router(study_page.router)
    application.include_router(review_queue.router)
    application.include_router(statistics.router)
    application.include_router(study_actions.router)
    application.include_router(looks.router)
    application.include_router(system.router)
    application.include_router(system.api)
    application.include_router(openapi.router)
    application.mount("/static", StaticFiles(directory=page.STATIC), name="static")
    application.include_router(looks.api)
    application.router.routes.extend(access.sign_in.routes() if access is not None else ())
    # The way in FastAPI's documents to extend the description: made on request, not at every start.
    application.openapi = cache(partial(openapi.describe, application.openapi, parts.settings.http))  # type: ignore[method-assign]
    return application
