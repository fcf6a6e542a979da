"""What brings audit messages to a collector: a real rsyslog with the shipped file, and a collector that takes them."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.paths import REPOSITORY
from tests.support.certificates import Authority
from tests.support.peers import LOOPBACK, free_port, require, wait_until

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
        self._server: socket.socket | None = None
        self._connections: list[ssl.SSLSocket] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def messages(self) -> list[str]:
        """What came, without what came again; in the order in which it came first."""
        return [line.decode() for line in dict.fromkeys(list(self._lines))]

    def wait_for(self, count: int) -> list[str]:
        """Wait for so many messages, and return those that came."""
        wait_until(lambda: len(self.messages) >= count, what=f"{count} messages", limit_seconds=90.0)
        return self.messages

    def start(self) -> None:
        """Accept connections."""
        self._server = socket.create_server((LOOPBACK, self.port))
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and end those that are open in the middle of what they say."""
        if self._server is not None:
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
            self._server = None
        for connection in self._connections:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # while its thread reads, as a machine that ends
        self._connections.clear()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                plain, _ = server.accept()
                connection = self._context.wrap_socket(plain, server_side=True)
            except ssl.SSLError:
                continue
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: ssl.SSLSocket) -> None:
        rest = b""
        while True:
            try:
                new = connection.recv(2**16)
            except OSError:
                new = b""
            if not new:
                connection.close()
                return
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

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it."""
        (self._folder / "pid").unlink(missing_ok=True)
        command = [require("rsyslogd"), "-n", "-f", str(self._folder / "rsyslog.conf"), "-i", str(self._folder / "pid")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        """Stop it in order, if it runs."""
        self._end(is_killed=False)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._end(is_killed=True)

    def _end(self, *, is_killed: bool) -> None:
        if self._process is not None:
            self._process.kill() if is_killed else self._process.terminate()
            self._process.wait(timeout=30)
            self._process = None
