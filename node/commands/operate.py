"""The operator's commands: show a node's state, abandon a destination, have its processes read their settings again.

`jobs/study_actions` retries parked work.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypedDict
from zoneinfo import ZoneInfo

from node.config import Settings
from node.domain import DELIVERY_STATES, STUDY_STATES, DeliveryState, JsonObject
from node.errors import ConfigError, InputError, OtherForm, RetryLater
from node.jobs import processes
from node.net import callers
from node.orders.store import OrderStore
from node.store import database, files, received
from node.store.ledger import open_ledger

_PATIENCE_SECONDS: Final = 0.5
"""How long a process of this machine may take to answer: it takes a millisecond, and less than this under load."""
_RELOAD_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05


class Status(TypedDict):
    """The state of a node (design §8)."""

    ready: bool
    processes: dict[str, bool | None]
    studies: dict[str, int]
    not_delivered: int
    corrections: dict[str, dict[str, object]]
    deliveries: dict[str, dict[str, int]]
    paused: dict[str, dict[str, str]]
    abandoned: dict[str, int]
    orders: dict[str, int]
    conflicts: list[dict[str, str]]
    doubled: dict[str, list[str]]
    refused_callers: list[dict[str, object]]
    damaged_databases: list[str]
    parked: list[dict[str, str]]


def status(settings: Settings) -> Status:
    """Return the state of a node (design §8)."""
    with open_ledger(settings.storage) as ledger:
        running = processes.states(settings.storage, settings.http, patience_seconds=_PATIENCE_SECONDS)
        overview, undelivered = ledger.overview(), ledger.undelivered_count()
        parked = [asdict(work) for work in ledger.parked()]
        corrections = _corrections(settings)
    studies, pauses, counts = overview.studies, overview.pauses, overview.deliveries
    return {
        "ready": any(process.ready for process in running) and all(process.ready is not False for process in running),
        "processes": {process.executor: process.ready for process in running},
        "studies": {state: studies.get(state, 0) for state in STUDY_STATES},
        "not_delivered": undelivered,
        "corrections": corrections,
        "deliveries": {
            destination.name: {
                **{str(state): counts.get((destination.name, state), 0) for state in DELIVERY_STATES},
                "paused": destination.name in pauses,
            }
            for destination in settings.destinations
        },
        "paused": {
            destination.name: {"since": datetime.fromtimestamp(pause.since, UTC).isoformat(), "reason": pause.reason}
            for destination in settings.destinations
            if (pause := pauses.get(destination.name)) is not None
        },
        "abandoned": {name: count for (name, state), count in counts.items() if state == DeliveryState.ABANDONED},
        "orders": OrderStore(settings.storage.directory).counts(),
        "conflicts": _conflicts(settings.storage.directory),
        "doubled": _doubled(settings.storage.directory),
        "refused_callers": [
            {
                **asdict(caller),
                "to_do": callers.to_do(
                    caller.reason, calling_aet=caller.calling_aet, own_title=settings.listener.ae_title
                ),
                "settings": callers.settings_for(caller),
            }
            for caller in callers.read_all(settings.storage.directory)
        ],
        "damaged_databases": [str(path) for path in database.files_set_aside(settings.storage)],
        "parked": parked,
    }


def abandon(settings: Settings, destination: str, *, force: bool = False) -> int:
    """End all open deliveries to a destination, so that its studies can age out; returns their number.

    force: also when the destination is in the settings
    Raises InputError for a destination in the settings without `force`, or for one without deliveries.
    """
    if not force and any(known.name == destination for known in settings.destinations):
        raise InputError(
            f"{destination}: is still in the settings; remove it there and reload the settings first,"
            " or add --force to end what waits for it now"
        )
    with open_ledger(settings.storage) as ledger:
        if not any(name == destination for name, _ in ledger.overview().deliveries):
            raise InputError(f"{destination}: there are no deliveries to it; `node status` shows what is parked")
        return ledger.abandon(destination)


def _corrections(settings: Settings) -> dict[str, dict[str, object]]:
    """Return by study how many corrections wait, and when they leave; only of studies for which that is queued."""
    if not any(settings.storage.directory.glob("studies/*/corrections")):
        return {}
    # DBOS and pydicom, whose import takes longer than all else that this command does.
    from node.jobs import gathering
    from node.jobs.executor import Client
    from node.store.spool import Spool

    spool = Spool(settings.storage.directory)
    with closing(Client(database.open_executor_database(settings.storage))) as client:
        studies = sorted(set(client.gathering().values())) if client.is_known else []
    found = {}
    for study_uid in studies:
        with suppress(OtherForm):  # a correction that another program wrote: its study is parked
            found[study_uid] = gathering.waiting(spool, study_uid)
    quiet_seconds, zone = settings.corrections.quiet_seconds, settings.site.zone
    return {
        study_uid: {
            "waiting": len(waiting.corrections),
            "changes": waiting.changes,
            "leave_at": leave_at.astimezone(zone).isoformat(timespec="seconds"),
        }
        for study_uid, waiting in found.items()
        if (leave_at := waiting.leave_at(quiet_seconds)) is not None
    }


def _conflicts(directory: Path) -> list[dict[str, str]]:
    """Return every object that has other pixels than the stored one with its UID, and its file."""
    return [
        {
            "study": instance.study_uid,
            "sop_instance_uid": instance.sop_instance_uid,
            "file": str(instance.path),
        }
        for folder in sorted(directory.glob("studies/*/conflicts"))
        for instance in received.instances(received.listed(folder))
    ]


def _doubled(directory: Path) -> dict[str, list[str]]:
    """Return the studies of each SOP Instance UID that objects of several studies have."""
    studies: dict[str, list[str]] = defaultdict(list)
    for folder in sorted(directory.glob("studies/*/received")):
        for path in received.newest(folder):
            studies[received.sop_instance_uid_of(path.name)].append(folder.parent.name)
    return {uid: found for uid, found in studies.items() if len(found) > 1}


def render(content: Status, *, zone: ZoneInfo) -> str:
    """Render the state as plain lines, with times in a zone."""
    lines = [f"ready: {'yes' if content['ready'] else 'no'}"]
    lines += [f"studies {state}: {count}" for state, count in content["studies"].items()]
    if content["not_delivered"]:
        lines.append(f"studies of these that are finished, with nothing delivered: {content['not_delivered']}")
    for study_uid, waiting in content["corrections"].items():
        lines.append(
            f"corrections that wait, of {study_uid}: {waiting['waiting']}, of which {waiting['changes']} would change "
            f"the report; they leave at {waiting['leave_at']}, or when their reader finishes"
        )
    not_ready = f"not ready, or no answer in {_PATIENCE_SECONDS} s"
    for name, is_ready in content["processes"].items():
        answer = "not asked, it runs on another machine" if is_ready is None else "ready" if is_ready else not_ready
        lines.append(f"process {name}: {answer}")
    for name, counts in content["deliveries"].items():
        told = ", ".join(f"{state} {counts[state]}" for state in DELIVERY_STATES)
        lines.append(f"destination {name}: {told}{_pause(content['paused'].get(name), zone)}")
    lines += [f"destination {name}: abandoned {count}" for name, count in content["abandoned"].items()]
    lines += [f"orders {priority}: {count}" for priority, count in content["orders"].items()]
    for conflict in content["conflicts"]:
        lines.append(
            f"conflict {conflict['study']}: {conflict['sop_instance_uid']} came with other pixels, {conflict['file']}"
        )
    lines += [f"one UID in several studies {uid}: {', '.join(found)}" for uid, found in content["doubled"].items()]
    for caller in content["refused_callers"]:
        lines += _refused(caller, zone)
    lines += [
        f"damaged database: {path}, a new one was built; remove the file after you have examined it"
        for path in content["damaged_databases"]
    ]
    for work in content["parked"]:
        lines.append(f"parked {work['study']} at {work['stage']}: {work['reason']}")
    return "\n".join(lines)


def _pause(pause: dict[str, str] | None, zone: ZoneInfo) -> str:
    """Return since when a destination accepts nothing, and why; "" if it accepts."""
    if pause is None:
        return ""
    return f"; paused since {_local(pause['since'], zone)}: {pause['reason'] or 'see the log'}"


def _local(moment: str, zone: ZoneInfo) -> str:
    return f"{datetime.fromisoformat(moment).astimezone(zone):%Y-%m-%d %H:%M:%S} {zone.key}"


def _refused(caller: dict[str, object], zone: ZoneInfo) -> Iterator[str]:
    """Return a refused caller with its remedy: a correction at the caller, or lines of the settings."""
    titles = f"{caller['calling_aet'] or 'unknown'} at {caller['host']}, calling {caller['called_aet'] or 'no title'}"
    times = "once" if caller["times"] == 1 else f"{caller['times']} times"
    yield f"refused {titles}: {caller['reason']}, {times}, last at {_local(str(caller['at']), zone)}"
    if caller["to_do"]:
        yield f"  {caller['to_do']}"
    if caller["settings"]:
        yield "  these lines of node.toml would admit it:"
        yield from (f"    {line}" for line in str(caller["settings"]).splitlines())


def reload(settings: Settings, path: Path) -> Iterator[str]:
    """Send SIGHUP to every process on this machine, and return a line for each that uses the file now.

    Processes of the same node on other machines get a line that names their machine; those that were started with
    another file, as several on one machine may be, get one that names the file.

    settings: the settings in that file, which must have no mistake
    Raises InputError if no process can be asked, ConfigError when one refuses the file, RetryLater without an answer.
    """
    running = list(processes.running(settings.storage))
    here = [content for content in running if content.get("machine") == socket.gethostname()]
    far = [content for content in running if content not in here]
    elsewhere = [f"{_name(content)} runs on {content.get('machine')}; run reload there" for content in far]
    if not running:
        raise InputError(
            f"no node runs on storage.directory {settings.storage.directory}; start it with serve, or wait until its "
            "log says service.listening"
        )
    if not here:
        raise InputError("; ".join(elsewhere))
    asked = [content for content in here if _file(content) == path.resolve()]
    others = [content for content in here if content not in asked]
    elsewhere += [f"{_name(content)} was started with {_file(content)}; name that file" for content in others]
    if not asked:
        raise InputError("; ".join(elsewhere))
    yield from elsewhere
    for content in asked:
        yield _asked(settings, content)


def _name(content: JsonObject) -> str:
    return str(content.get("executor", "node"))


def _file(content: JsonObject) -> Path:
    return Path(str(content.get("settings", "")))


def _asked(settings: Settings, content: JsonObject) -> str:
    executor = _name(content)
    answer_path = processes.path_of(settings.storage, processes.Process(executor=executor), "reload")
    before = files.read_json(answer_path)
    if not processes.signal_reload(content):
        raise InputError(f"{executor} has just ended; start it with serve")
    end = time.monotonic() + _RELOAD_SECONDS
    while (answer := files.read_json(answer_path)) is None or answer == before:
        if time.monotonic() > end:
            raise RetryLater(
                f"{executor} has not answered for {_RELOAD_SECONDS:g} s; while it is still starting, it reads the "
                "file again when it is ready; else look at its log"
            )
        time.sleep(_POLL_SECONDS)
    mistakes, changed = answer.get("mistakes"), answer.get("changed")
    if isinstance(mistakes, list) and mistakes:
        raise ConfigError([*map(str, mistakes), f"{executor} keeps all of its old settings"])
    names = ", ".join(map(str, changed)) if isinstance(changed, list) else ""
    return f"{executor}: {f'{names} in use' if names else 'nothing has changed'}"
