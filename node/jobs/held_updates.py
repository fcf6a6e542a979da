"""Updates of patients that wait for a person: they name a patient whose name shares no letter with that of a film.

Such a message may be about another person, or in another character set than it says. It was acknowledged, so it is kept
among the documents of each study that it would change, and nothing changes there until a person has decided.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Literal

from node.errors import InputError
from node.store import stored_updates
from node.store.ledger import Ledger
from node.store.spool import Spool
from node.store.stored_updates import StoredUpdate

STAGE: Final = "update"
"""Where a study is parked while an update of its patient waits."""

_DIGEST_LENGTH: Final = 16

REASON: Final = (
    "an update of the patient (ADT) has a name that shares no letter with that of a film, and waits; "
    "compare both names, then run retry with this study and --update accept, or --update refuse"
)


def of_study(spool: Spool, study_uid: str) -> list[StoredUpdate]:
    """Return the updates of a study that wait, in the order of arrival."""
    return stored_updates.of_study(spool, study_uid, "held")


def park(spool: Spool, ledger: Ledger, study_uid: str) -> bool:
    """Park a study that is done but for an update that waits; says whether one waits."""
    if not of_study(spool, study_uid):
        return False
    ledger.set_study(study_uid, "parked", stage=STAGE, reason=REASON)
    return True


def decide(spool: Spool, study_uid: str, *, is_accepted: bool) -> int:
    """Let a study follow the updates that wait, or forget them; returns their number. A repeated call goes on.

    The study's next round follows what was accepted.
    Raises InputError if none waits, and OSError.
    """
    waiting = of_study(spool, study_uid)
    if not waiting:
        raise InputError(f"{study_uid}: no update of its patient waits; see `node status`")
    for held in waiting:
        if is_accepted:
            keep(spool, study_uid, "patients", held)
        spool.drop_document(study_uid, "held", held.id)
    return len(waiting)


def keep(spool: Spool, study_uid: str, kind: Literal["patients", "held"], update: StoredUpdate) -> bool:
    """Store an update, synced, behind those that came before; false if it is stored, or the study is being removed.

    kind: `patients` for one that the study's next round follows, `held` for one that waits
    update: its id ends with a hash of the message and of what it changes here
    Raises OSError.
    """
    known = stored_updates.of_study(spool, study_uid, kind)
    digest = update.id[-_DIGEST_LENGTH:]
    if any(item.id.endswith(digest) for item in known):
        return False
    new = replace(update, id=f"{len(known) + 1:06d}-{digest}", at=datetime.now(UTC))
    try:
        spool.keep_document(study_uid, kind, new.id, stored_updates.to_json(new))
    except FileNotFoundError:
        return False
    return True
