"""Traces of studies by OpenTelemetry: a span for each step that is timed, sent to the collector in the settings.

Everything that is done for a study, by whichever process, belongs to one trace, whose id is made of the Study Instance
UID. Spans wait in memory, at most `_MOST_SPANS`, and are lost while the collector is away: no film waits for it.
OpenTelemetry is imported only when traces are on, and no variable of the environment has a say in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_MOST_SPANS: Final = 4096
_SECONDS: Final = 1.0
"""How long spans are gathered before they are sent."""
_LIMIT_SECONDS: Final = 5.0

_study: ContextVar[str | None] = ContextVar("study", default=None)
_provider: TracerProvider | None = None


def is_on() -> bool:
    """Say whether spans are sent."""
    return _provider is not None


def id_of(study_uid: str) -> str:
    """Return the id of a study's trace: 32 hexadecimal digits."""
    return sha256(study_uid.encode()).hexdigest()[:32]


@contextmanager
def of_study(study_uid: str | None) -> Iterator[None]:
    """Let the steps of this block belong to a study; None: to none until `belongs` says to which."""
    token = _study.set(study_uid)
    try:
        yield
    finally:
        _study.reset(token)


def belongs(study_uid: str) -> None:
    """Let the steps of the innermost block of `of_study` belong to a study."""
    _study.set(study_uid)


def step(name: str, *, began: float, ended: float, is_good: bool = True) -> None:
    """Send a span of the current study; does nothing without a study, or while traces are off. Never blocks or raises.

    began, ended: in seconds since the epoch
    """
    study_uid = _study.get()
    if _provider is None or study_uid is None:
        return
    from opentelemetry import trace as api

    trace_id = int(id_of(study_uid), 16)
    parent = api.SpanContext(trace_id, _root_of(trace_id), is_remote=True, trace_flags=api.TraceFlags(1))
    span = _provider.get_tracer("chex-node").start_span(
        name,
        context=api.set_span_in_context(api.NonRecordingSpan(parent)),
        start_time=int(began * 1e9),
        attributes={"study": study_uid},
    )
    if not is_good:
        span.set_status(api.StatusCode.ERROR)
    span.end(int(ended * 1e9))


@contextmanager
def sending(endpoint: str | None, ca: Path | None, *, node: str, version: str, executor: str) -> Iterator[None]:
    """Send spans to a collector by OTLP over HTTP until the end of the block, which waits a moment for the last ones.

    endpoint: as `http://127.0.0.1:4318/v1/traces`, None: nothing is sent
    ca: the authority of its certificate, None: those of the system
    node, version, executor: name this process in each trace
    """
    global _provider
    if endpoint is None:
        yield
        return
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    session = requests.Session()
    session.trust_env = False  # neither proxies nor passwords of the environment
    exporter = OTLPSpanExporter(
        endpoint=endpoint, certificate_file=None if ca is None else str(ca), timeout=_LIMIT_SECONDS, session=session
    )
    said = {"name": "chex-node", "namespace": node, "version": version, "instance_id": executor}
    resource = Resource({f"service.{key.replace('_', '.')}": value for key, value in said.items()})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=_MOST_SPANS, schedule_delay_millis=1000 * _SECONDS)
    )
    _provider = provider
    try:
        yield
    finally:
        _provider = None
        provider.force_flush(int(1000 * _LIMIT_SECONDS))
        provider.shutdown()


def _root_of(trace_id: int) -> int:
    """Return the id of the span that all spans of a trace have as their parent; it is never sent itself."""
    return trace_id & (2**64 - 1) or 1
