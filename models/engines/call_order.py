"""For whom an engine computes, a film or a person's question, and which calls are made in parts.

A film is read by a chain of calls, and a question, which is a chain of calls as well, goes between two of them
(`scheduler`). It never changes what a film's answer is: a film continues with what it had computed.

On the processor a large network is called in short parts, so that a question waits behind none for long. At the
published size 29 sentences take a quarter of a second or more; they are encoded in parts of MOST_TOKENS
(`Phrasebook.embed`), between which people go first. The parts depend on the call alone, so what else is computed
changes no result. Films of several callers are not joined: a batch saves little time there, and a detector of two films
does not compute the bits that it computes for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

_question: ContextVar[ExitStack | None] = ContextVar("question", default=None)
Most = Mapping[str, int]

UNLIMITED: Final[Most] = MappingProxyType({})
SHORT: Final[Most] = MappingProxyType({"encode_image": 1, "find": 1, "describe": 2, "view": 8})
"""Films of one part at the published size: 0.12 s at most, with one thread."""

MOST_TOKENS: Final = 154
"""Tokens of the phrases that are encoded at once, for every network: as long as the parts above at the published size.
More at once are no faster."""


@contextmanager
def for_person() -> Iterator[None]:
    """Let the calls that this thread makes in the block go before those of films; between two, films wait a moment."""
    if _question.get() is not None:
        yield
        return
    with ExitStack() as question:
        token = _question.set(question)
        try:
            yield
        finally:
            _question.reset(token)


def current_question() -> ExitStack | None:
    """Return the question that this thread works for; None if it works for a film. It ends when the block ends."""
    return _question.get()
