"""Keep anything on a film in doubt from being present: its findings are to be reviewed, and so say its sentences.

A film is in doubt if its picture is not what it is read as (`views.doubt_of`). Reports and questions come through here,
whatever network answered, so all outputs say the same. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from language.check import assertions
from language.sentences import stated, unstated
from models.contract import Doubt, FindingState, PromptReading, Question, Sentence
from node.dicom.film_header import FilmHeader
from node.prompt_set import PromptSet
from node.read import routing, views
from node.read.decoding import Radiograph
from node.read.model import FilmAnswer, RadiographReader, Reading, SeenFilm

_Answered = TypeVar("_Answered", PromptReading, FilmAnswer)


def doubt_reading(reading: Reading, doubt: Doubt | None, prompts: PromptSet, *, is_checked: bool) -> Reading:
    """Return what may be said of a film: its reading if there is no doubt; else nothing is present, and has no ratio.

    is_checked: whether sentences say what was decided; raw ones stay as generated
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
        named = {prompts[key].phrases[0]: states[key] for key in asserted if key in states}
        return replace(said, text=stated(words, named))

    return replace(doubted, sentences=tuple(map(restated, reading.sentences)))


def see_film(image: Radiograph, header: FilmHeader | None, reader: RadiographReader) -> SeenFilm:
    """Encode a film for questions, with what its header and its picture say against it; header: None for a PNG."""
    film = reader.see(image)
    tag = None if header is None else views.tag_of(header)
    of_header = () if header is None else routing.choose(header, routing.rules_for(reader.ages)).notes
    of_picture = () if film.view is None else views.notes_of(tag, film.view)
    return replace(film, notes=(*film.notes, *filter(views.is_doubt, of_header), *of_picture))


def ask_film(
    film: SeenFilm, questions: Sequence[Question], prompts: PromptSet, reader: RadiographReader
) -> list[FilmAnswer]:
    """Answer questions about a film that `see_film` saw; on one in doubt nothing is present.

    Raises ValueError for what cannot be asked, otherwise as `RadiographReader.ask`.
    """
    answers = reader.ask(film, questions, prompts)
    doubt = views.doubt_of(film.view, film.notes)
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
