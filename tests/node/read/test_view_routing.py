"""The view of a film by its header and by its picture: what is read, what is stopped, and what every output says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from models.contract import VIEWS, View, ViewReading
from models.documents import decode, encode
from node.dicom.film_header import parse_header
from node.domain import Film, FilmView, Note, Reason, TaggedView
from node.outputs import impression, wording
from node.prompt_set import PromptSet
from node.read import prompts, views
from node.read.decoding import Radiograph
from node.read.film import answer_film
from node.read.model import Reading
from node.read.routing import Action, Decision
from tests.support import films
from tests.support.fakes import ScriptedReader

PROMPTS = prompts.load("chexpert14")
READ = Decision(action=Action.READ)


def picture(*, mirrored: bool = False, rotated: bool = False, **probabilities: float) -> ViewReading:
    return seeing(probabilities, mirrored=mirrored, rotated=rotated)


def seeing(probabilities: Mapping[str, float], *, mirrored: bool = False, rotated: bool = False) -> ViewReading:
    shares = {view: probabilities.get(view, 0.0) for view in VIEWS}
    return ViewReading(probabilities=shares, certain=0.9, mirrored=mirrored, rotated=rotated)


class SeeingReader(ScriptedReader):
    """Sees the same view on every film."""

    def __init__(self, view: ViewReading | None) -> None:
        super().__init__()
        self._view = view

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        said = super().read(image, prompts)
        return replace(said, view=self._view)


def answered(folder: Path, view: ViewReading | None, changes: Mapping[str, object] | None = None) -> Film:
    path = films.saved(folder, films.thumbnail(changes))
    film = answer_film(path, SeeingReader(view), PROMPTS).film
    assert film is not None
    return film


def coded(value: str) -> list[Dataset]:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, "SCT", "as coded"
    return [item]


@pytest.mark.parametrize(
    ("changes", "tag"),
    [
        ({"ViewPosition": "PA"}, "PA"),
        ({"ViewPosition": "ap"}, "AP"),
        ({"ViewPosition": "", "ViewCodeSequence": coded("399348003")}, "AP"),
        ({"ViewPosition": "FRONTAL"}, "frontal"),
        ({"ViewPosition": "AP PA"}, "frontal"),
        ({"ViewPosition": "LLD"}, "frontal"),
        ({"ViewPosition": "LL"}, "lateral"),
        ({"ViewPosition": ""}, None),
        ({"ViewPosition": "", "SeriesDescription": "CHEST PA"}, None),
    ],
)
def test_the_tag_is_the_view_that_the_header_names(changes: dict[str, object], tag: str | None) -> None:
    assert views.tag_of(parse_header(films.changed(films.rg1(), changes))) == tag


@pytest.mark.parametrize(
    ("tag", "seen", "expected"),
    [
        ("PA", picture(PA=0.99), READ),
        ("PA", picture(AP=0.6, PA=0.4), READ),
        ("PA", picture(AP=1.0), Decision(action=Action.READ)),
        ("AP", picture(PA=1.0), Decision(action=Action.READ)),
        ("PA", picture(lateral=1.0), Decision(action=Action.READ, notes=(Note.VIEW_DISAGREES,))),
        ("frontal", picture(AP=0.5, PA=0.5), READ),
        ("frontal", picture(not_chest=0.95), Decision(action=Action.READ, notes=(Note.VIEW_DISAGREES,))),
        (None, picture(AP=1.0), READ),
        (None, picture(lateral=0.4, AP=0.3, PA=0.3), READ),
        (None, picture(lateral=0.6, AP=0.4), Decision(action=Action.ANSWER, reason=Reason.LATERAL)),
        (None, picture(lateral=0.9, AP=0.1), Decision(action=Action.ANSWER, reason=Reason.LATERAL)),
        (None, picture(not_chest=0.95), Decision(action=Action.ANSWER, reason=Reason.NOT_CHEST)),
        (None, picture(lateral=0.5, not_chest=0.4, AP=0.1), Decision(action=Action.ANSWER, reason=Reason.LATERAL)),
        (None, picture(lateral=0.3, not_chest=0.65, AP=0.05), Decision(action=Action.ANSWER, reason=Reason.NOT_CHEST)),
        (None, picture(lateral=0.2, not_chest=0.25, AP=0.55), READ),
        (None, picture(PA=1.0, mirrored=True), Decision(action=Action.READ, notes=(Note.MIRRORED,))),
        ("AP", picture(AP=1.0, rotated=True), Decision(action=Action.READ, notes=(Note.ROTATED,))),
        (None, None, READ),
        ("PA", picture(lateral=0.6, PA=0.4), Decision(action=Action.READ, notes=(Note.VIEW_DISAGREES,))),
        (
            "frontal",
            picture(lateral=0.3, not_chest=0.3, AP=0.4),
            Decision(action=Action.READ, notes=(Note.VIEW_DISAGREES,)),
        ),
    ],
)
def test_a_picture_confirms_doubts_or_stops(
    tag: TaggedView | None, seen: ViewReading | None, expected: Decision
) -> None:
    assert views.confirm(READ, tag, seen, names_chest=True) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (picture(not_chest=0.95, PA=0.05), Decision(action=Action.ANSWER, reason=Reason.NOT_CHEST)),
        (picture(lateral=0.4, not_chest=0.5, PA=0.1), Decision(action=Action.ANSWER, reason=Reason.NOT_CHEST)),
        (picture(lateral=0.5, not_chest=0.4, PA=0.1), Decision(action=Action.ANSWER, reason=Reason.LATERAL)),
        (picture(lateral=0.4, not_chest=0.4, PA=0.2), Decision(action=Action.READ, notes=(Note.VIEW_DISAGREES,))),
    ],
)
def test_a_certain_picture_stops_a_film_of_no_named_part(seen: ViewReading, expected: Decision) -> None:
    assert views.confirm(READ, "PA", seen, names_chest=False) == expected


def test_notes_of_the_header_stay() -> None:
    decision = Decision(action=Action.READ, notes=(Note.AGE_UNKNOWN,))

    assert views.confirm(decision, None, picture(lateral=1.0), names_chest=True).notes == (Note.AGE_UNKNOWN,)
    assert views.confirm(decision, "PA", picture(PA=1.0, rotated=True), names_chest=True).notes == (
        Note.AGE_UNKNOWN,
        Note.ROTATED,
    )


@pytest.mark.parametrize(("view", "reason"), [("lateral", Reason.LATERAL), ("not_chest", Reason.NOT_CHEST)])
def test_a_certain_picture_stops_a_film_without_a_view(tmp_path: Path, view: View, reason: Reason) -> None:
    seen = seeing({view: 0.97, "PA": 0.03})

    film = answered(tmp_path, seen, {"ViewPosition": ""})
    named = answered(tmp_path, seen, {"ViewPosition": "PA"})

    assert (film.reason, film.view) == (reason, FilmView(tag=None, seen=view, certainty=0.97))
    assert "its picture" in wording.not_processed(film)
    assert (named.is_read, named.notes) == (True, (Note.VIEW_DISAGREES,))


def test_a_reason_by_the_header_does_not_speak_of_the_picture(tmp_path: Path) -> None:
    film = answered(tmp_path, picture(lateral=1.0), {"ViewPosition": "LL"})

    assert (film.reason, film.view) == (Reason.LATERAL, FilmView(tag="lateral"))
    assert "picture" not in wording.not_processed(film)


def test_a_model_without_a_view_head_leaves_it_to_the_header(tmp_path: Path) -> None:
    film = answered(tmp_path, None, {"ViewPosition": ""})

    assert (film.notes, film.view) == ((Note.VIEW_UNKNOWN,), FilmView())


def test_a_mirrored_film_keeps_its_boxes_and_gets_a_caution(tmp_path: Path) -> None:
    plain, mirrored = (answered(tmp_path, picture(PA=1.0, mirrored=flag)) for flag in (False, True))

    assert [finding.boxes[0].box for finding in mirrored.findings if finding.boxes] == [
        finding.boxes[0].box for finding in plain.findings if finding.boxes
    ]
    assert wording.cautions(plain) == ()
    (caution,) = wording.cautions(mirrored)
    assert caution in impression.of_film(mirrored)
    assert "looks mirrored" in wording.limits(mirrored)


def test_a_film_with_its_view_survives_storage(tmp_path: Path) -> None:
    film = answered(tmp_path, picture(AP=0.75, PA=0.25, rotated=True))
    stored = encode(film)

    assert stored["view"] == {"tag": "PA", "seen": "AP", "certainty": 0.75}
    assert decode(Film, stored) == film
