"""Typed questions: what a text asks for, and an answer that says what the film's own answer says, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.contract import Box, FindingState, Side
from node.answers.questions import LONGEST, Query, Topic, is_plain_prompt, understand
from node.answers.replies import answer, for_network
from node.domain import Code, Film, FilmView, Finding, GroundedSentence, Note, Reason
from node.outputs import impression, vocabulary, wording
from node.prompt_set import Prompt
from node.store.correction import CorrectionKind
from tests.support import samples
from tests.support.samples import absent, finding, uncalibrated, unread
from tests.support.spoken import PATHOLOGIES, PROMPTS, REGIONS, films, misread

EFFUSION = ("pleural_effusion",)
LUNGS = tuple(prompt.key for prompt in REGIONS if prompt.key.endswith("_zone"))
TEXTS = [
    *(phrase for prompt in PATHOLOGIES for phrase in prompt.phrases),
    *(f"Where is the {prompt.phrases[0]} on the left?" for prompt in PATHOLOGIES),
    *(f"What is in the {prompt.phrases[0]}?" for prompt in REGIONS),
    *(f"{prompt.phrases[0]} in the right lower lung zone?" for prompt in PATHOLOGIES),
    "list the findings", "summary", "is this film normal?", "what changed?", "hiatal hernia?",
    "collapsed lung on both sides?", "left or right?",
]  # fmt: skip


def effusions() -> Finding:
    """A pleural effusion in both lower zones, with a box each."""
    [right] = finding().boxes
    zone = replace(samples.LOWER_ZONE, zone="left_lower_lung_zone", side=Side.LEFT)
    left = replace(right, tracking_uid="2.25.1", side=Side.LEFT, evidence=zone)
    return replace(finding(), side=Side.BILATERAL, boxes=(right, left))


def film_with_effusion() -> Film:
    uncalibrated_edema = replace(uncalibrated(), prompt="edema")
    return samples.film(findings=(finding(), absent(), uncalibrated_edema))


def ask(text: str, film: Film) -> str:
    return answer(understand(text, PROMPTS), film).text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pleural effusion", Query(topic=Topic.PRESENCE, findings=EFFUSION)),
        ("Any effusion on the left", Query(topic=Topic.PRESENCE, findings=EFFUSION, side=Side.LEFT)),
        ("bilateral effusions", Query(topic=Topic.PRESENCE, findings=EFFUSION, side=Side.BILATERAL)),
        ("Is there a pneumothorax, or an effusion?",
         Query(topic=Topic.PRESENCE, findings=("pleural_effusion", "pneumothorax"))),
        ("Left or right?", Query(topic=Topic.SIDE, side=Side.BILATERAL)),
        ("Tip of the line?", Query(topic=Topic.FREE, prompt="Tip of the line")),
        ("a pacemaker?", Query(topic=Topic.PRESENCE, findings=("support_devices",), prompt="pacemaker")),
        ("collapsed lung",
         Query(topic=Topic.PRESENCE, findings=("atelectasis", "pneumothorax"), prompt="collapsed lung")),
        ("What's in the right base?",
         Query(topic=Topic.REGION, regions=("right_lower_lung_zone",), side=Side.RIGHT)),
        ("is the heart normal?", Query(topic=Topic.REGION, regions=("cardiac_silhouette",), judges=True)),
        ("RLL consolidation?",
         Query(topic=Topic.PRESENCE, findings=("consolidation",), regions=("right_lower_lung_zone",), side=Side.RIGHT)),
        ("ETT position?",
         Query(topic=Topic.PLACE, findings=("support_devices",), prompt="ETT position", judges=True)),
        ("anything acute?", Query(topic=Topic.NORMAL, judges=True)),
        ("Lt base", Query(topic=Topic.REGION, regions=("left_lower_lung_zone",), side=Side.LEFT)),
        ("CTR", Query(topic=Topic.PRESENCE, findings=("cardiomegaly",))),
        ("both clavicles",
         Query(topic=Topic.REGION, regions=("right_clavicle", "left_clavicle"), side=Side.BILATERAL)),
        ("effusion here?", Query(topic=Topic.PRESENCE, findings=EFFUSION)),
        ("what is in this region", Query(topic=Topic.NOTHING)),
        ("is the effusion larger?", Query(topic=Topic.COMPARE, findings=EFFUSION)),
        ("Is there a hiatal hernia on the left?",
         Query(topic=Topic.FREE, side=Side.LEFT, prompt="hiatal hernia on the left")),
        ("large effusion", Query(topic=Topic.FREE, prompt="large effusion")),
        (" ? ", Query(topic=Topic.NOTHING)),
    ],
)  # fmt: skip
def test_a_text_is_understood_by_its_words(text: str, expected: Query) -> None:
    assert understand(text, PROMPTS) == expected


REJECT_ADD: dict[str, tuple[str, ...]] = {"findings": ("pneumonia",), "denied": ("edema",)}
SPOKEN: dict[str, tuple[Topic, dict[str, tuple[str, ...]]]] = {
    # Prompts of RaDialog's instructions, and of CheXagent's tasks
    "List all the finding in this report.": (Topic.LIST, {}),
    "Is there any pneumonia?": (Topic.PRESENCE, {"findings": ("pneumonia",)}),
    "Is the patient's heart healthy?": (Topic.REGION, {"regions": ("cardiac_silhouette",)}),
    "Does the patient have any abnormalities in the osseous structures?": (Topic.NORMAL, {}),
    "Are there any abnormalities in the lungs?": (Topic.REGION, {"regions": LUNGS}),
    "Explain this report in very easy terms, such that a child would understand.": (Topic.SUMMARY, {}),
    "The patient also has pneumonia, correct the report.": (Topic.CORRECT, {"findings": ("pneumonia",)}),
    "There is no edema, please adapt the report accordingly.": (Topic.CORRECT, {"denied": ("edema",)}),
    "I disagree with the generated report, I think the patient has pneumonia, but does not have edema. "
    "Please adapt the report.": (Topic.CORRECT, REJECT_ADD),
    "What are the indicators for pneumonia in the report?": (Topic.PLACE, {"findings": ("pneumonia",)}),
    "Why do you think the patient has pneumonia?": (Topic.PLACE, {"findings": ("pneumonia",)}),
    "Write a radiology report.": (Topic.SUMMARY, {}),
    "Which view is this?": (Topic.VIEW, {}),
    "there is also a left pleural effusion": (Topic.CORRECT, {"findings": EFFUSION}),
    "you missed the pneumothorax": (Topic.CORRECT, {"findings": ("pneumothorax",)}),
    "no pneumonia": (Topic.CORRECT, {"denied": ("pneumonia",)}),
    "No effusion or pneumothorax.": (Topic.CORRECT, {"denied": ("pleural_effusion", "pneumothorax")}),
    "there is a pneumothorax": (Topic.PRESENCE, {"findings": ("pneumothorax",)}),
    "no effusion on the left": (Topic.REFUSED, {}),
    "no new effusion": (Topic.REFUSED, {}),
    "there may also be a pneumothorax": (Topic.PRESENCE, {"findings": ("pneumothorax",)}),
    "the tube is correct": (Topic.PRESENCE, {"findings": ("support_devices",)}),
    "the film was taken at night and shows something odd": (Topic.LIST, {}),
    "what would you do with a patient whose chest hurts since": (Topic.COMPARE, {}),
    "I wonder whether this could be due to an old rib problem": (Topic.NOTHING, {}),
}


@pytest.mark.parametrize("text", SPOKEN)
def test_readers_words_are_answered_and_no_sentence_is_a_prompt(text: str) -> None:
    topic, asked = SPOKEN[text]

    query = understand(text, PROMPTS)

    assert query.topic is topic
    assert (query.findings, query.denied) == (asked.get("findings", ()), asked.get("denied", ()))
    assert query.regions == asked.get("regions", ())
    assert query.prompt is None
    assert not is_plain_prompt(text, query, PROMPTS)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("there is also a pneumothorax", {"pneumothorax": CorrectionKind.ADD}),
        ("there is also an effusion", {"pleural_effusion": CorrectionKind.ACCEPT}),
        ("there is also a left effusion", {"pleural_effusion": CorrectionKind.ADD}),  # reported: the right one
        ("no effusion", {"pleural_effusion": CorrectionKind.REJECT}),
        ("no pneumothorax", {}),
        ("no fracture", {}),
    ],
)
def test_a_correction_is_proposed_and_never_made(text: str, kinds: dict[str, CorrectionKind]) -> None:
    query = understand(text, PROMPTS)
    reply = answer(query, film_with_effusion())

    assert {each.prompt: each.kind for each in reply.corrections} == kinds
    assert reply.text.startswith("To confirm: ") is bool(kinds)
    assert (for_network(query, reply, PROMPTS), reply.boxes) == (None, ())


@pytest.mark.parametrize(
    ("topic", "text", "words"),
    [
        (Topic.COMPARE, "is the effusion *?",
         "compared; in comparison; changed; smaller; larger; bigger; better; worse; improved; worsened; grown; new; "
         "gone; resolved; still there; vanished; cleared; removed; no longer there; there any longer; there anymore"),
        (Topic.COMPARE, "* the effusion?",
         "any changes of; any progress of; any progression of; has it progressed,; what did the previous film say of; "
         "the prior film and; the earlier film and; as last time,; more than before,; since yesterday,"),
        (Topic.VIEW, "*?", "ap; pa; which view; what views; what projection"),
        (Topic.PLACE, "* the effusion?",
         "where is; locate; location of; located; point at; points to; mark; show; position of; which side has; "
         "which zone has; which lung has; which part has; why; explain; which indicators are for; symptoms of"),
        (Topic.SIDE, "*?", "left or right; right or left; which side; what side"),
        (Topic.NORMAL, "is it *?",
         "normal; abnormal; healthy; okay; ok; fine; clear; unremarkable; alright; acute; urgent; critical; serious; "
         "bad; worrying; correct; in place; a placement; an abnormality"),
        (Topic.LIST, "*?",
         "list; lists; enumerate; which findings; observations; anything; something; what is reported; "
         "what was found; what was detected; what else; show; what is wrong"),
        (Topic.SUMMARY, "*?",
         "summary; summaries; summarize; summarise; summarized; overview; impression; report; conclusion; result; "
         "results; describe; read; say; what do you see; what can we see; what can i see"),
    ],
)  # fmt: skip
def test_each_word_of_a_topic_asks_for_it(topic: Topic, text: str, words: str) -> None:
    asked = {text.replace("*", word) for word in words.split("; ")}

    assert [each for each in asked if understand(each, PROMPTS).topic is not topic] == []


def test_findings_and_sides_in_other_words_are_known() -> None:
    places = "left right lt rt l r l-sided r-sided left-sided right-sided either each".split()
    for topic, findings, texts in (
        (Topic.CORRECT, EFFUSION, "; ".join(f"there is also a {place} effusion" for place in places)),
        (Topic.PRESENCE, ("cardiomegaly",),
         "size of the heart?; width of heart?; heart too big?; the heart enlarged?; a wide heart?"),
        (Topic.PRESENCE, ("atelectasis", "pneumothorax"), "lungs collapsed?; collapsed lung?"),
        (Topic.PRESENCE, ("support_devices",),
         "ng tube?; og line?; feeding tube?; et tube?; tracheal tube?; tracheostomy tube?; chest drain?; "
         "nasogastric tube?; orogastric tube?; endotracheal tube?; central line?; venous catheter?; picc line?; "
         "dialysis catheter?; ett?; ngt?; ogt?; cvc?; cvl?"),
    ):  # fmt: skip
        for text in texts.split("; "):
            query = understand(text, PROMPTS)

            assert (query.topic, query.findings) == (topic, findings), text


def test_every_finding_and_region_is_known_by_each_of_its_names() -> None:
    for prompt in PATHOLOGIES:
        assert prompt.finding is not None
        for name in (*prompt.phrases, prompt.finding.meaning):
            assert prompt.key in understand(f"is there any {name}?", PROMPTS).findings, name
    for region in REGIONS:
        assert understand(f"What is in the {region.phrases[0]}?", PROMPTS).regions == (region.key,)


@given(st.text(max_size=300))
def test_any_text_is_understood_in_some_way(text: str) -> None:
    query = understand(text, PROMPTS)

    assert (query.topic is Topic.FREE) <= (query.prompt is not None)
    assert query.topic in (Topic.NOTHING, Topic.REFUSED) or len(" ".join(text.split())) <= LONGEST


@settings(max_examples=200)
@given(films(), st.sampled_from(TEXTS))
def test_no_reply_says_more_than_the_film(film: Film, text: str) -> None:
    reply = answer(understand(text, PROMPTS), film)

    assert misread(reply.text, film) == []
    assert set(reply.boxes) <= {box.tracking_uid for found in film.findings for box in found.boxes}
    assert set(reply.findings) <= {found.prompt for found in film.findings}


@settings(max_examples=50)
@given(films(), st.sampled_from(PATHOLOGIES))
def test_a_reported_finding_is_answered_with_boxes(film: Film, prompt: Prompt) -> None:
    own = next(found for found in film.findings if found.prompt == prompt.key)

    reply = answer(Query(topic=Topic.PRESENCE, findings=(own.prompt,)), film)

    assert reply.needs_network is None
    assert reply.boxes == tuple(dict.fromkeys(box.tracking_uid for box in own.boxes))
    is_nowhere = own.state.is_reported and not own.boxes
    assert ("Where it lies is not told." in reply.text) is is_nowhere
    assert ("not reported (below threshold, may have been missed)" in reply.text) is (own.state is FindingState.ABSENT)
    assert ("please review" in reply.text) is (own.state in vocabulary.MARKS)


@settings(max_examples=20)
@given(films())
def test_a_list_names_all_findings(film: Film) -> None:
    reply = answer(Query(topic=Topic.LIST), film)

    for found in film.findings:
        assert found.code.meaning.lower().removeprefix("other ").split()[0][:5] in reply.text.lower()
    assert sorted(reply.findings) == sorted(found.prompt for found in wording.reported(film))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("effusion?", "There is a right pleural effusion in the lower zone. The probability is 83 %."),
        ("left or right?", "Pleural effusion on the right; pulmonary edema on an unknown side."),
        ("effusion on the left?",
         "There is a right pleural effusion in the lower zone. The probability is 83 %. None is reported on the left, "
         "where it may have been missed."),
        ("where is the effusion?",
         "There is a right pleural effusion in the lower zone. The probability is 83 %. Its box lies in the lower "
         "zone of the right lung and covers 34 % of it."),
        ("pneumothorax?", "Pneumothorax is not reported (below threshold, may have been missed)."),
        ("what is in the heart?",
         "None of the reported boxes lies in the cardiac silhouette; what is there may have been missed."),
        ("hernia?", "The report does not answer this, so the network is asked."),
        ("fracture?", "Fracture is not on the list of findings that this film was read for."),
    ],
)  # fmt: skip
def test_a_reply_is_plain_sentences(text: str, expected: str) -> None:
    assert ask(text, film_with_effusion()) == expected


def test_what_the_film_was_not_asked_is_for_the_network() -> None:
    texts = ("fracture?", "hernia on the left?", "pacemaker?")

    needed = [answer(understand(text, PROMPTS), film_with_effusion()).needs_network for text in texts]

    assert needed == ["fracture", "hernia on the left", "pacemaker"]


def test_a_film_that_was_not_read_says_why() -> None:
    film = unread(1, Reason.BLANK)

    assert {ask(text, film) for text in TEXTS} == {wording.not_processed(film)}


def test_a_region_quotes_only_what_asserts_and_agrees() -> None:
    texts = (
        "A pleural effusion is seen.",
        "A pneumothorax is seen.",
        "There may be a small pneumothorax.",
        "The lung is clear.",
        "No pleural effusion.",
        "Pleural fluid is seen, and the heart is normal.",
    )
    said = tuple(GroundedSentence(text=text, prompt="right_lower_lung_zone", score=0.5, boxes=()) for text in texts)
    film = replace(film_with_effusion(), sentences=said)

    reply = ask("what is in the right lower lung zone?", film)

    assert [text in reply for text in texts] == [True, *[False] * 5]


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("effusion?", (Side.RIGHT, Side.LEFT)),
        ("effusion on the left?", (Side.LEFT,)),
        ("effusion on both sides?", (Side.RIGHT, Side.LEFT)),
        ("effusion in the right lower lung zone?", (Side.RIGHT,)),
        ("what is in the left lower lung zone?", (Side.LEFT,)),
        ("what is on the right?", (Side.RIGHT,)),
        ("where is the effusion on the left?", (Side.LEFT,)),
    ],
)
def test_a_reply_rests_on_the_boxes_of_the_asked_side(text: str, sides: tuple[Side, ...]) -> None:
    reply = answer(understand(text, PROMPTS), samples.film(findings=(effusions(),)))

    assert reply.boxes == tuple(box.tracking_uid for box in effusions().boxes if box.side in sides)


def test_a_reply_rests_on_the_boxes_in_the_asked_zone() -> None:
    [lower] = finding().boxes
    middle = replace(lower, tracking_uid="2.25.1", evidence=replace(samples.LOWER_ZONE, zone="right_mid_lung_zone"))
    film = samples.film(findings=(replace(finding(), boxes=(lower, middle)),))

    assert answer(understand("effusion in the right mid lung zone?", PROMPTS), film).boxes == ("2.25.1",)


@pytest.mark.parametrize("known", [True, False])
def test_a_reply_on_a_region_says_if_sides_are_not_known(known: bool) -> None:
    zones = (samples.LOWER_ZONE, replace(samples.LOWER_ZONE, zone="left_lower_lung_zone", side=Side.LEFT))
    boxes = tuple(
        replace(box, evidence=zone if known else replace(zone, side=None))
        for box, zone in zip(effusions().boxes, zones, strict=True)
    )

    reply = ask("what is in the left lower lung zone?", samples.film(findings=(replace(effusions(), boxes=boxes),)))

    assert ("The film does not tell which side is which" in reply) is not known


def test_a_name_of_the_prompt_set_and_unknown_words_are_plain_prompts() -> None:
    plain = ["Pleural effusion", " pleural  EFFUSION ", "fracture of bone", "left lower lung zone", "hiatal hernia"]
    others = ["effusion", "pleural effusion?", "is there a hiatal hernia?", "left lung", "summary", "normal", ""]

    found = [text for text in (*plain, *others) if is_plain_prompt(text, understand(text, PROMPTS), PROMPTS)]

    assert found == plain


@pytest.mark.parametrize(
    ("text", "drawn", "boxes", "words"),
    [
        ("what is here?", "right", ["right"], "1 of 2 boxes lies in the drawn box."),
        ("is there anything in this box", "left", ["left"], "1 of 2 boxes lies in the drawn box."),
        ("what is here?", "elsewhere", [], "None of the reported boxes lies in the drawn box"),
        ("effusion here?", "left", ["left"], "There are bilateral pleural effusions"),
        ("effusion here?", "elsewhere", ["right", "left"], "None of the boxes lies in the drawn box"),
    ],
)
def test_a_drawn_box_is_answered_by_the_boxes_in_it(text: str, drawn: str, boxes: list[str], words: str) -> None:
    right, left = effusions().boxes
    left = replace(left, box=Box(left=5, top=5, right=15, bottom=20))
    film = samples.film(findings=(replace(effusions(), boxes=(right, left)),))
    drawn_box = {"right": right.box, "left": left.box, "elsewhere": Box(left=0, top=0, right=2, bottom=2)}[drawn]
    query = understand(text, PROMPTS)

    reply = answer(query, film, box=drawn_box)

    assert words in reply.text
    assert reply.boxes == tuple({"right": right, "left": left}[side].tracking_uid for side in boxes)
    asked = for_network(query, reply, PROMPTS, box=drawn_box)
    assert asked is not None
    assert (asked.prompt, asked.box) == ("Pleural effusion" if query.findings else None, drawn_box)
    assert misread(reply.text, film) == []


def test_a_summary_is_the_impression() -> None:
    film = film_with_effusion()

    reply = answer(understand("summarize", PROMPTS), film)

    assert reply.text == " ".join(f"{line.removesuffix('.')}." for line in impression.of_film(film))
    assert reply.findings == ("pleural_effusion", "edema")


def test_a_film_without_a_reported_finding_is_not_called_clear() -> None:
    film = samples.film(findings=(absent(),))

    for text in ("summarize", "is it normal?", "list the findings"):
        assert misread(ask(text, film), film) == []
        assert "may have been missed" in ask(text, film)


HEART = replace(finding(), side=None, site=Code(value="80891009", scheme="SCT", meaning="Heart"))
UNSIDED = replace(finding(), side=None, boxes=(replace(finding().boxes[0], side=None),))
DOUBTFUL = replace(UNSIDED, place="no_side", boxes=(replace(UNSIDED.boxes[0], lies=Side.RIGHT, evidence=None),))
SPOKEN_OF = {
    "effusion": film_with_effusion(),
    "both sides": samples.film(findings=(effusions(),)),
    "in doubt": replace(film_with_effusion(), findings=(replace(finding(), contradiction="other_side"), absent())),
    "unsided": samples.film(findings=(UNSIDED,)),
    "of no certain side": samples.film(findings=(DOUBTFUL,)),
    "heart": samples.film(findings=(HEART,)),
    "heart and effusion": samples.film(findings=(finding(), HEART)),
    "mirrored": replace(film_with_effusion(), notes=(Note.MIRRORED,)),
    "left out": samples.film(findings=(samples.left_out(), samples.absent(samples.EDEMA))),
    "AP by header": replace(film_with_effusion(), view=FilmView(tag="AP", seen="PA", certainty=0.72)),
    "ratio": replace(samples.film(findings=(replace(absent(), prompt="cardiomegaly"),)), ratio=samples.ratio()),
    "nothing asked": samples.film(findings=()),
}
MISSED = "Pulmonary edema is not reported (below threshold, may have been missed)."


@pytest.mark.parametrize(
    ("of", "text", "words"),
    [
        ("AP by header", "AP or PA?", "Its header names the view AP; its picture looks like PA (72 %)."),
        ("effusion", "AP or PA?", "Its header names no view; its picture tells none to this model."),
        ("in doubt", "why?", wording.CONTRADICTIONS["other_side"]),
        ("unsided", "left effusion?", "Its side is not told."),
        ("heart", "left or right?", "on no side"),
        ("heart and effusion", "left or right?", "Pleural effusion on the right."),
        ("mirrored", "effusion?", wording.CAUTIONS[Note.MIRRORED]),
        ("mirrored", "summarize", wording.CAUTIONS[Note.MIRRORED]),
        ("both sides", "left base?", "1 of 2 boxes lies in the left lower lung zone."),
        ("effusion", "Anything on the right side?", "The box lies in the right lower lung zone."),
        ("effusion", "Anything on the left side?", "may reach into the left side of the chest."),
        ("effusion", "left lung?", "may reach into the left lung."),
        ("of no certain side", "right lung?", "may reach into the right lung."),
        ("of no certain side", "left lung?", "None of the reported boxes lies in the left lung;"),
        ("left out", "pneumothorax?", "Pneumothorax is not evaluated by this model."),
        ("left out", "list the findings", f"{MISSED} Pneumothorax is not evaluated"),
        ("ratio", "heart size?", "Cardiothoracic ratio: "),
        ("ratio", "heart size?", "may have been missed"),
        ("effusion", "is the heart normal?", "This program does not judge"),
        ("effusion", "is the tube ok?", "This program does not judge"),
        ("nothing asked", "left lung?", "lies in the left lung;"),
        ("nothing asked", "are the lungs clear?", "lies in the lungs;"),
        ("nothing asked", "left apex?", "lies in the left upper lung zone and left apical zone;"),
    ],
)
def test_a_reply_says_once_what_a_person_must_know(of: str, text: str, words: str) -> None:
    assert ask(text, SPOKEN_OF[of]).count(words) == 1
