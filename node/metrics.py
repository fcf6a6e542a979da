"""Every metric of the node, and the three pages that machines read: `/metrics`, `/live`, `/ready`.

Labels come from short closed lists; never a UID, an AE title or a text. Names are part of the outer contract.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from prometheus_client.registry import Collector

_Wsgi = Callable[[dict[str, object], Callable[..., object]], Iterable[bytes]]
_STEP_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The counters and gauges of one node, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.instances = Counter(
            "cxr_instances", "Received objects: kept, repeated, refused.", ["outcome"], registry=self.registry
        )
        self.associations_refused = Counter(
            "cxr_associations_refused", "Associations refused, by reason.", ["reason"], registry=self.registry
        )
        self.films = Counter(
            "cxr_films", "Films by outcome: read, or the reason why not.", ["outcome"], registry=self.registry
        )
        self.step_seconds = Histogram(
            "cxr_step_duration_seconds", "Time of one step of a study.", ["step"],
            buckets=_STEP_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.deliveries = Counter(
            "cxr_deliveries", "Delivery attempts by destination and outcome: sent, delayed, parked.",
            ["destination", "outcome"], registry=self.registry,
        )  # fmt: skip
        self.build_info = Gauge(
            "cxr_build_info", "Versions of program, model and prompt set.", ["version", "model", "prompts"],
            registry=self.registry,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What is counted at the moment somebody asks, not when it happens."""

    studies: Mapping[str, int]
    oldest_waiting_seconds: Mapping[str, float]
    spool_free_bytes: int


class SnapshotCollector(Collector):
    """Gauges whose values lie in the ledger and on the disk."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Take one snapshot and turn it into gauges."""
        snapshot = self._take()
        studies = GaugeMetricFamily("cxr_studies", "Studies by state.", labels=["state"])
        for state, count in snapshot.studies.items():
            studies.add_metric([state], count)
        yield studies
        oldest = GaugeMetricFamily(
            "cxr_oldest_waiting_seconds", "Age of the oldest study or delivery that waits.", labels=["queue"]
        )
        for queue, seconds in snapshot.oldest_waiting_seconds.items():
            oldest.add_metric([queue], seconds)
        yield oldest
        yield GaugeMetricFamily("cxr_spool_free_bytes", "Free space where films are kept.", snapshot.spool_free_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """The parts that must be good before work is sent here; each name with whether it is."""

    parts: Mapping[str, bool]

    @property
    def is_ready(self) -> bool:
        """Whether every part is good."""
        return all(self.parts.values())


class HttpServer:
    """Serves the three pages on one address until closed."""

    def __init__(self, metrics: Metrics, readiness: Callable[[], Readiness], *, host: str, port: int) -> None:
        self._server = make_server(
            host, port, _application(metrics, readiness), server_class=ThreadingWSGIServer, handler_class=_QuietHandler
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


def _application(metrics: Metrics, readiness: Callable[[], Readiness]) -> _Wsgi:
    """Route the three paths; everything else is 404."""
    expose = make_wsgi_app(metrics.registry)

    def application(environ: dict[str, object], start_response: Callable[..., object]) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return expose(environ, start_response)  # type: ignore[no-any-return]  # untyped library
            case "/live":
                return _answer(start_response, "200 OK", {"live": True})
            case "/ready":
                ready = readiness()
                status = "200 OK" if ready.is_ready else "503 Service Unavailable"
                return _answer(start_response, status, {"ready": ready.is_ready, **ready.parts})
            case _:
                return _answer(start_response, "404 Not Found", {"paths": ["/metrics", "/live", "/ready"]})

    return application


def _answer(start_response: Callable[..., object], status: str, body: Mapping[str, object]) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]


class _QuietHandler(WSGIRequestHandler):
    """Says nothing per request: probes come every few seconds."""

    def log_message(self, format: str, *args: object) -> None:
        """Drop the line."""
