"""Reads what a reader decided about the node's results in a presentation state: by boxes that he moved, and by words.

A graphic with the tracking UID (0062,0021) of a box of the node, and another box, moves that box. A text that is a
verdict and nothing else belongs to its own tracking UID, or to the nearest graphic that has one. A text that names a
finding and says that it was missed belongs to the nearest graphic that is not the node's. A state without any of these
decides nothing, and may be a question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import drawn_states
from node.dicom.assessments import ReaderDecision, ResultAssessment, Verdict, supplement_in, verdict_of
from node.dicom.drawn import LeftOut, Point, united, words
from node.dicom.drawn_states import Annotated, DrawnText, distance, whole
from node.domain import Box

_LEAST_MOVE: Final = 1.0
"""Pixels. A box whose edges all lie nearer to where it was is the same: workstations round coordinates."""

Places = Mapping[str, Sequence[Box]]
"""Where each box of the node lies or lay, by its tracking UID; in pixels of the stored film."""


def read(state: Dataset, known: Places) -> ResultAssessment | None:
    """Read the decisions of a presentation state; None if it has none.

    known: the boxes of the study that the state is in, in every version of its reports
    """
    films, left_out = drawn_states.drawn(state)
    found = [item for film, annotated in films.items() for item in _of_film(film, annotated, known)]
    if not found:
        return None
    reasons = [item.reason for item in (*left_out, *found) if isinstance(item, LeftOut)]
    return ResultAssessment(
        assessed=frozenset(),
        decisions=tuple(item for item in found if isinstance(item, ReaderDecision)),
        left_out=tuple(dict.fromkeys(reasons)),
    )


def _of_film(film: str, annotated: Annotated, known: Places) -> Iterator[ReaderDecision | LeftOut]:
    boxes = {key: united(parts) for key, parts in annotated.boxes.items()}
    own = {key: box for key, box in boxes.items() if key in known}
    tracked = own or {key: box for key, box in boxes.items() if annotated.trackings[key][1]}
    moved = {uid: box for uid, box in own.items() if not any(_is_same(box, place) for place in known[uid])}
    verdicts: dict[str, list[Verdict]] = {uid: [] for uid in moved}
    for text in annotated.texts:
        verdict = verdict_of(text.text)
        if verdict is None or verdict is Verdict.SUPPLEMENTED:
            continue
        uid = text.tracking_uid or _nearest(text.anchor, tracked)
        if isinstance(uid, LeftOut):
            yield uid
        else:
            verdicts.setdefault(uid, []).append(verdict)
    for uid, said in verdicts.items():
        yield from _decided(film, uid, said, moved.get(uid))
    others = {key: box for key, box in boxes.items() if key not in known}
    added = list(_supplements(film, annotated.texts, others))
    yield from added
    if (verdicts or added) and len(others.keys() - verdicts.keys()) > len(added):
        yield LeftOut(reason="a graphic beside its decisions is not asked about; save a question as another object")


def _decided(film: str, uid: str, said: Sequence[Verdict], moved: Box | None) -> Iterator[ReaderDecision | LeftOut]:
    """Yield the decisions on one box of the node; what is accepted in another place is moved there."""
    box = None if moved is None else whole(moved)
    if isinstance(box, LeftOut):
        yield box
        return
    for verdict in dict.fromkeys(said) or (Verdict.MODIFIED,):
        is_moved = box is not None and verdict is Verdict.ACCEPTED
        yield ReaderDecision(
            verdict=Verdict.MODIFIED if is_moved else verdict, tracking_uid=uid, films=(film,), box=box
        )


def _supplements(film: str, texts: Sequence[DrawnText], boxes: Mapping[str, Box]) -> Iterator[ReaderDecision | LeftOut]:
    """Yield the findings that a reader added; boxes: those that he drew.

    The name of a finding stands in the text that says so, or in another text beside the same box.
    """
    if not boxes and any(supplement_in(text.text) is not None for text in texts):
        yield LeftOut(reason="a finding that is added has no region on a film")
    if not boxes:
        return
    places = [_nearest(text.anchor, boxes) for text in texts]
    for text, key in zip(texts, places, strict=True):
        name = supplement_in(text.text)
        if name is None:
            continue
        if isinstance(key, LeftOut):
            yield key
            continue
        beside = (words(other.text) or "" for other, place in zip(texts, places, strict=True) if place == key)
        box = whole(boxes[key])
        if isinstance(box, LeftOut):
            yield box
        else:
            names = (name,) if name else tuple(beside)
            yield ReaderDecision(verdict=Verdict.SUPPLEMENTED, films=(film,), box=box, names=names)


def _nearest(anchor: Point | None, boxes: Mapping[str, Box]) -> str | LeftOut:
    """Return the box that a text belongs to, or why that is not known."""
    if not boxes:
        return LeftOut(reason="a verdict of a reader has no graphic with the tracking UID of a finding")
    if len(boxes) == 1:
        return next(iter(boxes))
    if anchor is None:
        return LeftOut(reason="a text does not say where it stands, and there are several graphics")
    distances = {key: distance(anchor, box) for key, box in boxes.items()}
    least = min(distances.values())
    nearest = [key for key, away in distances.items() if away == least]
    if len(nearest) > 1:
        return LeftOut(reason="a text stands within several graphics; write it beside the one that it is about")
    return nearest[0]


def _is_same(box: Box, place: Box) -> bool:
    return all(abs(edge - other) < _LEAST_MOVE for edge, other in zip(box.edges, place.edges, strict=True))
