"""Faults of generated sentences: those that reports have, and none in all that the reports of phantoms say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from language.check import Claim, Fault, called_normal, contradictions, denied_alone, faults, never_said, words_severity
from language.cues import cues
from language.labels import NO_FINDING, class_rules
from language.question_check import Hindrance, hindered
from models.contract import FindingState, Side
from models.lab.phantoms import Phantom, phantom
from models.lab.phantoms.truth import FINDINGS, PhantomSentence
from models.lab.tasks.labels import CHEXPERT
from node.outputs.vocabulary import MINUTES, urgencies
from node.read import prompts
from tests.paths import FIXTURES

SENTENCES = FIXTURES / "sentences"
DECISIONS = {"+": FindingState.PRESENT, "-": FindingState.ABSENT, "?": FindingState.INDETERMINATE}
NO_CLAIM = Claim(finding=None, state=FindingState.ABSENT, side=None, region=None, region_has_finding=False)
DENIED = {
    "The cardiac silhouette is normal.": {"cardiomegaly"},
    "The mediastinum is normal.": {"enlarged_cardiomediastinum"},
}
"""What a report denies by the name of a region."""


def rows(name: str) -> list[tuple[str, str, str]]:
    lines = (SENTENCES / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in f"{line} ".split(" | ")] for line in lines if not line.startswith("#")]
    return [(first, second, third[0].strip(" |") if third else "") for first, second, *third in cells]


def side_of(word: str | None) -> Side | None:
    return None if word in ("-", None) else Side.BILATERAL if word == "both" else Side(word)


def side_named(sentence: str) -> str | None:
    """The only side that a sentence names: left, right or both; None if it names none."""
    words = set(re.findall(r"[a-z]+", sentence.lower()))
    named = {"left", "right"} & words
    return "both" if {"both", "bilateral"} & words or len(named) == 2 else next(iter(named), None)


def claim_of_finding(words: str) -> Claim:
    finding, state, side = words.split()
    return replace(NO_CLAIM, finding=finding, state=FindingState(state), side=side_of(side))


def claim_of_region(words: str) -> Claim:
    region, side, found = words.split(", ")
    assert found in ("found", "clear")
    return replace(NO_CLAIM, side=side_of(side), region=region, region_has_finding=found == "found")


def named(found: tuple[Fault, ...]) -> str:
    return " ".join(fault.value for fault in found)


@cache
def phantoms() -> list[Phantom]:
    return [phantom(seed, side=48) for seed in range(40_000, 40_060)]


def told() -> Iterator[tuple[Phantom, PhantomSentence]]:
    """Every sentence of the phantoms' reports, each wording once."""
    texts = set()
    for film in phantoms():
        for sentence in film.sentences:
            if sentence.text not in texts:
                texts.add(sentence.text)
                yield film, sentence


def claim_of(film: Phantom, sentence: PhantomSentence) -> Claim:
    """The truth that a sentence of a phantom stands for."""
    if not sentence.findings:
        (region,) = sentence.regions
        return replace(NO_CLAIM, region=region, side=side_of(side_named(region)))
    (finding,) = sentence.findings
    if not sentence.positive:
        return replace(NO_CLAIM, finding=finding)
    spoken = side_named(sentence.text)
    sides = {instance.side for instance in film.instances if instance.finding == finding}
    assert spoken is None or sides >= ({"left", "right"} if spoken == "both" else {spoken}), sentence.text
    return replace(NO_CLAIM, finding=finding, state=FindingState.PRESENT, side=side_of(spoken))


@pytest.mark.parametrize(("words", "sentence", "expected"), rows("findings"))
def test_a_sentence_of_a_finding_has_these_faults(words: str, sentence: str, expected: str) -> None:
    assert named(faults(sentence, claim_of_finding(words))) == expected


@pytest.mark.parametrize(("words", "sentence", "expected"), rows("regions"))
def test_a_sentence_of_a_region_has_these_faults(words: str, sentence: str, expected: str) -> None:
    assert named(faults(sentence, claim_of_region(words))) == expected


@pytest.mark.parametrize(("words", "sentence", "expected"), rows("strictly"))
def test_what_is_not_understood_is_refused(words: str, sentence: str, expected: str) -> None:
    assert named(faults(sentence, claim_of_finding(words))) == expected


