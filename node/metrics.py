"""Every metric of the node, by name.

Label values come from closed lists, which are defined here, in the settings or in the prompt set: never a UID, an AE
title or a text from outside. A counter starts at 0 for every label it can have, so that its first increment is visible.
Names are part of the outer contract.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from language.check import Fault
from models.contract import FindingState
from node.domain import DELIVERY_STATES, STUDY_STATES, Film, Reason
from node.store.ledger_queries import Overview

if TYPE_CHECKING:
    import numpy as np
    from numpy import typing as npt

REFUSALS: Final = ("caller", "called_ae", "disk", "failed", "limit", "protocol", "silent", "tls")
HTTP_CLOSED: Final = ("limit", "silent", "stalled")
"""Why the node closed an HTTP connection (`net.http_connections`)."""
ABORTS: Final = ("idle", "length", "pieces", "protocol", "stalled")
QUESTION_SOURCES: Final = ("page", "api", "dicom")
"""Where questions about films come from."""
CORRECTIONS: Final = ("accept", "reject", "move", "add", "reword", "withdraw")
"""The kinds of `store.correction`."""
WITHHELD: Final = (*(fault.value for fault in Fault), "contradicts", "not_measured", "side_unknown", "wrong_zone")
"""Reasons why a generated sentence does not leave (`models.reading.sentence_check`)."""
ORDER_REFUSALS: Final = ("caller", "tls", "silent", "connection", "content", "not_kept")
REJECTIONS: Final = ("quality", "patient_safety", "worklist", "retention")
"""Why films are rejected (`store.study_facts`)."""
ReviewReason: TypeAlias = Literal["contradicted", "near_threshold", "uncalibrated"]
"""Why a film waits for review (`outputs.ledger_rows`)."""
DAMAGES: Final = ("film", "output", "database")
Guarded: TypeAlias = Literal["gather", "place", "plan", "read", "write", "finish"]
"""The steps that park a study when they fail."""
FAILURES: Final[Mapping[str, tuple[str, ...]]] = {
    "submit": ("database", "foreseen"),
    "receive": ("cannot_understand", "out_of_resources", "processing_failure"),
    **dict.fromkeys((*get_args(Guarded), "answer", "question"), ("foreseen", "unforeseen")),
    "workflow": ("lost",),
    "deliver": ("down", "busy", "rejected", "expired", "unknown", "removed", "damaged", "lost", "unforeseen"),
    "commit": ("down", "busy", "failed", "rejected", "expired", "refused", "lost", "unforeseen"),
}
STEPS: Final = ("receive", "plan", "route", "decode", "read", "write", "finish", "deliver", "commit")

_STEP_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TURNAROUND_BUCKETS: Final = (1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
_PROBABILITY_BUCKETS: Final = tuple(number / 10 for number in range(1, 11))
_GRAY_BUCKETS: Final = tuple(number / 20 for number in range(1, 21))
_WHITE: Final = 255
_QUESTION_BUCKETS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """The counters, histograms and gauges of one node and its process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._identity()
        self._network()
        self._orders()
        self._work()
        self._model()

    def _identity(self) -> None:
        self.build_info = self._gauge(
            "cxr_build_info", "Versions of program, model and prompt set.", "version", "model", "prompts"
        )
        self.engine_info = self._gauge(
            "cxr_engine_info", "The runtime in use, and why it is not the wanted runtime: none if it is.",
            "engine", "fallback",
        )  # fmt: skip
        self.parity_difference = self._gauge(
            "cxr_parity_max_difference", "Largest difference between the runtime in use and the network.", "stage"
        )
        self.parity_tolerance = self._gauge(
            "cxr_parity_tolerance", "Largest difference that is allowed between them.", "stage"
        )

    def _network(self) -> None:
        self.associations_accepted = self._counter("cxr_associations_accepted", "Associations accepted.")
        self.associations_open = self._gauge("cxr_associations_open", "Associations that are open now.")
        self.associations_refused = self._counter(
            "cxr_associations_refused", "Associations refused, by reason.", "reason"
        )
        self.associations_aborted = self._counter(
            "cxr_associations_aborted", "Associations that the node ended, by reason.", "reason"
        )
        self.certificate_days = self._gauge(
            "cxr_certificate_days", "Days until a certificate of the node expires.", "name"
        )
        self.instances = self._counter(
            "cxr_instances", "Received objects: kept, repeated, conflict, doubled, refused.", "outcome"
        )
        self.audit_lost = self._counter("cxr_audit_lost", "Audit messages that the disk did not take in time.")
        self.received_bytes = self._counter("cxr_received_bytes", "Bytes of objects that were acknowledged.")
        self.http_closed = self._counter(
            "cxr_http_connections_closed", "HTTP connections that the node closed, by reason.", "reason"
        )
        _start_at_zero(self.associations_refused, REFUSALS)
        _start_at_zero(self.http_closed, HTTP_CLOSED)
        _start_at_zero(self.associations_aborted, ABORTS)
        _start_at_zero(self.instances, ("kept", "repeated", "conflict", "doubled", "refused"))

    def _orders(self) -> None:
        self.orders = self._counter("cxr_orders", "Orders kept or cancelled, and messages refused.", "outcome")
        self.orders_refused = self._counter(
            "cxr_orders_refused", "Refused connections and messages with orders, by reason.", "reason"
        )
        self.order_connections_open = self._gauge(
            "cxr_order_connections_open", "Connections for orders that are open now."
        )
        self.orders_unmatched = self._counter(
            "cxr_orders_unmatched", "Results without order numbers: the order is not known to be for their patient."
        )
        _start_at_zero(self.orders, ("kept", "cancelled", "refused"))
        _start_at_zero(self.orders_refused, ORDER_REFUSALS)

    def _work(self) -> None:
        self.films = self._counter("cxr_films", "Films by outcome: read, or the reason why not.", "outcome")
        self.step_seconds = self._histogram(
            "cxr_step_duration_seconds", "Duration of one step; steps do not contain each other.", _STEP_BUCKETS, "step"
        )
        self.turnaround_seconds = self._histogram(
            "cxr_turnaround_seconds", "From the last arrival of a round to its last delivery.", _TURNAROUND_BUCKETS
        )
        self.studies_divided = self._counter(
            "cxr_studies_divided", "Rounds of studies with films of several patients or accession numbers."
        )
        self.damaged = self._counter("cxr_damaged", "Stored files found damaged, by what they hold.", "what")
        self.failures = self._counter("cxr_failures", "Failures by stage and class of reason.", "stage", "reason")
        self.deliveries = self._counter(
            "cxr_deliveries", "Delivery attempts by destination and outcome: sent, committed, delayed, parked.",
            "destination", "outcome",
        )  # fmt: skip
        _start_at_zero(self.films, ("read", *Reason))
        _start_at_zero(self.damaged, DAMAGES)
        for step in STEPS:
            self.step_seconds.labels(step)
        for stage, reasons in FAILURES.items():
            _start_at_zero(self.failures, (stage,), reasons)

    def _model(self) -> None:
        self.tokens = self._counter("cxr_tokens_generated", "Tokens that the sentence generator wrote.")
        self.generation_seconds = self._counter("cxr_generation_seconds", "Time that the sentence generator took.")
        self.withheld = self._counter(
            "cxr_sentences_withheld", "Generated sentences that did not say what was decided.", "reason"
        )
        _start_at_zero(self.withheld, WITHHELD)
        self.questions = self._counter("cxr_questions", "Questions about films, by where they came from.", "source")
        _start_at_zero(self.questions, QUESTION_SOURCES)
        self.question_seconds = self._histogram(
            "cxr_question_seconds", "Time from a question about a film to its answer.", _QUESTION_BUCKETS
        )
        self.corrections = self._counter(
            "cxr_corrections", "What readers corrected in answers, by finding.", "kind", "prompt"
        )
        self.rejected = self._counter("cxr_films_rejected", "Films that notes of an archive reject.", "reason")
        _start_at_zero(self.rejected, REJECTIONS)
        self.findings = self._counter("cxr_findings", "Answers to pathology prompts, by state.", "prompt", "state")
        self.probability = self._histogram(
            "cxr_finding_probability", "Probabilities of pathology prompts.", _PROBABILITY_BUCKETS, "prompt"
        )
        self.picture_mean = self._histogram(
            "cxr_picture_mean", "Mean gray value of a film as displayed, 0 (black) to 1.", _GRAY_BUCKETS
        )
        self.picture_deviation = self._histogram(
            "cxr_picture_deviation", "Standard deviation of a film's gray values, 0 to 0.5.", _GRAY_BUCKETS
        )

    def expect(self, *, destinations: Iterable[str], prompts: Iterable[str]) -> None:
        """Start counters at 0 for the labels that come from the settings and the prompt set."""
        _start_at_zero(self.deliveries, destinations, ("sent", "committed", "delayed", "parked"))
        for prompt in prompts:
            _start_at_zero(self.findings, (prompt,), FindingState)
            self.probability.labels(prompt)
            _start_at_zero(self.corrections, CORRECTIONS, (prompt,))

    def count_film(self, film: Film, gray: npt.NDArray[np.uint8] | None) -> None:
        """Count the network's findings on a film that it has read, and the gray values of its picture.

        A finding that the model leaves out is counted in its state, and has no probability.
        gray: the film's thumbnail as displayed, [row, column], 0..255; None without one
        """
        for finding in film.findings:
            self.findings.labels(finding.prompt, finding.state).inc()
            if (probability := finding.output_probability) is not None:
                self.probability.labels(finding.prompt).observe(probability)
        for withheld in film.withheld:
            self.withheld.labels(withheld.reason).inc()
        if gray is not None:
            self.picture_mean.observe(float(gray.mean()) / _WHITE)
            self.picture_deviation.observe(float(gray.std()) / _WHITE)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Measure one step; a step that fails is not recorded here, but as a failure."""
        began = time.monotonic()
        yield
        self.step_seconds.labels(step).observe(time.monotonic() - began)

    def on_written(self, tokens: int, seconds: float) -> None:
        """Count the tokens that the sentence generator wrote, and its time."""
        self.tokens.inc(tokens)
        self.generation_seconds.inc(seconds)

    def page(self) -> tuple[bytes, str]:
        """Return the metrics as text, and its media type."""
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, registry=self.registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, meaning, labels, buckets=buckets, registry=self.registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Values that are looked up when the metrics are requested, at a moment.

    overview: what the ledger holds; None in a process without one; destinations: names of those in force
    ready: whether each part is good that the process needs for its work
    """

    at: datetime
    overview: Overview | None
    destinations: Sequence[str]
    spool_free_bytes: int
    spool_capacity_bytes: int
    spool_reserve_bytes: int
    ready: Mapping[str, bool]


