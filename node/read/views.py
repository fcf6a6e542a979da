"""Compare the view that a header names with the view that the picture shows; a pure function of values.

Both agree on nearly all films. If they do not, the film is read as its header says, with a note. The picture stops a
film only if the header is silent. Without a view in the header, a film is stopped unless a frontal chest is more
probable than all else: the network often knows that a lateral is no frontal film, and not which of the two it is. With
a view and without the chest, it is stopped if the network is certain that it is no frontal chest, whatever else it is.
Such films would get boxes that mean nothing. A film that looks mirrored is never flipped, because the heart may lie on
the right, and a film that looks rotated is not turned. A picture that disagrees with its header or looks mirrored or
rotated is a doubt about every finding: then none is present (`doubted_film`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from models.contract import Doubt, View, ViewReading
from node.dicom.film_header import FilmHeader
from node.domain import FilmView, Note, Reason, TaggedView
from node.read import routing
from node.read.cardiothoracic import view_of
from node.read.routing import Action, Decision

_STOPPED: Final[dict[View, Reason]] = {"lateral": Reason.LATERAL, "not_chest": Reason.NOT_CHEST}
_DOUBTS: Final[dict[Note, Doubt]] = {
    Note.VIEW_DISAGREES: "other_view",
    Note.MIRRORED: "mirrored",
    Note.ROTATED: "rotated",
    Note.IMAGE_TYPE: "image_type",
    Note.TWO_VIEWS: "two_views",
    Note.MAYBE_CHILD: "maybe_child",
}


def tag_of(header: FilmHeader) -> TaggedView | None:
    """Return the view that a header names; None if it names none."""
    if routing.says_slanted(header) is not None:
        return "lateral"
    view = view_of(header)
    if view is None:
        return "frontal" if routing.names_frontal(header) else None
    return view.value


def film_view(header: FilmHeader | None, picture: ViewReading | None = None) -> FilmView:
    """Return what is known about the view of a film.

    header: None for a PNG or JPEG; picture: None if the network did not look at it
    """
    tag = None if header is None else tag_of(header)
    if picture is None:
        return FilmView(tag=tag)
    return FilmView(tag=tag, seen=picture.view, certainty=picture.probabilities[picture.view])


def confirm(decision: Decision, tag: TaggedView | None, picture: ViewReading | None, *, names_chest: bool) -> Decision:
    """Return the decision about a film that its header lets through, after a look at its picture.

    tag: as in `tag_of`; names_chest: whether its header says that it shows a chest
    """
    if picture is None:
        return decision
    is_other = (tag is None and not picture.is_frontal) or (not names_chest and picture.is_certain(*_STOPPED))
    if is_other:
        likelier = max(_STOPPED, key=lambda view: picture.probabilities[view])
        return Decision(action=Action.ANSWER, reason=_STOPPED[likelier], notes=decision.notes)
    return replace(decision, notes=(*decision.notes, *notes_of(tag, picture)))


def doubt_of(picture: ViewReading | None, notes: Collection[Note]) -> Doubt | None:
    """Return what speaks against every finding of a film; None if nothing does.

    notes: of the film, with those of `notes_of`. A picture that is not frontal needs no header to be in doubt.
    """
    if picture is not None and not picture.is_frontal:
        return "other_view"
    return next((doubt for note, doubt in _DOUBTS.items() if note in notes), None)


def is_doubt(note: Note) -> bool:
    """Say whether a note speaks against every finding of a film."""
    return note in _DOUBTS


def notes_of(tag: TaggedView | None, picture: ViewReading) -> Iterator[Note]:
    """Yield the notes about a picture that does not fit its header, or whose pixels do not lie as they should.

    A header that names a frontal view is contradicted as soon as that is not the more probable. That an AP film looks
    like a PA one, or the other way round, says nothing against it.
    """
    if tag is not None and not picture.is_frontal:
        yield Note.VIEW_DISAGREES
    if picture.mirrored:
        yield Note.MIRRORED
    if picture.rotated:
        yield Note.ROTATED
