"""The shipped files for rsyslog and logrotate: every line of the audit trail reaches a collector, whole."""

from __future__ import annotations

import re
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from node.audit import message
from node.audit.message import Reporter
from tests.paths import REPOSITORY
from tests.support.certificates import Authority
from tests.support.peers import LOOPBACK, free_port, require, wait_until

AT = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
REPORTER = Reporter(ae_title="CHEX", machine="reader-1", executor="node", process_id=4711)
SHIPPED = REPOSITORY / "deploy" / "rsyslog" / "chex-node-audit.conf"


class Collector:
    """Takes syslog over TLS (RFC 5425) from clients with a certificate of an authority; keeps each message.

    It may be stopped and started again on its port, as a collector that is away for a while.
    """

    def __init__(self, authority: Authority) -> None:
        own = authority.issue("collector")
        self.port, self._lines = free_port(), list[bytes]()
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
        self._context.load_cert_chain(own.certificate, own.key)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._server = socket.socket()
        self._connections: list[ssl.SSLSocket] = []

    @property
    def messages(self) -> list[str]:
        """What came, without what came again; in the order in which it came first."""
        return [line.decode() for line in dict.fromkeys(list(self._lines))]

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.messages) >= count, what=f"{count} messages", limit_seconds=90.0)

    def start(self) -> None:
        self._server = socket.create_server((LOOPBACK, self.port))
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and end those that are open in the middle of what they say."""
        with suppress(OSError):  # it does not listen
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._connections:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # while its thread reads, as a machine that ends
        self._connections.clear()

    def _accept(self, server: socket.socket) -> None:
        with suppress(OSError):  # until it is closed
            while True:
                plain, _ = server.accept()
                with suppress(ssl.SSLError):
                    connection = self._context.wrap_socket(plain, server_side=True)
                    self._connections.append(connection)
                    threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: ssl.SSLSocket) -> None:
        rest = b""
        with connection, suppress(OSError):
            while new := connection.recv(2**16):
                rest += new
                while (frame := re.match(rb"(\d+) ", rest)) and len(rest) >= (end := frame.end() + int(frame[1])):
                    self._lines.append(rest[frame.end() : end])
                    rest = rest[end:]


class Forwarder:
    """rsyslog as a child process with the shipped file, but for its places: it reads a file of audit messages."""

    def __init__(self, folder: Path, authority: Authority, *, file: Path, port: int) -> None:
        own, self._folder = authority.issue("node"), folder
        folder.mkdir(parents=True, exist_ok=True)
        text = SHIPPED.read_text(encoding="utf-8")
        places = {
            'target="audit.hospital.example" port="6514"': f'target="{LOOPBACK}" port="{port}"',
            'PermittedPeers="audit.hospital.example"': 'PermittedPeers="localhost"',
            "/etc/chex-node/hospital-ca.pem": str(authority.certificate),
            "/etc/chex-node/node.pem": str(own.certificate),
            "/etc/chex-node/node.key": str(own.key),
            "/var/log/chex-node/audit.log": str(file),
        }
        for shipped, here in places.items():
            assert text.count(shipped) == 1, shipped
            text = text.replace(shipped, here)
        (folder / "rsyslog.conf").write_text(f'global(workDirectory="{folder}")\n{text}', encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self._folder / "pid").unlink(missing_ok=True)
        command = [require("rsyslogd"), "-n", "-f", str(self._folder / "rsyslog.conf"), "-i", str(self._folder / "pid")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop it, if it runs: in order, or by another signal."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=30)
            self._process = None


class Trail:
    """A file of audit messages, and what was written into it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.file, self.written = folder / "audit.log", list[str]()

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
    trail, collector = Trail(folder / "trail"), Collector(authority)
    forwarder = Forwarder(folder / "rsyslog", authority, file=trail.file, port=collector.port)
    collector.start()
    forwarder.start()
    try:
        trail.write(1)
        arrived(trail, collector)
        yield trail, collector, forwarder
    finally:
        forwarder.stop()
        collector.stop()


def arrived(trail: Trail, collector: Collector) -> None:
    """Wait until everything came that was written; none may be cut off, changed or missing."""
    collector.wait_for(len(trail.written))
    assert sorted(collector.messages) == sorted(trail.written)


def test_a_thousand_messages_in_a_second_and_a_large_one_arrive(tmp_path: Path, authority: Authority) -> None:
    with forwarded(tmp_path, authority) as (trail, collector, _):
        trail.write(1000)
        trail.write(1, size=20_000)
        arrived(trail, collector)

    assert collector.messages == trail.written
    assert trail.written[0].startswith(
        "<85>1 2026-03-01T12:30:15.250Z reader-1 chex-node 4711 DICOM+RFC3881 - \ufeff<A"
    )


@pytest.mark.drill(part="peers")
def test_nothing_is_lost_when_rsyslog_or_the_collector_ends_at_work(tmp_path: Path, authority: Authority) -> None:
    with forwarded(tmp_path, authority) as (trail, collector, forwarder):
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
            trail.write(1000)
            collector.wait_for(len(trail.written) - 900)
            forwarder.stop(number)
            trail.write(10)
            forwarder.start()
            arrived(trail, collector)
        collector.stop()
        trail.write(300)
        forwarder.stop(signal.SIGKILL)
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
