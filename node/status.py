"""What an operator asks a node from another process: what waits, what is parked and why; to run it again, to end it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import cast

from node import database, processes
from node.config import Settings
from node.domain import DELIVERY_STATES, STUDY_STATES, DeliveryState, is_uid
from node.errors import InputError
from node.executor import Client
from node.ledger import Ledger
from node.order_store import OrderStore
from node.spool import Spool


def status(settings: Settings) -> dict[str, object]:
    """Describe a node as DESIGN.md 8 says: ready, studies, deliveries, parked; also what else there is to know."""
    ledger, running = _open_ledger(settings), processes.states(settings.storage, settings.http)
    try:
        studies, delayed, counts = ledger.study_counts(), ledger.delayed_destinations(), ledger.delivery_counts()
        parked = [asdict(one) for one in ledger.parked()]
    finally:
        ledger.close()
    return {
        "ready": any(one.ready for one in running) and all(one.ready is not False for one in running),
        "processes": {one.executor: one.ready for one in running},
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
        "parked": parked,
    }


def retry(settings: Settings, study_uids: Sequence[str]) -> dict[str, int]:
    """Queue parked studies and deliveries again; how many pieces of work each study had.

    Raises InputError for a study this node does not know. Without a running service, the work waits for its start.
    """
    spool = Spool(settings.storage.directory)
    for study_uid in study_uids:
        if not is_uid(study_uid) or not spool.study(study_uid).instances:
            raise InputError(f"{study_uid}: this node holds no such study; see `node status`")
    ledger, client = _open_ledger(settings), Client(database.open_engine(settings.storage))
    try:
        if not client.is_known:
            raise InputError("this node has never run; start it with `node serve`")
        return {study_uid: _retry_study(study_uid, spool, ledger, client) for study_uid in study_uids}
    finally:
        client.close()
        ledger.close()


def abandon(settings: Settings, destination: str, *, force: bool = False) -> int:
    """End every delivery to a destination that is not done, so that its studies can age out; how many there were.

    force: also when the destination is in the settings
    Raises InputError when it is without that, or when nothing was ever to go there.
    """
    if not force and any(one.name == destination for one in settings.destinations):
        raise InputError(
            f"{destination}: is still in the settings; remove it there and restart the node first,"
            " or add --force to end what waits for it now"
        )
    ledger = _open_ledger(settings)
    try:
        if not any(name == destination for name, _ in ledger.delivery_counts()):
            raise InputError(f"{destination}: nothing was ever to be sent there; see `node status` for what is parked")
        return ledger.abandon(destination)
    finally:
        ledger.close()


def _conflicts(spool: Spool) -> list[dict[str, str]]:
    """Every object that came with other pixels under a known UID, and where it lies."""
    return [
        {"study": study_uid, "sop_instance_uid": one.sop_instance_uid, "file": str(one.path)}
        for study_uid in spool.studies()
        for one in spool.conflicts(study_uid)
    ]


def render(content: dict[str, object]) -> str:
    """Say the same in plain lines."""
    lines = [f"ready: {'yes' if content['ready'] else 'no'}"]
    lines += [f"studies {state}: {count}" for state, count in _table(content["studies"])]
    for name, is_ready in _table(content["processes"]):
        answer = "not asked, it runs on another machine" if is_ready is None else "ready" if is_ready else "not ready"
        lines.append(f"process {name}: {answer}")
    for name, counts in _table(content["deliveries"]):
        lines.append(f"destination {name}: " + ", ".join(f"{state} {count}" for state, count in _table(counts)))
    lines += [f"destination {name}: abandoned {count}" for name, count in _table(content["abandoned"])]
    lines += [f"orders {priority}: {count}" for priority, count in _table(content["orders"])]
    for one in cast(list[dict[str, str]], content["conflicts"]):
        lines.append(f"conflict {one['study']}: {one['sop_instance_uid']} came with other pixels, {one['file']}")
    for one in cast(list[dict[str, str]], content["parked"]):
        lines.append(f"parked {one['study']} at {one['stage']}: {one['reason']}")
    return "\n".join(lines)


def _table(value: object) -> list[tuple[str, object]]:
    return list(cast(dict[str, object], value).items())


def _retry_study(study_uid: str, spool: Spool, ledger: Ledger, client: Client) -> int:
    """Queue first, then mark: cut short in between, what is still called parked goes on all the same."""
    pieces = 0
    if ledger.study_state(study_uid) == "parked":
        client.run_study(study_uid)
        ledger.unpark_study(study_uid)
        pieces += 1
    for delivery in ledger.parked_deliveries(study_uid):
        client.run_delivery(delivery)
        ledger.unpark_delivery(delivery)
        pieces += 1
    return pieces


def _open_ledger(settings: Settings) -> Ledger:
    if not settings.storage.directory.is_dir():
        raise InputError(f"{settings.storage.directory}: does not exist; start the node once with `node serve`")
    return Ledger(database.open_ledger(settings.storage))
