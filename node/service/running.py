"""The running parts of a process, which take changed callers, destinations and prompts into use, or refuse the file.

A file is refused as a whole: if one line is wrong, or one changed setting needs a restart, all old settings stay in
force. The result is written to a file, which `node reload` waits for.

The phrases of a changed prompt set are encoded between the films that are being read. A round that has begun is
finished with the prompts it began with.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from node import config, log
from node.config import Settings
from node.errors import ConfigError, NodeError, where
from node.jobs import processes
from node.jobs.processes import Process
from node.jobs.question_answerer import QuestionAnswerer
from node.net import tls
from node.prompt_set import PromptSet
from node.read import prompts
from node.read.model import OpenModel
from node.service.http import Readiness
from node.service.model import admit, publish
from node.service.receiver import Receiving
from node.service.shared import Shared
from node.service.worker import Working, watch_certificates
from node.settings.destinations import kinds_of
from node.store import files
from node.web import access

_PROMPTS: Final = "model.prompts"
_RELOADED: Final = frozenset(("listener.callers", "destinations", _PROMPTS, "model.uncompared"))


@dataclass(slots=True, kw_only=True)
class Running:
    """The parts of a process that are open so far.

    ports: the open ones by their name in log lines, each with its real number, also where the settings have 0
    """

    shared: Shared
    ports: Mapping[str, int] = field(default_factory=dict)
    receiving: Receiving | None = None
    model: OpenModel | None = None
    answerer: QuestionAnswerer | None = None
    working: Working | None = None

    @property
    def is_broken(self) -> bool:
        """Whether the process must end."""
        return (
            (self.working is not None and self.working.running.is_broken)
            or (self.receiving is not None and self.receiving.damaged.is_set())
            or (self.answerer is not None and self.answerer.is_broken)
        )

    def readiness(self) -> Readiness:
        """Return the state of each part that this process has or will have."""
        process, parts = self.shared.process, {"disk": self.shared.spool.has_room}
        facts: dict[str, object] = {}
        workers = []
        if self.receiving is not None:
            parts["listener"] = self.receiving.listener.is_listening
            if self.receiving.orders is not None:
                parts["orders"] = self.receiving.orders.is_listening
            workers.append(self.receiving.submitter.is_alive)
        if process.reads or process.sends:
            workers.append(self.working is not None and self.working.is_good)
        if process.reads:
            parts["model"] = self.model is not None
        if self.model is not None:
            facts["engine"] = self.model.reader.identity.engine
            facts["fallbacks"] = {fallback.engine: fallback.reason for fallback in self.model.reader.fallbacks}
        return Readiness(parts={**parts, "workers": all(workers)}, facts=facts)

    def reload(self, path: Path) -> None:
        """Read the settings file again, put it to use or refuse it, and record which."""
        shared, old = self.shared, self.shared.settings
        mistakes: tuple[str, ...] = ()
        changed: list[str] = []
        try:
            new = config.load(path)
            tls.check_files(new)
            access.check_files(new.http)
            prompt_set = prompts.load(new.model.prompts)
            if complaints := needs_restart(old, new, process=shared.process):
                raise ConfigError(complaints)
            changed = differences(old, new)
            if prompt_set != shared.prompts.current:
                changed = [*dict.fromkeys((*changed, _PROMPTS))]
            if changed:
                self._use(new, prompt_set)
        except NodeError as error:
            mistakes = tuple(str(error).split("\n"))
        except Exception as error:  # a boundary: a node that cannot reload keeps its settings
            mistakes = (f"the settings could not be put to use ({where(error)}); try again, or restart the node",)
        if mistakes:
            log.get().error("configuration.refused", message="; ".join(mistakes))
        else:
            log.get().info("configuration.reloaded", message=", ".join(changed) or "nothing has changed")
        content = {"at": time.time_ns(), "mistakes": list(mistakes), "changed": [] if mistakes else changed}
        files.write(processes.path_of(old.storage, shared.process, "reload"), files.to_json(content))

    def _use(self, settings: Settings, prompt_set: PromptSet) -> None:
        """Put callers, destinations and prompts to use. Only the first steps can fail: phrases, queues and comparison.

        Raises InputError for prompts that do not fit the model, or were not compared with those in use.
        """
        shared, working, destinations = self.shared, self.working, settings.destinations
        model = None
        if self.model is not None and self.model.prompts != prompt_set:
            self.model.reader.prepare(prompt_set)
            model = replace(self.model, prompts=prompt_set)
        if working is not None:
            working.executor.register_destinations(destinations)
        if model is not None:
            admit(settings, model.reader.identity, model.prompts)
            if working is not None:
                working.use_prompts(model.prompts)
            publish(model, shared.metrics)
            log.get().info("prompts.reloaded", prompts=model.prompts.title)
        if working is not None:
            watch_certificates(destinations, shared.metrics)
        shared.metrics.expect(destinations=[destination.name for destination in destinations], prompts=())
        shared.destinations.replace(destinations)
        if self.receiving is not None:
            self.receiving.listener.admit_only(settings.listener.callers)
        shared.prompts.current = prompt_set
        self.shared = replace(shared, settings=settings)
        if model is not None:
            self.model = model
            if self.answerer is not None:
                self.answerer.use(model)


def differences(old: Settings, new: Settings) -> list[str]:
    """Return the full keys of the settings that differ; a list of tables counts as one."""
    return [key for table in dataclasses.fields(Settings) for key in _differences(table.name, old, new)]


def _differences(table: str, old: Settings, new: Settings) -> Iterator[str]:
    before, after = getattr(old, table), getattr(new, table)
    if before == after:
        return
    if type(before) is not type(after) or not dataclasses.is_dataclass(before):
        yield table
        return
    for item in dataclasses.fields(before):
        if getattr(before, item.name) != getattr(after, item.name):
            yield f"{table}.{item.name}"


def needs_restart(old: Settings, new: Settings, *, process: Process) -> list[str]:
    """Return a complaint for each changed setting that a running process cannot put to use."""
    found = [f"{key}: needs a restart" for key in differences(old, new) if key not in _RELOADED]
    if process.reads and (unwritten := kinds_of(new.destinations) - kinds_of(old.destinations)):
        found.append(f"destinations.outputs: {', '.join(sorted(unwritten))} needs a restart, no destination had it yet")
    names = {destination.name for destination in old.destinations}
    if process.only is not None and process.sends:
        added = [destination.name for destination in new.destinations if destination.name not in names]
        found += [f"destinations: {name} is new; a process with --only needs a restart for it" for name in added]
    return found
