"""What a picture shows: the view of a film, and how its pixels lie, from the outputs of the view head.

The head is a part of the network that a model may have (`sizes.views` of the manifest, `network.view_head`). It has six
outputs: one for each of `VIEWS`, of which exactly one is true, and one for each of `MARKS`, each true or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from models.bounds import require_positive, require_unit
from models.contract import VIEWS, View, ViewReading

Mark = Literal["mirrored", "rotated"]
MARKS: Final[tuple[Mark, ...]] = get_args(Mark)
FRONTAL: Final[frozenset[View]] = frozenset(("AP", "PA"))
HEAD: Final = "view_head."
"""The beginning of the names of the head's weights."""
OUTPUTS: Final = len(VIEWS) + len(MARKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRule:
    """How the outputs of the view head become a view and marks.

    temperature: divides the outputs
    certain: probability from which a view is certain
    mirrored, rotated: probability from which a film is called so
    """

    temperature: float
    certain: float
    mirrored: float
    rotated: float

    def __post_init__(self) -> None:
        require_positive(self, "temperature")
        require_unit(self, "certain", "mirrored", "rotated")


def read_view(outputs: NDArray[np.floating], rule: ViewRule) -> ViewReading:
    """Read the outputs [6] of the head for one film."""
    scaled = outputs.astype(np.float64) / rule.temperature
    views, marks = scaled[: len(VIEWS)], scaled[len(VIEWS) :]
    shares = np.exp(views - views.max())
    mirrored, rotated = 1 / (1 + np.exp(-marks))
    return ViewReading(
        probabilities=dict(zip(VIEWS, (shares / shares.sum()).tolist(), strict=True)),
        certain=rule.certain,
        mirrored=bool(mirrored >= rule.mirrored),
        rotated=bool(rotated >= rule.rotated),
    )
