"""A node under a little load, watched by a real Prometheus: every panel has data, and no patient shows in it."""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from pydicom.dataset import Dataset

from node.config import ModelSettings, OrdersSettings, OrdersTlsSettings
from node.domain import derive_uid
from node.settings.destinations import Hl7Destination, TlsSettings
from tests.deploy.expressions import Query, event_queries, panel_queries
from tests.support import films, mllp, peers
from tests.support.certificates import Authority
from tests.support.exported import exported_families
from tests.support.prometheus import Prometheus, run_prometheus
from tests.support.service import Service, settings_for

pytestmark = pytest.mark.drill(part="deployment")

PATIENT = {
    "PatientName": "Marked^Patient",
    "PatientID": "MARKED-ID",
    "PatientBirthDate": "19110111",
    "AccessionNumber": "MARKED-ACC",
    "InstitutionName": "Marked Hospital",
    "ManufacturerModelName": "Marked Model of Patient",
    "Manufacturer": "Philips Marked",
    "StationName": "MARKED-STATION",
    "StudyDescription": "Marked study",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A node, its archive, and the Prometheus that watches it."""

    service: Service
    archive: peers.ReceivingArchive
    prometheus: Prometheus
    sent: list[Dataset]

    def send(self, **changes: object) -> None:
        """Send a film of a study of its own."""
        number = str(len(self.sent))
        uids = {name: derive_uid(name, number) for name in ("StudyInstanceUID", "SOPInstanceUID")}
        self.sent.append(films.thumbnail({**PATIENT, **uids, **changes}))
        assert peers.send(self.sent[-1], port=self.service.dicom_port) == 0

    def has_seen(self, expression: str, *, limit_seconds: float = 90) -> None:
        """Wait until Prometheus has scraped that something is so."""
        peers.wait_until(lambda: bool(self.prometheus.values(expression)), what=expression, limit_seconds=limit_seconds)

    def fires(self, *alerts: str) -> None:
        """Wait until alerts of the node fire."""
        peers.wait_until(lambda: {*alerts} <= self.prometheus.firing("node"), what=f"{alerts} fire", limit_seconds=90)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    peers.require("prometheus")
    folder = tmp_path_factory.mktemp("watched")
    model = folder / "model"
    model.mkdir()
    stage = {"max_abs": 3e-7, "tolerance": 1e-4}
    (model / "parity.json").write_text(json.dumps({"stages": {"find.boxes": stage}, "passed": True}), encoding="utf-8")
    authority = Authority.found(folder / "authority")
    known = authority.issue("all")
    files = {"ca": authority.certificate, "certificate": known.certificate, "key": known.key}
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.load_cert_chain(known.certificate, known.key)
    with peers.ReceivingArchive() as archive, mllp.InformationSystem(tls=context) as system:
        settings = settings_for(
            folder / "node", archive_port=archive.port, model=ModelSettings(directory=model), quiet_seconds=0.1
        )
        results = Hl7Destination(name="ris", host=peers.LOOPBACK, port=system.port, tls=TlsSettings(**files))
        settings = replace(
            settings,
            destinations=(*settings.destinations, results),
            orders=OrdersSettings(port=0, hosts=(peers.LOOPBACK,), tls=OrdersTlsSettings(**files)),
        )
        with Service(settings) as service, run_prometheus(folder, node=[service.http_port]) as prometheus:
            watched = Watched(service=service, archive=archive, prometheus=prometheus, sent=[])
            watched.has_seen("cxr_films_total")
            for wave in (1, 2):
                watched.send()
                watched.send(ViewPosition="LL")
                assert peers.send(films.thumbnail(PATIENT), port=service.dicom_port, calling_ae="MARKEDCALLER") is None
                watched.has_seen(f"cxr_turnaround_seconds_count >= {2 * wave}")
                watched.has_seen(f'cxr_step_duration_seconds_count{{step="finish"}} >= {2 * wave}')
            yield watched


def has_data(watched: Watched, query: Query) -> bool:
    """Whether some value is a number; nobody asks, the scripted reader generates no tokens, and drift needs weeks."""
    values = watched.prometheus.values(query.runnable)
    empty = ("tokens_per_second", "cxr_question_seconds", "distance_7d")
    return any(map(math.isfinite, values)) or any(name in query.expression for name in empty)


def test_no_panel_is_without_data(watched: Watched) -> None:
    queries = list(panel_queries())
    empty = list(queries)

    def none_is_empty() -> bool:
        for asked in (list(empty), queries):  # all of them only when none was empty that was so before
            empty[:] = [query for query in asked if not has_data(watched, query)]
            if empty:
                return False
        return True

    with suppress(AssertionError):  # what is still empty says more
        peers.wait_until(none_is_empty, what="every panel has data", limit_seconds=60)

    assert [query.place for query in empty] == []
    assert len(queries) > 20


def test_starts_are_marked_and_the_first_model_is_not(watched: Watched) -> None:
    marks = {query.place: query.runnable for query in event_queries() if "overview" in query.place}
    start, model = (next(text for place, text in marks.items() if place.endswith(name)) for name in ("start", "model"))

    assert watched.prometheus.values(start.replace("time() - 60", "time() - 3600"))
    assert watched.prometheus.values(model) == []


def test_every_metric_is_exported_with_a_value_from_the_start_and_without_a_patient_or_caller(watched: Watched) -> None:
    page = watched.service.metrics()

    missing = [
        name
        for series in exported_families().values()
        for name in series
        if not any(line.startswith((f"{name} ", f"{name}{{")) for line in page.splitlines())
    ]
    assert missing == []
    assert "marked" not in page.lower()
    assert "tester" not in page.lower()
    for sent in watched.sent:
        for keyword in ("StudyInstanceUID", "SOPInstanceUID", "PatientBirthDate"):
            assert str(sent[keyword].value) not in page


def test_a_certificate_that_ends_in_two_days_raises_its_alerts_while_all_parts_are_good(watched: Watched) -> None:
    watched.has_seen('cxr_ready{part="orders"} == 1')
    for name in ("orders", "destination ris"):
        watched.has_seen(f'cxr_certificate_days{{name="{name}"}} < 2')

    watched.fires("CxrCertificateToBeRenewed", "CxrCertificateExpiring")
    assert "CxrNodeDown" not in watched.prometheus.firing("node")


def test_a_stopped_destination_alerts(watched: Watched) -> None:
    with watched.archive.down():
        watched.send()
        watched.fires("CxrDestinationStopped")

    watched.has_seen("cxr_destination_paused == 0", limit_seconds=120)
    peers.wait_until(
        lambda: "CxrDestinationStopped" not in watched.prometheus.firing("node"),
        what="the alert ends",
        limit_seconds=60,
    )
