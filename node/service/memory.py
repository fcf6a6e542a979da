"""How the process takes memory from the system, and gives it back.

Films are large and are read by changing threads. As glibc comes, each thread takes its memory for a film from the
system and gives it back, and the pages are made again for the next film. In a virtual machine, whose new pages may come
from the host, that cost more than the decoding itself. With one arena for all threads the next film finds the memory of
the last one, and less of it is held.
"""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # numbers of mallopt(3)
_LARGEST_BYTES: Final = 32 * 2**20
"""What is larger is given back at once; glibc takes no larger value."""
_KEPT_BYTES: Final = 128 * 2**20
"""How much free memory is kept for the next film."""


def keep_between_films() -> None:
    """Keep the memory of a film for the next one; call it before threads start. Does nothing without glibc."""
    options = getattr(ctypes.CDLL(None), "mallopt", None)
    if options is None:
        return
    for option, value in (
        (_ARENA_MAX, 1),
        (_MMAP_THRESHOLD, _LARGEST_BYTES),
        (_TRIM_THRESHOLD, _KEPT_BYTES),
    ):
        options(option, value)
