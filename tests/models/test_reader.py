"""Every promise of the reader: with an engine that answers from a script, and with the small network itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from models.contract import FilmReading, FindingState, PromptKind, Question, ReaderPrompt, Side, Trusted
from models.decisions import PHANTOMS, Measurement, PhantomThreshold, RatioError
from models.engines import ENGINES, FloatArray, IntArray
from models.engines.comparison import FLOAT32
from models.engines.opening import open_engine
from models.engines.scheduler import MOST_TOKENS
from models.errors import ModelError
from models.lab.evaluation.cases import shown
from models.lab.evaluation.evaluated_model import read_questions
from models.lab.evaluation.request import DEFAULT
from models.lab.phantoms import phantom
from models.manifest import Ages, ReportRule
from models.reading.decided_film import Look
from models.reading.decision import is_trusted
from models.reading.deduplicate import deduplicate
from models.reading.generated_sentences import printable
from models.reading.phrasebook import Phrasebook, opposite
from models.reading.reader import ChexReader, open_reader
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
    centers_of,
    feature_of,
    reader_of,
    scores_of,
)


def _read(engine: ScriptedEngine, *prompts: ReaderPrompt, rule: ReportRule | None = None) -> FilmReading:
    reader = reader_of(engine, rule)
    return reader.report(look(reader), prompts)


def look(reader: ChexReader) -> Look:
    """Look at an empty film."""
    return reader.look(np.zeros((300, 300), dtype=np.float32))


@pytest.mark.parametrize(
    "probability, state, near",
    [
        (0.61, FindingState.PRESENT, True),
        (0.59, FindingState.INDETERMINATE, True),
        (0.51, FindingState.INDETERMINATE, True),
        (0.49, FindingState.ABSENT, True),
        (0.451, FindingState.ABSENT, True),
        (0.449, FindingState.ABSENT, False),
    ],
)
def test_a_finding_is_present_from_its_threshold_on(probability: float, state: str, near: bool) -> None:
    reader = reader_of(ScriptedEngine([probability, 0.8], ["One", "Two"]))
    decisions = replace(reader.manifest.decisions, thresholds={"fracture": 1.0})
    reader.manifest = replace(reader.manifest, decisions=decisions)

    edema, fracture = reader.report(look(reader), [EDEMA, FRACTURE]).prompts

    assert edema.probability == pytest.approx(probability, abs=1e-5)
    assert (edema.state, edema.near) == (state, near)
    assert (fracture.state, fracture.near) == (FindingState.LEFT_OUT, False), "which its threshold of 1 says"
    trusted = [is_trusted(decisions, key, "any") for key in ("edema", "fracture")]
    assert trusted == [True, False], "nor is it denied"


def test_a_prompt_set_that_fits_neither_manifest_nor_network_is_named_by_its_key() -> None:
    reader = reader_of(ScriptedEngine([], []))
    region = ReaderPrompt(key="fracture", kind=PromptKind.REGION, phrases=("Site of the fracture",))
    longest, too_long = ("Fine", "heart " * 75), ("Fine", "heart " * 76)

    reader.check([FRACTURE, replace(EDEMA, phrases=longest, negatives=longest)])
    for prompts in ([EDEMA], [EDEMA, region]):
        with pytest.raises(ModelError, match=r"decisions\.thresholds\.fracture .* correct or remove it"):
            reader.check(prompts)
    for prompt in (replace(EDEMA, phrases=too_long), replace(EDEMA, negatives=too_long)):
        with pytest.raises(ModelError, match=r"prompt edema: .* 76 tokens, the network reads 75"):
            reader.check([FRACTURE, prompt])


def test_every_pathology_gets_a_sentence_and_normal_regions_none() -> None:
    likeness = {"One": 2, "Two": 3, "Three": 4}

    reading = _read(ScriptedEngine([0.3, 0.4, 0.6], [*likeness], likeness=likeness), EDEMA, LEFT, RIGHT)
    of_regions = _read(ScriptedEngine([0.3, 0.4], [*likeness], likeness=likeness), LEFT, RIGHT)

    assert [sentence.text for sentence in reading.sentences] == ["One", "Three"]
    assert [prompt.sentence for prompt in reading.prompts] == [0, None, 1]
    assert [(prompt.probability, prompt.state) for prompt in reading.prompts[1:]] == [(None, None)] * 2
    assert [sentence.text for sentence in of_regions.sentences] == ["One", "Two"], "none is judged: nothing is normal"


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

    reading = reader.report(look(reader), [EDEMA, LEFT, RIGHT])

    assert reading.sentences[reading.prompts[0].sentence or 0].text == own
    assert {sentence.text for sentence in reading.sentences} == {own, other}, "nor does it take those of a region"


def test_a_skipped_region_does_not_shift_prompts_and_boxes() -> None:
    # With the published index shift (BUG-8) the right lung would be ranked, named and boxed as the left lung is.
    scores = np.array([[0.3, 0, 0], [0.1, 0, 0], [0.9, 0.8, 0]], dtype=np.float32)
    engine = ScriptedEngine([0.7, 0.4, 0.7], ["Same", "Unused", "Alike"], scores, {"Same": 2, "Alike": 2})

    reading = _read(engine, EDEMA, LEFT, RIGHT)

    assert [(sentence.prompt, sentence.score) for sentence in reading.sentences] == [("right_lung", pytest.approx(0.9))]
    assert scores_of(reading.sentences[0].boxes) == pytest.approx([0.9, 0.8])


@pytest.mark.parametrize(
    ("found", "trusted", "threshold", "state", "step"),
    [
        (0.8, "any", 0.6, FindingState.PRESENT, 0.5),
        (0.55, "any", 0.6, FindingState.INDETERMINATE, 0.0),
        (0.2, "any", 0.6, FindingState.ABSENT, -0.5),
        (0.8, "real", 0.6, FindingState.UNCALIBRATED, 0.5),
        (0.8, "any", 1.0, FindingState.LEFT_OUT, -0.5),
    ],
)
def test_emphasis_tells_the_generator_only_what_was_decided(
    found: float, trusted: Trusted, threshold: float, state: FindingState, step: float
) -> None:
    engine = ScriptedEngine([found, 0.8], ["One", "Two"])
    reader = reader_of(engine, ReportRule(emphasis=0.5), trusted=trusted)
    decisions = replace(reader.manifest.decisions, thresholds={"edema": threshold})
    reader.manifest = replace(reader.manifest, decisions=decisions)

    edema, _ = reader.report(look(reader), [EDEMA, LEFT]).prompts

    assert edema.state is state
    steps = [(heard - feature_of(value))[0] for heard, value in zip(engine.heard, (found, 0.8), strict=True)]
    assert steps == pytest.approx([step / 2**0.5, 0.0], abs=1e-4), "nothing was decided of the region"


@pytest.mark.parametrize(("emphasis", "stay"), [(0.0, ["Alike"]), (0.5, ["Same", "Alike"])])
def test_with_emphasis_sentences_of_other_decisions_stay_apart(emphasis: float, stay: list[str]) -> None:
    scores = np.array([[0.2, 0.1, 0.1], [0.9, 0.1, 0.1]], dtype=np.float32)
    engine = ScriptedEngine([0.8, 0.2], ["Same", "Alike"], scores, {"Same": 2, "Alike": 2})

    reading = _read(engine, EDEMA, FRACTURE, rule=ReportRule(emphasis=emphasis))

    assert [sentence.text for sentence in reading.sentences] == stay


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


def test_a_blank_sentence_is_dropped_and_its_finding_stays() -> None:
    reading = _read(ScriptedEngine([0.8, 0.8], ["  ", "Two"]), EDEMA, FRACTURE)

    assert [sentence.text for sentence in reading.sentences] == ["Two"]
    assert [prompt.sentence for prompt in reading.prompts] == [None, 0]
    assert {prompt.state for prompt in reading.prompts} == {FindingState.PRESENT}


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


def test_the_embedding_of_a_prompt_is_the_mean_of_its_synonyms() -> None:
    engine = ScriptedEngine([], [], likeness={"Heart": 2, "Cardiac silhouette": 3})
    heart = ReaderPrompt(key="heart", kind=PromptKind.REGION, phrases=("Heart", "Cardiac silhouette"))

    vectors = Phrasebook(engine, PROMPTS).vectors((heart, EDEMA))

    assert vectors.queries.tolist() == [[0, 0, 0.5, 0.5, 0, 0], [1, 0, 0, 0, 0, 0]]
    assert vectors.negative.tolist() == [[0, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("prompt", "edges", "complaint"),
    [
        (None, None, "needs a prompt, a box, or both"),
        (" ", None, "must not be blank"),
        (None, (0.5, 0.4, 0.5, 0.6), "must not be empty"),
        (None, (0.4, float("nan"), 0.5, 0.6), "finite edges"),
        ("Edema", (1.0, 0.4, 1.2, 0.6), "outside the square"),
        ("Edema", (-0.2, 0.4, 0.0, 0.6), "outside the square"),
        ("Edema", (0.4, 1.0, 0.6, 1.2), "outside the square"),
        ("Edema", (0.4, -0.2, 0.6, 0.0), "outside the square"),
        ("heart " * 76, None, r"longer than the network reads \(75 tokens"),
        ("heart " * 76, (0.4, 0.4, 0.6, 0.6), r"longer than the network reads \(75 tokens"),
    ],
)
def test_a_question_that_has_no_answer_is_refused(
    prompt: str | None, edges: tuple[float, float, float, float] | None, complaint: str
) -> None:
    reader = reader_of(ScriptedEngine([0.5], ["Words"]))

    with pytest.raises(ValueError, match=complaint):
        reader.ask(look(reader), [Question(prompt=prompt, box=edges and box(*edges))], reference=[EDEMA])


def test_tokens_are_reported_without_end_marks() -> None:
    heard: list[tuple[int, float]] = []
    engine = ScriptedEngine(probabilities=[0.7, 0.7], said=["There is edema.", "No."])
    manifest = reader_of(engine).manifest
    reader = ChexReader(manifest, engine, PROMPTS, SENTENCES, on_written=lambda *said: heard.append(said))

    reader.report(look(reader), [EDEMA, FRACTURE])

    ((tokens, seconds),) = heard
    assert tokens == len(SENTENCES.encode("There is edema.")) + len(SENTENCES.encode("No."))
    assert seconds >= 0.0


@pytest.mark.parametrize(
    ("trusted", "edema", "fracture", "withheld"),
    [
        ("phantoms", FindingState.PRESENT, FindingState.UNCALIBRATED, ["left_lung"]),
        ("real", FindingState.LEFT_OUT, FindingState.PRESENT, ["edema", "left_lung"]),
    ],
)
def test_a_reader_takes_from_the_manifest_what_counts_on_its_films(
    trusted: Trusted, edema: FindingState, fracture: FindingState, withheld: list[str]
) -> None:
    base = reader_of(ScriptedEngine([], [])).manifest
    decisions = replace(
        base.decisions,
        thresholds={"edema": 1.0, "fracture": 0.7},
        measurements={
            key: Measurement(measured_on=films, positives=5, negatives=5)
            for key, films in (("edema", PHANTOMS), ("fracture", "films of people"))
        },
        phantoms={"edema": PhantomThreshold(threshold=0.6, positives=5, negatives=5)},
    )
    error = RatioError(measured_on=PHANTOMS, films=9, mean_absolute_error=0.02, bias=0.0, lower=-0.05, upper=0.05)
    manifest = replace(base, decisions=decisions, ages=Ages(least=18), cardiothoracic=error)
    engine = ScriptedEngine([0.75, 0.75, 0.8], ["There is edema.", "There is a fracture.", "There is a pleural other."])
    reader = ChexReader(manifest, engine, PROMPTS, SENTENCES, trusted=trusted, rule="checked")

    reading = reader.report(look(reader), [EDEMA, FRACTURE, LEFT])

    assert [prompt.state for prompt in reading.prompts] == [edema, fracture, None]
    assert (reader.gray, reader.ages, reader.ratio_error) == (manifest.gray, manifest.ages, error)
    assert (set(reader.measured), reader.left_out) == (
        ({"edema", "fracture"}, ()) if trusted == "phantoms" else ({"fracture"}, ("edema",))
    )
    assert [(said.prompt, said.reason) for said in reading.withheld] == [(key, "not_measured") for key in withheld]


def _one_by_one(
    similarity: FloatArray, preference: Sequence[float], rule: ReportRule
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """spec §9.1.6, word by word: an independent form to compare with."""
    kept = list(range(len(similarity)))
    follows: dict[int, int] = {}
    while len(kept) > 1:
        likeness, first, second = max(
            ((similarity[a, b], -a, -b) for a in kept for b in kept if a != b), key=lambda pair: pair
        )
        first, second = -first, -second
        if likeness < rule.remove_above and (likeness < rule.soft_remove_above or len(kept) <= rule.max_sentences):
            break
        gone = first if preference[first] < preference[second] else second
        follows[gone] = second if gone == first else first
        kept.remove(gone)

    def survivor(index: int) -> int:
        return survivor(follows[index]) if index in follows else index

    return tuple(kept), tuple(survivor(index) for index in range(len(similarity)))


@st.composite
def _sentences(draw: st.DrawFn) -> tuple[FloatArray, list[float], ReportRule]:
    count = draw(st.integers(0, 7))
    # Few distinct values, so that ties are common.
    half = draw(arrays.arrays(np.float32, (count, count), elements=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])))
    similarity = np.triu(half, 1) + np.triu(half, 1).T
    preference = draw(st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=count, max_size=count))
    rule = ReportRule(
        remove_above=draw(st.sampled_from([0.5, 0.75, 1.0])),
        soft_remove_above=draw(st.sampled_from([0.25, 0.5])),
        max_sentences=draw(st.integers(1, 4)),
    )
    return similarity, preference, rule


@given(_sentences())
def test_duplicates_go_in_the_published_order_and_break_ties_so(
    drawn: tuple[FloatArray, list[float], ReportRule],
) -> None:
    similarity, preference, rule = drawn

    assert deduplicate(similarity, preference, rule) == _one_by_one(similarity, preference, rule)


TEXTS = (
    "No focal consolidation, pleural effusion or pneumothorax is seen.",
    "!",
    "Edema",
    "heart " * 100,
    "Edema",
    "The heart<|endoftext|> is enlarged",
    *(f"Mass number {number} in the left upper zone" for number in range(23)),
)


class Watched(ScriptedEngine):
    """Keeps the tokens that it was given."""

    given: list[IntArray]

    def encode_prompts(self, tokens: IntArray) -> np.ndarray:
        self.given = [*getattr(self, "given", []), tokens]
        return super().encode_prompts(tokens)


@pytest.mark.parametrize("name", ENGINES)
def test_a_cut_text_has_the_vector_of_the_padded_one(phantom_model: Path, name: str) -> None:
    engine = open_engine(phantom_model, engine=name)

    cut = Phrasebook(engine, PROMPTS).embed(TEXTS)

    padded = engine.encode_prompts(PROMPTS.encode(TEXTS))
    assert cut.shape == padded.shape
    assert np.abs(cut - padded).max() <= FLOAT32.features * max(1.0, float(np.abs(padded).max()))


def test_texts_are_encoded_once_in_parts_without_their_padding() -> None:
    engine = Watched(probabilities=[], said=[])

    Phrasebook(engine, PROMPTS).embed(TEXTS)

    ends = [tokens.argmax(axis=1) + 1 for tokens in engine.given]
    assert all(tokens.size <= MOST_TOKENS for tokens in engine.given)
    assert all(tokens.shape[1] == lengths.max() for tokens, lengths in zip(engine.given, ends, strict=True))
    assert sum(len(tokens) for tokens in engine.given) == len(set(TEXTS))


def test_a_prepared_reader_encodes_only_sentences_of_a_film() -> None:
    engine = Watched(probabilities=[0.78, 0.22], said=["Edema is seen.", "No fracture."])
    reader, prompts = reader_of(engine), (EDEMA, FRACTURE)

    reader.prepare(prompts)

    phrases = ["Edema", "No edema", "Fracture", "No fracture"]
    sided = [f"{side} {name}" for name in ("Edema", "Fracture") for side in ("left", "right")]
    before = [_text(row) for tokens in engine.given for row in tokens]
    assert sorted(before) == sorted(_text(row) for row in PROMPTS.encode([*phrases, *sided, "Spine"]))
    reader.report(reader.look(np.zeros((8, 8), dtype=np.float32)), prompts, side_of=lambda _x, _width: Side.LEFT)
    after = [_text(row) for tokens in engine.given for row in tokens][len(before) :]
    assert sorted(after) == sorted(_text(row) for row in PROMPTS.encode(engine.said))


def _text(row: IntArray) -> tuple[int, ...]:
    return tuple(row[: row.argmax() + 1].tolist())


@pytest.fixture(scope="module", params=ENGINES)
def shipped(request: pytest.FixtureRequest, phantom_model: Path) -> ChexReader:
    return open_reader(phantom_model, engine=request.param, threads=1)


@pytest.fixture(scope="module")
def seen(shipped: ChexReader) -> Look:
    return shipped.look(np.random.default_rng(0).random((300, 260), dtype=np.float32))


def test_an_answer_does_not_depend_on_what_else_is_asked(shipped: ChexReader, seen: Look) -> None:
    drawn = box(0.25, 0.5, 0.55, 0.7)
    questions = [
        Question(prompt="Pleural effusion"),
        Question(box=drawn),
        Question(prompt="Pneumothorax"),
        Question(prompt="Pleural effusion", box=drawn),
    ]

    together = shipped.ask(seen, questions, reference=[EDEMA, NORMAL])

    for question, answer in zip(questions, together, strict=True):
        (alone,) = shipped.ask(seen, [question], reference=[EDEMA, NORMAL])
        assert answer.sentence == alone.sentence
        assert answer.score == pytest.approx(alone.score, abs=1e-5)
        assert centers_of(answer.boxes) == pytest.approx(centers_of(alone.boxes), abs=1e-5)
    assert len({answer.score for answer in together}) == len(questions)


@pytest.mark.parametrize("trusted", ["real", "any"])
def test_what_is_left_out_is_neither_found_nor_denied(phantom_model: Path, trusted: Trusted) -> None:
    reader = open_reader(phantom_model, engine="onnx", threads=1, trusted=trusted, sentences="checked")
    film = reader.look(phantom(2000000, side=224).pixels.astype(np.float32) / np.float32(255))
    asked = [
        Question(prompt="Pneumonia in the left lung"),
        Question(prompt="Pneumonia", box=box(0.3, 0.3, 0.7, 0.7)),
    ]

    answers = reader.ask(film, asked, reference=read_questions(DEFAULT).prompts)

    assert [(answer.state, answer.sentence) for answer in answers] == [(FindingState.LEFT_OUT, "")] * 2


def test_words_never_learned_are_named_and_get_no_box(shipped: ChexReader, seen: Look) -> None:
    drawn, strange, known = box(0.4, 0.4, 0.6, 0.6), ("Tuberculosis",), replace(EDEMA, key="tb")
    asked = [Question(prompt="Banana in the left lung, or tuberculosis"), Question(prompt="Cat", box=drawn)]

    *unknown, answered = shipped.ask(seen, [*asked, Question(prompt="Edema")], reference=[EDEMA])

    assert [answer.never_learned for answer in (*unknown, answered)] == [("banana", "tuberculosis"), ("cat",), ()]
    for answer in unknown:
        assert (answer.sentence, answer.score, answer.state, answer.boxes) == ("", None, None, ())
    assert answered.score is not None
    for prompt in (replace(known, phrases=strange), replace(known, negatives=strange)):
        with pytest.raises(ModelError, match="prompt tb: this model never learned: tuberculosis; use other words"):
            shipped.check([*read_questions(DEFAULT).prompts, prompt])


def test_the_answer_to_a_box_is_that_box_with_its_score(shipped: ChexReader, seen: Look) -> None:
    question = Question(box=box(0.25, 0.5, 0.55, 0.7))

    (answer,) = shipped.ask(seen, [question], reference=[EDEMA])

    assert centers_of(answer.boxes) == pytest.approx(np.array([[0.4, 0.6, 0.3, 0.2]]))
    assert scores_of(answer.boxes) == pytest.approx([answer.score])
    assert answer.state in (FindingState.UNCALIBRATED, FindingState.ABSENT)  # no threshold is ever measured for a box
    assert not answer.positive
    with pytest.raises(ValueError, match="reference"):
        shipped.ask(seen, [question], reference=[LEFT])


@pytest.mark.parametrize(("seed", "shift"), [(2_000_000, -0.1), (2_000_001, 0.0), (2_000_002, 0.1)])
def test_the_middle_is_where_a_certain_spine_lies(phantom_model: Path, seed: int, shift: float) -> None:
    reader = open_reader(phantom_model, engine="onnx", threads=1)
    film = phantom(seed, side=reader.manifest.input.size)
    gray = shown(film.pixels, reader.manifest.gray)
    columns = round(shift * gray.shape[1])
    padded = np.pad(gray, ((0, 0), (max(columns, 0), max(-columns, 0))), mode="edge")
    moved = padded[:, : gray.shape[1]] if columns >= 0 else padded[:, -columns:]
    seen = reader.look(np.ascontiguousarray(moved))

    assert reader.middle(seen) == pytest.approx(float(film.regions["spine"][0]) + shift, abs=0.05)
    reader.manifest = replace(reader.manifest, decisions=replace(reader.manifest.decisions, box_threshold=1.0))
    assert reader.middle(seen) is None, "below the threshold"
