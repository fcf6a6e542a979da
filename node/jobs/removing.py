"""Deletes a study for a person who gives a reason, and has one read again.

What waits to be delivered is ended with its study, and only if the person was told how much that is: a film or a
delivery that came meanwhile stops the deletion.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final, Literal, TypeAlias

from node.config import Settings
from node.domain import Delivery
from node.errors import InputError
from node.jobs.executor import Client
from node.store import database, questions
from node.store.ledger import Ledger, open_ledger
from node.store.spool import Spool

RemovalReason: TypeAlias = Literal["wrong_patient", "sent_by_mistake", "test", "patient_request", "other"]
ReadingReason: TypeAlias = Literal["wrong_result", "other_model", "corrected_at_sender", "other"]

_BUSY: Final = "this study is being received, read or answered; wait until it is finished or parked, and try again"


def waiting(ledger: Ledger, study_uid: str) -> list[Delivery]:
    """Return the deliveries that deleting a study would end: to be sent, parked, or not yet committed."""
    awaited = [delivery for delivery in ledger.open_deliveries() if delivery.study_uid == study_uid]
    return list(dict.fromkeys((*ledger.unsent_deliveries(study_uid), *awaited)))


def delete_study(settings: Settings, spool: Spool, study_uid: str, *, films: int, undelivered: int) -> None:
    """Delete a study with all that the node holds of it but the marks of its rounds, which name no patient.

    films, undelivered: how many films and open deliveries it has, as the person was told
    Raises InputError if it has others by now, or is being worked on.
    """
    with open_ledger(settings.storage) as ledger:
        instances = spool.study(study_uid).instances
        if not instances:
            raise InputError("this node has no such study; it may have been removed")
        is_answered = any(answer.is_open for answer in questions.answers_of(spool, study_uid))
        if ledger.study_state(study_uid) not in ("finished", "parked") or is_answered:
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
    """Have the next round of a study cover all its films again. Raises InputError if there are none, or it is busy."""
    with (
        open_ledger(settings.storage) as ledger,
        closing(Client(database.open_executor_database(settings.storage))) as client,
    ):
        if not spool.study(study_uid).instances:
            raise InputError("this node has no such study; it may have been removed")
        if ledger.study_state(study_uid) not in ("finished", "parked"):
            raise InputError(_BUSY)
        spool.forget_interrupted_readings(study_uid)
        spool.uncover(study_uid)
        client.run_study(study_uid)
        ledger.set_study(study_uid, "receiving")


def _end(ledger: Ledger, study_uid: str, ended: list[Delivery]) -> None:
    """Forget a removed study. One with ended deliveries leaves them, without a patient, until `storage.keep_days`.

    A workflow that is to send one of them finds there that it was ended.
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
