"""The operator's commands for a node: show its state, retry parked work, abandon a destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import cast

from node.config import Settings
from node.domain import DELIVERY_STATES, STUDY_STATES, Delivery, DeliveryState, is_uid
from node.errors import InputError
from node.jobs import processes
from node.jobs.executor import Client
from node.net import callers
from node.orders.store import OrderStore
from node.store import database
from node.store.ledger import Ledger
from node.store.spool import Spool


def status(settings: Settings) -> dict[str, object]:
    """Return the state of a node (design §8)."""
    with _open_ledger(settings) as ledger:
        running = processes.states(settings.storage, settings.http)
        studies, delayed, counts = ledger.study_counts(), ledger.delayed_destinations(), ledger.delivery_counts()
        parked = [asdict(work) for work in ledger.parked()]
    return {
        "ready": any(process.ready for process in running) and all(process.ready is not False for process in running),
        "processes": {process.executor: process.ready for process in running},
        "studies": {state: studies.get(state, 0) for state in STUDY_STATES},
        "deliveries": {
            destination.name: {
                **{str(state): counts.get((destination.name, state), 0) for state in DELIVERY_STATES},
                "paused": destination.name in delayed,
            }
            for destination in settings.destinations
        },
        "abandoned": {name: count for (name, state), count in counts.items() if state == DeliveryState.ABANDONED},
        "orders": OrderStore(settings.storage.directory).counts(),
        "conflicts": _conflicts(Spool(settings.storage.directory)),
        "refused_callers": [
            {**asdict(caller), "settings": callers.settings_for(caller)}
            for caller in callers.read_all(settings.storage.directory)
        ],
        "damaged_databases": [str(path) for path in database.files_set_aside(settings.storage)],
        "parked": parked,
    }


def retry(settings: Settings, study_uids: Sequence[str]) -> dict[str, int]:
    """Queue the parked work of some studies again; returns how many pieces of work each study had.

    Without a running service, the work waits for its start.
    Raises InputError for a study that this node does not know.
    """
    spool = Spool(settings.storage.directory)
    for study_uid in study_uids:
        if not is_uid(study_uid) or not spool.study(study_uid).instances:
            raise InputError(f"{study_uid}: this node has no such study; see `node status`")
    with _parked_work(settings) as (ledger, client):
        return {study_uid: _retry_study(study_uid, spool, ledger, client) for study_uid in study_uids}


def retry_all(settings: Settings) -> dict[str, int]:
    """Queue all parked work again, like `retry`; returns how many pieces of work each study had."""
    spool = Spool(settings.storage.directory)
    with _parked_work(settings) as (ledger, client):
        parked = sorted({work.study for work in ledger.parked()})
        return {study_uid: _retry_study(study_uid, spool, ledger, client) for study_uid in parked}


def retry_destination(settings: Settings, name: str) -> dict[str, int]:
    """Queue every parked delivery to a destination again; returns how many each study had.

    Raises InputError for a destination that the settings do not have.
    """
    if all(destination.name != name for destination in settings.destinations):
        raise InputError(f"{name}: the settings have no such destination; see [[destinations]], or `node abandon`")
    with _parked_work(settings) as (ledger, client):
        deliveries = ledger.parked_deliveries(destination=name)
        _read_again_what_is_lost(deliveries, Spool(settings.storage.directory), client)
        _retry_deliveries(deliveries, ledger, client)
    return dict(Counter(delivery.study_uid for delivery in deliveries))


def abandon(settings: Settings, destination: str, *, force: bool = False) -> int:
    """End all open deliveries to a destination, so that its studies can age out; returns their number.

    force: also when the destination is in the settings
    Raises InputError for a destination in the settings without `force`, or for one without deliveries.
    """
    if not force and any(known.name == destination for known in settings.destinations):
        raise InputError(
            f"{destination}: is still in the settings; remove it there and restart the node first,"
            " or add --force to end what waits for it now"
        )
    with _open_ledger(settings) as ledger:
        if not any(name == destination for name, _ in ledger.delivery_counts()):
            raise InputError(f"{destination}: there are no deliveries to it; `node status` shows what is parked")
        return ledger.abandon(destination)


def _conflicts(spool: Spool) -> list[dict[str, str]]:
    """Return every object that has other pixels than the stored one with its UID, and its file."""
    return [
        {"study": study_uid, "sop_instance_uid": instance.sop_instance_uid, "file": str(instance.path)}
        for study_uid in spool.studies()
        for instance in spool.conflicts(study_uid)
    ]


def render(content: dict[str, object]) -> str:
    """Render the state as plain lines."""
    lines = [f"ready: {'yes' if content['ready'] else 'no'}"]
    lines += [f"studies {state}: {count}" for state, count in _table(content["studies"])]
    for name, is_ready in _table(content["processes"]):
        answer = "not asked, it runs on another machine" if is_ready is None else "ready" if is_ready else "not ready"
        lines.append(f"process {name}: {answer}")
    for name, counts in _table(content["deliveries"]):
        lines.append(f"destination {name}: " + ", ".join(f"{state} {count}" for state, count in _table(counts)))
    lines += [f"destination {name}: abandoned {count}" for name, count in _table(content["abandoned"])]
    lines += [f"orders {priority}: {count}" for priority, count in _table(content["orders"])]
    for conflict in cast(list[dict[str, str]], content["conflicts"]):
        lines.append(
            f"conflict {conflict['study']}: {conflict['sop_instance_uid']} came with other pixels, {conflict['file']}"
        )
    for caller in cast(list[dict[str, object]], content["refused_callers"]):
        lines += _refused(caller)
    lines += [
        f"damaged database: {path}, a new one was built; remove the file after you have examined it"
        for path in cast(list[str], content["damaged_databases"])
    ]
    for work in cast(list[dict[str, str]], content["parked"]):
        lines.append(f"parked {work['study']} at {work['stage']}: {work['reason']}")
    return "\n".join(lines)


def _refused(caller: dict[str, object]) -> Iterator[str]:
    """Say which caller was refused, and which lines of the settings would admit it."""
    titles = f"{caller['calling_aet'] or 'unknown'} at {caller['host']}, calling {caller['called_aet'] or 'no title'}"
    times = "once" if caller["times"] == 1 else f"{caller['times']} times"
    yield f"refused {titles}: {caller['reason']}, {times}, last at {caller['at']}"
    if caller["settings"]:
        yield "  these lines of node.toml would admit it:"
        yield from (f"    {line}" for line in str(caller["settings"]).splitlines())


def _table(value: object) -> list[tuple[str, object]]:
    return list(cast(dict[str, object], value).items())


@contextmanager
def _parked_work(settings: Settings) -> Iterator[tuple[Ledger, Client]]:
    """Open what is needed to queue parked work again. Raises InputError before the node's first start."""
    with _open_ledger(settings) as ledger, closing(Client(database.open_executor_database(settings.storage))) as client:
        if not client.is_known:
            raise InputError("this node has never run; start it with `node serve`")
        yield ledger, client


