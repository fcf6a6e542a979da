"""What an operator asks a node from another process: what waits, what is parked and why, and to run it again."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict
from typing import cast

from node.app import engine_path, ledger_path, running_path
from node.config import Settings
from node.domain import DeliveryState, is_uid
from node.errors import InputError
from node.executor import Client
from node.ledger import Ledger, connect
from node.order_store import OrderStore
from node.spool import Spool

_STUDY_STATES = ("receiving", "reading", "finished", "parked")


def status(settings: Settings) -> dict[str, object]:
    """Describe a node as DESIGN.md 8 says: ready, studies, deliveries, parked; and the orders it remembers."""
    ledger = _open_ledger(settings)
    try:
        studies, delayed, counts = ledger.study_counts(), ledger.delayed_destinations(), ledger.delivery_counts()
        parked = [asdict(one) for one in ledger.parked()]
    finally:
        ledger.close()
    return {
        "ready": _is_ready(settings),
        "studies": {state: studies.get(state, 0) for state in _STUDY_STATES},
        "deliveries": {
            destination.name: {
                **{str(state): counts.get((destination.name, state), 0) for state in DeliveryState},
                "committed": 0,
                "paused": destination.name in delayed,
            }
            for destination in settings.destinations
        },
        "orders": OrderStore(settings.storage.directory).counts(),
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
    if not engine_path(settings).exists():
        raise InputError("this node has never run; start it with `node serve`")
    ledger, client = _open_ledger(settings), Client(engine_path(settings))
    try:
        return {study_uid: _retry_study(study_uid, spool, ledger, client) for study_uid in study_uids}
    finally:
        client.close()
        ledger.close()


def render(content: dict[str, object]) -> str:
    """Say the same in plain lines."""
    lines = [f"ready: {'yes' if content['ready'] else 'no'}"]
    lines += [f"studies {state}: {count}" for state, count in _table(content["studies"])]
    for name, counts in _table(content["deliveries"]):
        lines.append(f"destination {name}: " + ", ".join(f"{state} {count}" for state, count in _table(counts)))
    lines += [f"orders {priority}: {count}" for priority, count in _table(content["orders"])]
    for one in cast(list[dict[str, str]], content["parked"]):
        lines.append(f"parked {one['study']} at {one['stage']}: {one['reason']}")
    return "\n".join(lines)


def _table(value: object) -> list[tuple[str, object]]:
    return list(cast(dict[str, object], value).items())


def _retry_study(study_uid: str, spool: Spool, ledger: Ledger, client: Client) -> int:
    pieces = 0
    if ledger.study_state(study_uid) == "parked":
        ledger.set_study(study_uid, "receiving")
        client.run_study(study_uid)
        pieces += 1
    for delivery in ledger.parked_deliveries(study_uid):
        ledger.set_delivery(delivery, DeliveryState.WAITING, attempts=0)
        client.run_delivery(delivery)
        pieces += 1
    return pieces


def _open_ledger(settings: Settings) -> Ledger:
    if not settings.storage.directory.is_dir():
        raise InputError(f"{settings.storage.directory}: does not exist; start the node once with `node serve`")
    return Ledger(connect(ledger_path(settings)))


def _is_ready(settings: Settings) -> bool:
    """Ask the running service; one that does not answer is not ready."""
    try:
        port = json.loads(running_path(settings).read_text(encoding="utf-8"))["http_port"]
        host = f"[{settings.http.host}]" if ":" in settings.http.host else settings.http.host
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy of the environment
        with direct.open(f"http://{host}:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, KeyError, urllib.error.URLError):
        return False
