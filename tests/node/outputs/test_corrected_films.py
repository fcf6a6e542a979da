"""What a reader said of one film stands in no text that is about another: a film's objects speak of that film."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pydicom.dataset import Dataset

from node.domain import About, Assessment, Film, ReaderMark, Subject
from node.outputs import oru, report_txt
from tests.node.outputs.test_versions import stated_version, written_in_turn
from tests.support.documents import said
from tests.support.samples import BERLIN, absent, cr, film, finding, ratio, report, sources, unread

KINDS = ("sr", "sr3d", "text", "gsps")  # a drawn film takes longer, and says nothing of other films

MARK = ReaderMark(what=Assessment.ACCEPTED, by="anna", at=datetime(2026, 11, 23, tzinfo=UTC))
WITHOUT = "without review by a person"
WITH = "with corrections by a reader"


def accepted(read: Film) -> Film:
    first, *others = read.findings
    return replace(read, findings=(replace(first, reader=MARK), *others))


def rejected(read: Film) -> Film:
    return replace(read, findings=(replace(absent(), reader=replace(MARK, what=Assessment.REJECTED)),))


def reworded(read: Film) -> Film:
    first, *others = read.sentences
    worded = replace(first, by="reader", reader=replace(MARK, what=Assessment.REWORDED))
    return replace(read, sentences=(worded, *others))


CORRECTIONS = {"accepted": accepted, "rejected": rejected, "reworded": reworded}
OTHERS = {
    "with a finding": replace(film(2, findings=(finding(), absent())), ratio=ratio()),
    "without a finding": film(2, findings=(absent(),)),
    "not read": unread(2),
}
FIRST = replace(film(1, findings=(finding(), absent())), ratio=ratio())


def texts(dataset: Dataset) -> str:
    return " ".join(said(dataset).split()) if "ContentSequence" in dataset else ""


def by_object(*of: tuple[Film, ...], kinds: tuple[str, ...] = KINDS) -> list[dict[tuple[Subject, str], Dataset]]:
    """The objects of each round, by what they are about and by their UID."""
    return [
        {(output.subject, output.sop_instance_uid): dataset for output, dataset in outputs}
        for outputs in written_in_turn(*of, kinds=kinds)
    ]


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize("correct", CORRECTIONS.values(), ids=CORRECTIONS)
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_correction_makes_no_version_of_another_film(other: Film, correct: Callable[[Film], Film]) -> None:
    before, after = by_object((FIRST, other), (correct(FIRST), other))

    of_other = {about for about in before if about[0].film == other.source}
    assert of_other == {about for about in after if about[0].film == other.source}
    assert of_other or not other.is_read
    assert {stated_version(after[about]) for about in of_other} <= {1}
    assert not [texts(after[about]) for about in of_other if WITH in texts(after[about])]


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize("correct", CORRECTIONS.values(), ids=CORRECTIONS)
def test_the_corrected_film_has_a_version_that_says_so(correct: Callable[[Film], Film]) -> None:
    before, after = by_object((FIRST, OTHERS["with a finding"]), (correct(FIRST), OTHERS["with a finding"]))

    new = [
        texts(after[about])
        for about in after.keys() - before.keys()
        if about[0] == Subject(about=About.FILM, film=FIRST.source)
    ]
    assert [WITH in text for text in new if text] == [True, True, True]  # sr, sr3d and text


@pytest.mark.parametrize("correct", CORRECTIONS.values(), ids=CORRECTIONS)
def test_a_ratio_that_nobody_corrected_stays_as_it_was(correct: Callable[[Film], Film]) -> None:
    before, after = by_object((FIRST,), (correct(FIRST),), kinds=("sr", "sr3d"))

    of_ratio = {about for about in before if about[0].about is About.RATIO}
    assert len(of_ratio) == 2
    assert of_ratio == {about for about in after if about[0].about is About.RATIO}
    assert all(WITHOUT in texts(after[about]) for about in of_ratio)


WHOLE = {
    "nobody": ((FIRST, film(2)), WITHOUT),
    "all films": ((accepted(FIRST), accepted(film(2, findings=(finding(),)))), f"{WITH}, who did not verify it"),
    "the only film": ((accepted(FIRST),), f"{WITH}, who did not verify it"),
    "one film": ((accepted(FIRST), film(2)), f"{WITH} on film 1 of 2, who did not verify it"),
    "two films": (
        (accepted(FIRST), unread(2), reworded(film(3))),
        f"{WITH} on films 1 and 3 of 3, who did not verify it",
    ),
}


@pytest.mark.parametrize(("films", "expected"), WHOLE.values(), ids=WHOLE)
def test_a_text_on_several_films_names_the_corrected(films: tuple[Film, ...], expected: str) -> None:
    of = report(*films)
    headers = sources(*(cr(number) for number in range(1, 4)))
    _, message = oru.write(of, headers, BERLIN, order=None, documents=[])
    [study] = by_object(films, kinds=("text",))

    found = [report_txt.render(of), *(texts(study[about]) for about in study if not about[0].film)]
    assert [expected in text for text in found] == [True] * len(found)
    # A message breaks its lines after some 90 characters; the end of the sentence stands in another line.
    assert expected.split(", who")[0] in " ".join(
        line.split("|")[5].strip() for line in message.decode().split("\r") if line.startswith("OBX") and "|TX|" in line
    )
