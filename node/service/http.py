"""Serves HTTP in a thread of its own: `/metrics`, `/live`, `/ready` for machines, and the web application beside them.

`/live` needs this thread only. The other two ask the disk and the database, which may hang. Each has one more thread
and a time limit, so that a page that hangs delays neither `/live` nor the end of the process. The web application has
threads of its own, too.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from node.config import ListenerSettings
from node.errors import where
from node.metrics import Metrics
from node.net.callers import RefusalKey, Refusals
from node.net.http_connections import LimitedServer, Limits
from node.net.tls import ServerTls
from node.settings.http import HttpSettings

Page: TypeAlias = Callable[[Request], Awaitable[Response]]

_MOST_CONNECTIONS: Final = 256
_FEWEST_CONNECTIONS: Final = 32
_BACKLOG: Final = 4096
_DESCRIPTORS_OF_AN_ASSOCIATION: Final = 3  # its socket, the film that is written, the folder that is synced
_OTHER_DESCRIPTORS: Final = 250  # databases, connections before association or request, orders, deliveries, the model

_READY_SECONDS: Final = 3.0  # a probe waits 4 s or more
_METRICS_SECONDS: Final = 8.0  # Prometheus waits 10 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The parts that must be good before the process gets work, each with whether it is.

    facts: other information, which does not affect readiness
    """

    parts: Mapping[str, bool]
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether every part is good."""
        return all(self.parts.values())


def limits_for(listener: ListenerSettings) -> Limits:
    """Return the limit of open HTTP connections, which leaves enough descriptors for films.

    At most 256, even if the process may open more files: libraries that use select(2) fail on descriptors above 1023.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _OTHER_DESCRIPTORS + listener.max_associations * _DESCRIPTORS_OF_AN_ASSOCIATION
    left = _MOST_CONNECTIONS if allowed == resource.RLIM_INFINITY else allowed - needed
    return Limits(connections=min(max(left, _FEWEST_CONNECTIONS), _MOST_CONNECTIONS))


class HttpServer:
    """Serves the three pages for machines on one address until closed, and an application on all other paths.

    With `settings.tls` it serves by HTTPS only.

    application: None for a server of the three pages alone; refusals: logs refused connections and requests
    Raises OSError when the address cannot be opened, and also ValueError when the certificate cannot be used.
    """

    def __init__(
        self,
        settings: HttpSettings,
        metrics: Metrics,
        readiness: Callable[[], Readiness],
        *,
        limits: Limits,
        application: ASGIApp | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self._closed, self._refusals = metrics.http_closed, refusals or Refusals()
        tls = _tls(settings, metrics)
        listening = _listen(settings.host, settings.port)
        self.port = int(listening.getsockname()[1])
        """The real port."""
        self._ready = _PageThread(
            "/ready", lambda: _ready_page(readiness()), self._refusals, limit_seconds=_READY_SECONDS
        )
        self._metrics = _PageThread(
            "/metrics", lambda: _metrics_page(metrics), self._refusals, limit_seconds=_METRICS_SECONDS
        )
        routed = _routed({"/metrics": self._metrics.answer, "/live": _live, "/ready": self._ready.answer}, application)
        self._server = LimitedServer(
            routed,
            listening,
            limits,
            on_closed=self._on_closed,
            on_second=self._refusals.tell,
            tls=None if tls is None else tls.context,
        )
        self._thread = threading.Thread(target=self._server.run, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving. Requests that have begun may take one more second."""
        self._server.close()
        self._thread.join(timeout=5)
        self._ready.close()
        self._metrics.close()
        self._refusals.close()

    def _on_closed(self, reason: str, host: str) -> None:
        self._closed.labels(reason).inc()
        self._refusals.note(RefusalKey("connection.closed", reason, host))


class _PageThread:
    """A thread that computes one page; requests that come meanwhile share the result.

    So a page that hangs blocks one thread only, however many clients wait or have given up.
    """

    def __init__(self, path: str, compute: Callable[[], Response], refusals: Refusals, *, limit_seconds: float) -> None:
        self._path, self._compute, self._refusals, self._limit_seconds = path, compute, refusals, limit_seconds
        self._page: asyncio.Future[Response] | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"http{path}")

    async def answer(self, request: Request) -> Response:
        """Return the page, or the reason why there is none: 503 when it takes too long, 500 when it fails."""
        if self._page is None or self._page.done():
            self._page = asyncio.get_running_loop().run_in_executor(self._executor, self._compute)
            self._page.add_done_callback(lambda page: page.cancelled() or page.exception())  # if all have gone
        page = self._page
        gone: asyncio.Future[None] = asyncio.ensure_future(_wait_for_disconnect(request))
        either: tuple[asyncio.Future[Response] | asyncio.Future[None], ...] = (page, gone)
        try:
            await asyncio.wait(either, timeout=self._limit_seconds, return_when=asyncio.FIRST_COMPLETED)
            if page.done():
                shared = page.result()  # compressing a response changes its headers
                return Response(shared.body, shared.status_code, media_type=shared.media_type)
            if gone.done():
                return Response(status_code=503)  # never sent
            return self._refuse(request, 503, f"{self._path} took more than {self._limit_seconds:g} s")
        except Exception as error:  # a boundary: databases and disks raise errors of many classes
            return self._refuse(request, 500, f"{self._path} failed: {where(error)}")
        finally:
            gone.cancel()

    def close(self) -> None:
        """Let the thread end when its computation does."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _refuse(self, request: Request, status: int, reason: str) -> Response:
        self._refusals.note(RefusalKey("page.failed", reason, request.client.host if request.client else ""))
        content = {"ready": False, "error": f"{reason}; check the disk and the database"}
        return JSONResponse(content, status_code=status)


def _routed(pages: Mapping[str, Page], application: ASGIApp | None) -> Starlette:
    """Route the paths; all others are the application's. Without one they get 404, and methods but GET and HEAD 405."""

    async def refuse(_request: Request, error: Exception) -> Response:
        http_error = cast(HTTPException, error)
        return JSONResponse({"paths": list(pages)}, status_code=http_error.status_code, headers=http_error.headers)

    packed = [Middleware(GZipMiddleware, compresslevel=6)]  # not of pictures, which are compressed
    routed = Starlette(
        routes=[Route(path, page, methods=["GET"], middleware=packed) for path, page in pages.items()],
        exception_handlers={404: refuse, 405: refuse},
    )
    routed.router.redirect_slashes = False
    if application is not None:  # not a Mount, which takes no path with a line feed
        routed.router.default = application
    return routed


async def _live(_request: Request) -> Response:
    return JSONResponse({"live": True})


def _ready_page(ready: Readiness) -> Response:
    content = {"ready": ready.is_ready, **ready.parts, **ready.facts}
    return JSONResponse(content, status_code=200 if ready.is_ready else 503)


def _metrics_page(metrics: Metrics) -> Response:
    content, media_type = metrics.page()
    return Response(content, media_type=media_type)


async def _wait_for_disconnect(request: Request) -> None:
    """Wait until the client, or a stop of the server, has closed the connection. Ignore a body that comes before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _tls(settings: HttpSettings, metrics: Metrics) -> ServerTls | None:
    """Open the certificate and publish its remaining days in the metrics. Raises OSError or ValueError."""
    if settings.tls is None:
        return None
    tls = ServerTls("http", settings.tls)
    metrics.certificate_days.labels("http").set_function(lambda: tls.days_left)
    return tls


def _listen(host: str, port: int) -> socket.socket:
    """Open an address. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.setblocking(False)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
