"""Nothing is present on a film whose picture is not what it is read as, in any output and in answers to questions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from language.sentences import not_seen
from models.contract import Box, Doubt, FindingState, PromptKind, Question, Sentence, ViewReading
from node.domain import Film, Note
from node.jobs.question_answerer import QuestionAnswerer
from node.metrics import Metrics
from node.outputs import impression, wording
from node.outputs.asked_question import answer_to_json
from node.prompt_set import PromptSet
from node.read import open_film
from node.read.decoding import Radiograph
from node.read.film import answer_film
from node.read.model import OpenModel, Reading, SeenFilm
from tests.node.jobs.test_question_answerer import kept
from tests.node.read.test_routing import PROMPTS, SeeingReader, picture
from tests.support import films, samples
from tests.support.output_texts import texts_of

PLAIN = picture(PA=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A film whose header says PA, and what is said of it; view: of its picture; changes: of its header."""

    view: ViewReading | None = PLAIN
    changes: Mapping[str, object] = field(default_factory=dict)
    note: Note | None = None
    doubt: Doubt | None = None


CASES = {
    "lateral": Case(view=picture(lateral=0.6, AP=0.4), note=Note.VIEW_DISAGREES, doubt="other_view"),
    "mirrored": Case(view=picture(PA=1.0, mirrored=True), note=Note.MIRRORED, doubt="mirrored"),
    "rotated": Case(view=picture(PA=1.0, rotated=True), note=Note.ROTATED, doubt="rotated"),
    "bone": Case(changes={"ImageType": ["DERIVED", "PRIMARY", "BONE"]}, note=Note.IMAGE_TYPE, doubt="image_type"),
    "bone, for a model that sees no views": Case(
        view=None, changes={"ImageType": ["DERIVED", "PRIMARY", "BONE"]}, note=Note.IMAGE_TYPE, doubt="image_type"
    ),
    "a lateral series": Case(changes={"SeriesDescription": "CHEST LAT"}, note=Note.TWO_VIEWS, doubt="two_views"),
    "a small field": Case(
        changes={"PatientAge": None, "PixelSpacing": [0.2, 0.2]}, note=Note.MAYBE_CHILD, doubt="maybe_child"
    ),
    "plain": Case(),
}
SAID_OF_PRESENT = {
    "sr": "P60046008",
    "sr3d": "P60046008",
    "text": r" % \(present\)",
    "gsps": r"effusion 83 %$",
    "oru": r" % \(present\)",
    "report.txt": r" % \(present\)",
    "report.json": '"state": "present"',
    "study page": "state='present'",
    "impression": r"^1\. [^%]+ %(?! \(possible)",
    "sc": r"effusion 83 %$",
}
"""By output, what says that a finding is present."""


class SureReader(SeeingReader):
    """Reads adults, finds everything present, with a ratio, and has the view of a picture for questions too."""

    ages = range(18, 130)

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        said = super().read(image, prompts)
        answers = tuple(
            answer if answer.kind is PromptKind.REGION else replace(answer, state=FindingState.PRESENT)
            for answer in said.prompts
        )
        return replace(said, prompts=answers, ratio=samples.ratio_on(image.framing))

    def see(self, image: Radiograph) -> SeenFilm:
        return replace(super().see(image), view=self._view)


def saved(folder: Path, changes: Mapping[str, object]) -> Path:
    said = {"ViewPosition": "PA", "PatientAge": "050Y", "PatientBirthDate": None, **changes}
    return films.saved(folder, films.thumbnail(said))


def read(folder: Path, case: Case, *, reader: SureReader | None = None) -> Film:
    film = answer_film(saved(folder, case.changes), reader or SureReader(case.view), PROMPTS).film
    assert film is not None
    return replace(film, source=samples.film_uid(1))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_findings_of_a_film_in_doubt_are_to_be_reviewed(case: Case, tmp_path: Path) -> None:
    film = read(tmp_path, case)

    state = FindingState.PRESENT if case.doubt is None else FindingState.INDETERMINATE
    assert {(found.state, found.contradiction) for found in film.findings} == {(state, case.doubt)}
    assert {said.text.startswith("Possible, please review: ") for said in film.sentences} == {case.doubt is not None}
    assert (film.ratio is None) is (case.doubt is not None)
    if case.note is not None:
        assert case.note in film.notes and wording.CAUTIONS[case.note] in impression.of_film(film)


