"""What people send about a film over the interface: questions, and boxes on it, described once for all routes.

A question that is none, or a box that is empty, gets 422; one that does not fit the film in question gets 409.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field

from models.contract import Box, Question
from node.character_sets import visible
from node.web.problems import Problem

_MOST_QUESTIONS: Final = 20
LONGEST_PROMPT: Final = 300
_Edge = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_EDGES: Final = "left, top, right, bottom, in pixels of the stored film"

Edges: TypeAlias = Annotated[
    tuple[_Edge, _Edge, _Edge, _Edge] | None,
    BeforeValidator(lambda given: given.edges if isinstance(given, Box) else given),
    Field(description=_EDGES),
]
"""A box by its edges; a `Box` is turned into them."""


class NewQuestion(BaseModel):
    """A question: a prompt, a box, or both together as one question."""

    prompt: str | None = Field(default=None, max_length=LONGEST_PROMPT, description="words to search for")
    box: Edges = None


class NewQuestions(BaseModel):
    """Questions about one film, each answered on its own."""

    questions: Annotated[list[NewQuestion], Field(min_length=1, max_length=_MOST_QUESTIONS)]

    def checked(self) -> list[Question]:
        """Return the questions. Raises Problem if one asks nothing, or its box is empty."""
        return [_question(question) for question in self.questions]


class NewLookWords(BaseModel):
    """A question in words, or a prompt; box: one on the film that it is about."""

    text: Annotated[str, Field(max_length=LONGEST_PROMPT, pattern=r"\S")]
    box: Edges = None

    def as_prompt(self) -> Question:
        """Return the words as a prompt. Raises Problem for an empty box."""
        return Question(prompt=" ".join(visible(self.text).split()), box=box_of(self.box))


def box_of(edges: tuple[float, float, float, float] | None) -> Box | None:
    """Return a box by its edges. Raises Problem for an empty one."""
    if edges is None:
        return None
    left, top, right, bottom = edges
    try:
        return Box(left=left, top=top, right=right, bottom=bottom)
    except ValueError as error:
        raise Problem(422, str(error)) from error


def _question(new: NewQuestion) -> Question:
    prompt = visible(new.prompt or "").strip() or None
    if prompt is None and new.box is None:
        raise Problem(422, "nothing was asked; give a prompt, a box, or both")
    return Question(prompt=prompt, box=box_of(new.box))
