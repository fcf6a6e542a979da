"""Films in doubt, on which nothing is present in any output or answer; and where findings lie or were looked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from language.sentences import not_seen
from models.contract import (
    Box,
    Doubt,
    FindingState,
    PromptKind,
    PromptReading,
    Question,
    ScoredBox,
    Sentence,
    ViewReading,
)
from models.lab.phantoms import phantom
from node.domain import Assessment, Film, Note, ReaderMark
from node.jobs.question_answerer import QuestionAnswerer
from node.metrics import Metrics
from node.output_kinds import OUTPUTS
from node.outputs import impression, oru, wording
from node.outputs.asked_question import answer_to_json
from node.outputs.folder import write_folder
from node.outputs.source import from_files
from node.outputs.writers import write_objects
from node.prompt_set import PromptSet
from node.read import findings, open_film
from node.read.decoding import Radiograph
from node.read.film import answer_film, film_of
from node.read.model import OpenModel, RadiographReader, Reading, SeenFilm, open_reader
from tests.node.jobs.test_question_answerer import kept
from tests.node.read.test_routing import PROMPTS, SeeingReader, picture
from tests.support import films, samples
from tests.support.output_texts import texts_of
from tests.support.samples import BERLIN, absent, finding, report

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


PHANTOM = 1_000_004
"""One with findings."""
LOOKED = (ScoredBox(box=Box(left=1100.5, top=200, right=1500, bottom=640.25), score=0.125),)


@pytest.fixture(scope="module")
def reader(phantom_model: Path) -> RadiographReader:
    return open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1, trusted="phantoms")


@pytest.fixture(scope="module")
def phantom_film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("film") / "film.png"
    Image.fromarray(phantom(PHANTOM, side=224).pixels).resize((260, 300)).save(path)
    return path


def test_an_answer_locates_what_is_not_absent_and_keeps_the_box_of_its_question(
    reader: RadiographReader, phantom_film: Path
) -> None:
    questions = [Question(prompt=prompt.phrases[0]) for prompt in PROMPTS.prompts]
    questions.append(Question(prompt="Small pneumothorax in the left lung"))

    answers = open_film.ask(phantom_film, questions, reader=reader, prompts=PROMPTS)

    states = {answer.state for answer in answers}
    assert {FindingState.ABSENT, FindingState.PRESENT, None} <= states
    for answer in answers:
        assert bool(answer.boxes) == (answer.state is None or answer.state.is_reported)
        assert bool(answer_to_json(answer)["boxes"]) == (answer.state is None or answer.state.is_reported)

    box = Box(left=20, top=60, right=90, bottom=200)
    questions = [Question(box=box, prompt=prompt) for prompt in (None, "Edema", "Pneumothorax", "Fracture")]
    answers = open_film.ask(phantom_film, questions, reader=reader, prompts=PROMPTS)
    assert FindingState.ABSENT in {answer.state for answer in answers}
    for answer in answers:
        assert [scored.box.edges for scored in answer.boxes] == [pytest.approx(box.edges, abs=1e-3)]


def test_what_is_reported_has_a_zone_and_what_is_not_the_boxes_that_were_searched(
    reader: RadiographReader, phantom_film: Path
) -> None:
    image = open_film.load(phantom_film, reader)
    reading = reader.read(image, PROMPTS)

    film = film_of(reading, image, PROMPTS, source="1.2.3", model=reader.identity)

    assert {found.evidence is None for found in film.findings} == {True, False}
    for found in film.findings:
        assert (found.evidence is None) == (not found.state.is_reported)
        if found.evidence is not None and found.evidence.zone is not None:
            assert found.evidence.zone in reading.regions
    given = {answer.key: answer.boxes for answer in reading.pathologies}
    silent = [found.prompt for found in film.in_state(FindingState.ABSENT)]
    assert len(silent) > 3
    left_out = PromptReading(key="edema", probability=0.4, state=FindingState.LEFT_OUT, boxes=LOOKED)
    [found] = findings.find(
        Reading(prompts=(left_out,)),
        PROMPTS,
        source="1.2.3",
        framing=image.framing,
        model=samples.MODEL,
        sides_known=False,
    )
    assert found.searched == ()
    looked = {found.prompt: found.searched for found in wording.searched(film)}
    assert looked == {key: given[key] for key in silent} and all(looked.values())


def test_no_output_has_them_nor_what_a_reader_judged(tmp_path: Path) -> None:
    header = films.thumbnail()
    uid, side = str(header.SOPInstanceUID), min(header.Columns, header.Rows)
    boxed = finding(boxes=(Box(left=20, top=30, right=60, bottom=90),), sentence=None)
    box = ScoredBox(box=Box(left=10, top=12, right=40.5, bottom=51), score=0.3)
    written = []
    for name, searched in (("before", ()), ("after", (box,))):
        film = samples.film(findings=(boxed, replace(absent(), searched=searched)), sentences=False)
        whole = Box(left=0, top=0, right=side, bottom=side)
        film = replace(film, source=uid, columns=header.Columns, rows=header.Rows, analyzed=whole)
        of = replace(report(film), study_uid=str(header.StudyInstanceUID))
        sources = from_files({uid: header}, {uid: films.saved(tmp_path, header)})
        write_folder(tmp_path / name, of, write_objects(of, sources, zone=BERLIN, kinds=tuple(OUTPUTS.own)), sources)
        files = {path.name: path.read_bytes() for path in (tmp_path / name / of.study_uid).iterdir()}
        message = oru.write(of, {uid: header}, BERLIN, order=None, documents=[])[1]
        written.append((files, message, impression.of_film(film)))

    assert written[0] == written[1]
    kinds = {name.split(".")[-2] for name in written[0][0] if name.endswith(".dcm")}
    assert kinds == {*("sr", "sr3d", "text", "gsps", "sc")}
    mark = ReaderMark(what=Assessment.REJECTED, by="anna", at=datetime(2024, 2, 1, tzinfo=UTC))
    for judged in (absent(), replace(absent(), state=FindingState.PRESENT)):
        film = samples.film(findings=(finding(), replace(judged, reader=mark, searched=LOOKED)))
        assert wording.searched(film) == []