class SnapshotCollector(Collector):
    """Gauges whose values come from the ledger and the disk."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Take one snapshot and turn it into gauges."""
        now = self._take()
        if now.overview is not None:
            yield from _counted(now.overview, now.destinations, now.at)
        yield GaugeMetricFamily("cxr_spool_free_bytes", "Free space where films are kept.", now.spool_free_bytes)
        yield GaugeMetricFamily("cxr_spool_capacity_bytes", "Size of the disk of films.", now.spool_capacity_bytes)
        yield GaugeMetricFamily(
            "cxr_spool_reserve_bytes", "Free space below which nothing is accepted.", now.spool_reserve_bytes
        )
        yield _family("cxr_ready", "1 while a part of the node is good.", ("part",), now.ready)


def _counted(now: Overview, names: Sequence[str], at: datetime) -> Iterator[GaugeMetricFamily]:
    """Return the gauges of studies and deliveries; states without work count 0, and so does an age."""

    def age(since: datetime | None) -> float:
        return 0.0 if since is None else max(0.0, (at - since).total_seconds())

    studies = {state: now.studies.get(state, 0) for state in (*STUDY_STATES, *now.studies)}
    pairs = (*itertools.product(names, DELIVERY_STATES), *(pair for pair in now.deliveries if pair[0] in names))
    deliveries = {pair: now.deliveries.get(pair, 0) for pair in pairs}
    waiting = {
        "studies": studies["receiving"] + studies["reading"],
        "deliveries": sum(number for (_, state), number in deliveries.items() if state in ("waiting", "sending")),
    }
    oldest = {"studies": age(now.oldest), "deliveries": age(min(now.oldest_deliveries.values(), default=None))}
    uncommitted = {name: now.uncommitted.get(name, (0, None)) for name in names}
    yield _family("cxr_studies", "Studies by state.", ("state",), studies)
    yield _family("cxr_waiting", "Studies and deliveries that wait.", ("queue",), waiting)
    yield _family(
        "cxr_oldest_waiting_seconds", "Age of the oldest study or delivery that waits.",
        ("queue",), oldest,
    )  # fmt: skip
    yield _family(
        "cxr_destination_deliveries", "Deliveries by destination and state.", ("destination", "state"), deliveries
    )
    yield _family(
        "cxr_destination_oldest_waiting_seconds", "Age of a destination's oldest delivery that waits.",
        ("destination",), {name: age(now.oldest_deliveries.get(name)) for name in names},
    )  # fmt: skip
    yield _family(
        "cxr_destination_paused", "1 while a destination accepts nothing: attempts fail.",
        ("destination",), {name: name in now.pauses for name in names},
    )  # fmt: skip
    yield _family(
        "cxr_destination_uncommitted", "Outputs that were sent and await storage commitment.",
        ("destination",), {name: number for name, (number, _) in uncommitted.items()},
    )  # fmt: skip
    yield _family(
        "cxr_destination_oldest_uncommitted_seconds", "How long ago the oldest of these outputs was sent.",
        ("destination",), {name: age(since) for name, (_, since) in uncommitted.items()},
    )  # fmt: skip
    reviews = {reason: now.reviews.get(reason, 0) for reason in get_args(ReviewReason)}
    yield _family("cxr_review_films", "Films that wait for review, by reason.", ("reason",), reviews)


def _start_at_zero(counter: Counter, *lists: Iterable[str]) -> None:
    for labels in itertools.product(*lists):
        counter.labels(*labels)


def _family(
    name: str, meaning: str, labels: tuple[str, ...], values: Mapping[str, float] | Mapping[tuple[str, str], float]
) -> GaugeMetricFamily:
    """Return one gauge with a value per label, or per tuple of labels."""
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for label, value in values.items():
        family.add_metric([label] if isinstance(label, str) else label, value)
    return family
