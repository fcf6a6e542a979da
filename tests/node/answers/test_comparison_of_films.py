"""Two films of one patient: what counts as a change, and what is not comparable."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.contract import ChangeError, FindingState
from node.answers.comparison import (
    Change,
    ComparedFinding,
    FilmComparison,
    Obstacle,
    ReadFilm,
    compare,
    extents,
    not_compared,
)
from node.answers.questions import Query, Topic, understand
from node.answers.replies import Reply, answer_by
from node.domain import Assessment, Evidence, Film, FilmView, Finding, Note, ReaderMark, Reason
from node.errors import InputError
from node.read.manifest import read_change_error
from tests.paths import REPOSITORY
from tests.support import samples
from tests.support.samples import EDEMA, absent, finding, left_out, uncalibrated, unread
from tests.support.spoken import PROMPTS, films, misread

SHIPPED = REPOSITORY / "models" / "weights" / "phantom"
ERROR = ChangeError(measured_on="phantoms", films=100, extent=0.2, probability=0.3)
MODEL = replace(samples.MODEL, trusted="phantoms")
PA = FilmView(tag="PA")
NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
OPPOSITE = {
    Change.NEW: Change.GONE,
    Change.GONE: Change.NEW,
    Change.LARGER: Change.SMALLER,
    Change.SMALLER: Change.LARGER,
}


def seen(*found: Finding, **changes: object) -> ReadFilm:
    """A film with these findings, as a model that was measured on phantoms read it on a phantom."""
    film = replace(samples.film(findings=found), view=PA, notes=())
    return ReadFilm(film=replace(film, **changes), model=MODEL, prompts_sha256="cd")  # type: ignore[arg-type]


REAL = replace(seen(finding()), model=samples.MODEL)
"""A film of a person."""


def covering(*extents: float, zones: tuple[str, ...] = ("right_lower_lung_zone", "right_mid_lung_zone")) -> Finding:
    """A pleural effusion that covers these shares of zones."""
    [box] = finding().boxes
    boxes = tuple(
        replace(box, evidence=Evidence(zone=zone, extent=extent)) for zone, extent in zip(zones, extents, strict=False)
    )
    return replace(finding(), boxes=boxes, evidence=boxes[0].evidence)


def spread(found: Finding) -> Finding:
    """The same finding, with a last box across zones."""
    *boxes, last = found.boxes
    return replace(found, boxes=(*boxes, replace(last, evidence=Evidence(zone=None, extent=0.0))))


def corrected() -> Finding:
    """A pleural effusion that a reader confirmed."""
    return replace(covering(0.3), reader=ReaderMark(what=Assessment.ACCEPTED, by="ada", at=NOON))


def gone(probability: float) -> Finding:
    return replace(absent(samples.EFFUSION), probability=probability)


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        (gone(0.1), covering(0.3), (Change.NEW, None)),
        (gone(0.1), replace(covering(0.3), state=FindingState.INDETERMINATE), (Change.NEW, None)),
        (gone(0.6), covering(0.3), (Change.NOT_COMPARABLE, Obstacle.NEAR)),
        (covering(0.3), gone(0.1), (Change.GONE, None)),
        (covering(0.3), gone(0.6), (Change.NOT_COMPARABLE, Obstacle.NEAR)),
        (gone(0.1), gone(0.9), (Change.NOT_REPORTED, None)),
        (covering(0.3), covering(0.6), (Change.LARGER, None)),
        (covering(0.6), covering(0.3), (Change.SMALLER, None)),
        (covering(0.3), covering(0.45), (Change.UNCHANGED, None)),
        (covering(0.3, 0.5), covering(0.31, 0.9), (Change.LARGER, None)),
        (covering(0.3, 0.9), covering(0.9, 0.3), (Change.NOT_COMPARABLE, Obstacle.MIXED)),
        (covering(0.3), covering(0.3, 0.1), (Change.NOT_COMPARABLE, Obstacle.OTHER_ZONE)),
        (covering(0.3), replace(covering(0.3), boxes=(), evidence=None), (Change.NOT_COMPARABLE, Obstacle.NO_ZONE)),
        (covering(0.3, 0.2), spread(covering(0.3, 0.2)), (Change.NOT_COMPARABLE, Obstacle.NO_ZONE)),
        (uncalibrated(), uncalibrated(), (Change.NOT_COMPARABLE, Obstacle.UNCALIBRATED)),
        (absent(EDEMA), uncalibrated(), (Change.NOT_COMPARABLE, Obstacle.UNCALIBRATED)),
        (corrected(), covering(0.6), (Change.NOT_COMPARABLE, Obstacle.CORRECTED)),
        (gone(0.1), corrected(), (Change.NOT_COMPARABLE, Obstacle.CORRECTED)),
        (left_out(samples.EFFUSION), covering(0.3), (Change.NOT_COMPARABLE, Obstacle.NOT_ASKED)),
        (gone(0.1), left_out(samples.EFFUSION), (Change.NOT_COMPARABLE, Obstacle.NOT_ASKED)),
        (left_out(samples.EFFUSION), left_out(samples.EFFUSION), (Change.NOT_REPORTED, None)),
    ],
)
def test_a_change_counts_beyond_the_error(
    earlier: Finding, later: Finding, expected: tuple[Change, Obstacle | None]
) -> None:
    [found] = compare(seen(earlier), seen(later), error=ERROR).findings

    assert (found.change, found.obstacle) == expected


def test_what_only_one_film_was_asked_for_is_not_compared_nor_called_unreported() -> None:
    found = compare(seen(covering(0.3)), seen(left_out(samples.EFFUSION), absent()), error=ERROR).findings

    assert {each.prompt: each.obstacle for each in found} == {
        "pleural_effusion": Obstacle.NOT_ASKED,
        "pneumothorax": Obstacle.NOT_ASKED,
    }
    assert found[0].text == (
        "Pleural effusion is not evaluated by this model, and cannot be compared with the earlier film: "
        "only one of the films was read for it."
    )


@pytest.mark.parametrize(
    ("earlier", "later", "error", "expected"),
    [
        (seen(), replace(seen(), film=unread(1, Reason.BLANK)), ERROR, Obstacle.NOT_READ),
        (seen(), replace(seen(), model=replace(MODEL, weights_sha256="ff")), ERROR, Obstacle.OTHER_MODEL),
        (seen(), replace(seen(), model=replace(MODEL, trusted="any")), ERROR, Obstacle.OTHER_MODEL),
        (seen(), replace(seen(), model=replace(MODEL, manifest_sha256="ff")), ERROR, Obstacle.OTHER_MODEL),
        (seen(), replace(seen(), prompts_sha256="ff"), ERROR, Obstacle.OTHER_PROMPTS),
        (seen(), seen(notes=(Note.MIRRORED,)), ERROR, Obstacle.DOUBTFUL),
        (seen(), seen(notes=(Note.IDENTIFIER_LEFT_OUT, Note.STRETCHED)), ERROR, Obstacle.DOUBTFUL),
        (seen(view=None), seen(), ERROR, Obstacle.VIEW_UNKNOWN),
        (seen(view=FilmView(tag="frontal")), seen(), ERROR, Obstacle.VIEW_UNKNOWN),
        (seen(view=FilmView(tag="AP")), seen(), ERROR, Obstacle.OTHER_VIEW),
        (seen(view=FilmView(tag="frontal", seen="AP", certainty=1)), seen(), ERROR, Obstacle.OTHER_VIEW),
        (seen(), seen(), None, Obstacle.UNMEASURED),
        (seen(), seen(), replace(ERROR, measured_on="hospital"), Obstacle.OTHER_POPULATION),
        (REAL, REAL, ERROR, Obstacle.OTHER_POPULATION),
        (seen(finding()), seen(finding(), notes=(Note.IDENTIFIER_LEFT_OUT,)), ERROR, None),
        (seen(finding()), replace(seen(finding()), model=replace(MODEL, engine="tensorrt")), ERROR, None),
        (REAL, REAL, replace(ERROR, measured_on="hospital"), None),
    ],
    ids=lambda value: value if isinstance(value, Obstacle) else "",
)
def test_films_that_differ_in_kind_are_not_compared(
    earlier: ReadFilm, later: ReadFilm, error: ChangeError | None, expected: Obstacle | None
) -> None:
    for first, second in ((earlier, later), (later, earlier)):
        compared = compare(first, second, error=error)

        assert compared.obstacle is expected
        assert bool(compared.findings) is (expected is None)
        assert compared.text.startswith("The films are not comparable: ") is (expected is not None)


def test_a_comparison_says_its_changes_and_names_their_boxes() -> None:
    compared = compare(seen(gone(0.1), finding(EDEMA)), seen(covering(0.3), absent(EDEMA)), error=ERROR)

    [box] = finding().boxes
    assert (compared.findings[0].earlier, compared.findings[0].later) == ((), (box.tracking_uid,))
    assert compared.text == (
        "Right pleural effusion is reported, and was not reported on the earlier film. "
        "Pulmonary edema is not reported any more, and may have been missed. "
        "What is not reported on either film may have been missed."
    )


def compared_of(earlier: Film, later: Film) -> FilmComparison:
    first, second = (
        ReadFilm(film=replace(film, view=PA, notes=()), model=MODEL, prompts_sha256="") for film in (earlier, later)
    )
    return compare(first, second, error=ERROR)


@settings(max_examples=50)
@given(films(), films())
def test_exchanged_films_have_the_opposite_changes_and_no_comparison_contradicts_a_film(
    earlier: Film, later: Film
) -> None:
    forward, back = compared_of(earlier, later).findings, compared_of(later, earlier).findings

    assert [wrong for found in forward for wrong in misread(found.text, later)] == []
    assert [OPPOSITE.get(found.change, found.change) for found in forward] == [found.change for found in back]
    assert [(found.obstacle, found.earlier) for found in forward] == [(found.obstacle, found.later) for found in back]
    own = {found.change for found in compared_of(later, later).findings}
    assert own <= {Change.UNCHANGED, Change.NOT_REPORTED, Change.NOT_COMPARABLE}, "a film is unchanged from itself"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_the_extent_in_a_zone_is_that_of_its_largest_box(shares: list[float]) -> None:
    found = covering(*shares, zones=("right_lower_lung_zone",) * 3)

    assert extents(found) == {"right_lower_lung_zone": max(shares)}


def test_a_model_may_state_its_error_of_change(tmp_path: Path) -> None:
    manifest = (SHIPPED / "manifest.toml").read_text(encoding="utf-8")
    before, _, after = manifest.partition("[change]")

    stated = read_change_error(SHIPPED)

    assert stated is not None
    assert (stated.measured_on, stated.films) == ("phantoms", 100)
    (tmp_path / "manifest.toml").write_text(before + after[after.index("[files]") :], encoding="utf-8")
    assert read_change_error(tmp_path) is None
    bad = {f"{before}[unknown]{after}": "unknown"}
    for wrong in ("extent = 1.5", "probability = -0.1", "films = 0", 'measured_on = " "'):
        key = wrong.partition(" ")[0]
        bad[f"{before}[change]" + re.sub(rf"(?m)^{key} = .*$", wrong, after, count=1)] = key
    for text, said in bad.items():
        (tmp_path / "manifest.toml").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=said):
            read_change_error(tmp_path)


def test_a_question_on_change_is_answered_by_its_findings() -> None:
    both = FilmComparison(
        text="all",
        findings=(
            ComparedFinding(prompt="pleural_effusion", change=Change.LARGER, text="Larger.", later=("2.25.1",)),
            ComparedFinding(prompt="edema", change=Change.NOT_REPORTED, text="Edema is not reported."),
        ),
    )
    rest = "What is not reported on either film may have been missed."

    assert answer_by(both, understand("what changed?", PROMPTS)) == Reply(
        text=f"Larger. {rest}", findings=("pleural_effusion",), boxes=("2.25.1",)
    )
    assert answer_by(both, understand("is the edema worse?", PROMPTS)).text == f"Edema is not reported. {rest}"
    asked = answer_by(both, understand("is the fracture new?", PROMPTS)).text
    assert asked == f"Fracture is not on the list of findings that this film was read for. {rest}"
    assert answer_by(not_compared(Obstacle.UNMEASURED), Query(topic=Topic.COMPARE)).text.startswith("The films are not")
