"""Read a deflated dataset (PS3.5 A.5) piece by piece: half a megabyte may inflate to gigabytes."""

from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING, BinaryIO, Final

from node.domain import Reason
from node.errors import Undecodable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK_BYTES: Final = 2**16
_MOST_BYTES: Final = 512 * 2**20
"""Four times the largest film that is decoded (`pixel_format.MAX_PIXELS`, 16 bits)."""


class Inflated(io.RawIOBase):
    """The inflated bytes of a file from its present position on; to be read through a `BufferedReader`.

    Nothing is cached: seeking backward starts anew, and seeking forward inflates the bytes in between.

    is_closed_too: whether the file is closed with it
    """

    def __init__(self, file: BinaryIO, *, is_closed_too: bool = False) -> None:
        super().__init__()
        self._is_closed_too = is_closed_too
        self._file, self._start, self.name = file, file.tell(), file.name
        self._begin()

    def close(self) -> None:
        """Close the stream, and its file too if this owns it."""
        super().close()
        if self._is_closed_too:
            self._file.close()

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Return the position in the inflated bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a position, which may lie behind the end. Raises the errors of `readinto`."""
        target = offset + (self._at if whence == io.SEEK_CUR else 0)
        if whence == io.SEEK_END or target < 0:
            raise io.UnsupportedOperation("the number of inflated bytes is unknown")
        if target < self._at:
            self._begin()
        while self._at < target and self._inflate(min(target - self._at, _CHUNK_BYTES)):
            pass
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Inflate into a buffer. Raises Undecodable above the limit, and zlib.error for a broken or cut off stream."""
        view = memoryview(buffer).cast("B")
        part = self._inflate(len(view))
        view[: len(part)] = part
        return len(part)

    def _begin(self) -> None:
        self._file.seek(self._start)
        self._inflater, self._at = zlib.decompressobj(-zlib.MAX_WBITS), 0

    def _inflate(self, most: int) -> bytes:
        """Return the next bytes, at most so many; none at the end."""
        part = b""
        while most and not part and not self._inflater.eof:
            waiting = self._inflater.unconsumed_tail or self._file.read(_CHUNK_BYTES)
            part = self._inflater.decompress(waiting, most)
            if not waiting and not part:
                raise zlib.error("the deflated stream is cut off")
        self._at += len(part)
        if self._at > _MOST_BYTES:
            raise Undecodable(Reason.UNDECODABLE, f"inflates to more than {_MOST_BYTES} bytes")
        return part
