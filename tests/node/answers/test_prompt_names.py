"""Questions with names as reports print them, and texts that deny or forbid: each with its right answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

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
from node.read.model import FilmAnswer, RadiographReader, check_questions, open_reader
from node.read.prompt_names import WITH_REGIONS, named, names_of, refusal, unasked_place
from tests.drills.sweep.films import of_phantoms
from tests.support import samples

SET = prompts.load("chexpert14")


@pytest.mark.parametrize(
    ("key", "side", "texts"),
    [
        ("lung_opacity", None, "opacities? / Lung opacity / lung_opacity / infiltrates"),
        ("edema", None, "PULMONARY OEDEMA. / edema of the lungs"),
        ("consolidation", None, "airspace consolidation"),
        ("fracture", None, "Fracture of bone / broken bones"),
        ("pleural_other", None, "other pleural abnormalities"),
        ("pleural_effusion", None, "effusion, pleural / Is there any pleural effusion? / fluid in the pleural space"),
        ("pneumothorax", None, "pneumothoraces / ptx"),
        ("cardiomegaly", None, "enlargement of the heart"),
        ("enlarged_cardiomediastinum", None, "widening of the mediastinum"),
        ("support_devices", None, "Tubes, lines"),
        ("pneumonia", None, "chest infection"),
        ("no_finding", None, "No finding"),
        ("right_lower_lung_zone", None, "Right lower zone of lung"),
        ("left_upper_lung_zone", None, "upper zone of the left lung"),
        ("left_hilar_structures", None, "Left hilum of lung"),
        ("right_apical_zone", None, "right apex"),
        ("left_clavicle", None, "left collarbone"),
        ("cardiac_silhouette", None, "Heart"),
        ("pleural_effusion", Side.RIGHT, "Right pleural effusion"),
        ("pneumothorax", Side.LEFT, "left-sided pneumothorax"),
        ("lung_opacity", Side.BILATERAL, "Opacity on both sides"),
        ("lung_opacity", Side.LEFT, "opacity in the left lung"),
        ("pleural_effusion", Side.BILATERAL, "left and right effusion"),
    ],
)
def test_a_name_as_it_is_printed_names_its_prompt(key: str, side: Side | None, texts: str) -> None:
    for text in texts.split(" / "):
        found = named(text, SET)

        assert found is not None, text
        assert (found.prompt.key, found.side) == (key, side), text


def test_other_words_and_a_name_of_two_prompts_name_none() -> None:
    others = (
        "hiatal hernia, large effusion, effusion and edema, pericardial effusion, left fracture, lower zone, "
        "is it normal?, rib fracture, "
    ).split(", ")
    both = tuple(replace(SET[key], names=("wet lung",)) for key in ("edema", "pneumonia"))

    assert [text for text in others if named(text, SET) is not None] == []
    assert named("wet lung", replace(SET, prompts=both)) is None


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


def test_what_denies_or_forbids_is_refused_in_words() -> None:
    for text in (*DENYING, *TELLING, *GONE):
        assert named(text, SET) is None, text
        reason = refusal(text, SET)
        assert reason is not None, text
        assert reason.startswith('not asked, because of "')
        assert 'ask for the finding or the region itself, as in "pneumonia"' in reason


CORRECTING = ("no pneumonia", "without effusion", "do not report edema")
"""Questions in words take these for corrections, to confirm; as a prompt they are refused."""


@pytest.mark.parametrize("box", [None, Box(left=200, top=1000, right=600, bottom=1600)])
def test_words_that_deny_or_forbid_are_answered_with_why_and_what_became_of_something_is_never_its_presence(
    box: Box | None,
) -> None:
    for text in {*DENYING, *TELLING, *GONE} - {*CORRECTING}:
        query = understand(text, SET)
        reply = answer(query, samples.several(), box=box)

        assert for_network(query, reply, SET, box=box) is None, text
        if text in GONE:
            assert query.topic is Topic.COMPARE, text
            assert "earlier film" in reply.text
        else:
            assert query.topic is Topic.REFUSED, text
            assert not is_plain_prompt(text, query, SET)
            assert reply.text.startswith('Not asked, because of "')
            assert (reply.findings, reply.boxes) == ((), ())


def test_what_denies_nothing_and_is_more_than_a_place_is_asked() -> None:
    for text in ("hiatal hernia", "tip of the tube", "nodule at the notch", "non-displaced fracture", "edema or not?"):
        assert refusal(text, SET) is None
        assert understand(text, SET).topic is not Topic.REFUSED
    for text in ("right lower lung zone", "heart", "Opacity", "lung lesion", "ribs", "hiatal hernia"):
        assert unasked_place(text, SET) is None


@pytest.mark.parametrize("text", ["right lung", "Right lungs?", "hilum", "the lung fields", "chest"])
def test_a_place_without_a_prompt_of_its_own_is_not_asked_like_a_finding(text: str) -> None:
    findings = tuple(prompt for prompt in SET.prompts if prompt.kind is PromptKind.PATHOLOGY)

    whole = unasked_place(text, SET)
    without_regions = unasked_place(text, replace(SET, name="own", prompts=findings))

    assert whole is not None and without_regions is not None
    assert "lung zone" in whole or "hilar structures" in whole
    assert ("left" in whole) is (not text.lower().startswith("right"))
    assert without_regions.endswith(f"a region of the prompt set {WITH_REGIONS}")
    heart = unasked_place("left heart", SET)
    assert heart is not None
    assert heart.endswith('ask for a finding, or for "cardiac silhouette"'), "no region has that side"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    reader: RadiographReader
    image: Radiograph
    film: Film

    def ask(self, *texts: str, box: Box | None = None) -> list[FilmAnswer]:
        questions = [Question(prompt=text, box=box) for text in texts]
        return self.reader.ask(self.reader.see(self.image), questions, SET)


@pytest.fixture(scope="module")
def read(phantom_model: Path) -> _Read:
    reader = open_reader(phantom_model, prompts=SET, engine="onnx", threads=1, trusted="phantoms")
    [(_, image)] = of_phantoms(2_000_005, 1).images(reader)
    film = film_of(reader.read(image, SET), image, SET, source="1.2.3", model=reader.identity)
    assert wording.reported(film)
    return _Read(reader=reader, image=image, film=film)


def test_every_displayed_name_is_answered_as_the_report_does(read: _Read) -> None:
    for finding in read.film.findings:
        said = "" if finding.sentence is None else read.film.sentences[finding.sentence].text
        prompt, name = SET[finding.prompt], vocabulary.name_of(finding)
        printed = {name, wording.sided(name, finding.side)} if prompt.paired else {name}
        for told in read.ask(*names_of(prompt), *printed):
            assert (told.state, told.score, told.sentence, told.contradiction) == (
                finding.state,
                finding.probability,
                said,
                finding.contradiction,
            )
            assert [(found.box, found.score) for found in told.boxes] == [
                (found.box, found.score) for found in finding.boxes
            ]


def test_a_name_is_answered_as_its_phrase_of_a_region_or_in_a_box_and_whatever_its_words_say(read: _Read) -> None:
    for prompt in SET.prompts:
        if prompt.kind is PromptKind.REGION:
            phrase, *names = map(_rounded, read.ask(prompt.phrases[0], *names_of(prompt)))
            assert names == [phrase] * len(names), prompt.key
    of_names, of_phrases = (
        read.ask(*texts, box=IN_BOX) for texts in (("Opacity", "bone fractures"), ("Lung opacity", "Fracture"))
    )
    assert [*map(_rounded, of_names)] == [*map(_rounded, of_phrases)]
    assert [*map(_rounded, read.ask("no finding"))] == [*map(_rounded, read.ask("Normal"))]


def _rounded(told: FilmAnswer) -> object:
    edges = [[round(edge, 1) for edge in found.box.edges] for found in told.boxes]
    return told.state, round(told.score or 0.0, 4), edges, told.sentence


def test_a_side_has_the_boxes_of_the_report_on_it_and_one_without_the_finding_is_asked_by_itself(read: _Read) -> None:
    asked = set[bool]()
    for finding in wording.reported(read.film):
        for side in (Side.LEFT, Side.RIGHT) if SET[finding.prompt].paired else ():
            own = [found.box for found in finding.boxes if found.side is side]
            [told] = read.ask(f"{side} {vocabulary.name_of(finding)}")
            asked.add(bool(own))
            if own:
                assert (told.state, told.score) == (finding.state, finding.probability)
                assert [found.box for found in told.boxes] == own
            elif finding.side is not None:
                assert told.state is not FindingState.PRESENT
                assert told.score != finding.probability
    assert asked == {True, False}


IN_BOX = Box(left=20, top=20, right=120, bottom=150)


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (Question(prompt="no pneumonia"), r'not asked, because of ".*ask for the finding or the region itself'),
        (Question(prompt="no pneumonia", box=IN_BOX), r'not asked, because of "'),
        (Question(prompt="right lung"), "is a place and no finding"),
        (Question(prompt=""), "must not be blank"),
        (Question(prompt="\n", box=IN_BOX), "must not be blank"),
    ],
)
def test_what_may_not_be_asked_never_comes_to_the_network(question: Question, reason: str) -> None:
    framing = Framing(columns=224, rows=224, square=Box(left=0, top=0, right=224, bottom=224))

    with pytest.raises(InputError, match=reason):
        check_questions([Question(prompt="Edema"), question], framing, SET)
