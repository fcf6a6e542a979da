"""Another network than ChEX: the example in the node's own journey; what breaks the contract parks its film alone."""

from __future__ import annotations

import runpy
import shutil
import urllib.request
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from models.contract import (
    COMPARISON,
    Answer,
    Box,
    FilmReading,
    FindingState,
    Laterality,
    PromptKind,
    PromptReading,
    Question,
    Reader,
    ReaderPrompt,
    ScoredBox,
    Sentence,
    SentenceRule,
    Side,
    SideOf,
    Trusted,
    ViewReading,
)
from models.engines import scheduler
from models.errors import DeviceLost, ModelError, ReaderFault
from models.reading.named_reader import NamedReader, hash_of
from node.config import ModelSettings, Settings
from node.dicom import header_reading
from node.domain import Note, Reason
from node.errors import InputError
from node.outputs.corrected_film import sides_of
from node.read import manifest, model, open_film, prompts
from node.read.film import answer_film
from node.read.model import RadiographReader
from tests.node.read.test_routing import picture
from tests.paths import REPOSITORY
from tests.support import films, peers, validators
from tests.support.damage import FILM, STUDY, Bench
from tests.support.peers import LOOPBACK
from tests.support.service import Service, run_command

EXAMPLE = "examples.reader_onnx.onnx_reader:open_reader"
PROMPTS = prompts.load("chexpert14")
GRAY = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64)

Look = NDArray[np.float32]
Edges = tuple[float, float, float, float]


class Scripted(Reader[Look]):
    """Says what a test wants, and notes which of its calls go before the films that wait."""

    name, version = "scripted", "1"

    def __init__(
        self,
        *prompts: PromptReading,
        said: Sequence[Sentence] = (),
        measured: Collection[str] = (),
        view: ViewReading | None = None,
        middle: float | None = None,
        square: Edges | None = None,
        error: Exception | None = None,
    ) -> None:
        self.reading = FilmReading(prompts=prompts, sentences=tuple(said))
        self.measured = frozenset(measured)
        self.calls: list[tuple[str, bool]] = []
        self._view, self._middle, self._square, self._error = view, middle, square, error

    def look(self, gray: Look) -> Look:
        self.note("look")
        if self._error is not None:
            raise self._error
        return gray

    def report(self, look: Look, prompts: Sequence[ReaderPrompt], **_: object) -> FilmReading:
        self.note("report")
        return self.reading

    def view(self, look: Look) -> ViewReading | None:
        return self._view

    def middle(self, look: Look) -> float | None:
        return self._middle

    def square(self, columns: int, rows: int) -> Edges:
        return self._square or super().square(columns, rows)

    def note(self, call: str) -> None:
        self.calls.append((call, scheduler.current_question() is not None))


class Asked(Scripted):
    """Answers every question alike."""

    answers: Sequence[Answer] = (Answer(sentence="No cat.", score=1.0, state=FindingState.PRESENT, boxes=()),)

    def ask(self, look: Look, questions: Sequence[Question], **_: object) -> list[Answer]:
        self.note("ask")
        return list(self.answers)


def named(reader: Reader[Look], *, trusted: Trusted = "real", rule: SentenceRule = "checked") -> NamedReader:
    return NamedReader(cast("Reader[object]", reader), trusted=trusted, rule=rule)


def reported(
    reader: Reader[Look], *, trusted: Trusted = "real", rule: SentenceRule = "checked", side_of: SideOf | None = None
) -> FilmReading:
    checked = named(reader, trusted=trusted, rule=rule)
    return checked.report(checked.look(GRAY), PROMPTS.prompts, side_of=side_of)


def effusion(probability: float = 0.8, *boxes: ScoredBox, key: str = "pleural_effusion") -> PromptReading:
    return PromptReading(key=key, probability=probability, state=FindingState.PRESENT, boxes=boxes)


def scored(left: float, right: float, score: float = 0.5) -> ScoredBox:
    return ScoredBox(box=Box(left=left, top=0.6, right=right, bottom=0.9), score=score)


