"""Where findings lie, in readings of the shipped model; and where it looked for what it does not report, if asked."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PIL import Image

from models.contract import Box, FindingState, PromptReading, Question, ScoredBox
from models.lab.phantoms import phantom
from node.domain import Assessment, Film, ReaderMark
from node.output_kinds import OUTPUTS
from node.outputs import impression, oru, wording
from node.outputs.asked_question import answer_to_json
from node.outputs.folder import write_folder
from node.outputs.source import from_files
from node.outputs.writers import write_objects
from node.read import findings, open_film, prompts
from node.read.film import film_of
from node.read.framing import Framing
from node.read.model import RadiographReader, Reading, open_reader
from tests.support import films, samples
from tests.support.samples import BERLIN, absent, finding, report, uncalibrated

PROMPTS = prompts.load("chexpert14")
PHANTOM = 1_000_004
"""One with findings."""
LOOKED = (ScoredBox(box=Box(left=1100.5, top=200, right=1500, bottom=640.25), score=0.125),)


@pytest.fixture(scope="module")
def reader(phantom_model: Path) -> RadiographReader:
    return open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1, trusted="phantoms")


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("film") / "film.png"
    Image.fromarray(phantom(PHANTOM, side=224).pixels).resize((260, 300)).save(path)
    return path


def test_an_answer_locates_only_what_is_not_absent(reader: RadiographReader, picture: Path) -> None:
    questions = [Question(prompt=prompt.phrases[0]) for prompt in PROMPTS.prompts]
    questions.append(Question(prompt="Small pneumothorax in the left lung"))

    answers = open_film.ask(picture, questions, reader=reader, prompts=PROMPTS)

    states = {answer.state for answer in answers}
    assert {FindingState.ABSENT, FindingState.PRESENT, None} <= states
    for answer in answers:
        assert bool(answer.boxes) == (answer.state is None or answer.state.is_reported)
        assert bool(answer_to_json(answer)["boxes"]) == (answer.state is None or answer.state.is_reported)


def test_the_box_of_a_question_stays_in_its_answer(reader: RadiographReader, picture: Path) -> None:
    box = Box(left=20, top=60, right=90, bottom=200)
    questions = [Question(box=box, prompt=prompt) for prompt in (None, "Edema", "Pneumothorax", "Fracture")]

    answers = open_film.ask(picture, questions, reader=reader, prompts=PROMPTS)

    assert FindingState.ABSENT in {answer.state for answer in answers}
    for answer in answers:
        assert [scored.box.edges for scored in answer.boxes] == [pytest.approx(box.edges, abs=1e-3)]


def test_what_is_reported_has_a_zone_and_what_is_not_the_boxes_that_were_searched(
    reader: RadiographReader, picture: Path
) -> None:
    image = open_film.load(picture, reader)
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
    looked = {found.prompt: found.searched for found in wording.searched(film)}
    assert looked == {key: given[key] for key in silent} and all(looked.values())


@pytest.mark.parametrize(
    ("state", "boxes"),
    [
        (FindingState.PRESENT, LOOKED),
        (FindingState.LEFT_OUT, LOOKED),
        (FindingState.ABSENT, ()),
    ],
)
def test_what_is_reported_or_left_out_is_not_searched(state: FindingState, boxes: tuple[ScoredBox, ...]) -> None:
    answer = PromptReading(key="edema", probability=0.4, state=state, boxes=boxes)

    framing = Framing(columns=2000, rows=2000, square=Box(left=0, top=0, right=2000, bottom=2000))
    [found] = findings.find(
        Reading(prompts=(answer,)), PROMPTS, source="1.2.3", framing=framing, model=samples.MODEL, sides_known=False
    )

    assert found.searched == ()


def searching() -> Film:
    """A film with a finding, one to be reviewed, and one that is not reported, for which the network looked."""
    return samples.film(findings=(finding(), uncalibrated(), replace(absent(), searched=LOOKED)))


def test_no_output_has_them(tmp_path: Path) -> None:
    films.saved(tmp_path, films.thumbnail())
    film = on_thumbnail()
    plain = replace(film, findings=tuple(replace(found, searched=()) for found in film.findings))
    headers = {film.source: films.thumbnail()}

    before, after = (folder_of(tmp_path / name, shown) for name, shown in (("before", plain), ("after", film)))
    sent = [oru.write(report(each), headers, BERLIN, order=None, documents=[])[1] for each in (film, plain)]

    assert after == before
    assert {name.split(".")[-2] for name in before if name.endswith(".dcm")} == {*("sr", "sr3d", "text", "gsps", "sc")}
    assert sent[0] == sent[1]
    assert impression.of_film(film) == impression.of_film(plain)


@pytest.mark.parametrize("what", [Assessment.REJECTED, Assessment.ADDED])
def test_what_a_reader_judged_is_not_among_them(what: Assessment) -> None:
    mark = ReaderMark(what=what, by="anna", at=datetime(2024, 2, 1, tzinfo=UTC))
    state = FindingState.ABSENT if what is Assessment.REJECTED else FindingState.PRESENT
    film = samples.film(findings=(finding(), replace(absent(), state=state, reader=mark, searched=LOOKED)))

    assert wording.searched(film) == []


def on_thumbnail() -> Film:
    """The same answer to a real film."""
    source = films.thumbnail()
    side = min(source.Columns, source.Rows)
    box = ScoredBox(box=Box(left=10, top=12, right=40.5, bottom=51), score=0.3)
    return replace(
        searching(),
        source=str(source.SOPInstanceUID),
        columns=source.Columns,
        rows=source.Rows,
        analyzed=Box(left=0, top=0, right=side, bottom=side),
        sentences=(),
        findings=(
            finding(boxes=(Box(left=20, top=30, right=60, bottom=90),), sentence=None),
            replace(absent(), searched=(box,)),
        ),
    )


def folder_of(out: Path, film: Film) -> dict[str, bytes]:
    """Write all outputs of a film into a folder, and return its files."""
    header, of = films.thumbnail(), report(film)
    of = replace(of, study_uid=str(header.StudyInstanceUID))
    sources = from_files({film.source: header}, {film.source: out.parent / "film.dcm"})
    out.mkdir()
    objects = write_objects(of, sources, zone=BERLIN, kinds=tuple(OUTPUTS.own))
    write_folder(out, of, objects, sources)
    return {path.name: path.read_bytes() for path in (out / of.study_uid).iterdir()}
