"""A person's question to the network: it goes before the films that wait, and leaves once nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from node.errors import AskerGone


def for_person() -> AbstractContextManager[None]:
    """Let what this thread asks the network in the block go before the films that wait."""
    from models.engines import turns

    return turns.for_person()


@contextmanager
def while_wanted(is_gone: Callable[[], bool]) -> Iterator[None]:
    """Let what this thread asks the network in the block leave its queue once who asked has gone. Raises AskerGone.

    is_gone: is asked in this thread, ten times a second; a GPU answers a question that has begun to its end
    """
    from models.engines import scheduler
    from models.errors import Abandoned

    try:
        with scheduler.while_wanted(is_gone):
            yield
    except Abandoned as error:
        raise AskerGone("nobody waits for this answer any more") from error