def untyped() -> Scripted:
    reader = Scripted()
    reader.reading = cast(FilmReading, {"pleural_effusion": 0.8})
    return reader


SEEN = Sentence(text="Seen.", prompt="pleural_effusion", score=0.5, boxes=())


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (Scripted(effusion(1.5)), "probability of pleural_effusion"),
        (Scripted(effusion(-0.1)), "probability of pleural_effusion"),
        (Scripted(effusion(float("nan"))), "probability of pleural_effusion"),
        (Scripted(replace(effusion(), probability=None)), "probability of pleural_effusion"),
        (Scripted(replace(effusion(), state=cast(FindingState, "there"))), "state of pleural_effusion"),
        (Scripted(effusion(key="tuberculosis")), "tuberculosis was not asked"),
        (Scripted(replace(effusion(), kind=PromptKind.REGION)), "is a pathology"),
        (Scripted(effusion(), effusion()), "one answer only"),
        (Scripted(effusion(0.8, scored(0.5, 1.5))), "a box must lie in the square"),
        (Scripted(effusion(0.8, scored(0.5, 0.7), scored(-0.011, 0.3))), "a box must lie in the square"),
        (Scripted(effusion(0.8, scored(0.1, 0.3, score=7.0))), "scores of boxes"),
        (Scripted(effusion(0.8, cast(ScoredBox, (0.1, 0.1, 0.2, 0.2)))), "type ScoredBox"),
        (Scripted(cast(PromptReading, np.zeros(13))), "must be a PromptReading"),
        (Scripted(said=[replace(SEEN, prompt="gout")]), "gout, which was not asked"),
        (Scripted(said=[replace(SEEN, score=1.5)]), "scores of sentences"),
        (Scripted(said=[replace(SEEN, boxes=(scored(0.5, 1.5),))]), "a box must lie in the square"),
        (Scripted(said=[SEEN, SEEN]), "one sentence only"),
        (Scripted(said=[cast(Sentence, "Seen.")]), "must be a Sentence"),
        (untyped(), "must be a FilmReading"),
        (Scripted(error=RuntimeError("DOE^JANE")), "look failed: RuntimeError at test_named_reader.py"),
    ],
)
def test_what_breaks_the_contract_is_named_and_a_lost_gpu_stays_lost(reader: Scripted, said: str) -> None:
    with pytest.raises(ReaderFault, match=said) as caught:
        reported(reader)
    with pytest.raises(DeviceLost):
        reported(Scripted(error=DeviceLost("GPU stopped computing")))

    assert "DOE" not in str(caught.value)


@pytest.mark.parametrize(
    ("box", "laterality", "left"),
    [
        (scored(0.1, 0.4), "boxes", 1),
        (scored(-0.009, 0.4), "boxes", 1),
        (scored(0.1, 0.4), "unknown", 1),
        (scored(0.6, 0.9), "boxes", 0),
    ],
)
def test_its_findings_have_no_place_that_is_not_certain(box: ScoredBox, laterality: Laterality, left: int) -> None:
    zone = PromptReading(key="right_lower_lung_zone", kind=PromptKind.REGION, boxes=(scored(0.1, 0.4),))
    answer = replace(effusion(0.8, box), laterality=laterality)
    sentence = Sentence(text="There is a right pleural effusion.", prompt=answer.key, score=0.8, boxes=())
    reader = Scripted(answer, zone, said=[sentence])

    said = reported(reader, trusted="any", side_of=lambda x, _: Side.RIGHT if x < 0.5 else None)

    told = next(found for found in said.prompts if found.key == answer.key)
    is_certain = left == 1 and laterality == "boxes"
    assert (len(told.boxes), told.laterality) == (left, "boxes" if is_certain else "unknown")
    assert [each.text for each in said.sentences] == [sentence.text if is_certain else "There is a pleural effusion."]


ON_THE_LEFT = replace(SEEN, text="There is a left pleural effusion.", score=0.8)


