"""The paper's example of a report (Figure 7), from a generator that writes like MIMIC-CXR to every output of a film."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from models.contract import FindingState, Question, SentenceRule
from models.decisions import Measurement
from models.reading.reader import ChexReader
from node.domain import Film, Note
from node.hl7.text import read as read_message
from node.outputs import impression, oru, wording
from node.outputs.asked_question import answer_to_json
from node.outputs.corrected_film import correct
from node.prompt_set import PromptSet
from node.read import open_film, prompts
from node.read.film import answer_film
from node.read.model import RadiographReader
from node.store.correction import CorrectionKind
from tests.node.outputs.test_corrections import made
from tests.support import films, samples
from tests.support.output_texts import texts_of
from tests.support.scripted_engine import PROMPTS, SENTENCES, ScriptedEngine, reader_of

CHEXPERT = prompts.load("chexpert14")
ASKED = tuple(CHEXPERT[key] for key in ("cardiomegaly", "edema", "pleural_effusion"))
SET = PromptSet(name="three", version="1", sha256="0" * 64, prompts=ASKED)
HEART, EDEMA, DENIAL = FIGURE_7 = (
    "The heart is mildly enlarged.",
    "There is moderate interstitial pulmonary edema.",
    "No larger pleural effusion is seen.",
)
WITH_SENTENCES = ("sr", "sr3d", "text", "oru", "fhir", "report.txt", "report.json", "study page")
NOTE = wording.NOTES[Note.SEVERITY_WORDED]
MARKED = "Not seen by the network: "


def reader_by(
    rule: SentenceRule,
    *,
    said: Sequence[str] = FIGURE_7,
    effusion: float = 0.3,
    is_measured: bool = True,
) -> RadiographReader:
    """A network that finds heart and edema.

    is_measured: whether each threshold was, on films of people
    """
    negatives = {negative: 1 for prompt in ASKED for negative in prompt.negatives[:1]}
    engine = ScriptedEngine([0.8, 0.8, effusion], [*said], likeness={**negatives, HEART: 2, EDEMA: 3, DENIAL: 4})
    manifest = reader_of(engine).manifest
    measured = Measurement(measured_on="hospital", positives=200, negatives=200)
    decisions = replace(
        manifest.decisions,
        thresholds={prompt.key: 0.6 for prompt in ASKED},
        measurements={prompt.key: measured for prompt in ASKED if is_measured},
    )
    words = ("cardiomegaly", "edema", "effusion", "no", "pleural")
    network = ChexReader(
        replace(manifest, decisions=decisions, vocabulary=words), engine, PROMPTS, SENTENCES, trusted="real", rule=rule
    )
    return RadiographReader(network, hashes=("0" * 64, ""), trusted="real", sentences=rule, unmeasured_ratio=False)


def read(folder: Path, reader: RadiographReader, **changes: object) -> Film:
    film = answer_film(film_of(folder, **changes), reader, SET).film
    assert film is not None
    return replace(film, source=samples.film_uid(1))


def film_of(folder: Path, **changes: object) -> Path:
    return films.saved(folder, films.thumbnail({"ViewPosition": "PA", "PatientAge": "050Y", **changes}))


@pytest.mark.parametrize("rule", ["checked", "marked"])
def test_its_sentences_leave_in_every_output(rule: SentenceRule, tmp_path: Path) -> None:
    film = read(tmp_path, reader_by(rule))

    texts = {output: " ".join(text.split()) for output, text in texts_of(film).items()}
    report, headers = samples.report(film), samples.sources(samples.cr())
    message = read_message(oru.write(report, headers, samples.BERLIN, order=None, documents=[])[1])
    texts["oru"] = " ".join(segment.text(5) for segment in message.named("OBX"))  # which divides long lines

    assert film.notes == (Note.SEVERITY_WORDED,)
    assert [withheld.reason for withheld in film.withheld] == ([] if rule == "marked" else ["denial"])
    for output in WITH_SENTENCES:
        assert all(text in texts[output] for text in (HEART, EDEMA)), output
        assert texts[output].count(NOTE) == {"report.json": 0, "fhir": 3}.get(output, 1), output
        assert (MARKED in texts[output]) is (rule == "marked"), output
    for output in {*texts} - {*WITH_SENTENCES}:
        assert not any(word in texts[output] for word in ("mild", "moderate", "severity", "No larger", MARKED)), output


@pytest.mark.parametrize(
    ("effusion", "changes", "denial"),
    [
        (0.3, {}, True),
        (0.48, {}, False),  # the threshold is 0.6, with a band of 0.1 below it, and 0.05 below that it came near
        (0.8, {}, False),
        (0.3, {"ImageType": ["DERIVED", "PRIMARY", "BONE"]}, False),
    ],
    ids=["below", "near", "present", "a film with a note"],
)
def test_only_what_is_well_below_its_threshold_on_a_film_without_a_note_is_denied(
    effusion: float, changes: dict[str, object], denial: bool, tmp_path: Path
) -> None:
    film = read(tmp_path, reader_by("marked", effusion=effusion), **changes)

    assert any(said.text.startswith(MARKED) for said in film.sentences) is denial
    assert film.findings[2].state.is_reported is (effusion > 0.5)
    found = [film.sentences[found.sentence].prompt for found in film.findings[:2] if found.sentence is not None]
    assert found == ["cardiomegaly", "edema"]


@pytest.mark.parametrize("kind", [CorrectionKind.ADD, CorrectionKind.REJECT])
def test_a_reader_takes_notes_and_denials_along(kind: CorrectionKind, tmp_path: Path) -> None:
    film = read(tmp_path, reader_by("marked", said=("There is cardiomegaly.", EDEMA, "No pleural effusion is seen.")))
    key = "edema" if kind is CorrectionKind.REJECT else "pleural_effusion"
    box = film.findings[0].boxes[0].box if kind is CorrectionKind.ADD else None

    now = correct(film, [made(kind, prompt=key, box=box, film=film.source)], prompts=SET, side_of=lambda _box: None)

    assert (Note.SEVERITY_WORDED in now.notes) is (kind is CorrectionKind.ADD)
    assert any(said.text.startswith(MARKED) for said in now.sentences) is (kind is CorrectionKind.REJECT)
    assert not any(MARKED in line or "larger" in line for line in impression.of_film(now))


def test_an_answer_and_words_on_an_uncalibrated_finding_have_the_note_and_an_answer_denies_nothing(
    tmp_path: Path,
) -> None:
    asked = [Question(prompt="Edema"), Question(prompt="Pleural effusion")]
    uncalibrated = reader_by("checked", is_measured=False)

    film = read(tmp_path, uncalibrated)
    answers = [
        open_film.ask(film_of(tmp_path), asked, reader=reader, prompts=SET)
        for reader in (uncalibrated, reader_by("marked"))
    ]

    assert {said.by for said in film.sentences} == {answers[0][0].by} == {"network_uncalibrated"}
    [edema, effusion] = answers[1]
    assert edema.sentence == EDEMA
    assert film.notes == answers[0][0].notes == edema.notes == (Note.SEVERITY_WORDED,)
    assert answer_to_json(edema)["notes"] == ["severity_worded"]
    assert (effusion.state, effusion.sentence, effusion.notes) == (FindingState.ABSENT, "", ())
