"""The page with the findings: impression first, identities last, every letter legible and on the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.domain import Evidence, Film, FindingState, Reason
from node.outputs import findings_page, impression, lettering, wording
from tests.support.drawn_texts import DrawnTexts
from tests.support.samples import EDEMA, absent, film, finding, left_out, report, several, uncalibrated, unread


def drawn(monkeypatch: pytest.MonkeyPatch, of: Film, *, is_drawn: bool = True) -> tuple[DrawnTexts, str]:
    """Draw a page; returns what was written on it, and that as one text."""
    written = DrawnTexts(monkeypatch)
    findings_page.draw(report(of), of, is_drawn=is_drawn)
    return written, " ".join(written.lines)


def test_a_page_begins_with_the_impression(monkeypatch: pytest.MonkeyPatch) -> None:
    of = several()

    written, text = drawn(monkeypatch, of)

    assert text.startswith(" ".join(impression.labeled(impression.of_film(of))))
    assert written.lines[-1] == f"Film {of.source}"
    parts = [
        "Right pleural effusion, 83 %",
        "Small right pleural effusion.",
        wording.HEADINGS[FindingState.INDETERMINATE],
        wording.HEADINGS[FindingState.ABSENT],
        "Pneumothorax 4 %",
        "Analyzed was the square",
        "weights sha256",
    ]
    assert sorted(parts, key=text.index) == parts


def test_a_page_names_the_zone_of_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(finding(), evidence=Evidence(zone="right_lower_lung_zone", extent=0.414))

    _, text = drawn(monkeypatch, film(findings=(found,)))

    assert "Right pleural effusion, 83 %, most in the right lower lung zone (41 % of it covered)" in text


def test_a_page_gives_what_is_left_out_no_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = drawn(monkeypatch, film(findings=(left_out(), absent(EDEMA))))

    assert "Pulmonary edema 4 %" in text
    assert text.count("Pneumothorax") == 1
    assert " ".join(text.split()).partition(wording.HEADINGS[FindingState.LEFT_OUT])[2].startswith(" Pneumothorax ")


@pytest.mark.parametrize("of", [several(), film(findings=(uncalibrated(),)), film(), unread(1, Reason.LATERAL)])
def test_no_page_concludes_normal_or_names_a_patient(of: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = drawn(monkeypatch, of)

    assert "Müller" not in text
    assert "4711" not in text
    assert "normal" not in text.replace("This is not a report of a normal film", "")


def test_a_page_says_why_a_film_was_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    of = unread(1, Reason.LATERAL)

    _, text = drawn(monkeypatch, of)

    assert text.startswith(f"AI RESEARCH - NOT FOR DIAGNOSIS {wording.not_processed(of)}")


def test_a_page_says_that_its_film_could_not_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    _, shown = drawn(monkeypatch, several())
    _, missing = drawn(monkeypatch, several(), is_drawn=False)

    assert findings_page.NOT_DRAWN in missing
    assert findings_page.NOT_DRAWN not in shown


@pytest.mark.parametrize("count", [0, 3, 13, 60])
def test_all_text_is_on_the_page(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuple(
        finding(replace(EDEMA, meaning=f"Finding {number} with a name of some length"), state=state)
        for number, state in zip(range(count), list(FindingState) * 15, strict=False)
    )
    written = DrawnTexts(monkeypatch)

    image = findings_page.draw(report(film(findings=found)), film(findings=found), is_drawn=True)

    assert written.cut_off() == []
    assert image.width in findings_page.WIDTHS
    assert all(f"inding {number} with a name of some length" in " ".join(written.lines) for number in range(count))


def test_a_page_with_little_text_has_the_larger_letters() -> None:
    little, much = (
        findings_page.draw(report(of), of, is_drawn=True)
        for of in (film(), film(findings=tuple(finding(replace(EDEMA, meaning=f"No. {n}")) for n in range(20))))
    )

    assert little.width == findings_page.WIDTHS[0] < much.width


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Pleural effusion, 83 %", "Pleural effusion, 83 %"),
        ("Größe \u2013 Ödem naïve", "Grosse - Odem naive"),
        ("a\u0301 5\u00a0%\tx", "a 5 % x"),
        ("胸水 1", "?? 1"),
        ("½", "1\u20442"),
    ],
)
def test_only_characters_of_the_font_are_drawn(text: str, expected: str) -> None:
    assert lettering.drawable(text) == expected
    assert all(lettering.is_drawable(character) for character in expected)
    assert not lettering.is_drawable("胸")


def test_an_absent_finding_has_neither_side_nor_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = drawn(monkeypatch, film(findings=(absent(),)))

    assert "Pneumothorax 4 %" in text
    assert "Small right pleural effusion" not in text