def straight(_directory: Path) -> Scripted:
    return Scripted(effusion(0.8, scored(0.35, 0.7)), said=[ON_THE_LEFT])


def rotated(_directory: Path) -> Scripted:
    """Locates the spine left of the film's middle, as on a film of a rotated patient."""
    return Scripted(effusion(0.8, scored(0.35, 0.7)), said=[ON_THE_LEFT], middle=0.38)


def mirrored(_directory: Path) -> Scripted:
    view = picture(PA=1.0, mirrored=True)
    return Scripted(effusion(0.8, scored(0.35, 0.7)), said=[ON_THE_LEFT], middle=0.38, view=view)


@pytest.mark.parametrize(
    ("opened", "orientation", "side", "named_side"),
    [
        (straight, ["L", "F"], None, None),
        (rotated, ["L", "F"], Side.LEFT, Side.LEFT),
        (rotated, None, None, None),
        (mirrored, ["L", "F"], Side.LEFT, None),
    ],
)
def test_sides_go_by_the_spine_that_a_network_locates_and_none_is_named_where_it_sees_a_mirror(
    tmp_path: Path,
    opened: Callable[[Path], Scripted],
    orientation: list[str] | None,
    side: Side | None,
    named_side: Side | None,
) -> None:
    path = films.saved(tmp_path, films.thumbnail({"PatientOrientation": orientation}))
    reader = model.open_reader(tmp_path, prompts=PROMPTS, engine="onnx", reader=f"{__name__}:{opened.__name__}")

    film = answer_film(path, reader, PROMPTS).film
    [answer] = open_film.ask(path, [Question(prompt="Pleural effusion")], reader=reader, prompts=PROMPTS)

    assert film is not None
    [found] = [finding for finding in film.findings if finding.boxes]
    assert (found.side, film.middle) == (side, None if opened is straight else 0.38)
    assert (Note.MIRRORED in film.notes) == (opened is mirrored)
    for said in (film.sentences[0].text, answer.sentence):
        assert ("pleural effusion" in said, "left" in said) == (True, named_side is Side.LEFT)
    header = header_reading.read_header(path)
    assert sides_of(film, header)(found.boxes[0].box) == side  # of a box that a reader corrects


def test_a_view_a_middle_and_a_square_are_checked() -> None:
    for middle in (-0.1, 1.2):
        with pytest.raises(ReaderFault, match="must lie in 0"):
            named(Scripted(middle=middle)).middle(GRAY)
    for view in (picture(PA=1.5), replace(picture(PA=1.0), probabilities={"PA": 1.0})):
        with pytest.raises(ReaderFault, match="view breaks the contract"):
            named(Scripted(view=view)).view(GRAY)
    for square in ((-1, 0, 60, 60), (0, -1, 60, 60), (4, 0, 65, 60), (0, 4, 60, 61), (9, 0, 9, 60), (0, 9, 60, 9)):
        with pytest.raises(ReaderFault, match="square must lie on the film"):
            named(Scripted(square=square)).square(64, 60)


def test_what_was_not_answered_or_is_left_out_is_not_assessed() -> None:
    reader = Scripted(effusion(), effusion(key="fracture"))
    reader.left_out = ("fracture",)

    answers = {answer.key: answer for answer in reported(reader).prompts}

    assert answers["edema"].state is FindingState.LEFT_OUT is not answers["pleural_effusion"].state
    assert answers["fracture"] == replace(answers["edema"], key="fracture")
    assert set(answers) == {prompt.key for prompt in PROMPTS.prompts}


