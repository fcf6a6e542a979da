"""Returns whether a cardiothoracic ratio is comparable, and the size of its pixels; pure functions.

The network measures the ratio (`models.reading.cardiothoracic`); the header determines its use. Usual limits are for
adults in a PA view: on an AP film the heart is magnified, and a child's heart is wide. And they are for a model whose
error was measured on such films. A ratio raises no finding and changes no finding's state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pydicom.sr.codedict import codes

from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, View
from node.dicom.film_header import FilmHeader
from node.read import header_words

ADULT_YEARS: Final = 18

_WORDS: Final = {"PA": View.PA, "POSTEROANTERIOR": View.PA, "AP": View.AP, "ANTEROPOSTERIOR": View.AP}
_CODES: Final = ((codes.SCT.PosteroAnterior, View.PA), (codes.SCT.AnteroPosterior, View.AP))


def describe(
    ratio: CardiothoracicRatio | None, header: FilmHeader, spacing: tuple[float, float] | None
) -> CardiothoracicRatio | None:
    """Add to a ratio its view, why it has no band, and the size of its pixels; spacing: see `calibrated_spacing`.

    An error that was never measured on such films goes first: then the number is meaningless.
    """
    if ratio is None:
        return None
    view = view_of(header)
    return replace(
        ratio,
        view=view,
        objection=Incomparable.UNMEASURED
        if ratio.objection is Incomparable.UNMEASURED
        else _objection(view, header.age_years),
        mm_per_pixel=None if spacing is None else spacing[0 if ratio.heart.is_vertical else 1],
    )


def view_of(header: FilmHeader) -> View | None:
    """Return the projection that a header names; None if it names none, two, or a patient lying on one side."""
    words = header_words.words(header.view_position) | header_words.words(header.body_part_examined)
    views = {_WORDS[word] for word in words if word in _WORDS}
    views |= {view for code in header.view_codes for known, view in _CODES if code == known}
    return views.pop() if len(views) == 1 and not header_words.names_decubitus(words) else None


def _objection(view: View | None, age_years: int | None) -> Incomparable | None:
    if view is None:
        return Incomparable.VIEW_UNKNOWN
    if view is View.AP:
        return Incomparable.VIEW_AP
    if age_years is None:
        return Incomparable.AGE_UNKNOWN
    return Incomparable.CHILD if age_years < ADULT_YEARS else None
