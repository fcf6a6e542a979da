"""A viewer that runs in a browser: its files, its settings, and an archive behind one address of this machine.

Viewer and archive have one origin, so the browser asks for no permission across origins.
"""

from __future__ import annotations

from collections.abc import Iterator
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
def site(folder: Path, *, settings: str, archive_port: int) -> Iterator[str]:
    """Serve a folder, /app-config.js and an archive below /dicom-web while the block runs; yields the address.

    A path that the folder lacks is answered by its index.html, as an application with routes of its own wants.
    """

    async def app_config(_request: Request) -> Response:
        return Response(settings, media_type="text/javascript")

    async def pass_on(request: Request) -> Response:
        address = f"http://{LOOPBACK}:{archive_port}{request.url.path}?{request.url.query}"
        headers = {name: request.headers[name] for name in ("accept", "content-type") if name in request.headers}
        async with httpx2.AsyncClient(timeout=60, trust_env=False, verify=False) as archive:
            answer = await archive.request(request.method, address, headers=headers, content=await request.body())
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    async def otherwise(request: Request, _error: Exception) -> Response:
        is_file = "." in PurePosixPath(request.url.path).name
        return PlainTextResponse("not found", 404) if is_file else FileResponse(folder / "index.html")

    application = Starlette(
        routes=[
            Route("/dicom-web/{path:path}", pass_on, methods=["GET", "POST"]),
            Route("/app-config.js", app_config),
            Mount("/", StaticFiles(directory=folder)),
        ],
        exception_handlers={404: otherwise},
    )
    with serving(application=application) as served:
        yield f"http://{LOOPBACK}:{served.port}"