def test_a_doubt_about_the_film_hides_no_contradiction_of_a_finding(tmp_path: Path) -> None:
    class Contradicted(SureReader):
        def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
            said = super().read(image, prompts)
            found = tuple(
                replace(each, state=FindingState.INDETERMINATE, contradiction="other_side") for each in said.pathologies
            )
            return replace(said, prompts=found)

    mirrored = CASES["mirrored"]

    film = read(tmp_path, mirrored, reader=Contradicted(mirrored.view))

    assert {found.contradiction for found in film.findings} == {"other_side"}


@pytest.mark.parametrize(
    ("finding", "normal", "only", "has_note"),
    [
        (FindingState.PRESENT, FindingState.PRESENT, None, True),
        (FindingState.PRESENT, FindingState.PRESENT, "support_devices", False),
        (FindingState.INDETERMINATE, FindingState.PRESENT, None, False),
        (FindingState.PRESENT, FindingState.INDETERMINATE, None, False),
    ],
)
def test_a_film_called_normal_beside_a_finding_is_noted_once(
    finding: FindingState, normal: FindingState, only: str | None, has_note: bool, tmp_path: Path
) -> None:
    class Ambiguous(SureReader):
        def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
            said = super().read(image, prompts)
            named = said.pathologies if only is None else (replace(said.pathologies[0], key=only),)
            found = tuple(replace(each, state=finding) for each in named)
            whole = replace(found[0], key="no_finding", kind=PromptKind.NO_FINDING, state=normal, boxes=())
            denial = Sentence(text=not_seen("There is no edema."), prompt=found[0].key, score=0.1, boxes=())
            return replace(said, prompts=(*found, whole), sentences=(*said.sentences, denial))

    film = read(tmp_path, CASES["plain"], reader=Ambiguous(PLAIN))

    assert {(found.state, found.contradiction) for found in film.findings} == {(finding, None)}
    assert film.notes.count(Note.CALLED_NORMAL) == int(has_note)
    assert (wording.CAUTIONS[Note.CALLED_NORMAL] in impression.of_film(film)) is has_note
    assert [said.text for said in film.withheld] == ["There is no edema."] * has_note


@pytest.mark.parametrize("of", ["mirrored", "bone", "plain"])
def test_outputs_call_findings_present_only_beyond_doubt(of: str, tmp_path: Path) -> None:
    film = read(tmp_path, CASES[of])

    texts = texts_of(film)

    calling = [output for output, said in SAID_OF_PRESENT.items() if re.search(said, texts[output], re.MULTILINE)]
    assert calling == (list(SAID_OF_PRESENT) if of == "plain" else [])
    for output in ("report.txt", "text"):
        words = " ".join(texts[output].split())
        assert [note for note in film.notes if wording.noted(note) not in words] == []


@pytest.mark.parametrize("of", ["mirrored", "bone", "plain"])
def test_no_answer_calls_anything_present_on_a_film_in_doubt(of: str, tmp_path: Path) -> None:
    case = CASES[of]
    spool, film = kept(tmp_path)
    model = OpenModel(reader=SureReader(case.view), prompts=PROMPTS)
    asked = (Question(prompt="Edema"), Question(box=Box(left=60.0, top=60.0, right=90.0, bottom=90.0)))

    path = saved(tmp_path, case.changes)
    answers = open_film.ask(path, asked, reader=model.reader, prompts=PROMPTS)
    if not case.changes:  # of the film on the spool
        over_page = QuestionAnswerer(spool, model, Metrics()).ask(film, asked, by="", source="page")
        answers += [question.answer for question in over_page]

    for answer in answers:
        told = answer_to_json(answer)
        assert told["positive"] is (case.doubt is None)
        assert (told["reason"], told["notes"]) == (wording.reason_of(case.doubt), [case.note] if case.note else [])
        assert str(told["sentence"]).startswith("Possible, please review: ") is (case.doubt is not None)


def test_a_picture_without_a_header_is_asked_about_in_doubt(tmp_path: Path) -> None:
    path = tmp_path / "film.png"
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (128, 128), dtype=np.uint8)).save(path)
    reader = SureReader(picture(not_chest=0.7, AP=0.3))

    (answer,) = open_film.ask(path, [Question(prompt="Edema")], reader=reader, prompts=PROMPTS)

    assert (answer.state, answer.contradiction, answer.notes) == (FindingState.INDETERMINATE, "other_view", ())


def test_raw_sentences_of_a_film_in_doubt_stay_as_generated(tmp_path: Path) -> None:
    reader = SureReader(CASES["mirrored"].view)
    reader.identity = replace(reader.identity, sentences="raw")

    film = read(tmp_path, CASES["mirrored"], reader=reader)

    assert {said.text.endswith(" is seen here.") and ":" not in said.text for said in film.sentences} == {True}
    assert film.in_state(FindingState.PRESENT) == ()
