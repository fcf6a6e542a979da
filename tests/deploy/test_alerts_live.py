"""Faults of real processes, seen by a real Prometheus: a full disk, and a dead worker beside a listener and a sender.

How soon each alert has to come, `tests/deploy/test_alerts.py` proves on given series; these series are the node's own.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.expressions import panel_queries
from tests.paths import REPOSITORY
from tests.support import films, peers
from tests.support.postgres import Postgres
from tests.support.prometheus import run_prometheus
from tests.support.service import Service, on_database, settings_for

pytestmark = pytest.mark.drill(part="deployment")

SCALER = REPOSITORY / "helm" / "templates" / "scaledobject.yaml"


def test_a_full_disk_and_a_dead_worker_raise_only_their_alerts(tmp_path: Path) -> None:
    peers.require("prometheus")
    dead, of_others = {"CxrNodeDown", "CxrWorkerDead"}, {"CxrNotReady", "CxrNoFilms", "CxrDatabaseAway", "CxrDiskFull"}
    with Postgres() as postgres, peers.ReceivingArchive() as archive:
        full = settings_for(tmp_path / "full" / "node", archive_port=archive.port, min_free_mib=10**9)
        many = settings_for(tmp_path / "many" / "node", archive_port=archive.port, min_free_mib=0)
        many = on_database(many, postgres.url)
        for settings in (full, many):
            settings.storage.directory.parent.mkdir()
        with (
            Service(full) as alone,
            Service(many, only="listener") as listener,
            Service(many, only="sender") as sender,
            Service(many, only="worker") as worker,
            run_prometheus(
                tmp_path, full=[alone.http_port], many=[listener.http_port, sender.http_port, worker.http_port]
            ) as prometheus,
        ):
            peers.wait_until(
                lambda: prometheus.values('count(cxr_ready{service="many",part="workers"} == 1)') == [3.0],
                what="every process is seen",
                limit_seconds=60,
            )
            assert not dead & prometheus.firing("many")
            ready = next(query for query in panel_queries() if query.place.endswith(": Ready"))
            peers.wait_until(
                lambda: prometheus.values(ready.runnable) == [0.0], what="a disk is full", limit_seconds=60
            )

            worker.kill()
            assert peers.send(films.thumbnail(), port=listener.dicom_port) == 0

            query = re.search(r"query: (SELECT .+)", SCALER.read_text(encoding="utf-8"))
            assert query is not None
            assert postgres.execute(query[1]) == [(0,)], "what is not quiet yet is no work for a worker"

            peers.wait_until(lambda: dead <= prometheus.firing("many"), what=f"{dead} fire", limit_seconds=90)
            assert not of_others & prometheus.firing("many")
            assert prometheus.values(ready.runnable) == [-1.0]
            full_disk = {"CxrDiskFull", "CxrDiskAlmostFull", "CxrNotReady"}
            peers.wait_until(lambda: full_disk <= prometheus.firing("full"), what=f"{full_disk} fire", limit_seconds=60)
