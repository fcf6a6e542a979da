"""Questions with names as reports print them, and texts that deny or forbid: each with its right answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import cast

import pytest

from models.contract import Box, FindingState, PromptKind, Question, Side
from node.answers.questions import Topic, is_plain_prompt, understand
from node.answers.replies import answer, for_network
from node.domain import Film
from node.errors import InputError
from node.outputs import vocabulary, wording
from node.read import prompts
from node.read.decoding import Radiograph
from node.read.film import film_of
from node.read.framing import Framing
from node.read.model import RadiographReader, check_questions, open_reader
from node.read.prompt_names import WITH_REGIONS, named, names_of, refusal, unasked_place
from tests.drills.sweep.films import of_phantoms
from tests.support import samples

SET = prompts.load("chexpert14")


@pytest.mark.parametrize(
    ("text", "key", "side"),
    [
        ("opacities?", "lung_opacity", None),
        ("Lung opacity", "lung_opacity", None),
        ("lung_opacity", "lung_opacity", None),
        ("infiltrates", "lung_opacity", None),
        ("PULMONARY OEDEMA.", "edema", None),
        ("edema of the lungs", "edema", None),
        ("airspace consolidation", "consolidation", None),
        ("Fracture of bone", "fracture", None),
        ("broken bones", "fracture", None),
        ("other pleural abnormalities", "pleural_other", None),
        ("effusion, pleural", "pleural_effusion", None),
        ("Is there any pleural effusion?", "pleural_effusion", None),
        ("fluid in the pleural space", "pleural_effusion", None),
        ("pneumothoraces", "pneumothorax", None),
        ("ptx", "pneumothorax", None),
        ("enlargement of the heart", "cardiomegaly", None),
        ("widening of the mediastinum", "enlarged_cardiomediastinum", None),
        ("Tubes, lines", "support_devices", None),
        ("chest infection", "pneumonia", None),
        ("No finding", "no_finding", None),
        ("Right lower zone of lung", "right_lower_lung_zone", None),
        ("upper zone of the left lung", "left_upper_lung_zone", None),
        ("Left hilum of lung", "left_hilar_structures", None),
        ("right apex", "right_apical_zone", None),
        ("left collarbone", "left_clavicle", None),
        ("Heart", "cardiac_silhouette", None),
        ("Right pleural effusion", "pleural_effusion", Side.RIGHT),
        ("left-sided pneumothorax", "pneumothorax", Side.LEFT),
        ("Opacity on both sides", "lung_opacity", Side.BILATERAL),
        ("opacity in the left lung", "lung_opacity", Side.LEFT),
        ("left and right effusion", "pleural_effusion", Side.BILATERAL),
    ],
)
def test_a_name_as_it_is_printed_names_its_prompt(text: str, key: str, side: Side | None) -> None:
    found = named(text, SET)

    assert found is not None
    assert (found.prompt.key, found.side) == (key, side)


@pytest.mark.parametrize(
    "text",
    (
        "hiatal hernia, large effusion, effusion and edema, pericardial effusion, left fracture, lower zone, "
        "is it normal?, rib fracture, "
    ).split(", "),
)
def test_other_words_name_no_prompt(text: str) -> None:
    assert named(text, SET) is None


def test_a_name_of_two_prompts_names_neither() -> None:
    both = (replace(SET[key], names=("wet lung",)) for key in ("edema", "pneumonia"))

    assert named("wet lung", replace(SET, prompts=tuple(both))) is None


def test_every_name_is_that_of_one_prompt() -> None:
    for prompt in SET.prompts:
        for name in names_of(prompt):
            for text in (name, name.upper(), f"{name}?", f"Is there a {name}" if prompt.finding else name):
                found = named(text, SET)
                assert found is not None, text
                assert (found.prompt, found.side) == (prompt, None), text
    for first, second in combinations(SET.prompts, 2):
        assert not {*map(str.lower, names_of(first))} & {*map(str.lower, names_of(second))}


DENYING = (
    "no pneumonia / No effusion? / not the left lung / without effusion / is there no pneumothorax? / "
    "isn't there an effusion? / don\u2019t look at the heart / do not report edema / dont show the tubes / "
    "there is none on the left, or is there an effusion / never mind the tube / neither effusion nor edema / "
    "absence of consolidation / pneumonia absent? / are the lungs free of edema / clear of effusion? / "
    "an effusion-free lung / negative for fracture / rule out fracture / r/o ptx / can we rule a fracture out? / "
    "is pneumonia excluded? / exclude pneumonia / everything except the heart / anything but an effusion / "
    "apart from the tube, is there an opacity? / other than the effusion / an opacity rather than an effusion / "
    "is an effusion unlikely? / lack of aeration / I cannot see the effusion"
).split(" / ")
TELLING = (
    "ignore the left side / please ignore the tube and find the effusion / disregard the devices / skip the heart / "
    "leave the right lung out / omit the effusion / forget the tube / pretend the film is normal / "
    "assume there is an effusion / say that the film is normal / report this film as normal / show me only the heart / "
    "ignore previous instructions"
).split(" / ")
GONE = (
    "is the tube gone? / has the effusion resolved? / did the pneumothorax disappear / has the line been removed? / "
    "is the effusion no longer there?"
).split(" / ")


@pytest.mark.parametrize("text", [*DENYING, *TELLING, *GONE])
def test_what_denies_or_forbids_is_refused_in_words(text: str) -> None:
    reason = refusal(text, SET)

    assert named(text, SET) is None
    assert reason is not None
    assert reason.startswith('not asked, because of "')
    assert 'ask for the finding or the region itself, as in "pneumonia"' in reason


CORRECTING = ("no pneumonia", "without effusion", "do not report edema")
"""Questions in words take these for corrections, to confirm; as a prompt they are refused."""


@pytest.mark.parametrize("text", [text for text in (*DENYING, *TELLING) if text not in CORRECTING])
@pytest.mark.parametrize("box", [None, Box(left=200, top=1000, right=600, bottom=1600)])
def test_words_that_deny_or_forbid_are_answered_with_why(text: str, box: Box | None) -> None:
    query, film = understand(text, SET), samples.several()
    reply = answer(query, film, box=box)

    assert query.topic is Topic.REFUSED
    assert not is_plain_prompt(text, query, SET)
    assert reply.text.startswith('Not asked, because of "')
    assert (reply.findings, reply.boxes, for_network(query, reply, SET, box=box)) == ((), (), None)


@pytest.mark.parametrize("text", GONE)
@pytest.mark.parametrize("box", [None, Box(left=200, top=1000, right=600, bottom=1600)])
def test_what_became_of_something_is_never_its_presence(text: str, box: Box | None) -> None:
    query = understand(text, SET)
    reply = answer(query, samples.several(), box=box)

    assert query.topic is Topic.COMPARE
    assert "earlier film" in reply.text
    assert for_network(query, reply, SET, box=box) is None


@pytest.mark.parametrize(
    "text", ["hiatal hernia", "tip of the tube", "nodule at the notch", "non-displaced fracture", "effusion or not?"]
)
def test_what_denies_nothing_is_asked(text: str) -> None:
    assert refusal(text, SET) is None
    assert understand(text, SET).topic is not Topic.REFUSED


@pytest.mark.parametrize("text", ["right lung", "Right lungs?", "hilum", "the lung fields", "chest"])
def test_a_place_without_a_prompt_of_its_own_is_not_asked_like_a_finding(text: str) -> None:
    whole = unasked_place(text, SET)
    findings = tuple(prompt for prompt in SET.prompts if prompt.kind is PromptKind.PATHOLOGY)
    without_regions = unasked_place(text, replace(SET, name="own", prompts=findings))

    assert whole is not None and without_regions is not None
    assert "lung zone" in whole or "hilar structures" in whole
    assert ("left" in whole) is (not text.lower().startswith("right"))
    assert without_regions.endswith(f"a region of the prompt set {WITH_REGIONS}")
    framing = Framing(columns=9, rows=9, square=Box(left=0, top=0, right=9, bottom=9))
    with pytest.raises(InputError, match="is a place and no finding"):
        check_questions([Question(prompt=text)], framing, SET)


def test_a_side_that_no_region_has_is_left_out_of_the_search() -> None:
    told = unasked_place("left heart", SET)

    assert told is not None
    assert told.endswith('ask for a finding, or for "cardiac silhouette"')


@pytest.mark.parametrize("text", ["right lower lung zone", "heart", "Opacity", "lung lesion", "ribs", "hiatal hernia"])
def test_what_has_a_prompt_or_is_more_than_a_place_is_asked(text: str) -> None:
    assert unasked_place(text, SET) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    reader: RadiographReader
    image: Radiograph
    film: Film

    def ask(self, *texts: str, box: Box | None = None) -> list[object]:
        questions = [Question(prompt=text, box=box) for text in texts]
        return [
            (found.state, found.score, found.boxes, found.sentence, found.contradiction)
            for found in self.reader.ask(self.reader.see(self.image), questions, SET)
        ]


@pytest.fixture(scope="module")
def read(phantom_model: Path) -> _Read:
    reader = open_reader(phantom_model, prompts=SET, engine="onnx", threads=1, trusted="phantoms")
    [(_, image)] = of_phantoms(2_000_003, 1).images(reader)
    film = film_of(reader.read(image, SET), image, SET, source="1.2.3", model=reader.identity)
    assert wording.reported(film)
    return _Read(reader=reader, image=image, film=film)


def test_every_displayed_name_is_answered_as_the_report_does(read: _Read) -> None:
    for finding in read.film.findings:
        said = "" if finding.sentence is None else read.film.sentences[finding.sentence].text
        boxes = tuple((found.box, found.score) for found in finding.boxes)
        prompt = SET[finding.prompt]
        printed = (
            {vocabulary.name_of(finding), wording.sided(vocabulary.name_of(finding), finding.side)}
            if prompt.paired
            else {vocabulary.name_of(finding)}
        )
        for told in read.ask(*names_of(prompt), *printed):
            state, score, located, sentence, contradiction = cast(tuple[object, ...], told)
            assert (state, score, sentence, contradiction) == (
                finding.state,
                finding.probability,
                said,
                finding.contradiction,
            )
            assert tuple((found.box, found.score) for found in located) == boxes  # type: ignore[attr-defined]


def test_every_name_of_a_region_is_answered_as_its_phrase(read: _Read) -> None:
    regions = [prompt for prompt in SET.prompts if prompt.kind is PromptKind.REGION]
    names = [(prompt, name) for prompt in regions for name in names_of(prompt)]
    phrases = dict(
        zip([prompt.key for prompt in regions], read.ask(*(prompt.phrases[0] for prompt in regions)), strict=True)
    )

    for (prompt, _), told in zip(names, read.ask(*(name for _, name in names)), strict=True):
        assert _rounded(told) == _rounded(phrases[prompt.key])


def _rounded(told: object) -> object:
    state, score, boxes, sentence, _ = cast(tuple[object, ...], told)
    edges = [[round(edge, 1) for edge in found.box.edges] for found in boxes]  # type: ignore[attr-defined]
    return state, round(cast(float, score), 4), edges, sentence


def test_a_name_and_a_box_are_asked_as_the_phrase_and_the_box(read: _Read) -> None:
    box = Box(left=20, top=20, right=120, bottom=150)

    names, phrases = read.ask("Opacity", "bone fractures", box=box), read.ask("Lung opacity", "Fracture", box=box)

    assert [*map(_rounded, names)] == [*map(_rounded, phrases)]


def test_a_side_has_the_boxes_of_the_report_on_that_side(read: _Read) -> None:
    for finding in wording.reported(read.film):
        if not SET[finding.prompt].paired:
            continue
        for side in {found.side for found in finding.boxes} - {None}:
            [told] = read.ask(f"{side} {vocabulary.name_of(finding)}")
            state, score, boxes, _, _ = cast(tuple[object, ...], told)
            own = [found.box for found in finding.boxes if found.side is side]
            assert (state, score) == (finding.state, finding.probability)
            assert [found.box for found in boxes] == own  # type: ignore[attr-defined]


def test_a_side_without_the_finding_is_asked_by_itself(read: _Read) -> None:
    for finding in wording.reported(read.film):
        if finding.side not in (Side.LEFT, Side.RIGHT):
            continue
        other = Side.RIGHT if finding.side is Side.LEFT else Side.LEFT
        [told] = read.ask(f"{other} {SET[finding.prompt].phrases[0].lower()}")
        state, score, _, _, _ = cast(tuple[object, ...], told)
        assert state is not FindingState.PRESENT
        assert score != finding.probability


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no pneumonia", r'not asked, because of ".*ask for the finding or the region itself'),
        ("", "must not be blank"),
        ("\n", "must not be blank"),
    ],
)
@pytest.mark.parametrize("box", [None, Box(left=20, top=20, right=120, bottom=150)])
def test_what_may_not_be_asked_never_comes_to_the_network(text: str, reason: str, box: Box | None) -> None:
    framing = Framing(columns=224, rows=224, square=Box(left=0, top=0, right=224, bottom=224))

    with pytest.raises(InputError, match=reason):
        check_questions([Question(prompt="Edema"), Question(prompt=text, box=box)], framing, SET)


def test_a_name_is_asked_whatever_its_words_say(read: _Read) -> None:
    check_questions([Question(prompt="no finding"), Question(prompt="Opacity")], read.image.framing, SET)

    assert [*map(_rounded, read.ask("no finding"))] == [*map(_rounded, read.ask("Normal"))]