def _retry_study(study_uid: str, spool: Spool, ledger: Ledger, client: Client) -> int:
    """Queue first, then mark: if the command is interrupted in between, the work still runs."""
    is_parked = ledger.study_state(study_uid) == "parked"
    if is_parked:
        spool.forget_interrupted_readings(study_uid)
        client.run_study(study_uid)
        ledger.unpark_study(study_uid)
    deliveries = ledger.parked_deliveries(study_uid=study_uid)
    _read_again_what_is_lost(deliveries, spool, client)
    return is_parked + _retry_deliveries(deliveries, ledger, client)


def _read_again_what_is_lost(deliveries: Sequence[Delivery], spool: Spool, client: Client) -> None:
    """Have a study read again if an output is lost and may not be written identically: a new output replaces it."""
    for study_uid in {delivery.study_uid for delivery in deliveries if spool.output(delivery) is None}:
        spool.uncover(study_uid)
        client.run_study(study_uid)


def _retry_deliveries(deliveries: Sequence[Delivery], ledger: Ledger, client: Client) -> int:
    for delivery in deliveries:
        client.run_delivery(delivery)
        ledger.unpark_delivery(delivery)
    return len(deliveries)


@contextmanager
def _open_ledger(settings: Settings) -> Iterator[Ledger]:
    """Open the ledger. Raises InputError before the node's first start, NodeError when the ledger is damaged."""
    if not settings.storage.directory.is_dir():
        raise InputError(f"{settings.storage.directory}: does not exist; start the node once with `node serve`")
    with database.naming_damage(settings.storage), closing(Ledger(database.open_ledger(settings.storage))) as ledger:
        yield ledger
