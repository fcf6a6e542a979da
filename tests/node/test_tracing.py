"""Traces of studies, sent by the real exporter to a collector of the tests: no other one is packaged for Debian."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from node import trace
from node.config import Settings
from node.settings.trace import TraceSettings
from tests.support import films, peers
from tests.support.peers import LOOPBACK, ReceivingArchive
from tests.support.service import Service, run_command, settings_for

pytestmark = pytest.mark.drill(part="peers")

FILM = films.thumbnail()
STUDY = str(FILM.StudyInstanceUID)
STEPS = {"receive", "wait", "plan", "route", "decode", "read", "write", "finish", "deliver"}


@contextmanager
def collector() -> Iterator[tuple[int, list[bytes]]]:
    """Run a collector; its port and the bodies that came."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port, bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def traced(folder: Path, archive: ReceivingArchive, port: int) -> Settings:
    settings = settings_for(folder / "node", archive_port=archive.port)
    return replace(settings, trace=TraceSettings(endpoint=f"http://{LOOPBACK}:{port}/v1/traces"))


def spans_of(bodies: list[bytes]) -> list[Span]:
    return [
        span
        for body in bodies
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def test_every_step_of_a_study_is_a_span_of_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_SAMPLER", "always_off"), ("http_proxy", "x:1")):
        monkeypatch.setenv(name, value)
    with (
        collector() as (port, bodies),
        ReceivingArchive() as archive,
        Service(traced(tmp_path, archive, port)) as service,
    ):
        assert peers.send(FILM, port=service.dicom_port) == 0
        service.wait_for("delivery.sent", count=2)
        finished = service.wait_for("study.finished")
        explained = run_command("explain", STUDY, service.settings_path).stdout
        assert service.stop() == 0

    spans = spans_of(bodies)
    assert {span.name for span in spans} == STEPS
    assert {span.trace_id.hex() for span in spans} == {trace.id_of(STUDY)} == {finished["trace"]}
    assert trace.id_of(STUDY) in explained
    assert all(0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    (wait,) = (span for span in spans if span.name == "wait")
    assert wait.end_time_unix_nano - wait.start_time_unix_nano > 0.2e9  # its quiet time at least
    sent = b"".join(bodies)
    assert b"TESTER" not in sent
    for keyword in ("PatientName", "PatientID"):
        assert str(FILM.get(keyword)).encode() not in sent


@pytest.mark.drill(part="peers")
def test_a_collector_that_is_away_delays_no_film(tmp_path: Path) -> None:
    with ReceivingArchive() as archive, Service(traced(tmp_path, archive, 1)) as service:
        assert peers.send(FILM, port=service.dicom_port) == 0
        archive.wait_for_kept(2)
        service.wait_for("study.finished")
        assert service.stop() == 0


def test_without_settings_nothing_is_traced_or_loaded(tmp_path: Path) -> None:
    with Service(settings_for(tmp_path / "node", archive_port=1)) as service:
        assert peers.send(FILM, port=service.dicom_port) == 0
        finished = service.wait_for("study.finished")
        explained = run_command("explain", STUDY, service.settings_path).stdout
        assert service.stop() == 0
    script = "import sys, node.service.app; sys.exit('opentelemetry.sdk' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode

    assert "trace" not in finished
    assert "trace " not in explained
    assert loaded == 0
