"""Takes changed callers, destinations and prompts into use while the node runs, or refuses the settings file.

A file is refused as a whole: if one line is wrong, or one changed setting needs a restart, all old settings stay in
force. The result is written to a file, which `node reload` waits for.

The phrases of a changed prompt set are encoded between the films that are being read. A round that has begun is
finished with the prompts it began with.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from node import config, log
from node.config import Settings
from node.errors import ConfigError, NodeError, where
from node.jobs import processes
from node.jobs.processes import Process
from node.net import tls
from node.prompt_set import PromptSet
from node.read import prompts
from node.read.model import OpenModel
from node.service.model import admit, publish
from node.service.receiver import Receiving
from node.service.shared import Shared
from node.service.worker import Working, watch_certificates
from node.settings.destinations import kinds_of
from node.store import files
from node.web import access

_PROMPTS: Final = "model.prompts"
_RELOADED: Final = frozenset(("listener.callers", "destinations", _PROMPTS, "model.uncompared"))


def reload(
    path: Path,
    shared: Shared,
    *,
    working: Working | None,
    receiving: Receiving | None,
    model: OpenModel | None,
    use_model: Callable[[OpenModel], None],
) -> Settings:
    """Read the settings file again, put it to use or refuse it, and record which; returns the settings in force.

    model: the model in use; None in a process that does not read
    use_model: is called with the same reader and other prompts, and cannot fail
    """
    old, process = shared.settings, shared.process
    in_force = old
    mistakes: tuple[str, ...] = ()
    changed: list[str] = []
    try:
        new = config.load(path)
        tls.check_files(new)
        access.check_files(new.http)
        prompt_set = prompts.load(new.model.prompts)
        if complaints := needs_restart(old, new, process=process):
            raise ConfigError(complaints)
        changed = differences(old, new)
        if prompt_set != shared.prompts.current:
            changed = [*dict.fromkeys((*changed, _PROMPTS))]
        if changed:
            other = _prepared(model, prompt_set)
            _use(new, shared, working=working, receiving=receiving, model=other)
            shared.prompts.current, in_force = prompt_set, new
            if other is not None:
                use_model(other)
    except NodeError as error:
        mistakes = tuple(str(error).split("\n"))
    except Exception as error:  # a boundary: a node that cannot reload keeps its settings
        mistakes = (f"the settings could not be put to use ({where(error)}); try again, or restart the node",)
    if mistakes:
        log.get().error("configuration.refused", message="; ".join(mistakes))
    else:
        log.get().info("configuration.reloaded", message=", ".join(changed) or "nothing has changed")
    content = {"at": time.time_ns(), "mistakes": list(mistakes), "changed": [] if mistakes else changed}
    files.write(processes.path_of(old.storage, process, "reload"), files.to_json(content))
    return in_force


def _prepared(model: OpenModel | None, prompt_set: PromptSet) -> OpenModel | None:
    """Return the model with other prompts, whose phrases are encoded.

    None if the process reads with these already, or does not read.
    Raises InputError for prompts that do not fit the model.
    """
    if model is None or model.prompts == prompt_set:
        return None
    model.reader.prepare(prompt_set)
    return replace(model, prompts=prompt_set)


def _use(
    settings: Settings,
    shared: Shared,
    *,
    working: Working | None,
    receiving: Receiving | None,
    model: OpenModel | None,
) -> None:
    """Put callers, destinations and prompts to use. Only the first steps can fail: queues and comparison.

    model: with other prompts; None if they are the same
    Raises InputError for prompts that were not compared with those in use.
    """
    destinations = settings.destinations
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
    if receiving is not None:
        receiving.listener.admit_only(settings.listener.callers)


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
