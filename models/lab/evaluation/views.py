"""The task `views`: how well the view head recognizes frontal, lateral, other, mirrored and rotated films.

Each film of a set is shown as it is, mirrored, and turned by quarters. A phantom has a lateral and a film of another
part beside it. A film is kept if a frontal chest is more probable than all else; otherwise the node stops it, if its
header names no view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.contract import ViewReading
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices

Kind = Literal["frontal", "mirrored", "rotated", "lateral", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenView:
    """The head's reading of one picture; kind: its true kind; view: the true view of the frontal film, AP or PA."""

    kind: Kind
    view: str
    reading: ViewReading


def measure(seen: Sequence[Sequence[SeenView]], bootstrap: Bootstrap) -> dict[str, object]:
    """Compute all figures; seen: the pictures of each film."""
    rights = {name: [_outcomes(film, *question) for film in seen] for name, question in _QUESTIONS.items()}

    def figures(films: Indices) -> Figures:
        return {name: _share([right for film in films for right in of_film[film]]) for name, of_film in rights.items()}

    return {
        **figures(np.arange(len(seen))),
        "frontals": sum(picture.kind == "frontal" for film in seen for picture in film),
        "deviations": bootstrap.deviations(figures, len(seen)),
    }


def _is_kept(picture: SeenView) -> bool:
    return picture.reading.is_frontal


_Question = tuple[tuple[Kind, ...], Callable[[SeenView], bool]]
_QUESTIONS: dict[str, _Question] = {
    "kept": (("frontal",), _is_kept),
    "unmarked": (("frontal",), lambda picture: not (picture.reading.mirrored or picture.reading.rotated)),
    "projection": (("frontal",), lambda picture: picture.reading.view == picture.view),
    "mirrored": (("mirrored",), lambda picture: picture.reading.mirrored),
    "rotated": (("rotated",), lambda picture: picture.reading.rotated),
    "lateral": (("lateral",), lambda picture: picture.reading.view == "lateral"),
    "other": (("other",), lambda picture: picture.reading.view == "not_chest"),
    "stopped": (("lateral", "other"), lambda picture: not _is_kept(picture)),
}
"""By figure: the pictures that it is measured on, and whether the answer about one is right."""


def _outcomes(film: Sequence[SeenView], kinds: tuple[Kind, ...], is_right: Callable[[SeenView], bool]) -> list[bool]:
    return [is_right(picture) for picture in film if picture.kind in kinds]


def _share(rights: Sequence[bool]) -> float | None:
    return sum(rights) / len(rights) if rights else None
