"""Compare the view that a header names with the view that the picture shows; on a film in doubt nothing is present.

Both agree on nearly all films. If they do not, the film is read as its header says, with a note. The picture stops a
film only if the header is silent. Without a view in the header, a film is stopped unless a frontal chest is more
probable than all else: the network often knows that a lateral is no frontal film, and not which of the two it is. With
a view and without the chest, it is stopped if the network is certain that it is no frontal chest, whatever else it is.
Such films would get boxes that mean nothing. A film that looks mirrored is never flipped, because the heart may lie on
the right, and a film that looks rotated is not turned. A picture that disagrees with its header or looks mirrored or
rotated is a doubt about every finding: then none is present, its findings are to be reviewed, and so say its sentences.
Reports and questions come through here, whatever network answered, so all outputs say the same. Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from pydicom.sr.codedict import codes

from language.check import Fault, assertions
from language.sentences import is_not_seen, stated, unstated
from models.contract import (
    Doubt,
    FindingState,
    PromptReading,
    Question,
    Sentence,
    View,
    ViewReading,
    WithheldSentence,
)
from node.cardiothoracic_ratio import View as Projection
from node.dicom.film_header import FilmHeader
from node.domain import FilmView, Note, Reason, TaggedView
from node.prompt_set import PromptSet
from node.read import header_words, routing
from node.read.decoding import Radiograph
from node.read.model import FilmAnswer, RadiographReader, Reading, SeenFilm
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
_WORDS: Final = {
    "PA": Projection.PA,
    "POSTEROANTERIOR": Projection.PA,
    "AP": Projection.AP,
    "ANTEROPOSTERIOR": Projection.AP,
}
_CODES: Final = ((codes.SCT.PosteroAnterior, Projection.PA), (codes.SCT.AnteroPosterior, Projection.AP))
_Answered = TypeVar("_Answered", PromptReading, FilmAnswer)


def tag_of(header: FilmHeader) -> TaggedView | None:
    """Return the view that a header names; None if it names none."""
    if routing.says_slanted(header) is not None:
        return "lateral"
    view = projection_of(header)
    if view is None:
        return "frontal" if routing.names_frontal(header) else None
    return view.value


def projection_of(header: FilmHeader) -> Projection | None:
    """Return the projection that a header names; None if it names none, two, or a patient lying on one side."""
    words = header_words.words(header.view_position) | header_words.words(header.body_part_examined)
    views = {_WORDS[word] for word in words if word in _WORDS}
    views |= {view for code in header.view_codes for known, view in _CODES if code == known}
    return views.pop() if len(views) == 1 and not header_words.names_decubitus(words) else None


def film_view(header: FilmHeader | None, picture: ViewReading | None = None) -> FilmView:
    """Return a film's view by its header and its picture.

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
    """Return the doubt that applies to every finding of a film; None if there is none.

    notes: the film's notes, with those of `notes_of`. A picture that is not frontal needs no header to be in doubt.
    """
    if picture is not None and not picture.is_frontal:
        return "other_view"
    return next((doubt for note, doubt in _DOUBTS.items() if note in notes), None)


def is_doubt(note: Note) -> bool:
    """Return whether a note speaks against every finding of a film."""
    return note in _DOUBTS


def notes_of(tag: TaggedView | None, picture: ViewReading) -> Iterator[Note]:
    """Yield the notes about a picture that does not fit its header, or whose pixels do not lie as they should.

    A header that names a frontal view is contradicted as soon as that is not the more probable. That an AP film looks
    like a PA one, or the other way round, is no doubt.
    """
    if tag is not None and not picture.is_frontal:
        yield Note.VIEW_DISAGREES
    if picture.mirrored:
        yield Note.MIRRORED
    if picture.rotated:
        yield Note.ROTATED


def doubt_reading(reading: Reading, doubt: Doubt | None, prompts: PromptSet, *, is_checked: bool) -> Reading:
    """Return a film's reading; with a doubt, without present findings and without a ratio.

    is_checked: whether sentences must agree with the decisions; raw ones stay as generated
    """
    if doubt is None:
        return reading
    answers = tuple(_doubted(answer, doubt) for answer in reading.prompts)
    doubted = replace(reading, ratio=None, prompts=answers)
    if not is_checked:
        return doubted
    changed = {answer.key for answer in reading.pathologies if answer.state is FindingState.PRESENT}
    states = {
        answer.key: answer.state
        for answer in doubted.pathologies
        if answer.state is not None and answer.state.is_reported
    }

    def restated(said: Sentence) -> Sentence:
        words = unstated(said.text)
        asserted = dict.fromkeys((said.prompt, *(each.key for each in assertions(words))))
        if changed.isdisjoint(asserted):
            return said
        named = {prompts[key].name: states[key] for key in asserted if key in states}
        return replace(said, text=stated(words, named))

    return replace(doubted, sentences=tuple(map(restated, reading.sentences)))


def without_denials(reading: Reading) -> Reading:
    """Withhold the sentences that deny something, though they would leave with a mark on another film."""
    kept = [place for place, said in enumerate(reading.sentences) if not is_not_seen(said.text)]
    new_places = {old: new for new, old in enumerate(kept)}
    gone = [said for said in reading.sentences if is_not_seen(said.text)]
    denials = [
        WithheldSentence(text=unstated(said.text), prompt=said.prompt, reason=Fault.DENIAL.value) for said in gone
    ]
    return replace(
        reading,
        sentences=tuple(reading.sentences[place] for place in kept),
        withheld=(*reading.withheld, *denials),
        prompts=tuple(
            answer if answer.sentence is None else replace(answer, sentence=new_places.get(answer.sentence))
            for answer in reading.prompts
        ),
    )


def see_film(image: Radiograph, header: FilmHeader | None, reader: RadiographReader) -> SeenFilm:
    """Encode a film for questions, with the doubts about its header and picture; header: None for a PNG."""
    film = reader.see(image)
    tag = None if header is None else tag_of(header)
    of_header = () if header is None else routing.choose(header, routing.rules_for(reader.ages)).notes
    of_picture = () if film.view is None else notes_of(tag, film.view)
    return replace(film, notes=(*film.notes, *filter(is_doubt, of_header), *of_picture))


def ask_film(
    film: SeenFilm, questions: Sequence[Question], prompts: PromptSet, reader: RadiographReader
) -> list[FilmAnswer]:
    """Answer questions about a film that `see_film` saw; on one in doubt nothing is present.

    Raises ValueError for an invalid question, otherwise as `RadiographReader.ask`.
    """
    answers = reader.ask(film, questions, prompts)
    doubt = doubt_of(film.view, film.notes)
    if doubt is None:
        return answers
    return [_doubted_answer(answer, doubt, is_checked=reader.identity.is_checked) for answer in answers]


def _doubted_answer(answer: FilmAnswer, doubt: Doubt, *, is_checked: bool) -> FilmAnswer:
    doubted = _doubted(answer, doubt)
    if not (is_checked and answer.positive and answer.sentence):
        return doubted
    named = {answer.question.prompt or "": FindingState.INDETERMINATE}
    return replace(doubted, sentence=stated(unstated(answer.sentence), named))


def _doubted(answer: _Answered, doubt: Doubt) -> _Answered:
    if answer.state is None or not answer.state.is_reported:
        return answer
    state = FindingState.INDETERMINATE if answer.state is FindingState.PRESENT else answer.state
    return replace(answer, state=state, contradiction=answer.contradiction or doubt)