@pytest.mark.parametrize(("sentence", "decided", "expected"), rows("contradictions"))
def test_a_sentence_contradicts_these_decisions(sentence: str, decided: str, expected: str) -> None:
    decisions = {word[1:]: DECISIONS[word[0]] for word in decided.split()}

    assert set(contradictions(sentence, decisions)) == set(expected.split())


@pytest.mark.parametrize(("sentence", "expected", "beside"), rows("never"))
def test_what_no_sentence_may_say_is_found(sentence: str, expected: str, beside: str) -> None:
    assert named(never_said(sentence)) == expected
    assert named(never_said(sentence, is_reported=True)) == beside
    assert words_severity(sentence) is ("severity" in expected)


HELD = replace(NO_CLAIM, finding="pneumothorax", state=FindingState.PRESENT)


def says(sentence: str, what: str) -> bool:
    """Whether a sentence says what a row of `words.txt` begins with."""
    if what in ("left", "right", "bilateral"):
        sides = (side for side in Side if Fault.WRONG_SIDE not in faults(sentence, replace(HELD, side=side)))
        return list(sides) == [Side(what)]
    if what in ("sized", "graded"):
        beside = (Fault.SEVERITY,) if what == "graded" else ()
        return never_said(sentence) == (Fault.SEVERITY,) and never_said(sentence, is_reported=True) == beside
    if what == "alone":
        return "pneumothorax" in denied_alone(sentence)
    if what == "normal":
        return never_said(sentence) == (Fault.DENIAL,)
    if what in class_rules():
        return what in contradictions(sentence, {what: FindingState.ABSENT})
    if what in (*Hindrance,):
        hindrance = hindered(sentence)
        return hindrance is not None and hindrance.why == what
    found = faults(sentence, HELD)
    if what in ("possible", "denied"):
        is_said = found == () if what == "possible" else Fault.DENIED in found
        return is_said and not contradictions(sentence, {"pneumothorax": FindingState.ABSENT})
    return found == never_said(sentence) == () if what == "plain" else what in found


@pytest.mark.parametrize(("what", "sentence", "words"), rows("words"))
def test_every_word_of_a_list_is_known(what: str, sentence: str, words: str) -> None:
    assert [word for word in words.split("; ") if not says(sentence.replace("*", word), what)] == []


def test_what_is_to_be_told_within_minutes_is_made_little_of_by_no_sentence() -> None:
    urgent = {key for key, urgency in urgencies(prompts.load("chexpert14")).items() if urgency == MINUTES}

    assert {*cues().urgent} == urgent


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("No larger pleural effusion is seen.", "pleural_effusion"),
        ("No focal consolidation, effusion or pneumothorax.", "consolidation pleural_effusion pneumothorax"),
        ("The heart is not enlarged.", "cardiomegaly"),
        ("No effusion or hilar enlargement.", ""),
        ("No effusion, pneumothorax on the left.", ""),
        ("No effusion but there is edema.", ""),
        ("No pneumothorax. The lungs are clear.", ""),
        ("No evidence of acute disease.", ""),
        ("There is edema.", ""),
    ],
)
def test_a_sentence_denies_alone_only_what_it_names(sentence: str, expected: str) -> None:
    assert denied_alone(sentence) == {*expected.split()}


def test_what_the_name_of_a_finding_says_is_no_severity() -> None:
    assert never_said("There is severe edema.", names=("Severe edema",)) == ()
    assert never_said("There is massive severe edema.", names=("Severe edema",)) == (Fault.SEVERITY,)


def test_the_cases_have_every_fault_and_every_class() -> None:
    cases = [(words.split()[0], expected) for words, _, expected in rows("findings")]
    expected = {fault for table in ("findings", "regions") for row in rows(table) for fault in row[2].split()}
    expected |= {fault for row in rows("never") for fault in row[1].split()}

    assert expected == {fault.value for fault in Fault}
    assert {finding for finding, _ in cases} == set(CHEXPERT)
    assert sum(not expected for _, expected in cases) > 100
    assert sum(bool(expected) for _, expected in cases) > 100


def test_what_a_phantoms_report_says_has_no_fault() -> None:
    wrong = {
        sentence.text: named(found)
        for film, sentence in told()
        if (found := faults(sentence.text, claim_of(film, sentence)))
    }

    assert wrong == {}


