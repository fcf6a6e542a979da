"""A person's actions on a study: retry its parked work, delete it with a reason, or have it read again.

Deleting a study ends its open deliveries, and only if the person was shown their number: a film or a delivery that came
meanwhile stops the deletion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final, Literal, TypeAlias

from node import log
from node.config import Settings
from node.domain import Delivery, is_uid
from node.errors import InputError, OtherForm
from node.jobs import gathering
from node.jobs.executor import Client
from node.store import database, questions, study_facts
from node.store.ledger import Ledger, open_ledger
from node.store.spool import Spool
from node.store.study_facts import StudyFacts

RemovalReason: TypeAlias = Literal["wrong_patient", "sent_by_mistake", "test", "patient_request", "other"]
ReadingReason: TypeAlias = Literal["wrong_result", "other_model", "corrected_at_sender", "other"]
_OTHER_VERSION: Final = "a document of this study was written by another version of the program; see the log"
_BUSY: Final = "this study is being received, read or answered; wait until it is finished or parked, and try again"


def retry(settings: Settings, study_uids: Sequence[str]) -> dict[str, int]:
    """Queue the parked work of some studies again; return by study the number of queued items.

    Without a running service, the work waits for its start.
    Raises InputError for a study that this node does not know.
    """
    spool = Spool(settings.storage.directory)
    for study_uid in study_uids:
        if not is_uid(study_uid) or not spool.instances(study_uid):
            raise InputError(f"{study_uid}: this node has no such study; see `node status`")
    with _parked_work(settings) as (ledger, client):
        return {study_uid: _retry_study(study_uid, settings, spool, ledger, client) for study_uid in study_uids}


def retry_all(settings: Settings) -> dict[str, int]:
    """Queue all parked work again, like `retry`; return by study the number of queued items."""
    spool = Spool(settings.storage.directory)
    with _parked_work(settings) as (ledger, client):
        parked = sorted({work.study for work in ledger.parked()})
        return {study_uid: _retry_study(study_uid, settings, spool, ledger, client) for study_uid in parked}


def retry_destination(settings: Settings, name: str) -> dict[str, int]:
    """Queue every parked delivery to a destination again; return by study the number of deliveries.

    Raises InputError for a destination that is not in the settings.
    """
    if all(destination.name != name for destination in settings.destinations):
        raise InputError(f"{name}: the settings have no such destination; see [[destinations]], or `node abandon`")
    with _parked_work(settings) as (ledger, client):
        deliveries = ledger.parked_deliveries(destination=name)
        _read_again_what_is_lost(deliveries, Spool(settings.storage.directory), client)
        _retry_deliveries(deliveries, ledger, client)
    return dict(Counter(delivery.study_uid for delivery in deliveries))


@contextmanager
def _parked_work(settings: Settings) -> Iterator[tuple[Ledger, Client]]:
    """Open the ledger and the client. Raises InputError before the node's first start."""
    with (
        open_ledger(settings.storage) as ledger,
        closing(Client(database.open_executor_database(settings.storage))) as client,
    ):
        if not client.is_known:
            raise InputError("this node has never run; start it with `node serve`")
        yield ledger, client


def _retry_study(study_uid: str, settings: Settings, spool: Spool, ledger: Ledger, client: Client) -> int:
    """Queue first, then mark: if the command is interrupted in between, the work still runs."""
    is_parked = ledger.study_state(study_uid) == "parked"
    if is_parked:
        spool.forget_interrupted_readings(study_uid)
        client.run_study(study_uid)
        quiet_seconds = settings.corrections.quiet_seconds
        gathering.wait_again(spool, study_uid, client.run_gather, quiet_seconds=quiet_seconds)
        ledger.unpark_study(study_uid)
    deliveries = ledger.parked_deliveries(study_uid=study_uid)
    _read_again_what_is_lost(deliveries, spool, client)
    return is_parked + _retry_deliveries(deliveries, ledger, client)


