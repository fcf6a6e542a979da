import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from node.metrics import HttpServer, Metrics, Readiness, Snapshot, SnapshotCollector


class Service:
    def __init__(self) -> None:
        self.parts = {"listener": True, "model": True, "disk": True}
        self.metrics = Metrics()
        self.metrics.registry.register(
            SnapshotCollector(
                lambda: Snapshot(
                    studies={"finished": 2}, oldest_waiting_seconds={"studies": 1.5}, spool_free_bytes=1024
                )
            )
        )
        self.server = HttpServer(self.metrics, lambda: Readiness(parts=self.parts), host="127.0.0.1", port=0)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.server.close()


def test_live_answers_while_the_process_works(service: Service) -> None:
    assert service.get("/live")[0] == 200


def test_ready_answers_503_and_names_the_part_that_is_not(service: Service) -> None:
    assert service.get("/ready")[0] == 200

    service.parts["disk"] = False

    status, body = service.get("/ready")
    assert status == 503
    assert json.loads(body) == {"ready": False, "listener": True, "model": True, "disk": False}


def test_metrics_carry_counters_and_what_is_counted_when_asked(service: Service) -> None:
    service.metrics.instances.labels("kept").inc()
    service.metrics.build_info.labels("0.1", "phantom 1", "chexpert14 1").set(1)

    status, body = service.get("/metrics")

    assert status == 200
    for line in (
        'cxr_instances_total{outcome="kept"} 1.0',
        'cxr_studies{state="finished"} 2.0',
        'cxr_oldest_waiting_seconds{queue="studies"} 1.5',
        "cxr_spool_free_bytes 1024.0",
        'cxr_build_info{model="phantom 1",prompts="chexpert14 1",version="0.1"} 1.0',
    ):
        assert line in body


def test_any_other_path_is_not_found(service: Service) -> None:
    assert service.get("/studies")[0] == 404