@pytest.mark.parametrize(
    ("said", "near", "measured", "trusted", "expected"),
    [
        (FindingState.PRESENT, False, "", "real", (FindingState.UNCALIBRATED, True)),
        (FindingState.PRESENT, False, "", "any", (FindingState.PRESENT, True)),
        (FindingState.PRESENT, False, "pleural_effusion", "real", (FindingState.PRESENT, True)),
        (FindingState.PRESENT, False, "edema", "real", (FindingState.UNCALIBRATED, True)),
        (FindingState.INDETERMINATE, False, "", "real", (FindingState.UNCALIBRATED, True)),
        (FindingState.ABSENT, True, "", "real", (FindingState.ABSENT, True)),
        (FindingState.ABSENT, False, "", "real", (FindingState.ABSENT, False)),
    ],
)
def test_nothing_is_present_that_nobody_measured_and_what_is_reported_came_near(
    said: FindingState, near: bool, measured: str, trusted: Trusted, expected: tuple[FindingState, bool]
) -> None:
    reader = Scripted(replace(effusion(), state=said, near=near), measured=(measured,))

    answers = {answer.key: answer for answer in reported(reader, trusted=trusted).prompts}

    assert (answers["pleural_effusion"].state, answers["pleural_effusion"].near) == expected


@pytest.mark.parametrize(
    ("text", "leaves", "reason"),
    [
        ("No pleural effusion.", "There is pleural effusion.", "denied"),
        ("There is a large pleural effusion.", "There is a large pleural effusion.", None),
        ("There is a 3 cm pleural effusion.", "There is pleural effusion.", "severity"),
    ],
)
def test_its_sentences_leave_by_the_same_rules(text: str, leaves: str, reason: str | None) -> None:
    measured = tuple(prompt.key for prompt in PROMPTS.prompts)

    found = reported(Scripted(effusion(), said=[replace(SEEN, text=text)], measured=measured))

    [answer] = [answer for answer in found.prompts if answer.sentence is not None]
    assert answer.key == "pleural_effusion"
    assert found.sentences[0].text.replace("a pleural", "pleural") == leaves.replace("a pleural", "pleural")
    assert [withheld.reason for withheld in found.withheld] == ([] if reason is None else [reason])


@pytest.mark.parametrize(
    ("rule", "trusted", "is_measured", "near", "leaves"),
    [
        ("marked", "real", True, False, True),
        ("marked", "any", True, False, True),
        ("marked", "phantoms", True, False, False),
        ("marked", "real", False, False, False),
        ("marked", "real", True, True, False),
        ("checked", "real", True, False, False),
    ],
)
def test_its_denial_leaves_marked_if_the_finding_is_measured_and_not_near(
    rule: SentenceRule, trusted: Trusted, *, is_measured: bool, near: bool, leaves: bool
) -> None:
    answer = replace(effusion(0.1), state=FindingState.ABSENT, near=near)
    said = replace(SEEN, text="No pleural effusion.")
    reader = Scripted(answer, said=[said], measured=("pleural_effusion",) if is_measured else ())

    left = [sentence.text for sentence in reported(reader, trusted=trusted, rule=rule).sentences]

    assert left == (["Not seen by the network: No pleural effusion."] if leaves else [])


def test_a_question_without_a_method_is_that_of_the_report() -> None:
    said = replace(effusion(0.8, scored(0.1, 0.3)), contradiction="other_side", laterality="unknown")
    reader = named(Scripted(said))
    asked = [Question(prompt="pleural effusion"), Question(prompt="a cat")]

    known, unknown = reader.ask(GRAY, asked, reference=PROMPTS.prompts)

    assert (known.score, known.state) == (0.8, FindingState.UNCALIBRATED)
    assert (known.boxes, known.contradiction, known.laterality) == (said.boxes, "other_side", "unknown")
    assert unknown.never_learned == ("a", "cat")
    with pytest.raises(ValueError, match="no question about a box"):
        reader.ask(GRAY, [Question(box=scored(0.1, 0.3).box)], reference=PROMPTS.prompts)


