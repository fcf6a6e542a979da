"""Nothing is present on a film whose picture is not what it is read as, in any output and in answers to questions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models.contract import Box, Doubt, FindingState, PromptKind, Question, ViewReading
from node.domain import Film, Note
from node.jobs.asking import QuestionAnswerer
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

DOUBTS: dict[str, tuple[ViewReading, Note, Doubt]] = {
    "lateral": (picture(lateral=0.6, AP=0.4), Note.VIEW_DISAGREES, "other_view"),
    "probably lateral or no chest": (picture(lateral=0.3, not_chest=0.3, PA=0.4), Note.VIEW_DISAGREES, "other_view"),
    "mirrored": (picture(PA=1.0, mirrored=True), Note.MIRRORED, "mirrored"),
    "rotated": (picture(PA=1.0, rotated=True), Note.ROTATED, "rotated"),
}
"""What a picture shows of a film whose header says PA, and what is said of it."""
HEADERS: dict[str, tuple[dict[str, object], Note, str]] = {
    "bone": ({"ImageType": ["DERIVED", "PRIMARY", "BONE"]}, Note.IMAGE_TYPE, "image_type"),
    "a lateral series": ({"SeriesDescription": "CHEST LAT"}, Note.TWO_VIEWS, "two_views"),
    "a small field": ({"PatientAge": None, "PixelSpacing": [0.2, 0.2]}, Note.MAYBE_CHILD, "maybe_child"),
}
"""What a header says, and what is said of its film."""
PLAIN = picture(PA=1.0)
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
    """Finds everything present, with a ratio, and has the view of a picture for questions too."""

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        said = super().read(image, prompts)
        answers = tuple(
            answer if answer.kind is PromptKind.REGION else replace(answer, state=FindingState.PRESENT)
            for answer in said.prompts
        )
        return replace(said, prompts=answers, ratio=samples.ratio_on(image.framing))

    def see(self, image: Radiograph) -> SeenFilm:
        return replace(super().see(image), view=self._view)


class AdultReader(SureReader):
    """Reads films of adults only."""

    ages = range(18, 130)


def saved(folder: Path, changes: Mapping[str, object]) -> Path:
    path = folder / "film.dcm"
    said = {"ViewPosition": "PA", "PatientAge": "050Y", "PatientBirthDate": None, **changes}
    path.write_bytes(films.file_bytes(films.thumbnail(said)))
    return path


def read(
    folder: Path,
    view: ViewReading = PLAIN,
    *,
    reader: SureReader | None = None,
    changes: Mapping[str, object] | None = None,
) -> Film:
    path = saved(folder, changes or {})
    film = answer_film(path, reader or SureReader(view), PROMPTS).film
    assert film is not None
    return replace(film, source=samples.film_uid(1))


@pytest.mark.parametrize("of", DOUBTS)
def test_findings_of_a_film_in_doubt_are_to_be_reviewed(of: str, tmp_path: Path) -> None:
    view, note, doubt = DOUBTS[of]

    film, plain = read(tmp_path, view), read(tmp_path, PLAIN)

    assert {(found.state, found.contradiction) for found in plain.findings} == {(FindingState.PRESENT, None)}
    assert {(found.state, found.contradiction) for found in film.findings} == {(FindingState.INDETERMINATE, doubt)}
    assert {said.text.startswith("Possible, please review: ") for said in film.sentences} == {True}
    assert (film.ratio, note in film.notes, wording.CAUTIONS[note] in impression.of_film(film)) == (None, True, True)
    assert plain.ratio is not None


@pytest.mark.parametrize(
    ("finding", "normal", "has_note"),
    [
        (FindingState.PRESENT, FindingState.PRESENT, True),
        (FindingState.INDETERMINATE, FindingState.PRESENT, False),
        (FindingState.PRESENT, FindingState.INDETERMINATE, False),
    ],
)
def test_a_film_called_normal_beside_a_finding_is_noted_once(
    finding: FindingState, normal: FindingState, has_note: bool, tmp_path: Path
) -> None:
    class Ambiguous(SureReader):
        def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
            said = super().read(image, prompts)
            found = tuple(replace(each, state=finding) for each in said.pathologies)
            whole = replace(found[0], key="no_finding", kind=PromptKind.NO_FINDING, state=normal, boxes=())
            return replace(said, prompts=(*found, whole))

    film = read(tmp_path, reader=Ambiguous(PLAIN))

    assert {(found.state, found.contradiction) for found in film.findings} == {(finding, None)}
    assert film.notes.count(Note.CALLED_NORMAL) == int(has_note)
    assert (wording.CAUTIONS[Note.CALLED_NORMAL] in impression.of_film(film)) is has_note


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize("view", [PLAIN, None], ids=["a view head", "without"])
@pytest.mark.parametrize("of", HEADERS)
def test_nothing_is_present_on_a_film_that_its_header_puts_in_doubt(
    of: str, view: ViewReading | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, note, doubt = HEADERS[of]
    reader = AdultReader(view)

    film = read(tmp_path, reader=reader, changes=changes)
    (answer,) = open_film.ask(saved(tmp_path, changes), [Question(prompt="Edema")], reader=reader, prompts=PROMPTS)

    assert {(found.state, found.contradiction) for found in film.findings} == {(FindingState.INDETERMINATE, doubt)}
    assert (film.ratio, note in film.notes) == (None, True)
    assert (answer.state, answer.contradiction, answer.notes) == (FindingState.INDETERMINATE, doubt, (note,))
    texts = texts_of(film, monkeypatch)
    assert [output for output, said in SAID_OF_PRESENT.items() if re.search(said, texts[output], re.MULTILINE)] == []
    for output in ("report.txt", "text"):
        words = " ".join(texts[output].split())
        assert [note for note in film.notes if wording.NOTES[note] not in words] == []


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize("of", [*DOUBTS, "plain"])
def test_outputs_call_findings_present_only_beyond_doubt(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = DOUBTS[of][0] if of in DOUBTS else PLAIN

    texts = texts_of(read(tmp_path, view), monkeypatch)

    calling = [output for output, said in SAID_OF_PRESENT.items() if re.search(said, texts[output], re.MULTILINE)]
    assert calling == ([] if of in DOUBTS else list(SAID_OF_PRESENT))


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize("of", [*DOUBTS, "plain"])
def test_no_answer_calls_anything_present_on_a_film_in_doubt(of: str, tmp_path: Path) -> None:
    view, note, doubt = DOUBTS.get(of, (PLAIN, None, None))
    spool, film = kept(tmp_path)
    model = OpenModel(reader=SureReader(view), prompts=PROMPTS)
    asked = (Question(prompt="Edema"), Question(box=Box(left=60.0, top=60.0, right=90.0, bottom=90.0)))

    over_page = QuestionAnswerer(spool, model, Metrics()).ask(film, asked, by="", source="page")
    by_command = open_film.ask(film.path, asked, reader=model.reader, prompts=PROMPTS)

    for answer in (*by_command, *(question.answer for question in over_page)):
        told = answer_to_json(answer)
        assert told["positive"] is (doubt is None)
        assert (told["reason"], told["notes"]) == (wording.reason_of(doubt), [] if note is None else [note])
        assert str(told["sentence"]).startswith("Possible, please review: ") is (doubt is not None)


def test_a_picture_without_a_header_is_asked_about_in_doubt(tmp_path: Path) -> None:
    path = tmp_path / "film.png"
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (128, 128), dtype=np.uint8)).save(path)
    reader = SureReader(picture(not_chest=0.7, AP=0.3))

    (answer,) = open_film.ask(path, [Question(prompt="Edema")], reader=reader, prompts=PROMPTS)

    assert (answer.state, answer.contradiction, answer.notes) == (FindingState.INDETERMINATE, "other_view", ())


def test_raw_sentences_of_a_film_in_doubt_stay_as_generated(tmp_path: Path) -> None:
    reader = SureReader(DOUBTS["mirrored"][0])
    reader.identity = replace(reader.identity, sentences="raw")

    film = read(tmp_path, reader=reader)

    assert {said.text.endswith(" is seen here.") and ":" not in said.text for said in film.sentences} == {True}
    assert film.in_state(FindingState.PRESENT) == ()