def _read_again_what_is_lost(deliveries: Sequence[Delivery], spool: Spool, client: Client) -> None:
    """Queue a study whose lost output cannot be written identically; its new round replaces the output."""
    for study_uid in {delivery.study_uid for delivery in deliveries if spool.output(delivery) is None}:
        spool.uncover(study_uid)
        client.run_study(study_uid)


def _retry_deliveries(deliveries: Sequence[Delivery], ledger: Ledger, client: Client) -> int:
    for delivery in deliveries:
        client.run_delivery(delivery)
        ledger.unpark_delivery(delivery)
    return len(deliveries)


def waiting(ledger: Ledger, study_uid: str) -> list[Delivery]:
    """Return the deliveries that deleting a study would end: unsent, parked, or uncommitted ones."""
    awaited = [delivery for delivery in ledger.open_deliveries() if delivery.study_uid == study_uid]
    return list(dict.fromkeys((*ledger.unsent_deliveries(study_uid), *awaited)))


def delete_study(settings: Settings, spool: Spool, study_uid: str, *, films: int, undelivered: int) -> None:
    """Delete a study with all its data but the marks of its rounds, which name no patient.

    films, undelivered: numbers of films and open deliveries that the person was shown
    Raises InputError if there is no such study, these numbers have changed, it is being processed, or a document of it
    is not readable.
    """
    with open_ledger(settings.storage) as ledger:
        instances = spool.instances(study_uid)
        if not instances:
            raise InputError("this node has no such study; it may have been removed")
        answers = _documents(spool, study_uid).answers
        if ledger.study_state(study_uid) not in ("finished", "parked") or any(answer.is_open for answer in answers):
            raise InputError(_BUSY)
        ended = waiting(ledger, study_uid)
        if (len(instances), len(ended)) != (films, undelivered):
            raise InputError(
                f"objects of this study by now: {len(instances)}, deliveries that are not done: {len(ended)}; "
                "look at them, and confirm again"
            )
        unread = {instance.path.name for instance in spool.unread(study_uid)}
        if not spool.remove_study(study_uid, although_unread=unread):
            raise InputError(_BUSY)
        _end(ledger, study_uid, ended)


def read_again(settings: Settings, spool: Spool, study_uid: str) -> None:
    """Have the next round of a study cover all its films again.

    Raises InputError if there is no such study, it is being processed, or a document of it is not readable.
    """
    with (
        open_ledger(settings.storage) as ledger,
        closing(Client(database.open_executor_database(settings.storage))) as client,
    ):
        if not spool.instances(study_uid):
            raise InputError("this node has no such study; it may have been removed")
        if ledger.study_state(study_uid) not in ("finished", "parked"):
            raise InputError(_BUSY)
        _documents(spool, study_uid)
        spool.forget_interrupted_readings(study_uid)
        spool.uncover(study_uid)
        client.run_study(study_uid)
        ledger.set_study(study_uid, "receiving")


def _documents(spool: Spool, study_uid: str) -> StudyFacts:
    """Read what a study's next round will read of it. Raises InputError if a document cannot be read."""
    try:
        questions.objects_of(spool, study_uid)
        return study_facts.load(spool, study_uid)
    except OtherForm as error:
        log.get().error("answer.unreadable", study=study_uid, fault="other_version", reason=str(error))
        raise InputError(_OTHER_VERSION) from error


def _end(ledger: Ledger, study_uid: str, ended: list[Delivery]) -> None:
    """Delete a removed study's rows. Its ended deliveries stay, without a patient, until `storage.keep_days`.

    A workflow that is about to send one of them finds it ended.
    """
    for delivery in ended:
        ledger.release(delivery)
        ledger.end_delivery(delivery)
    if ended:
        ledger.set_study(study_uid, "finished")
        ledger.forget_content(study_uid)
    else:
        ledger.forget(study_uid)
    ledger.wipe()
