"""Every promise of the reader: with an engine that answers from a script, and with the small network itself."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contract import Box, FilmReading, FindingState, PromptKind, Question, ReaderPrompt
from models.engines import FloatArray
from models.errors import ModelError
from models.manifest import ReportRule
from models.reading.decision import is_trusted
from models.reading.phrasebook import Phrasebook, contrast, emphasize, opposite
from models.reading.reader import ChexReader
from models.reading.speech import printable
from tests.paths import REPOSITORY
from tests.support.scripted_engine import (
    EDEMA,
    FRACTURE,
    LEFT,
    NORMAL,
    PROMPTS,
    RIGHT,
    SENTENCES,
    ScriptedEngine,
    box,
    feature_of,
    reader_of,
    scores_of,
)


def _read(engine: ScriptedEngine, *prompts: ReaderPrompt, rule: ReportRule | None = None) -> FilmReading:
    reader = reader_of(engine, rule)
    return reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), prompts)


@pytest.mark.parametrize(
    "probability, state",
    [
        (0.61, FindingState.PRESENT),
        (0.59, FindingState.INDETERMINATE),
        (0.51, FindingState.INDETERMINATE),
        (0.49, FindingState.ABSENT),
    ],
)
def test_a_finding_is_present_from_its_threshold_on(probability: float, state: str) -> None:
    reading = _read(ScriptedEngine([probability], ["Words"]), EDEMA).prompts[0]

    assert reading.probability == pytest.approx(probability, abs=1e-5)
    assert reading.state == state


def test_an_unmeasured_threshold_calls_nothing_present() -> None:
    engine = ScriptedEngine([0.8, 0.51, 0.49], ["One", "Two", "Three"])
    reader = reader_of(engine, trusted="real")

    reading = reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), [EDEMA, FRACTURE, NORMAL])

    assert [prompt.state for prompt in reading.prompts] == [
        FindingState.UNCALIBRATED,
        FindingState.ABSENT,
        FindingState.ABSENT,
    ]


def test_a_finding_with_the_threshold_1_is_left_out() -> None:
    reader = reader_of(ScriptedEngine([0.8, 0.8], ["One", "Two"]))
    decisions = replace(reader.manifest.decisions, thresholds={"fracture": 1.0})
    reader.manifest = replace(reader.manifest, decisions=decisions)

    edema, fracture = reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), [EDEMA, FRACTURE]).prompts

    assert (edema.state, fracture.state) == (FindingState.PRESENT, FindingState.LEFT_OUT)
    trusted = [is_trusted(decisions, key, "any") for key in ("edema", "fracture")]
    assert trusted == [True, False], "nor is it denied"


def test_a_threshold_without_a_judged_prompt_is_named_by_its_key() -> None:
    reader = reader_of(ScriptedEngine([], []))
    region = ReaderPrompt(key="fracture", kind=PromptKind.REGION, phrases=("Site of the fracture",))

    reader.check([EDEMA, FRACTURE])
    for prompts in ([EDEMA], [EDEMA, region]):
        with pytest.raises(ModelError, match=r"decisions\.thresholds\.fracture .* correct or remove it"):
            reader.check(prompts)


@pytest.mark.parametrize("words, fits", [(75, True), (76, False)])
@pytest.mark.parametrize("place", ["phrases", "negatives"])
def test_a_prompt_too_long_for_the_network_is_named_by_its_key(words: int, fits: bool, place: str) -> None:
    reader = reader_of(ScriptedEngine([], []))
    phrases = ("Fine", "heart " * words)
    named = replace(EDEMA, key="long")
    prompt = replace(named, phrases=phrases) if place == "phrases" else replace(named, negatives=phrases)

    if fits:
        reader.check([FRACTURE, prompt])
    else:
        with pytest.raises(ModelError, match=r"prompt long: .* 76 tokens, the network reads 75"):
            reader.check([FRACTURE, prompt])


def test_a_region_is_neither_present_nor_absent() -> None:
    region = _read(ScriptedEngine([0.7, 0.7], ["One", "Two"]), EDEMA, LEFT).prompts[1]

    assert (region.probability, region.state) == (None, None)


def test_every_pathology_gets_a_sentence_and_normal_regions_none() -> None:
    engine = ScriptedEngine([0.3, 0.4, 0.6], ["One", "Two", "Three"], likeness={"One": 2, "Two": 3, "Three": 4})

    reading = _read(engine, EDEMA, LEFT, RIGHT)

    assert [sentence.text for sentence in reading.sentences] == ["One", "Three"]
    assert [prompt.sentence for prompt in reading.prompts] == [0, None, 1]


def test_without_a_judged_prompt_every_region_keeps_its_sentence() -> None:
    engine = ScriptedEngine([0.3, 0.4], ["One", "Two"], likeness={"One": 2, "Two": 3})

    assert len(_read(engine, LEFT, RIGHT).sentences) == 2


def test_a_reading_points_to_the_kept_one_of_two_duplicates() -> None:
    scores = np.array([[0.2, 0.1, 0.1], [0.9, 0.1, 0.1], [0.3, 0.1, 0.1]], dtype=np.float32)
    engine = ScriptedEngine([0.8, 0.8, 0.55], ["Same", "Alike", "Other"], scores, {"Same": 2, "Alike": 2, "Other": 3})

    reading = _read(engine, EDEMA, FRACTURE, NORMAL)

    assert [(sentence.text, sentence.prompt) for sentence in reading.sentences] == [
        ("Alike", "fracture"),
        ("Other", "no_finding"),
    ]
    assert [prompt.sentence for prompt in reading.prompts] == [0, 0, 1]
    assert reading.prompts[0].state is FindingState.PRESENT


def test_no_chain_of_duplicates_gives_a_finding_other_words() -> None:
    # The words of the finding stand for a region too, and those of this region are like those of another one.
    own, other = "There is edema.", "There is mild edema."
    scores = np.array([[0.6, 0, 0], [0.7, 0, 0], [0.9, 0, 0]], dtype=np.float32)
    everywhere = np.full((3, 3, 4), 0.5, dtype=np.float32)
    engine = ScriptedEngine([0.8] * 3, [own, own, other], scores, {own: 2, other: 2}, boxes=everywhere)
    reader = reader_of(engine)
    reader.rule = "checked"

    reading = reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), [EDEMA, LEFT, RIGHT])

    assert reading.sentences[reading.prompts[0].sentence or 0].text == own


def test_a_skipped_region_does_not_shift_prompts_and_boxes() -> None:
    # With the published index shift (BUG-8) the right lung would be ranked, named and boxed as the left lung is.
    scores = np.array([[0.3, 0, 0], [0.1, 0, 0], [0.9, 0.8, 0]], dtype=np.float32)
    engine = ScriptedEngine([0.7, 0.4, 0.7], ["Same", "Unused", "Alike"], scores, {"Same": 2, "Alike": 2})

    reading = _read(engine, EDEMA, LEFT, RIGHT)

    assert [(sentence.prompt, sentence.score) for sentence in reading.sentences] == [("right_lung", pytest.approx(0.9))]
    assert scores_of(reading.sentences[0].boxes) == pytest.approx([0.9, 0.8])


def test_boxes_above_the_threshold_or_else_the_best_are_reported() -> None:
    scores = np.array([[0.6, 0.5, 0.7], [0.1, 0.4, 0.2]], dtype=np.float32)

    several, single = _read(ScriptedEngine([0.7, 0.7], ["One", "Two"], scores), EDEMA, FRACTURE).prompts

    assert scores_of(several.boxes) == pytest.approx([0.6, 0.7])
    assert scores_of(single.boxes) == pytest.approx([0.4])


def test_emphasis_tells_the_generator_only_what_was_decided() -> None:
    found = [0.8, 0.65, 0.2, 0.8]
    engine = ScriptedEngine(found, ["One", "Two", "Three", "Four"])
    _read(engine, EDEMA, FRACTURE, NORMAL, LEFT, rule=ReportRule(emphasis=0.5))

    steps = [
        float((heard - feature_of(value))[0]) for heard, value in zip(engine.heard, (0.8, 0.65, 0.2, 0.8), strict=True)
    ]
    assert steps == pytest.approx([0.5 / 2**0.5, 0.0, -0.5 / 2**0.5, 0.0], abs=1e-4)


@pytest.mark.parametrize(("emphasis", "stay"), [(0.0, ["Alike"]), (0.5, ["Same", "Alike"])])
def test_with_emphasis_sentences_of_other_decisions_stay_apart(emphasis: float, stay: list[str]) -> None:
    scores = np.array([[0.2, 0.1, 0.1], [0.9, 0.1, 0.1]], dtype=np.float32)
    engine = ScriptedEngine([0.8, 0.2], ["Same", "Alike"], scores, {"Same": 2, "Alike": 2})

    reading = _read(engine, EDEMA, FRACTURE, rule=ReportRule(emphasis=emphasis))

    assert [sentence.text for sentence in reading.sentences] == stay


@given(st.floats(-1, 1), st.floats(0.01, 100), st.integers(0, 2**32 - 1))
def test_a_step_towards_a_prompt_never_makes_it_less_likely(step: float, unit: float, seed: int) -> None:
    feature, positive, negative = np.random.default_rng(seed).normal(size=(3, 1, 8)).astype(np.float32)

    def judged(moved: FloatArray) -> float:
        return float(contrast(moved, positive=positive, negative=negative)[0])

    moved = emphasize(feature, positive=positive, negative=negative, steps=np.array([step]))
    scaled = emphasize(feature * unit, positive=positive * 3, negative=negative, steps=np.array([step]))

    assert (judged(moved) - judged(feature)) * step >= -1e-5
    assert judged(scaled) == pytest.approx(judged(moved), abs=1e-4)


def test_a_blank_sentence_is_dropped_and_its_finding_stays() -> None:
    reading = _read(ScriptedEngine([0.8, 0.8], ["  ", "Two"]), EDEMA, FRACTURE)

    assert [sentence.text for sentence in reading.sentences] == ["Two"]
    assert [(prompt.state, prompt.sentence) for prompt in reading.prompts] == [
        (FindingState.PRESENT, None),
        (FindingState.PRESENT, 0),
    ]


@pytest.mark.parametrize(
    "generated, text",
    [
        (" A\nline ", "A line"),
        ("bell\x07 and\x00 zero", "bell and zero"),
        ("\u200b\x1b", ""),
        ("naïve, 3 µm", "naïve, 3 µm"),
    ],
)
def test_generated_text_holds_no_control_characters(generated: str, text: str) -> None:
    assert printable(generated) == text


# ---- phrases and questions


@pytest.mark.parametrize(
    "phrase, words",
    [
        ("Pleural effusion", "No pleural effusion"),
        ("COPD or emphysema", "No COPD or emphysema"),
        ("Normal", "Abnormal"),
        ("x", "No x"),
    ],
)
def test_the_opposite_of_a_phrase_is_worded_as_published(phrase: str, words: str) -> None:
    assert opposite(phrase, [EDEMA, NORMAL]) == words


@given(st.floats(-1, 1), st.floats(0.01, 2))
def test_a_probability_is_the_sigmoid_of_a_cosine_difference(cosine: float, temperature: float) -> None:
    feature = np.array([[cosine, np.sqrt(1 - cosine**2)]], dtype=np.float32)
    axes = np.eye(2, dtype=np.float32)

    found = contrast(5 * feature, positive=3 * axes[0], negative=axes[1], temperature=temperature)

    difference = (feature[0, 0] - feature[0, 1]) / temperature
    assert found[0] == pytest.approx(1 / (1 + np.exp(-np.float64(difference))), abs=1e-5)


def test_the_embedding_of_a_prompt_is_the_mean_of_its_synonyms() -> None:
    engine = ScriptedEngine([], [], likeness={"Heart": 2, "Cardiac silhouette": 3})
    heart = ReaderPrompt(key="heart", kind=PromptKind.REGION, phrases=("Heart", "Cardiac silhouette"))

    vectors = Phrasebook(engine, PROMPTS).vectors((heart, EDEMA))

    assert vectors.queries.tolist() == [[0, 0, 0.5, 0.5, 0, 0], [1, 0, 0, 0, 0, 0]]
    assert vectors.negative.tolist() == [[0, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("prompt", "edges"),
    [
        (None, None),
        (" ", None),
        (None, (0.5, 0.4, 0.5, 0.6)),
        (None, (0.4, float("nan"), 0.5, 0.6)),
        ("Edema", (1.0, 0.4, 1.2, 0.6)),
    ],
)
def test_a_question_that_has_no_answer_is_refused(
    prompt: str | None, edges: tuple[float, float, float, float] | None
) -> None:
    reader = reader_of(ScriptedEngine([0.5], ["Words"]))
    film = reader.look(np.zeros((300, 300), dtype=np.float32))

    with pytest.raises(ValueError):
        reader.ask(film, [Question(prompt=prompt, box=None if edges is None else box(*edges))], reference=[EDEMA])


@pytest.mark.parametrize("box", [None, box(0.4, 0.4, 0.6, 0.6)])
def test_a_question_too_long_for_the_network_is_refused(box: Box | None) -> None:
    reader = reader_of(ScriptedEngine([0.5], ["Words"]))
    film = reader.look(np.zeros((300, 300), dtype=np.float32))

    with pytest.raises(ValueError, match=r"longer than the network reads \(75 tokens"):
        reader.ask(film, [Question(prompt="heart " * 76, box=box)])


def test_the_reader_runs_without_torch() -> None:
    program = "import sys, models.reading.reader; sys.exit('torch' in sys.modules or 'onnxruntime' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=False).returncode == 0


def test_tokens_are_reported_without_end_marks() -> None:
    heard: list[tuple[int, float]] = []
    engine = ScriptedEngine(probabilities=[0.7, 0.7], said=["There is edema.", "No."])
    note = heard.append
    reader = ChexReader(reader_of(engine).manifest, engine, PROMPTS, SENTENCES, on_written=lambda *said: note(said))

    reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), [EDEMA, FRACTURE])

    ((tokens, seconds),) = heard
    assert tokens == len(SENTENCES.encode("There is edema.")) + len(SENTENCES.encode("No."))
    assert seconds >= 0.0
