"""Viewers that run in a browser: their files, pages of ours, and an archive behind one address of this machine.

Viewer and archive have one origin, so the browser asks for no permission across origins.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tests.support.peers import LOOPBACK
from tests.support.serving import serving


@contextmanager
def site(
    folders: Mapping[str, Path],
    *,
    pages: Mapping[str, str | bytes],
    archive_port: int | None = None,
    start: Path | None = None,
) -> Iterator[str]:
    """Serve while the block runs; yields the address, without a slash at its end.

    folders: folders of files by the path they are served under
    pages: content by its path; comes before the folders
    archive_port: where requests below /dicom-web go; None for no archive
    start: the page for a path that nothing else has, as an application with routes of its own wants
    """

    async def page(request: Request) -> Response:
        path = request.url.path
        return Response(pages[path], media_type=mimetypes.guess_type(path)[0] or "text/html")

    async def pass_on(request: Request) -> Response:
        address = f"http://{LOOPBACK}:{archive_port}{request.url.path}?{request.url.query}"
        headers = {name: request.headers[name] for name in ("accept", "content-type") if name in request.headers}
        async with httpx2.AsyncClient(timeout=60, trust_env=False, verify=False) as archive:
            answer = await archive.request(request.method, address, headers=headers, content=await request.body())
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    async def otherwise(request: Request, _error: Exception) -> Response:
        if start is not None and "." not in PurePosixPath(request.url.path).name:
            return FileResponse(start)
        return PlainTextResponse("not found", 404)

    application = Starlette(
        routes=[
            *([Route("/dicom-web/{path:path}", pass_on, methods=["GET", "POST"])] if archive_port else []),
            *(Route(path, page) for path in pages),
            *(Mount(path, StaticFiles(directory=folders[path])) for path in sorted(folders, key=len, reverse=True)),
        ],
        exception_handlers={404: otherwise},
    )
    with serving(application=application) as served:
        yield f"http://{LOOPBACK}:{served.port}"
