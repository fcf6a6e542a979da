"""What was lost, sent twice or changed on the way, from what was acknowledged and what an archive was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Final

from pydicom.dataset import Dataset

from node.domain import Reason
from node.outputs.wording import REASONS
from tests.support.documents import everything, replaced
from tests.support.films import body_of
from tests.support.peers import ReceivingArchive

MOST_SENT_TWICE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one archive can say of a night: films without SR or GSPS, objects, how many came twice or changed.

    blamed: how often a report calls a film undecodable; all of them can be read
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
        return {"passed": self.passed, **asdict(self), "unanswered": len(self.unanswered)}


def judge(archive: ReceivingArchive, acknowledged: Mapping[str, AbstractSet[str]], *, excused: int = 0) -> Verdict:
    """Count what reached an archive, each time it came; acknowledged: SOP Instance UIDs of films by study."""
    kept = list(archive.kept)
    once = {received.sop_instance_uid: received for received in kept}
    objects = [received.dataset for received in once.values()]
    return Verdict(
        unanswered=unanswered(acknowledged, objects),
        objects=len(once),
        twice=sent_twice(received.sop_instance_uid for received in kept),
        changed=changed((received.sop_instance_uid, body_of(received.content)) for received in kept),
        blamed=blamed(objects),
        excused=excused,
    )


def unanswered(acknowledged: Mapping[str, AbstractSet[str]], objects: Iterable[Dataset]) -> tuple[str, ...]:
    """Name the acknowledged films that have no GSPS, or that no newest SR covers; objects: each once.

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
    return tuple(sorted(uid for films in acknowledged.values() for uid in films if uid not in shown & covered))


def sent_twice(sop_instance_uids: Iterable[str]) -> int:
    """Count the objects that came more than once."""
    return sum(count > 1 for count in Counter(sop_instance_uids).values())


def changed(arrivals: Iterable[tuple[str, bytes]]) -> int:
    """Count the objects that came with more than one content; each arrival: SOP Instance UID and dataset."""
    contents: dict[str, set[bytes]] = {}
    for uid, content in arrivals:
        contents.setdefault(uid, set()).add(content)
    return sum(len(several) > 1 for several in contents.values())


def blamed(objects: Iterable[Dataset]) -> int:
    """Count the statements that a film could not be decoded."""
    said = (" ".join(str(item.get("TextValue", "")).split()) for dataset in objects for item in everything(dataset))
    return sum(REASONS[Reason.UNDECODABLE] in text for text in said)


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
