"""The three pages that machines read: `/metrics`, `/live`, `/ready`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from node.metrics import Metrics, Wsgi


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The parts that must be good before work is sent here; each name with whether it is.

    facts: what else is worth a look, and decides nothing
    """

    parts: Mapping[str, bool]
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether every part is good."""
        return all(self.parts.values())


class HttpServer:
    """Serves the three pages on one address until closed."""

    def __init__(self, metrics: Metrics, readiness: Callable[[], Readiness], *, host: str, port: int) -> None:
        self._server = make_server(
            host, port, _application(metrics, readiness), server_class=_Server, handler_class=_QuietHandler
        )
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The real port."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


def _application(metrics: Metrics, readiness: Callable[[], Readiness]) -> Wsgi:
    """Route the three paths; everything else is 404."""
    expose = metrics.application()

    def application(environ: dict[str, object], start_response: Callable[..., object]) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return expose(environ, start_response)
            case "/live":
                return _answer(start_response, "200 OK", {"live": True})
            case "/ready":
                ready = readiness()
                status = "200 OK" if ready.is_ready else "503 Service Unavailable"
                return _answer(start_response, status, {"ready": ready.is_ready, **ready.parts, **ready.facts})
            case _:
                return _answer(start_response, "404 Not Found", {"paths": ["/metrics", "/live", "/ready"]})

    return application


def _answer(start_response: Callable[..., object], status: str, body: Mapping[str, object]) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each request in a thread of its own: a slow reader stops no probe."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    """Says nothing per request: probes come every few seconds."""

    def log_message(self, format: str, *args: object) -> None:
        """Drop the line."""
