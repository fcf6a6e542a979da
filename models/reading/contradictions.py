"""The network's own contradictions of a finding to be reported. Numpy only.

A finding that is present and contradicted is indeterminate: report and `ask` say why. One that is to be reviewed anyway
keeps its state, and gets the reason. Each rule is one function below; docs/model/evaluation.md says where the figures
have how often each applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from language.statements import sides_in
from models.contract import Contradiction, FindingState, PromptKind, ReaderPrompt, Side, SideOf
from models.decisions import Decisions
from models.engines import Engine, FloatArray
from models.reading.decided_film import DecidedFilm, Look
from models.reading.phrasebook import Phrasebook
from models.reading.sentence_check import COMPANIONS, Decided

_SIDES: Final = (Side.LEFT, Side.RIGHT)


def without_companion(film: DecidedFilm, decisions: Decisions) -> frozenset[int]:
    """Return the reported findings whose companion is absent, by a threshold that was measured on patient films.

    On phantoms each finding is drawn for itself.
    """
    silent = {
        key
        for index, state in film.states.items()
        if state is FindingState.ABSENT and decisions.is_of_people(key := film.prompts[index].key)
    }
    return frozenset(index for index in film.reported if COMPANIONS.get(film.prompts[index].key) in silent)


def found_on_other_side(asked: Sequence[tuple[int, Side]], boxes: FloatArray, side_of: SideOf) -> frozenset[int]:
    """Return the findings that a question about the side of one of their boxes is answered for on the other side.

    asked: finding and side; boxes: [question, 4], the best box of each answer. A box across the middle is on no side.
    """
    answered = [side_of(float(x), float(width)) for x, _, width, _ in boxes]
    return frozenset(
        index for (index, side), other in zip(asked, answered, strict=True) if other is not None and other != side
    )


def denied_by_sentence(decided: Decided, texts: Mapping[int, str]) -> list[int]:
    """Return the findings that are present and that their own sentences deny.

    A finding is contradicted if the sentence denies it again after another step toward the finding.
    """
    return [
        index
        for index, text in texts.items()
        if decided.prompts[index].kind is PromptKind.PATHOLOGY
        and decided.states[index] is FindingState.PRESENT
        and decided.denies(index, text)
    ]


class ContradictionCheck:
    """Asks about the findings of a film again, each by itself, on the sides of its boxes.

    knows_sides: whether the model learned the words "left" and "right"
    """

    def __init__(self, engine: Engine, phrasebook: Phrasebook, decisions: Decisions, *, knows_sides: bool) -> None:
        self._engine = engine
        self._phrasebook = phrasebook
        self._decisions = decisions
        self._knows_sides = knows_sides

    def check(self, look: Look, film: DecidedFilm) -> DecidedFilm:
        """Return the film with the contradictions of its findings, and the resulting states.

        If several rules apply to a finding, the last one here is its reason.
        """
        contradicted: dict[int, Contradiction] = {
            **dict.fromkeys(self._on_other_side(look, film), "other_side"),
            **dict.fromkeys(without_companion(film, self._decisions), "companion_silent"),
        }
        return film.doubting(contradicted)

    def prepare(self, prompts: tuple[ReaderPrompt, ...]) -> None:
        """Encode at least one prompt, and the names of findings with a side unless the network knows no sides."""
        self._phrasebook.vectors(prompts)
        if self._knows_sides and any(prompt.kind is PromptKind.PATHOLOGY for prompt in prompts):
            self._sided(prompts)

    def _on_other_side(self, look: Look, film: DecidedFilm) -> frozenset[int]:
        """Ask for each reported finding on the sides of its boxes, such as "left pleural effusion"."""
        if film.side_of is None or not self._knows_sides:
            return frozenset()
        asked = [(index, side) for index in film.reported for side in _sides_of(film, index)]
        if not asked:
            return frozenset()
        queries = self._sided(film.prompts)
        regions = self._engine.find(
            look.patches.copies(len(asked)), np.stack([queries[place] for place in asked])[:, np.newaxis]
        )
        best = regions.boxes[np.arange(len(asked)), 0, regions.scores[:, 0].argmax(axis=-1)]
        return found_on_other_side(asked, best, film.side_of)

    def _sided(self, prompts: Sequence[ReaderPrompt]) -> dict[tuple[int, Side], FloatArray]:
        """Embed the names of findings with a side before them; the phrasebook keeps them for the next film."""
        places = [
            (i, side) for i, prompt in enumerate(prompts) if prompt.kind is PromptKind.PATHOLOGY for side in _SIDES
        ]
        named = tuple(
            ReaderPrompt(key=prompts[i].key, kind=PromptKind.REGION, phrases=(f"{side} {prompts[i].phrases[0]}",))
            for i, side in places
        )
        return dict(zip(places, self._phrasebook.vectors(named).queries, strict=True))


def _sides_of(film: DecidedFilm, index: int) -> list[Side]:
    """Return the sides that the boxes of a finding lie on, each once; none if its name has a side already."""
    if film.side_of is None or sides_in(film.prompts[index].phrases[0].lower()):
        return []
    sides = {film.side_of(float(x), float(width)) for x, _, width, _ in film.visible[index][0]}
    return [side for side in _SIDES if side in sides]
