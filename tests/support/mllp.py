"""An information system that talks MLLP on 127.0.0.1: it takes results, or misbehaves in every way one does.

Messages are read and answered with the package `hl7`, of which the node knows nothing: a second opinion.
"""

from __future__ import annotations

import socket
import socketserver
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self

import hl7

from tests.support.peers import LOOPBACK

START, END = b"\x0b", b"\x1c\r"
_BOM = b"\xef\xbb\xbf"
BEFORE = {
    "nothing": b"",
    "a byte order mark": _BOM,
    "blanks": b"  \t",
    "line ends": b"\r\n\r\n",
    "two more starts": START + START,
    "all of it": START + _BOM + b" \r" + START + b"\n ",
    "zeros": b"\0\0",
}
"""What some systems send before a message."""


class Mood(Enum):
    """What the `InformationSystem` does with a message."""

    ACCEPT = auto()
    ERROR = auto()
    REJECT = auto()
    LATE_ANSWER = auto()  # to another message, and then to none
    LATE_AND_OWN_ANSWER = auto()
    CUT_NAME = auto()  # the control id without its last characters
    UNKNOWN_CODE = auto()
    HALF_AN_ANSWER = auto()
    WITHOUT_START = auto()
    WITHOUT_END = auto()  # and the connection stays open
    NONSENSE = auto()
    NO_ACKNOWLEDGMENT = auto()
    ENDLESS = auto()
    HANG = auto()
    DROP_BEFORE = auto()
    DROP_AFTER = auto()  # after it has kept the message
    RESET = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A message that was taken: its control id and its bytes."""

    control_id: str
    content: bytes


class InformationSystem:
    """A receiver in the test's own process. `mood` is asked anew for every message."""

    def __init__(
        self,
        mood: Callable[[], Mood] = lambda: Mood.ACCEPT,
        *,
        tls: ssl.SSLContext | None = None,
        condition: str = "",
        host: str = LOOPBACK,
        port: int = 0,
    ) -> None:
        self.mood, self.condition = mood, condition
        self.kept: list[Kept] = []
        self._changed, self._go_on = threading.Condition(), threading.Event()
        self._server = _Server((host, port), _Connection)
        self._server.system, self._server.tls = self, tls
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_for_kept(self, count: int, *, limit_seconds: float = 60.0) -> list[Kept]:
        """Wait until so many messages were taken, and return all of them."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.kept) >= count, limit_seconds):
                raise AssertionError(f"after {limit_seconds} s {len(self.kept)} messages had come instead of {count}")
            return list(self.kept)

    def answer(self, connection: socket.socket, content: bytes) -> None:
        """Do with one message what the mood says."""
        message = hl7.parse(content.decode())
        mood = self.mood()
        if mood in (Mood.ACCEPT, Mood.LATE_AND_OWN_ANSWER, Mood.DROP_AFTER):
            self._keep(Kept(control_id=str(message.segment("MSH")[10]), content=content))
        late = _framed(_acknowledgment(message, "AA").replace(str(message.segment("MSH")[10]), "EARLIER"))
        own = _framed(_acknowledgment(message, "AA"))
        match mood:
            case Mood.ACCEPT:
                connection.sendall(own)
            case Mood.ERROR | Mood.REJECT:
                code = "AE" if mood is Mood.ERROR else "AR"
                connection.sendall(_framed(_acknowledgment(message, code) + self._error()))
            case Mood.LATE_ANSWER:
                connection.sendall(late)
            case Mood.LATE_AND_OWN_ANSWER:
                connection.sendall(late + own)
            case Mood.CUT_NAME:
                control_id = str(message.segment("MSH")[10])
                connection.sendall(own.replace(control_id.encode(), control_id[:12].encode()))
            case Mood.UNKNOWN_CODE:
                connection.sendall(_framed(_acknowledgment(message, "OK")))
            case Mood.HALF_AN_ANSWER:
                connection.sendall(own[: len(own) // 2])
            case Mood.WITHOUT_START:
                connection.sendall(own[len(START) :])
            case Mood.WITHOUT_END:
                connection.sendall(own[: -len(END)])
                self._go_on.wait()
            case Mood.NONSENSE:
                connection.sendall(START + b"HTTP/1.1 400 Bad Request" + END)
            case Mood.NO_ACKNOWLEDGMENT:
                connection.sendall(_framed(content.decode()))
            case Mood.ENDLESS:
                with suppress(OSError):
                    for _ in range(64):
                        connection.sendall(b"x" * 65536)
            case Mood.HANG:
                self._go_on.wait()
            case Mood.RESET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case Mood.DROP_BEFORE | Mood.DROP_AFTER:
                pass

    def _error(self) -> str:
        return f"ERR|||{self.condition}^^HL70357|E\r" if self.condition else ""

    def _keep(self, kept: Kept) -> None:
        with self._changed:
            self.kept.append(kept)
            self._changed.notify_all()


class _Server(socketserver.ThreadingTCPServer):
    system: InformationSystem
    tls: ssl.SSLContext | None
    allow_reuse_address = True
    daemon_threads = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that leaves early, or does not believe our certificate, is what some tests want."""


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        connection: socket.socket = self.request
        connection.settimeout(60)
        if self.server.tls is not None:
            connection = self.server.tls.wrap_socket(connection, server_side=True)
        with connection:
            received = b""
            while not received.endswith(END):
                block = connection.recv(65536)
                if not block:
                    return
                received += block
            self.server.system.answer(connection, received[len(START) : -len(END)])


def ask(port: int, *contents: bytes) -> list[hl7.Message]:
    """Send messages over one connection, and return the answer to each; fewer when the connection ends."""
    answers: list[hl7.Message] = []
    with suppress(ConnectionError), socket.create_connection((LOOPBACK, port), timeout=60) as connection:
        for content in contents:
            connection.sendall(START + content + END)
            received = b""
            while not received.endswith(END):
                block = connection.recv(65536)
                if not block:
                    return answers
                received += block
            answers.append(hl7.parse(received[len(START) : -len(END)].decode()))
    return answers


def _acknowledgment(message: hl7.Message, code: str) -> str:
    return str(message.create_ack(code, message_id=f"{time.monotonic_ns()}")).rstrip("\r") + "\r"


def _framed(text: str) -> bytes:
    return START + text.encode() + END
