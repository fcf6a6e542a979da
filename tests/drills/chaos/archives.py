"""The two archives of a night: one of the test's own that comes and goes, and a real Orthanc that stays."""

from __future__ import annotations

import random
import threading
from collections.abc import Set as AbstractSet
from io import BytesIO
from types import TracebackType
from typing import Self

from pydicom import dcmread

from tests.drills.chaos import verdict
from tests.drills.chaos.senders import Acknowledged
from tests.drills.chaos.verdict import Verdict
from tests.support.films import body_of
from tests.support.orthanc import Orthanc
from tests.support.peers import ReceivingArchive


class Flapping:
    """Lets an archive be down, reject or be out of resources now and then while the block runs; well after it.

    longest_seconds: for which it is well, or not, at a time
    """

    def __init__(self, archive: ReceivingArchive, draw: random.Random, *, longest_seconds: float) -> None:
        self._archive, self._draw, self._longest = archive, draw, longest_seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while not self._closing.wait(self._draw.uniform(0.4, 1.0) * self._longest):
            how = self._draw.choice(("down", "rejecting", "full"))
            seconds = self._draw.uniform(0.2, 0.8) * self._longest
            if how == "down":
                with self._archive.down():
                    self._closing.wait(seconds)
            else:
                self._archive.reject() if how == "rejecting" else self._archive.refuse(0xA700)
                self._closing.wait(seconds)
                self._archive.accept()
            self.count += 1


def judge_own(
    archive: ReceivingArchive,
    acknowledged: Acknowledged,
    *,
    excused: int = 0,
    unreadable: AbstractSet[str] = frozenset(),
) -> Verdict:
    """Count what reached the test's own archive, each time it came; unreadable: films that hurt a decoder."""
    kept = list(archive.kept)
    once = {received.sop_instance_uid: received for received in kept}
    objects = [received.dataset for received in once.values()]
    return Verdict(
        unanswered=verdict.unanswered(acknowledged, objects, unreadable=unreadable),
        objects=len(once),
        twice=verdict.sent_twice(received.sop_instance_uid for received in kept),
        changed=verdict.changed((received.sop_instance_uid, body_of(received.content)) for received in kept),
        blamed=verdict.blamed(objects, unreadable=unreadable),
        excused=excused,
    )


def judge_orthanc(
    orthanc: Orthanc,
    acknowledged: Acknowledged,
    *,
    other: ReceivingArchive,
    excused: int = 0,
    unreadable: AbstractSet[str] = frozenset(),
) -> Verdict:
    """Count what Orthanc holds, by its REST, and how often each came; it must be what the other archive got.

    unreadable: films that hurt a decoder
    """
    files = orthanc.files()
    held = [dcmread(BytesIO(content)) for content in files]
    theirs = [(received.sop_instance_uid, body_of(received.content)) for received in list(other.kept)]
    ours = [(str(dataset.SOPInstanceUID), body_of(content)) for dataset, content in zip(held, files, strict=True)]
    return Verdict(
        unanswered=verdict.unanswered(acknowledged, held, unreadable=unreadable),
        objects=len(held),
        twice=verdict.sent_twice(arrival.sop_instance_uid for arrival in orthanc.arrivals(calling_ae="CHEX")),
        changed=verdict.changed([*theirs, *ours]),
        blamed=verdict.blamed(held, unreadable=unreadable),
        excused=excused,
    )
