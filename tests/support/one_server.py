"""Lets every process that is forked from a server of multiprocessing fork its own processes from that server, too.

Only the server imports this. Python 3.11 to 3.13 would start another one in each of them, which imports all again,
though a forked process knows address and pipe of its server.
"""

from multiprocessing import forkserver


def _is_running() -> None:
    """Do nothing: the server runs as long as the process that started it."""


forkserver.ensure_running = _is_running
forkserver._forkserver.ensure_running = _is_running  # type: ignore[method-assign]
