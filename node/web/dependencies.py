"""Dependencies of the pages: the settings, the spool, and the model of this process, if any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeAlias, cast

from anyio import Semaphore
from fastapi import Depends
from starlette.requests import Request

from node.config import Settings
from node.health.checks import Trouble
from node.jobs.patients import Patients
from node.jobs.question_answerer import QuestionAnswerer
from node.metrics import Metrics
from node.prompt_set import PromptSet
from node.read.model import OpenModel
from node.receive.intake import Intake
from node.store.spool import Spool
from node.web.look_files import Looks
from node.web.patients import Searches
from node.web.pictures import Pictures
from node.web.rate_limit import RateLimit

_MOST_STREAMS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WebParts:
    """The parts of a process that its pages use.

    in_force, prompts: the settings and prompts in force at this moment
    intake: stores objects that are submitted; None in a process that does not receive
    answerer: answers questions about films; None in a process that does not read, and until its model is open
    model: this process's model; None while it is not open, and in a process that does not read
    looks: films that are looked at without a study
    streams: places of clients that watch for changes; only the thread of the server takes one
    rate: how many questions one user may ask, about any film: 30 at once, and two a second
    moved: whose window of which film was moved within a minute, which is one look at it
    patients: which received films are of one patient
    troubles: returns the node's current troubles; see `health.checks`
    searches: the users' searches of the worklist
    """

    in_force: Callable[[], Settings]
    spool: Spool
    metrics: Metrics
    prompts: Callable[[], PromptSet]
    intake: Callable[[], Intake | None] = lambda: None
    answerer: Callable[[], QuestionAnswerer | None] = lambda: None
    model: Callable[[], OpenModel | None] = lambda: None
    looks: Looks
    pictures: Pictures = field(default_factory=Pictures)
    streams: Semaphore = field(default_factory=lambda: Semaphore(_MOST_STREAMS))
    rate: RateLimit = field(default_factory=lambda: RateLimit(burst=30, seconds=0.5))
    moved: RateLimit = field(default_factory=lambda: RateLimit(burst=1, seconds=60.0))
    patients: Patients = field(default_factory=Patients)
    troubles: Callable[[], Sequence[Trouble]] = tuple
    searches: Searches = field(default_factory=Searches)

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.in_force()


def _of(request: Request) -> WebParts:
    return cast(WebParts, request.app.state.parts)


Parts: TypeAlias = Annotated[WebParts, Depends(_of)]
"""The parameter of a route that gets the parts."""
