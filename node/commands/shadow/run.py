"""Reads the newest stored films with two models, one after the other, and stores that they were compared."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from models.contract import PromptKind
from node import log
from node.commands.shadow.comparison import FilmPair, ModelComparison, compare
from node.config import Settings
from node.domain import Film, FindingState, JsonObject, ModelIdentity
from node.errors import InputError, Undecodable
from node.jobs import answered_film
from node.prompt_set import PromptSet
from node.read import prompts
from node.read.film import answer_film
from node.read.manifest import read_film_rule
from node.read.model import RadiographReader
from node.read.open_model import open_configured
from node.store import files
from node.store.instances import Instance, newest_reading
from node.store.promotions import LEAST_FILMS, Promotions, key_of
from node.store.spool import Spool

Tell = Callable[[str, int, int], None]

_THE_SAME: Final = "the settings name this model and these prompts already; name another --model or --prompt-set"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model directory, the network that reads with it, and the name of a prompt set."""

    model: Path
    reader: str
    prompts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """Two models, what was compared, and how many films were skipped because they cannot be read any more.

    wanted: how many films a comparison must have for the new model to be served
    measured: for how many of its findings the new model states a threshold that was measured
    unmeasured: the findings for which only the model in use states one
    """

    old: ModelIdentity
    new: ModelIdentity
    prompts: tuple[PromptSet, PromptSet]
    comparison: ModelComparison
    skipped: int
    wanted: int
    measured: int
    unmeasured: tuple[str, ...]


def candidate(
    settings: Settings, *, model: Path | None, prompt_set: str | None, reader: str | None = None
) -> Candidate:
    """Return what to compare; what is None stays as the settings have it."""
    used = settings.model
    return Candidate(model=model or used.directory, reader=reader or used.reader, prompts=prompt_set or used.prompts)


def shadow(settings: Settings, new: Candidate, *, last: int, threads: int, tell: Tell) -> Shadow:
    """Compare the model of the settings with another one on the newest stored films, and store that it was done.

    threads: of each model, 0: all cores; tell: is called with the stage, the films done and all films
    Raises InputError if both are the same, a model cannot be opened, or the node has no film that was read.
    """
    files.require_started(settings.storage.directory)
    spool = Spool(settings.storage.directory)
    stored = list(islice(_newest(spool), max(last, LEAST_FILMS)))
    chosen = stored[:last]
    if not chosen:
        raise InputError("this node has read no film that is still stored; compare after it has read some")
    used = candidate(settings, model=None, prompt_set=None)
    if new == used:
        raise InputError(_THE_SAME)
    sides: list[_Side] = []
    for stage, side in (("new model", new), ("model in use", used)):
        prompt_set = prompts.load(side.prompts)
        reader = open_configured(settings, prompt_set, directory=side.model, reader=side.reader, threads=threads)
        if sides and key_of(reader.identity, prompt_set) == key_of(sides[0].identity, sides[0].prompts):
            raise InputError(_THE_SAME)
        films = [
            _answer(found, reader, prompt_set, tell=tell, at=(stage, number, len(chosen)))
            for number, found in enumerate(chosen, start=1)
        ]
        sides.append(_Side(identity=reader.identity, prompts=prompt_set, films=films))
        del reader  # so that only one model is in memory
    after, before = sides
    pairs = [
        FilmPair(old=was, new=becomes, judged=_judged(spool, found, before.prompts))
        for found, was, becomes in zip(chosen, before.films, after.films, strict=True)
        if was is not None and becomes is not None
    ]
    measured = [read_film_rule(side.model, reader=side.reader).measured for side in (used, new)]
    result = Shadow(
        old=before.identity,
        new=after.identity,
        prompts=(before.prompts, after.prompts),
        comparison=compare(pairs, old=before.findings, new=after.findings),
        skipped=len(chosen) - len(pairs),
        wanted=max(1, min(LEAST_FILMS, len(stored) - (len(chosen) - len(pairs)))),
        measured=len(measured[1]),
        unmeasured=tuple(key for key in before.findings if key in measured[0] and key not in measured[1]),
    )
    record = _record(result)
    Promotions(settings.storage.directory).keep_comparison(key_of(after.identity, after.prompts), record)
    log.get().info(
        "model.compared",
        model=record["new"],
        prompts=after.prompts.title,
        films=record["films"],
        changed=record["changed"],
        compared_at=record["at"],
        compared_by=record["by"],
    )
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """What one model said; films: None for one that cannot be read."""

    identity: ModelIdentity
    prompts: PromptSet
    films: list[Film | None]

    @property
    def findings(self) -> list[str]:
        return [prompt.key for prompt in self.prompts.prompts if prompt.kind is PromptKind.PATHOLOGY]


def _newest(spool: Spool) -> Iterator[Instance]:
    """Yield the films that were answered, the newest first."""
    stored = [found for study_uid in spool.studies() for found in spool.study(study_uid).instances]
    for instance in sorted(stored, key=lambda found: found.received_at, reverse=True):
        if newest_reading(spool.readings(instance.study_uid), instance) is not None:
            yield instance


def _answer(
    instance: Instance, reader: RadiographReader, prompt_set: PromptSet, *, tell: Tell, at: tuple[str, int, int]
) -> Film | None:
    """Answer one film; None if it was removed meanwhile, or is damaged."""
    try:
        film = answer_film(instance.path, reader, prompt_set).film
    except (Undecodable, OSError):
        film = None
    tell(*at)
    return film


def _judged(spool: Spool, instance: Instance, prompt_set: PromptSet) -> dict[str, bool]:
    """Return what readers said of the findings of a film, by prompt: whether it is present."""
    try:
        film = answered_film.as_corrected(answered_film.read_film(spool, instance), spool, prompt_set)
    except InputError:
        return {}
    return {found.prompt: found.state is FindingState.PRESENT for found in film.findings if found.reader is not None}


def _record(found: Shadow) -> JsonObject:
    """Return what the audit trail keeps of a comparison: who, when, which models, how many films; no film."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "by": getpass.getuser(),
        "old": f"{found.old.name} {found.old.version}",
        "new": f"{found.new.name} {found.new.version}",
        "films": found.comparison.films,
        "changed": found.comparison.changed,
        "wanted": found.wanted,
        "measured": found.measured,
        "unmeasured": list(found.unmeasured),
    }