def test_what_a_phantoms_report_says_contradicts_nothing() -> None:
    wrong = {
        sentence.text: contradicted
        for film, sentence in told()
        for decided in [
            {str(key): FindingState.PRESENT if key in film.findings else FindingState.ABSENT for key in FINDINGS}
        ]
        if (contradicted := contradictions(sentence.text, decided))
    }

    assert wrong == {}


def test_the_opposite_of_a_phantoms_report_is_contradicted() -> None:
    for film, sentence in told():
        for finding in sentence.findings:
            opposite: FindingState = FindingState.ABSENT if sentence.positive else FindingState.PRESENT
            claim = replace(claim_of(film, sentence), state=opposite)

            assert finding in contradictions(sentence.text, {finding: opposite}), sentence.text
            expected = Fault.ASSERTED if sentence.positive else Fault.DENIED
            assert expected in faults(sentence.text, claim), sentence.text


def test_a_phantoms_report_is_read_to_say_nothing_else() -> None:
    for _, sentence in told():
        everything_absent = contradictions(sentence.text, dict.fromkeys(class_rules(), FindingState.ABSENT))
        everything_present = contradictions(sentence.text, dict.fromkeys(class_rules(), FindingState.PRESENT))
        spoken = DENIED.get(sentence.text, {*map(str, sentence.findings)})

        assert set(everything_absent) == (spoken if sentence.positive else set()), sentence.text
        assert set(everything_present) == (set() if sentence.positive else spoken), sentence.text


def test_the_sides_of_a_phantoms_report_exchanged_are_wrong() -> None:
    exchanged = 0
    for film, sentence in told():
        claim = claim_of(film, sentence)
        if claim.side in (Side.LEFT, Side.RIGHT):
            exchanged += 1
            other = replace(claim, side=Side.LEFT if claim.side is Side.RIGHT else Side.RIGHT)
            assert Fault.WRONG_SIDE in faults(sentence.text, other), sentence.text

    assert exchanged > 100


def test_a_finding_of_a_sites_own_is_known_by_its_names() -> None:
    claim = replace(
        NO_CLAIM, finding="hiatal_hernia", state=FindingState.PRESENT, names=("Hiatal hernia", "Gastric hernia")
    )

    assert faults("There is a large hiatal hernia.", claim) == ()
    assert faults("Two gastric hernias.", claim) == ()
    assert faults("There is no hiatal hernia.", claim) == (Fault.DENIED,)
    assert faults("There is a pleural effusion.", claim) == (Fault.NOT_NAMED,)
    assert faults("There is a hiatal hernia.", replace(claim, state=FindingState.ABSENT)) == (Fault.ASSERTED,)
    assert faults("There is a hiatal hernia.", replace(claim, names=())) == ()
    cyst = replace(claim, names=("Cyst (solitary) of a rib (bone)",))
    assert (faults("There is a cyst of a rib.", cyst), faults("There is a cyst.", cyst)) == ((), (Fault.NOT_NAMED,))


def test_regions_are_called_normal_in_their_own_words() -> None:
    assert called_normal("The lungs are clear.", ("left lung", "Lungs", "heart")) == ("Lungs",)


def test_names_add_to_those_of_a_class() -> None:
    claim = replace(NO_CLAIM, finding="pleural_other", state=FindingState.PRESENT, names=("Other pleural abnormality",))

    assert faults("There is pleural thickening.", claim) == ()
    assert faults("There are pleural abnormalities.", claim) == ()
    assert faults("There are no pleural abnormalities.", claim) == (Fault.DENIED,)


def test_a_sentence_of_more_than_sixty_words_is_unreadable() -> None:
    words = [f"{place}th nodule," for place in range(30)]

    assert faults(" ".join([*words, "."]), replace(NO_CLAIM, region="lung", region_has_finding=True)) == ()
    assert Fault.UNREADABLE in faults(" ".join([*words, "and one mass."]), NO_CLAIM)


@given(st.text(max_size=200))
@example("")
@example("?")
@example(" - ; no, or and with")
@example("no " * 100 + "effusion")
def test_any_text_is_judged(text: str) -> None:
    claim = replace(NO_CLAIM, finding="edema", state=FindingState.PRESENT, side=Side.LEFT)

    found = faults(text, claim)

    assert list(found) == [fault for fault in Fault if fault in found]
    assert set(contradictions(text, dict.fromkeys(CHEXPERT, FindingState.ABSENT))) <= {*class_rules(), NO_FINDING}
