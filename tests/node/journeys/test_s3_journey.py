"""A node with a bucket: acknowledged only when it is there, away for a while, and taken over by another machine."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.progress import quiet
from node import config
from node.commands.doctor.storage import check_storage
from node.errors import ConfigError, InputError
from node.jobs.processes import Role
from node.service import app
from node.store.bucket import Bucket
from tests.drills.chaos import bucket as chaos
from tests.drills.chaos.bucket import Cut
from tests.support import peers
from tests.support.fakes import ScriptedReader
from tests.support.films import as_another, thumbnail
from tests.support.s3 import Network, S3Server, on_bucket, s3_server
from tests.support.service import Service, run_command, settings_for

pytestmark = pytest.mark.drill(part="kills")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


def ready(service: Service) -> tuple[int, dict[str, object]]:
    """The status and content of /ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{service.http_port}/ready", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_node_waits_for_its_bucket_and_another_takes_over(server: S3Server, tmp_path: Path) -> None:
    with Network(server.port) as network, peers.ReceivingArchive() as archive:
        s3 = server.settings(tmp_path, port=network.port, prefix="journey")
        first = on_bucket(settings_for(tmp_path / "first", archive_port=archive.port), s3)
        with Service(first) as service:
            assert peers.send(thumbnail(), port=service.dicom_port) == 0
            service.wait_for("study.finished")
            network.cut()
            other = as_another(thumbnail(), "other", study="other")
            assert peers.send(other, port=service.dicom_port) == 0xA700
            peers.wait_until(lambda: ready(service)[0] == 503, what="not ready")
            assert "cannot be reached" in str(ready(service)[1]["bucket_reason"])
            network.mend()
            peers.wait_until(lambda: peers.send(other, port=service.dicom_port) == 0, what="films are taken again")
            service.wait_for("delivery.sent", count=4)
        second = on_bucket(settings_for(tmp_path / "second", archive_port=archive.port), s3)
        with (
            pytest.raises(InputError, match=r"another node holds the prefix journey"),
            app.run(second, reader=lambda: ScriptedReader("1")),
        ):
            pass
        Bucket(s3).delete("owner")
        sent = {request.sop_instance_uid: request.content for request in archive.requests}
        with Service(second) as service:
            service.wait_for("bucket.levelled")
            service.wait_for("study.restored", count=2)
            service.wait_for("delivery.sent", count=4)
        assert {request.sop_instance_uid: request.content for request in archive.requests} == sent


def test_a_node_ends_when_another_holds_its_bucket(server: S3Server, tmp_path: Path) -> None:
    s3 = server.settings(tmp_path, prefix="lost")
    with Service(on_bucket(settings_for(tmp_path / "node", archive_port=1), s3)) as service:
        Bucket(s3).put("owner", b"another", modified_ns=0)
        service.wait_for("bucket.lost")

        assert service.wait_until_dead() == 1


def test_a_node_without_its_bucket_does_not_start(server: S3Server, tmp_path: Path) -> None:
    settings = on_bucket(settings_for(tmp_path / "node", archive_port=1), server.settings(tmp_path, bucket="missing"))

    with (
        pytest.raises(InputError, match="the bucket does not exist"),
        app.run(settings, reader=lambda: ScriptedReader("1")),
    ):
        pass


def test_doctor_tries_the_bucket(server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir(mode=0o700)
    plain = settings_for(tmp_path / "node", archive_port=1)

    good = check_storage(on_bucket(plain, server.settings(tmp_path)))
    bad = check_storage(on_bucket(plain, server.settings(tmp_path, bucket="missing")))

    assert ["can be put" in check.message for check in good if check.name == "storage s3"] == [True]
    assert ["does not exist" in check.message for check in bad if check.name == "storage s3"] == [True]


def test_a_bucket_goes_with_one_process(tmp_path: Path) -> None:
    text = (
        config.render(settings_for(tmp_path / "node", archive_port=1))
        .replace("[storage]", '[storage]\ndatabase_url = "postgresql://chex@127.0.0.1/chex"', 1)
        .replace('database_url = ""\n', "", 1)
    )
    path = tmp_path / "node.toml"
    path.write_text(
        f"{text}\n[storage.s3]\nendpoint = 'http://127.0.0.1:1'\nbucket = 'films'\n"
        "access_key_file = 'a'\nsecret_key_file = 'b'\n"
    )

    with pytest.raises(ConfigError, match="one process uses a bucket"):
        config.load(path)
    for role in Role:
        refused = run_command("serve", path, "--only", role)

        assert refused.returncode == 2
        assert "storage.s3: one process uses a bucket" in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_a_second_process_does_not_get_at_the_bucket(server: S3Server, tmp_path: Path) -> None:
    settings = on_bucket(settings_for(tmp_path / "node", archive_port=1), server.settings(tmp_path, prefix="alone"))
    elsewhere = on_bucket(settings_for(tmp_path / "other", archive_port=1), server.settings(tmp_path, prefix="alone"))
    with Service(settings) as first:
        for second, said in (
            (settings, "another process node runs here"),
            (elsewhere, "another node holds the prefix"),
        ):
            (path := tmp_path / "second.toml").write_text(config.render(second), encoding="utf-8")
            refused = run_command("serve", path)

            assert refused.returncode == 2
            assert said in refused.stderr
        assert ready(first)[0] == 200


def test_kills_and_a_bucket_that_goes_away_lose_nothing(tmp_path: Path) -> None:
    figures = chaos.run(Cut(kills=2, films=10, seconds=3.0, seed=6), tmp_path, say=quiet)

    assert figures["passed"], str(figures)
