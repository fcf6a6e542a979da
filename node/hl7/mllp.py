"""Frames of the Minimal Lower Layer Protocol (HL7 Implementation Guide, appendix C.4): VT, message, FS, CR.

Size and time of a frame are limited: an endless frame must not block anything.
"""

from __future__ import annotations

import re
import socket
import time
from typing import Final

LONGEST_MESSAGE: Final = 1024 * 1024

_START, _END, _RETURN = b"\x0b", b"\x1c", b"\x0d"
_BLANK: Final = b"\0\t\n\r "
_BEFORE_MESSAGE: Final = re.compile(rb"(?:[\0\t\n\x0b\r ]|\xef\xbb\xbf)+(?=MSH|FHS|BHS)")
_BLOCK = 64 * 1024


class BrokenFrame(ValueError):
    """The received bytes are not a frame: incomplete, too long, or something else."""


def frame(content: bytes) -> bytes:
    """Put a message into a frame. Raises ValueError for a message that contains a frame character."""
    if _START in content or _END in content:
        raise ValueError("a message must not contain frame characters")
    return _START + content + _END + _RETURN


class Frames:
    """Reads the frames of one connection in order."""

    def __init__(self, connection: socket.socket, *, limit_bytes: int = LONGEST_MESSAGE) -> None:
        self._connection, self._limit = connection, limit_bytes
        self._waiting = b""

    def next(self, *, idle_seconds: float | None, frame_seconds: float) -> bytes | None:
        """Return the next message, or None when the peer closed the connection between two frames.

        idle_seconds: how long to wait for the first byte; None: without limit. frame_seconds: for all other bytes
        Raises BrokenFrame; TimeoutError if nothing came, and other OSErrors of the connection.
        """
        if not self._strip() and not self._receive(idle_seconds):
            return None
        end = time.monotonic() + frame_seconds
        while _END not in self._waiting:
            if len(self._waiting) > self._limit:
                raise BrokenFrame(f"a frame has more than {self._limit} bytes")
            if not self._receive_until(end):
                if not self._strip():
                    return None
                raise BrokenFrame("the connection ended inside a frame")
        content, self._waiting = self._waiting.split(_END, 1)
        _, mark, message = content.partition(_START)  # bytes before the start character belong to no frame
        if not mark:
            raise BrokenFrame("a frame has no beginning")
        return _bare(message)

    def _strip(self) -> bytes:
        """Drop blanks between frames; some peers add a line end, some omit the last character. Returns the rest."""
        self._waiting = self._waiting.lstrip(_BLANK)
        return self._waiting

    def _receive_until(self, end: float) -> bool:
        """Wait for more bytes of a frame; end: on the monotonic clock. False at the end of the connection."""
        try:
            return self._receive(max(end - time.monotonic(), 0.001))
        except TimeoutError as error:
            raise BrokenFrame("a frame did not end in time") from error

    def _receive(self, seconds: float | None) -> bool:
        """Wait for more bytes; false at the end of the connection."""
        self._connection.settimeout(seconds)
        block = self._connection.recv(_BLOCK)
        self._waiting += block
        return bool(block)


def _bare(message: bytes) -> bytes:
    """Drop bytes that some peers send before the first segment: start characters, blanks, a byte order mark."""
    found = _BEFORE_MESSAGE.match(message)
    return message if found is None else message[found.end() :]
