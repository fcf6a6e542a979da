"""The shipped files for rsyslog and logrotate: every line of the audit trail reaches a collector, whole."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from node.audit import message
from node.audit.message import Reporter
from tests.paths import REPOSITORY
from tests.support.certificates import Authority
from tests.support.collectors import Collector, Forwarder
from tests.support.peers import require

AT = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
REPORTER = Reporter(ae_title="CHEX", machine="reader-1", executor="node", process_id=4711)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.found(tmp_path_factory.mktemp("ca"))


class Trail:
    """A file of audit messages, and what was written into it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.file = folder / "audit.log"
        self.written: list[str] = []

    def write(self, count: int, *, size: int = 1400) -> None:
        """Add messages of about so many bytes, each different from all others."""
        first = len(self.written)
        texts = [f'<A n="{number}" x="{"ö" * (size // 2)}"/>' for number in range(first, first + count)]
        lines = [message.line(text, at=AT, reporter=REPORTER).decode() for text in texts]
        with self.file.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        self.written += lines


@contextmanager
def forwarded(folder: Path, authority: Authority) -> Iterator[tuple[Trail, Collector, Forwarder]]:
    """A file that rsyslog forwards to a collector, which has taken a first message."""
    trail = Trail(folder / "trail")
    with (
        Collector(authority) as collector,
        Forwarder(folder / "rsyslog", authority, file=trail.file, port=collector.port) as forwarder,
    ):
        trail.write(1)
        arrived(trail, collector)
        yield trail, collector, forwarder


def arrived(trail: Trail, collector: Collector) -> None:
    """Wait until everything came that was written; none may be cut off, changed or missing."""
    assert sorted(collector.wait_for(len(trail.written))) == sorted(trail.written)


def test_a_thousand_messages_in_a_second_and_a_large_one_arrive(tmp_path: Path, authority: Authority) -> None:
    with forwarded(tmp_path, authority) as (trail, collector, _):
        trail.write(1000)
        trail.write(1, size=20_000)
        arrived(trail, collector)

    assert collector.messages == trail.written
    assert trail.written[0].startswith(
        "<85>1 2026-03-01T12:30:15.250Z reader-1 chex-node 4711 DICOM+RFC3881 - \ufeff<A"
    )


def test_nothing_is_lost_while_the_collector_is_away(tmp_path: Path, authority: Authority) -> None:
    with forwarded(tmp_path, authority) as (trail, collector, _):
        collector.stop()
        for _ in range(3):
            trail.write(400)
            time.sleep(1.0)
        collector.start()
        arrived(trail, collector)


@pytest.mark.drill(part="peers")
def test_nothing_is_lost_when_rsyslog_or_the_collector_ends_at_work(tmp_path: Path, authority: Authority) -> None:
    with forwarded(tmp_path, authority) as (trail, collector, forwarder):
        for end in (forwarder.stop, forwarder.kill, forwarder.kill, forwarder.stop):
            trail.write(1000)
            collector.wait_for(len(trail.written) - 900)
            end()
            trail.write(10)
            forwarder.start()
            arrived(trail, collector)
        collector.stop()
        trail.write(300)
        forwarder.kill()
        forwarder.start()
        collector.start()
        arrived(trail, collector)


@pytest.mark.drill(part="peers")
def test_a_file_that_is_rotated_is_read_to_its_end(tmp_path: Path, authority: Authority) -> None:
    with forwarded(tmp_path, authority) as (trail, collector, _):
        for number in range(2):
            trail.write(50)
            rotate(trail, tmp_path, f"2026-0{number + 1}-01")
            trail.write(50)
            arrived(trail, collector)
        collector.stop()
        trail.write(50)
        rotate(trail, tmp_path, "2026-03-01")
        trail.write(50)
        collector.start()
        arrived(trail, collector)

    rotated = sorted(path.name for path in trail.file.parent.iterdir())
    assert len(rotated) == 4
    assert rotated[0] == "audit.log"


def rotate(trail: Trail, folder: Path, day: str) -> None:
    """Run logrotate with the shipped file, in the folder of a trail; day: ends the name of the rotated file."""
    shipped = (REPOSITORY / "deploy" / "logrotate" / "chex-node").read_text(encoding="utf-8")
    own = shipped.replace("/var/log/chex-node/audit.log", str(trail.file)).replace("su chex-node chex-node", "")
    own = own.replace("dateext", f"dateext\n    dateformat -{day}")
    (folder / "rotation").write_text(own, encoding="utf-8")
    trail.file.parent.chmod(0o700)
    command = [require("logrotate"), "--force", "--state", str(folder / "state"), str(folder / "rotation")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not trail.file.exists()
