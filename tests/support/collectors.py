"""Collectors of audit messages: a real rsyslog over TLS, and one that ends every connection with a reset."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.certificates import Authority
from tests.support.peers import LOOPBACK, free_port, require, wait_until


class Rsyslog:
    """rsyslog as a child process with settings of its own; keeps each message as it came, one a line.

    It may be stopped and started again on its port, as a collector that is away for a while.
    """

    def __init__(self, folder: Path, authority: Authority | None) -> None:
        """`authority` issues its certificate, and those of its clients; None: plain TCP."""
        self._program, self._folder, self.port = require("rsyslogd"), folder, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._received = folder / "received"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "rsyslog.conf").write_text(self._settings(authority), encoding="utf-8")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def messages(self) -> list[str]:
        """What it has received so far."""
        return self._received.read_text(encoding="utf-8").splitlines() if self._received.exists() else []

    def wait_for(self, text: str, *, count: int = 1) -> list[str]:
        """Wait until so many messages with a text came, and return those."""
        wait_until(lambda: len(self._with(text)) >= count, what=f"{count} messages with {text}")
        return self._with(text)

    def start(self) -> None:
        """Start it and wait until its port is open."""
        command = [self._program, "-n", "-f", str(self._folder / "rsyslog.conf"), "-i", str(self._folder / "pid")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._is_open, what=f"rsyslog on port {self.port}")

    def stop(self) -> None:
        """Stop it, if it runs; it writes what it has received before it ends."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=20)
            self._process = None

    def _with(self, text: str) -> list[str]:
        return [message for message in self.messages if text in message]

    def _is_open(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self.port)) == 0

    def _settings(self, authority: Authority | None) -> str:
        secured, driver = "", ""
        if authority is not None:
            own = authority.issue("collector")
            secured = (
                f' defaultNetstreamDriver="gtls" defaultNetstreamDriverCAFile="{authority.certificate}"'
                f' defaultNetstreamDriverCertFile="{own.certificate}" defaultNetstreamDriverKeyFile="{own.key}"'
            )
            driver = ' streamDriver.name="gtls" streamDriver.mode="1" streamDriver.authMode="x509/certvalid"'
        return f"""\
global(workDirectory="{self._folder}"{secured})
module(load="imtcp"{driver})
input(type="imtcp" address="{LOOPBACK}" port="{self.port}")
template(name="whole" type="string" string="%rawmsg%\\n")
action(type="omfile" file="{self._received}" template="whole" flushOnTXEnd="on")
"""


class ResettingCollector:
    """Accepts a connection and resets it without reading: what was sent to it is lost. Counts connections."""

    def __init__(self) -> None:
        self._socket = socket.create_server((LOOPBACK, 0))
        self.port = int(self._socket.getsockname()[1])
        self.connections = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Refuse connections from now on."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