def test_answers_of_its_own_are_checked() -> None:
    reader, asked = Asked(measured=("pleural_effusion",)), [Question(prompt="a cat")]
    [answer] = named(reader).ask(GRAY, asked, reference=PROMPTS.prompts)
    assert (answer.state, answer.by) == (FindingState.UNCALIBRATED, "rule")
    [of_set] = named(reader).ask(GRAY, [Question(prompt=" pleural Effusion")], reference=PROMPTS.prompts)
    assert (of_set.state, of_set.by) == (FindingState.PRESENT, "rule")
    [said] = reader.answers
    outside = replace(said, boxes=(scored(0.5, 1.5),))
    for answers in ([said, said], [replace(said, score=1.5)], [outside], [cast(Answer, "a cat")]):
        reader.answers = answers
        with pytest.raises(ReaderFault, match="ask breaks the contract"):
            named(reader).ask(GRAY, asked)


def test_a_question_goes_before_the_films_that_wait(tmp_path: Path) -> None:
    path, network = films.saved(tmp_path, films.thumbnail()), Asked(effusion())
    reader = RadiographReader(
        named(network), hashes=("", ""), trusted="real", sentences="checked", unmeasured_ratio=False
    )

    answer_film(path, reader, PROMPTS)
    open_film.ask(path, [Question(prompt="a cat")], reader=reader, prompts=PROMPTS)

    assert network.calls == [("look", False), ("report", False), ("look", True), ("ask", True)]


class Refusing(Scripted):
    """Takes no prompts."""

    def check(self, prompts: Sequence[ReaderPrompt]) -> None:
        raise ModelError("it knows other words")


def open_refusing(_directory: Path) -> Scripted:
    return Refusing()


@pytest.mark.parametrize(("key", "value"), [("name", " "), ("version", 1), ("engine", "a\nb"), ("gray", "red")])
def test_a_network_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: object) -> None:
    monkeypatch.setattr(Refusing, key, value, raising=False)

    with pytest.raises(InputError, match=f"its {key} must be"):
        model.open_reader(tmp_path, prompts=PROMPTS, engine="onnx", reader=f"{__name__}:open_refusing")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_package:open_reader", "cannot be imported"),
        (f"{__name__}:gone", "cannot be imported"),
        (f"{__name__}:EXAMPLE", "is no function"),
        ("pathlib:Path", "return a models.contract.Reader"),
        ("json:loads", "could not open"),
        (f"{__name__}:open_refusing", "it knows other words"),
        ("unknown", "is not installed; known are chex"),
    ],
)
def test_a_name_that_opens_nothing_says_what_to_do(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "weights").touch()

    with pytest.raises(InputError, match=said):
        model.open_reader(tmp_path, prompts=PROMPTS, engine="onnx", reader=name)


