"""What was lost, sent twice or changed on the way, from what was acknowledged and what archives were sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from pydicom import dcmread
from pydicom.dataset import Dataset

from node.domain import Reason
from node.outputs.wording import REASONS
from tests.drills.chaos.senders import Acknowledged
from tests.support.documents import everything, replaced
from tests.support.films import body_of
from tests.support.orthanc import Orthanc
from tests.support.peers import ReceivingArchive

MOST_SENT_TWICE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one archive can say of a night: films without SR or GSPS, objects, how many came twice or changed.

    blamed: how often a report calls a film undecodable that can be read
    excused: how many may come twice however few there are; in a short night one is more than 2 of 100
    """

    unanswered: tuple[str, ...]
    objects: int
    twice: int
    changed: int
    blamed: int = 0
    excused: int = 0

    @property
    def passed(self) -> bool:
        """Whether every film has its answers, unchanged and practically once."""
        most_twice = max(MOST_SENT_TWICE * self.objects, self.excused)
        return not (self.unanswered or self.changed or self.blamed) and self.twice <= most_twice

    def figures(self) -> dict[str, object]:
        """Return it for the last line of a run."""
        return {
            "passed": self.passed,
            "unanswered": len(self.unanswered),
            "objects": self.objects,
            "twice": self.twice,
            "changed": self.changed,
            "blamed": self.blamed,
        }


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
        unanswered=unanswered(acknowledged, objects, unreadable=unreadable),
        objects=len(once),
        twice=sent_twice(received.sop_instance_uid for received in kept),
        changed=changed((received.sop_instance_uid, body_of(received.content)) for received in kept),
        blamed=blamed(objects, unreadable=unreadable),
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
    """Count what Orthanc holds, by its REST, and how often each came; it must be what the other archive got."""
    files = orthanc.files()
    held = [dcmread(BytesIO(content)) for content in files]
    theirs = [(received.sop_instance_uid, body_of(received.content)) for received in list(other.kept)]
    ours = [(str(dataset.SOPInstanceUID), body_of(content)) for dataset, content in zip(held, files, strict=True)]
    return Verdict(
        unanswered=unanswered(acknowledged, held, unreadable=unreadable),
        objects=len(held),
        twice=sent_twice(arrival.sop_instance_uid for arrival in orthanc.arrivals(calling_ae="CHEX")),
        changed=changed([*theirs, *ours]),
        blamed=blamed(held, unreadable=unreadable),
        excused=excused,
    )


def unanswered(
    acknowledged: Mapping[str, AbstractSet[str]],
    objects: Iterable[Dataset],
    *,
    unreadable: AbstractSet[str] = frozenset(),
) -> tuple[str, ...]:
    """Name the acknowledged films that have no GSPS, or that no newest SR covers.

    acknowledged: SOP Instance UIDs of films by study; objects: what an archive holds, each once
    unreadable: films that nobody can read, and that have no GSPS therefore
    The newest SR of a series is the one that no other names as its predecessor; of two such, neither speaks.
    """
    shown: set[str] = set()
    reports: dict[str, list[Dataset]] = {}
    for dataset in objects:
        if dataset.Modality == "PR":
            shown |= _referenced(dataset)
        elif dataset.Modality == "SR":
            reports.setdefault(str(dataset.SeriesInstanceUID), []).append(dataset)
    followed = {uid for several in reports.values() for report in several for uid in replaced(report)}
    covered = {uid for several in reports.values() for uid in _covered_by_newest(several, followed)}
    answered = (shown | unreadable) & covered
    return tuple(sorted(uid for films in acknowledged.values() for uid in films if uid not in answered))


def sent_twice(sop_instance_uids: Iterable[str]) -> int:
    """Count the objects that came more than once."""
    return sum(count > 1 for count in Counter(sop_instance_uids).values())


def changed(arrivals: Iterable[tuple[str, bytes]]) -> int:
    """Count the objects that came with more than one content; each arrival: SOP Instance UID and dataset."""
    contents: dict[str, set[bytes]] = {}
    for uid, content in arrivals:
        contents.setdefault(uid, set()).add(content)
    return sum(len(several) > 1 for several in contents.values())


def blamed(objects: Iterable[Dataset], *, unreadable: AbstractSet[str] = frozenset()) -> int:
    """Count the statements that a film could not be decoded, of which it is not known that nobody can read it."""
    return sum(not _called_undecodable(item) <= unreadable for dataset in objects for item in everything(dataset))


def _called_undecodable(item: Dataset) -> set[str]:
    """Name the films of which a content item says that they could not be decoded."""
    if REASONS[Reason.UNDECODABLE] not in " ".join(str(item.get("TextValue", "")).split()):
        return set()
    return {
        str(reference.ReferencedSOPInstanceUID)
        for ground in item.get("ContentSequence", ())
        for reference in ground.get("ReferencedSOPSequence", ())
    }


def _covered_by_newest(reports: list[Dataset], followed: AbstractSet[str]) -> set[str]:
    newest = [report for report in reports if str(report.SOPInstanceUID) not in followed]
    return _uids(newest[0].CurrentRequestedProcedureEvidenceSequence) if len(newest) == 1 else set()


def _referenced(state: Dataset) -> set[str]:
    """The films that a presentation state is for (PS3.3 C.11.11)."""
    return {
        str(image.ReferencedSOPInstanceUID)
        for series in state.ReferencedSeriesSequence
        for image in series.ReferencedImageSequence
    }


def _uids(studies: Iterable[Dataset]) -> set[str]:
    """Every object that a hierarchy of studies, series and objects names (PS3.3 C.17.2.1)."""
    return {
        str(reference.ReferencedSOPInstanceUID)
        for study in studies
        for series in study.ReferencedSeriesSequence
        for reference in series.ReferencedSOPSequence
    }
