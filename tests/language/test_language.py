"""What sentences say: faults of generated ones, labels of reports, and sentences made by rule, which have no fault."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from language.check import Claim, Fault, called_normal, contradictions, denied_alone, faults, never_said, words_severity
from language.cues import cues
from language.labels import NO_FINDING, RuleLabeler, class_rules
from language.labels import says as is_said
from language.question_check import Hindrance, hindered
from language.sentences import by_rule, is_not_seen, not_seen, stated, unstated
from models.contract import FindingState, PromptKind, Side
from models.lab.evaluation.cases import truth_of_phantom
from models.lab.phantoms import Phantom, phantom
from models.lab.phantoms.truth import FINDINGS, PhantomSentence
from models.lab.tasks.labels import CHEXPERT
from node.outputs.vocabulary import MINUTES, urgencies
from node.read import prompts
from tests.paths import FIXTURES

LABELER = RuleLabeler()
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


def named(found: tuple[Fault, ...]) -> str:
    return " ".join(fault.value for fault in found)


@cache
def told() -> list[tuple[Phantom, PhantomSentence]]:
    """Every sentence of the reports of some phantoms, each wording once."""
    films = [phantom(seed, side=48) for seed in range(40_000, 40_060)]
    return [*{sentence.text: (film, sentence) for film in films for sentence in film.sentences}.values()]


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


@pytest.mark.parametrize(("words", "sentence", "expected"), [*rows("findings"), *rows("strictly")])
def test_a_sentence_of_a_finding_has_these_faults(words: str, sentence: str, expected: str) -> None:
    """What is not understood is refused."""
    finding, state, side = words.split()
    claim = replace(NO_CLAIM, finding=finding, state=FindingState(state), side=side_of(side))
    assert named(faults(sentence, claim)) == expected


@pytest.mark.parametrize(("words", "sentence", "expected"), rows("regions"))
def test_a_sentence_of_a_region_has_these_faults(words: str, sentence: str, expected: str) -> None:
    region, side, found = words.split(", ")
    assert found in ("found", "clear")
    claim = replace(NO_CLAIM, side=side_of(side), region=region, region_has_finding=found == "found")
    assert named(faults(sentence, claim)) == expected


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
        ("No pneumothorax. The lungs are clear.", ""),
        ("No evidence of acute disease.", ""),
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
    assert {key for key, _ in NAMES} == set(class_rules())
    assert sum(not expected for _, expected in cases) > 100
    assert sum(bool(expected) for _, expected in cases) > 100


def test_what_a_phantoms_report_says_has_no_fault_and_says_nothing_else() -> None:
    all_absent, all_present = (
        dict.fromkeys(class_rules(), state) for state in (FindingState.ABSENT, FindingState.PRESENT)
    )
    for film, sentence in told():
        text, spoken = sentence.text, DENIED.get(sentence.text, {*map(str, sentence.findings)})
        decided = all_absent | dict.fromkeys(map(str, film.findings), FindingState.PRESENT)

        assert faults(text, claim_of(film, sentence)) == (), text
        assert contradictions(text, {str(key): decided[str(key)] for key in FINDINGS}) == (), text
        assert set(contradictions(text, all_absent)) == (spoken if sentence.positive else set()), text
        assert set(contradictions(text, all_present)) == (set() if sentence.positive else spoken), text


def test_the_opposite_of_a_phantoms_report_and_its_sides_exchanged_are_wrong() -> None:
    exchanged = 0
    for film, sentence in told():
        claim = claim_of(film, sentence)
        for finding in sentence.findings:
            opposite: FindingState = FindingState.ABSENT if sentence.positive else FindingState.PRESENT
            expected = Fault.ASSERTED if sentence.positive else Fault.DENIED
            assert finding in contradictions(sentence.text, {finding: opposite}), sentence.text
            assert expected in faults(sentence.text, replace(claim, state=opposite)), sentence.text
        if claim.side in (Side.LEFT, Side.RIGHT):
            exchanged += 1
            other = replace(claim, side=Side.LEFT if claim.side is Side.RIGHT else Side.RIGHT)
            assert Fault.WRONG_SIDE in faults(sentence.text, other), sentence.text

    assert exchanged > 100


HERNIA = replace(
    NO_CLAIM, finding="hiatal_hernia", state=FindingState.PRESENT, names=("Hiatal hernia", "Gastric hernia")
)
PLEURA = replace(HERNIA, finding="pleural_other", names=("Other pleural abnormality",))  # they add to those of a class
CYST = replace(HERNIA, names=("Cyst (solitary) of a rib (bone)",))


@pytest.mark.parametrize(
    ("claim", "sentence", "expected"),
    [
        (HERNIA, "There is a large hiatal hernia.", ""),
        (HERNIA, "Two gastric hernias.", ""),
        (HERNIA, "There is no hiatal hernia.", "denied"),
        (HERNIA, "There is a pleural effusion.", "not_named"),
        (replace(HERNIA, state=FindingState.ABSENT), "There is a hiatal hernia.", "asserted"),
        (replace(HERNIA, names=()), "There is a hiatal hernia.", ""),
        (CYST, "There is a cyst of a rib.", ""),
        (CYST, "There is a cyst.", "not_named"),
        (PLEURA, "There is pleural thickening.", ""),
        (PLEURA, "There are pleural abnormalities.", ""),
        (PLEURA, "There are no pleural abnormalities.", "denied"),
    ],
)
def test_a_finding_of_a_sites_own_is_known_by_its_names(claim: Claim, sentence: str, expected: str) -> None:
    assert named(faults(sentence, claim)) == expected


def test_regions_are_called_normal_in_their_own_words() -> None:
    assert called_normal("The lungs are clear.", ("left lung", "Lungs", "heart")) == ("Lungs",)


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


# ---- labels of a report


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ("There is a small left pleural effusion.", "+pleural_effusion"),
        ("No pneumothorax, but a moderate effusion remains.", "-pneumothorax +pleural_effusion"),
        ("Possible pneumonia in the right lower lobe.", "?pneumonia"),
        ("No pleural effusion\nPneumothorax on the left", "-pleural_effusion +pneumothorax"),
        ("Right basilar opacity may represent atelectasis.", "+lung_opacity ?atelectasis"),
        ("A small effusion cannot be excluded.", "?pleural_effusion"),
        ("There is no evidence to suggest pneumonia.", "-pneumonia"),
        ("The pneumothorax has resolved.", "-pneumothorax"),
        ("An effusion, pneumothorax is absent.", "+pleural_effusion -pneumothorax"),
        ("No change in the large right effusion.", "+pleural_effusion"),
        ("The heart is mildly enlarged.", "+cardiomegaly"),
        ("The heart is not enlarged.", "-cardiomegaly"),
        ("The cardiac silhouette is within normal limits.", "-cardiomegaly"),
        ("The cardiomediastinal silhouette is enlarged.", "+enlarged_cardiomediastinum"),
        ("Mediastinal contours are normal.", "-enlarged_cardiomediastinum"),
        ("Pericardial effusion is suspected.", ""),
        ("Hydropneumothorax on the right.", "+pneumothorax +pleural_effusion"),
        ("There is a displaced fracture of a left rib.", "+fracture"),
        ("The bones are intact.", "-fracture"),
        ("Kerley B lines are present.", ""),
        ("Patchy infiltrates in both lungs.", "+lung_opacity"),
        ("The right upper lung zone is clear.", ""),
        ("There is no effusion. A large effusion is seen on the left.", "+pleural_effusion"),
        ("THERE IS NO PNEUMOTHORAX.", "-pneumothorax"),
    ],
)
def test_a_report_says(report: str, expected: str) -> None:
    signs = {"positive": "+", "negative": "-", "uncertain": "?"}

    marks = LABELER.label(report)

    said = {signs[mark] + key for key, mark in marks.items() if key != "no_finding"}
    assert said == set(expected.split())
    assert is_said(marks, "no_finding") is not any(label[0] in "+?" and "devices" not in label for label in said)


def test_every_report_of_a_phantom_is_understood() -> None:
    assert dict(LABELER.label(" ")) == {}, "nothing said is not a normal film"
    for seed in range(40_000, 40_025):
        truth = truth_of_phantom(phantom(seed, side=48))
        marks = LABELER.label(truth.report)

        assert {key: is_said(marks, key) for key in LABELER.classes} == truth.labels, truth.report


# ---- sentences by rule

# Each finding by the phrase it is asked with and by the meaning of its code: two names that an output may use.
NAMES = sorted(
    {
        (prompt.key, name)
        for prompt in prompts.load("chexpert14").prompts
        if prompt.kind is PromptKind.PATHOLOGY and prompt.finding is not None
        for name in (*prompt.phrases, prompt.finding.meaning)
    }
)
STATES: tuple[FindingState, ...] = (FindingState.PRESENT, FindingState.INDETERMINATE, FindingState.UNCALIBRATED)
SIDES: tuple[Side | None, ...] = (*Side, None)
ZONES = ("upper", "mid lung zone", "lower zone", "apex", "hilum", None)
OF_A_SITE = (
    "Aortic enlargement, Calcification, COPD, Enlarged pulmonary artery (PA), Hiatal hernia, ILD, Mass or nodule, "
    "Mediastinal shift, Pulmonary fibrosis, Rib fracture, Scoliosis, Vascular congestion, Clips, Azygos lobe"
).split(", ")


@pytest.mark.parametrize(("key", "name"), [*NAMES, *(("own", name) for name in OF_A_SITE)])
def test_a_sentence_by_rule_has_no_fault_for_its_claim_and_is_no_denial(key: str, name: str) -> None:
    for state, side, zone in itertools.product(STATES, SIDES, ZONES):
        claim = Claim(finding=key, state=state, side=side, region=None, region_has_finding=False, names=(name,))
        sentence = by_rule(name=name, state=state, side=side, zone=zone)

        assert faults(sentence, claim) == (), sentence
        if key == "own":
            continue
        assert contradictions(sentence, dict.fromkeys(class_rules(), FindingState.PRESENT)) == (), sentence
        assert LABELER.label(sentence).get(key) != "negative", sentence
        assert not re.search(r"\b(not?|never|without)\b", sentence)
        if state is FindingState.PRESENT and side is not None:
            other = replace(claim, side=Side.LEFT if side is Side.RIGHT else Side.RIGHT)
            assert faults(sentence, other) != (), sentence


@pytest.mark.parametrize(
    ("name", "side", "zone", "sentence"),
    [
        ("Atelectasis", Side.LEFT, None, "There is left atelectasis."),
        ("Consolidation", Side.BILATERAL, "lower zone", "There is bilateral consolidation in the lower zones."),
        ("Enlarged cardiomediastinum", None, None, "There is an enlarged cardiomediastinum."),
        ("Fracture of bone", Side.BILATERAL, None, "There are bilateral fractures of bone."),
        ("Lung lesion", Side.BILATERAL, "upper", "There are bilateral lung lesions in the upper zones."),
        ("Lung opacity", Side.RIGHT, "mid", "There is a right lung opacity in the mid zone."),
        ("Opacity", None, None, "There is an opacity."),
        ("Pleural effusion", Side.RIGHT, "lower zone", "There is a right pleural effusion in the lower zone."),
        ("Pleural effusion", Side.BILATERAL, None, "There are bilateral pleural effusions."),
        ("Other pleural abnormality", None, None, "There is another pleural abnormality."),
        ("Pneumothorax", Side.BILATERAL, None, "There are bilateral pneumothoraces."),
        ("Support devices", None, None, "There are support devices."),
        ("Mass or nodule", Side.BILATERAL, None, "There is a mass or nodule on both sides."),
        ("COPD", None, None, "There is COPD."),
        ("Air pouch", Side.BILATERAL, "lower zones", "There are bilateral air pouches in the lower zones."),
        ("Wide mediastinum", Side.BILATERAL, None, "There is a wide mediastinum on both sides."),
        ("Pneumothorax", Side.LEFT, "apex", "There is a left pneumothorax at the apex."),
    ],
)
def test_articles_and_plurals_are_right(name: str, side: Side | None, zone: str | None, sentence: str) -> None:
    assert by_rule(name=name, state=FindingState.PRESENT, side=side, zone=zone) == sentence


@pytest.mark.parametrize("state", [FindingState.INDETERMINATE, FindingState.UNCALIBRATED])
def test_what_is_not_certain_asks_for_review(state: FindingState) -> None:
    assert by_rule(name="Pleural effusion", state=state, side=Side.RIGHT, zone=None) == (
        "A right pleural effusion is possible; please review."
    )
    assert by_rule(name="Support devices", state=state, side=None, zone=None) == (
        "Support devices are possible; please review."
    )


@pytest.mark.parametrize(("name", "state"), [("Edema", FindingState.ABSENT), (" ", FindingState.PRESENT)])
def test_nothing_is_denied_and_nothing_made_up(name: str, state: FindingState) -> None:
    with pytest.raises(ValueError):
        by_rule(name=name, state=state, side=None, zone=None)


@pytest.mark.parametrize(
    ("states", "before"),
    [
        ((FindingState.PRESENT, FindingState.PRESENT), ""),
        ((FindingState.INDETERMINATE, FindingState.UNCALIBRATED), "Possible, please review: "),
        ((FindingState.PRESENT, FindingState.INDETERMINATE), "Possible, please review (COPD): "),
        ((FindingState.UNCALIBRATED, FindingState.PRESENT), "Possible, please review (edema): "),
    ],
)
def test_a_networks_words_are_kept_after_what_is_to_be_reviewed(states: tuple[FindingState, ...], before: str) -> None:
    text = "Edema and COPD."

    told = stated(text, dict(zip(("Edema", "COPD"), states, strict=True)))

    assert (told, unstated(told), is_not_seen(told)) == (before + text, text, False)
    assert (unstated(not_seen(text)), is_not_seen(not_seen(text))) == (text, True)