def test_an_installed_reader_opens_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classifier: Path) -> None:
    entry = tmp_path / "example-1.dist-info" / "entry_points.txt"
    entry.parent.mkdir()
    (entry.parent / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1\n")
    entry.write_text("[chex_node.readers]\nexample-onnx = onnx_reader:open_reader\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(REPOSITORY / "examples" / "reader_onnx")

    opened = model.open_reader(classifier, prompts=PROMPTS, engine="onnx", reader="example-onnx")

    assert (opened.identity.name, opened.identity.engine) == ("example-classifier", "onnxruntime")


def make_classifier(directory: Path, *, version: str = "1") -> Path:
    runpy.run_path(str(REPOSITORY / "examples" / "reader_onnx" / "make_model.py"))["make"](directory, version=version)
    return directory


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("classifier"))


def test_equal_files_and_equal_names_are_one_model(tmp_path: Path, classifier: Path) -> None:
    again = make_classifier(tmp_path / "again")
    other = make_classifier(tmp_path / "other", version="2")

    opened = [
        model.open_reader(folder, prompts=PROMPTS, engine="onnx", reader=EXAMPLE).identity
        for folder in (classifier, again, other)
    ]

    assert hash_of(again) == hash_of(classifier) == opened[0].weights_sha256
    assert opened[0] == opened[1]
    assert opened[2].weights_sha256 != opened[0].weights_sha256
    assert opened[2].manifest_sha256 != opened[0].manifest_sha256
    last = max(again.iterdir())
    (again / "folder").mkdir()
    for place in (f"{last.name}.renamed", f"folder/{last.name}"):
        last = last.rename(again / place)
        assert hash_of(again) != hash_of(classifier)
    last.rename(again / last.name)
    (again / COMPARISON).write_text("{}")
    assert hash_of(again) == hash_of(classifier), "by which it is taken"
    with pytest.raises(ModelError, match="has no file"):
        hash_of(again / "folder")


def open_scripted(_directory: Path) -> Scripted:
    return Scripted(effusion(1.5))


def test_a_film_that_it_fails_on_is_answered_and_parked(tmp_path: Path) -> None:
    (weights := tmp_path / "model").mkdir()
    (weights / "weights").write_bytes(b"1")
    bench = Bench(tmp_path / "node")
    reader = model.open_reader(weights, prompts=PROMPTS, engine="onnx", reader=f"{__name__}:open_scripted")
    pipeline = bench.steps.pipeline
    bench.steps = replace(bench.steps, pipeline=replace(pipeline, films=replace(pipeline.films, reader=reader)))
    path = bench.keep(FILM)

    assert answer_film(path, reader, PROMPTS).reason is Reason.READER_FAILED
    outcomes, deliveries = bench.round()

    assert outcomes == ["reader_failed"]
    assert deliveries  # the report that says so
    [row] = bench.ledger.parked()
    assert (row.study, row.reason.split(":")[0]) == (STUDY, "reader_failed")

    # A retry reads the film again, with the reader that was corrected.
    Scripted.__init__(cast(Scripted, cast(NamedReader, reader._network)._reader), effusion())
    assert bench.steps.read(STUDY, path.name) == "read"


def test_a_classifier_goes_the_whole_way_of_a_film(
    tmp_path: Path, classifier: Path, archive: peers.ReceivingArchive, settings: Settings
) -> None:
    film, directory = films.thumbnail(), shutil.copytree(classifier, tmp_path / "model")
    settings = replace(settings, model=ModelSettings(directory=directory, reader=EXAMPLE))
    with Service(settings, scripted=False) as service:
        assert peers.send(film, port=service.dicom_port) == 0
        archive.wait_for_kept(2, limit_seconds=60)
        service.wait_for("study.finished")
        address = f"http://{LOOPBACK}:{service.http_port}/studies/{film.StudyInstanceUID}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            page = answer.read().decode()
        assert service.stop() == 0
        doctor = run_command("doctor", service.settings_path)
        explained = run_command("explain", film.SOPInstanceUID, service.settings_path)
    asking = ("--model", classifier, "--reader", EXAMPLE, "--prompt", "pleural effusion", "--json")
    asked = run_command("ask", films.saved(tmp_path, film), *asking)
    [report] = [received.dataset for received in archive.kept if received.dataset.Modality == "SR"]

    assert validators.dciodvfy(report) == []
    assert "example-classifier" in report.to_json()
    assert "leural effusion" in report.to_json()
    assert "example-classifier" in page
    assert "not evaluated" in page.lower()
    assert f"reader {EXAMPLE} opens it" in doctor.stdout
    assert "example-classifier 1" in explained.stdout
    assert "pleural" in asked.stdout.lower(), asked.stderr


def for_adults(_directory: Path) -> Scripted:
    made = Scripted(measured=("edema",))
    made.ages, made.left_out = range(18, 130), frozenset({"pneumonia"})
    return made


def test_the_rule_of_a_film_comes_from_the_reader(classifier: Path, tmp_path: Path) -> None:
    rule = manifest.read_film_rule(classifier, reader=EXAMPLE)
    adults = manifest.read_film_rule(tmp_path, reader=f"{__name__}:for_adults")

    assert (rule.gray, rule.square(100, 60)) == ("voi", (20, 0, 80, 60))
    assert (adults.ages, adults.measured, adults.left_out) == (range(18, 130), ("edema",), ("pneumonia",))
