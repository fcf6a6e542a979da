"""Errors of the interface for programs as problem documents (RFC 9457)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, TypeAlias, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from node import log
from node.errors import AskerGone, NodeError, where

MEDIA_TYPE: Final = "application/problem+json"


Problem: TypeAlias = HTTPException
"""A request that cannot be answered; its detail says in a line what is wrong and what to do, without patient data."""

_DETAILS: Final = {
    "Not Found": ("there is no such page", "; /api/openapi.json lists those for programs"),
    "Method Not Allowed": ("this page does not take this method", "; /api/openapi.json lists those that it takes"),
}
"""What stands in place of Starlette's own details, and what only programs are told."""


class ProblemDocument(BaseModel):
    """The body of every error (RFC 9457)."""

    type: str = "about:blank"
    title: str = Field(description="the meaning of the status")
    status: int
    detail: str = Field(description="what is wrong with this request, and what to do")


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None, *, title: str = ""
) -> Response:
    """Return a problem document as an answer; title: in place of the meaning of the status."""
    document = ProblemDocument(title=title or HTTPStatus(status).phrase, status=status, detail=detail)
    return JSONResponse(document.model_dump(), status_code=status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def responses(*statuses: int) -> dict[int | str, dict[str, object]]:
    """Describe the problems of a route for OpenAPI."""
    schema = {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


def install(application: FastAPI, page: Callable[[Request, int, str], Response]) -> None:
    """Answer every error of an application with a problem document, or with a page where a person asked for one.

    page: renders a status with its detail
    """

    async def refuse(request: Request, error: Exception) -> Response:
        problem = cast(Problem, error)
        detail, for_programs = _DETAILS.get(problem.detail, (problem.detail, ""))
        if _wants_page(request):
            shown = page(request, problem.status_code, detail)
            shown.headers.update(problem.headers or {})
            return shown
        return problem_response(problem.status_code, detail + for_programs, problem.headers)

    async def refuse_input(_request: Request, error: Exception) -> Response:
        return problem_response(422, "; ".join(map(_mistake, cast(RequestValidationError, error).errors())))

    async def leave(_request: Request, _error: Exception) -> Response:
        # Of a client that has closed its sending direction; a disconnected one gets no answer.
        return problem_response(503, "the connection was closed before the answer; keep it open, and ask again")

    async def lose(_request: Request, _error: Exception) -> Response:
        return problem_response(400, "the connection was lost within the body; send it again")

    async def fail(request: Request, error: Exception) -> Response:
        log.get().error("page.failed", path=str(request.scope.get("route", "")), reason=where(error))
        if isinstance(error, NodeError):
            return page(request, 503, str(error)) if _wants_page(request) else problem_response(503, str(error))
        return problem_response(500, "the program failed; its log says where")

    application.add_exception_handler(Problem, refuse)
    application.add_exception_handler(RequestValidationError, refuse_input)
    application.add_exception_handler(AskerGone, leave)
    application.add_exception_handler(ClientDisconnect, lose)
    application.add_exception_handler(NodeError, fail)
    application.add_exception_handler(Exception, fail)


def _wants_page(request: Request) -> bool:
    """Return whether a browser opens an address that is not of the interface for programs."""
    path, accepted = str(request.scope["path"]), request.headers.get("accept", "")
    return request.method in ("GET", "HEAD") and not path.startswith("/api/") and "text/html" in accepted


def _mistake(mistake: Mapping[str, object]) -> str:
    """Return the fault of one part of a request, without its content."""
    place = ".".join(str(part) for part in cast("tuple[object, ...]", mistake["loc"]))
    return f"{place}: {mistake['msg']}"
