"""The command that measures a model: the shipped one on phantoms and on made-up films of a file, what it refuses."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import cv2
import numpy as np
import pytest

from language.labels import class_rules
from models.contract import (
    COMPARISON,
    LEAST_COMPARED,
    Box,
    ComparedModel,
    FilmReading,
    FindingState,
    PromptKind,
    PromptReading,
    ScoredBox,
    Side,
)
from models.errors import ModelError
from models.evaluate import main
from models.lab.evaluation.boxes_file import read_films
from models.lab.evaluation.cases import Phantoms, Truth
from models.lab.evaluation.evaluated_model import (
    EvaluatedModel,
    as_read,
    open_model,
    read_questions,
    settings_of,
    side_of,
)
from models.lab.evaluation.model_comparison import FilmsByModel, SiteAnswer, compare, table
from models.lab.evaluation.place_accuracy import placed
from models.lab.evaluation.request import DEFAULT, TASKS
from models.lab.phantoms import FINDINGS, parse_set, phantom
from models.lab.tasks.detection import DetectionSettings
from models.lab.training.split import HeldOut
from models.manifest import DetectionRule, read_manifest
from models.progress import quiet
from models.reading.named_reader import hash_of
from models.reading.sentence_check import NOT_MEASURED
from models.reading.tokenizers import VOCABULARIES
from models.site_films import answer_films, films_to_compare
from node.read import prompts
from node.read.model import open_reader
from tests.support import films
from tests.support.compared import compared as compared_model

MODEL = VOCABULARIES.parent
QUICK = ["--engine", "torch", "--resamples", "3"]
AGAINST = ["--against", str(MODEL), "--out", "out.json"]
FILMS, LISTED = ["--data", "boxes:films.jsonl"], ["--data", "films.csv"]


@pytest.fixture(scope="module")
def evaluated() -> EvaluatedModel:
    return open_model(MODEL, engine="torch", questions=read_questions(DEFAULT))


def document_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run the command, which must succeed; returns its document."""
    assert main(["--model", str(MODEL), "--json", *QUICK, *arguments]) == 0, capsys.readouterr().err
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def made_up(folder: Path, **changes: object) -> Path:
    """Two films of 300 x 200 pixels, of which the square from 50 to 250 is seen, with lungs and labels."""
    rng = np.random.default_rng(0)
    right = {"label": "Right Lung", "xyxy": [50.0, 0.0, 150.0, 200.0]}
    left = {"label": "Left Lung", "xyxy": [160.0, 20.0, 300.0, 180.0]}
    path = folder / "films.jsonl"
    with path.open("w") as file:
        for number in range(2):
            name = f"film{number}.png"
            cv2.imwrite(str(folder / name), rng.integers(0, 255, (200, 300), dtype=np.uint8))
            line = {"file": name, "size": [300, 200], "patient": f"p{number}", "boxes": [right, left]}
            file.write(json.dumps({**line, "nih_labels": ["Edema"], **changes}) + "\n")
    return path


@pytest.mark.drill(part="laboratory")
def test_every_task_is_measured_on_phantoms(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = document_of(capsys, "--data", "phantoms:2000000:4", "--out", str(tmp_path), "--pictures", "2")

    assert (document["data"], document["count"], document["split"]) == ("phantoms:2000000:4", 4, "test")
    tasks = document["tasks"]
    assert list(tasks) == [task for task in TASKS if task != "views" or read_manifest(MODEL).views]
    shares = {"detection": "map", "anatomy": "miou", "region_classification": "auroc_pooled", "report": "ce_micro_f1"}
    shares |= {"sentences": "withheld_share", "hints": "accuracy"}  # design §8
    assert all(0 <= tasks[task][name] <= 1 for task, name in shares.items())
    assert tasks["region_classification"]["auroc_per_pair"] is None, "no pair has five films with and without it"

    assert json.loads((tmp_path / "evaluation.json").read_text()) == document
    tables, _, summary = (tmp_path / "evaluation.md").read_text().partition("## Summary\n\n")
    assert "| ce_micro_f1 | 0." in tables
    assert len(summary.splitlines()) == len(tasks) + 2 <= 10
    assert "nothing of this holds for patient films" in summary
    for name in ("hits.jpg", "failures.jpg"):
        assert cv2.imread(str(tmp_path / name)) is not None


def test_films_of_a_file_are_measured_on_what_is_known_of_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tasks = document_of(capsys, "--data", f"boxes:{made_up(tmp_path)}")["tasks"]

    assert list(tasks) == ["anatomy", "report", "sentences", "films"]
    assert set(tasks["anatomy"]["per_region"]) == {"right lung", "left lung"}
    assert tasks["anatomy"]["references"]["best_constant_box"]["miou"] == 1.0
    assert tasks["report"]["films_with"]["edema"] == 2
    assert "ce_micro_f1" in tasks["report"]["checked"]


def test_only_held_out_patients_are_measured_where_asked(tmp_path: Path) -> None:
    path = made_up(tmp_path)
    manifest = read_manifest(MODEL)

    # By the hashes of their names alone: p0 is part 524 of 1000, p1 is part 587 of 1000.
    counts = {share: len(read_films(path, manifest, held_out=HeldOut(share=share))) for share in (0.555, 0.592)}

    assert counts == {0.555: 1, 0.592: 2}
    with pytest.raises(ModelError, match="no film of patients that were held out"):
        read_films(path, manifest, held_out=HeldOut(share=0.001))


def test_a_film_is_shown_to_the_view_head_as_it_is_and_otherwise(
    evaluated: EvaluatedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    films = Phantoms(parse_set("phantoms:2000000:6"), evaluated.manifest)
    monkeypatch.setattr(evaluated, "reader", SimpleNamespace(look=lambda gray: gray, view=lambda gray: gray))
    turns = set[int]()

    for number in range(24):
        case = replace(films.load(number % 6), name=f"film {number}")
        views = list(evaluated._views(case))
        assert {picture.view for picture in views} == {case.truth.view} <= {"AP", "PA"}
        seen = {picture.kind: np.asarray(picture.reading) for picture in views}
        assert list(seen) == ["frontal", "mirrored", "rotated", "lateral", "other"]
        assert np.array_equal(seen["frontal"], case.gray) and np.array_equal(seen["mirrored"], case.gray[:, ::-1])
        turns |= {turn for turn in range(4) if np.array_equal(seen["rotated"], np.rot90(case.gray, turn))}
        assert not any(np.array_equal(seen[kind], case.gray) for kind in ("lateral", "other"))
    assert turns == {1, 2, 3}


def test_a_model_is_measured_on_phantoms_by_its_decisions_for_them(evaluated: EvaluatedModel) -> None:
    shipped = read_manifest(MODEL)

    drawn = EvaluatedModel(MODEL, shipped, evaluated._engine, evaluated.questions, "phantoms")

    assert evaluated.manifest == shipped
    assert drawn.manifest == shipped.on_phantoms() != shipped
    assert drawn.deciding_by(replace(shipped, name="other")).manifest == replace(shipped.on_phantoms(), name="other")


def test_a_prompt_set_must_ask_for_every_finding() -> None:
    questions = read_questions(DEFAULT)
    asked = {prompt.key: prompt for prompt in questions.prompts if prompt.key != "fracture"}
    asked["edema"] = replace(asked["edema"], kind=PromptKind.REGION, negatives=())

    with pytest.raises(ModelError, match="does not ask for edema, fracture; use one that does"):
        open_model(MODEL, engine="torch", questions=replace(questions, prompts=tuple(asked.values())))


def test_a_mined_label_alone_makes_no_film_without_boxes(evaluated: EvaluatedModel) -> None:
    case = Phantoms(parse_set("phantoms:2000000:1"), evaluated.manifest).load(0)
    mined = Truth(located=frozenset({"lung_opacity"}), labels={"no_finding": True}, mined_normal=True)
    truths = {
        "mined": mined,
        "read, too": replace(mined, read_as="Normal", patient="p7"),
        "mined as ill": replace(mined, labels={"no_finding": False}, mined_normal=False),
        "boxes unknown": replace(mined, located=frozenset(), read_as="Normal"),
    }

    films = {name: placed(evaluated, replace(case, truth=truth))["lung_opacity"] for name, truth in truths.items()}

    assert {name for name, film in films.items() if film.true is not None} == {"read, too", "mined as ill"}
    assert (films["mined"].patient, films["read, too"].patient) == (case.name, "p7")


@pytest.mark.parametrize(
    ("scored_by", "prompts", "weights"), [("both", True, True), ("prompts", True, False), ("weights", False, True)]
)
def test_boxes_are_scored_as_the_manifest_has_it(
    scored_by: Literal["prompts", "weights", "both"], prompts: bool, weights: bool
) -> None:
    rule = DetectionRule(scored_by=scored_by, temperature=0.3, scales={"edema": 1.5}, overlap=0.4)
    scales = tuple(1.5 if key == "edema" else 1.0 for key in FINDINGS)

    assert settings_of(rule) == DetectionSettings(
        by_prompts=prompts, by_weights=weights, temperature=0.3, scales=scales, overlap=0.4, merge="suppress"
    )


def test_boxes_of_a_reading_are_scored_by_their_finding_too() -> None:
    box = Box(left=0.2, top=0.3, right=0.6, bottom=0.5)

    def prompt(key: str, probability: float | None, *scores: float) -> PromptReading:
        boxes = tuple(ScoredBox(box=box, score=score) for score in scores)
        return PromptReading(key=key, kind=PromptKind.PATHOLOGY, probability=probability, boxes=boxes)

    prompts = (prompt("edema", 0.5, 0.8, 0.4), prompt("left_lung", None, 0.9), prompt("fracture", None, 0.9))
    found = as_read(FilmReading(sentences=(), prompts=prompts))

    assert [list(FINDINGS)[number] for number in found.classes] == ["edema", "edema", "fracture"]
    assert found.scores.tolist() == pytest.approx([0.4, 0.2, 0.0])
    assert found.boxes == pytest.approx(np.tile([0.4, 0.4, 0.4, 0.2], (3, 1)), abs=1e-6)


@pytest.mark.parametrize(
    ("x", "width", "middle", "side"),
    [
        (0.25, 0.3, None, Side.RIGHT),
        (0.75, 0.3, None, Side.LEFT),
        (0.39, 0.3, None, Side.RIGHT),
        (0.41, 0.3, None, None),
        (0.61, 0.3, None, Side.LEFT),
        (0.59, 0.3, None, None),
        (0.41, 0.3, 0.52, Side.RIGHT),
        (0.59, 0.3, 0.48, Side.LEFT),
        (0.5, 0.02, None, None),
        (0.5, 0.5, None, None),
    ],
)
def test_a_box_lies_on_a_side_if_it_hardly_reaches_across_the_spine(
    x: float, width: float, middle: float | None, side: Side | None
) -> None:
    assert side_of(x, width, middle=middle) == side


def test_reports_are_measured_before_any_sentence_is_withheld(evaluated: EvaluatedModel) -> None:
    case = Phantoms(parse_set("phantoms:2000000:1"), evaluated.manifest).load(0)

    seen = evaluated.observe(case, ["report", "sentences"])

    assert seen.reading is not None and seen.checked is not None and seen.by_default is not None
    assert (seen.reading.withheld, {sentence.by for sentence in seen.reading.sentences}) == ((), {"network"})
    assert "" not in {prompt.generated for prompt in seen.reading.prompts if prompt.kind == "pathology"}
    unmeasured = [
        sum(withheld.reason == NOT_MEASURED for withheld in reading.withheld)
        for reading in (seen.checked, seen.by_default)
    ]
    assert 0 < unmeasured[0] == unmeasured[1] <= len(seen.by_default.withheld)
    for text in {sentence.text for sentence in seen.reading.sentences}:
        assert text in {prompt.generated for prompt in seen.checked.prompts}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--data", "phantoms:2000000"], "write phantoms:SEED:COUNT"),
        (["--data", "phantoms:1999999:2"], "reaches from one split into the next"),
        (["--data", "phantoms:2000000:1", "--held-out", "0.3"], "leave --held-out out"),
        (["--data", "boxes:nowhere.jsonl"], "name a file with one film per line"),
        ([*FILMS, "--task", "hints"], "its labels suffice for anatomy, report"),
        ([*FILMS, "--task", "detection_vindr"], "no labels for the task detection_vindr"),
        (["--data", "phantoms:2000000:1", "--task", "detection_mscxr"], "no labels for the task detection_mscxr"),
        ([*FILMS, "--choose-on", "films.jsonl"], "--choose-on is for the tasks"),
        ([*FILMS, "--prompts", "nowhere.toml"], "the prompt set cannot be read"),
        ([*FILMS, "--prompts", "films.jsonl"], "no prompt set 'films.jsonl'; there are"),
        ([*FILMS, "--model", "nowhere"], "name a model directory"),
        ([*FILMS, "--task", "report", "--labeler", "rules"], "--labeler is for the tasks region_"),
        ([*FILMS, "--task", "report", "--metric-files", "."], "--metric-files is for the tasks"),
        ([*FILMS, "--task", "report_mimic", "--metric-files", "no-folder"], "no-folder has none of"),
        ([*FILMS, "--task", "report_mimic", "--labeler", "chexbert:x.pth"], "x.pth is missing"),
        ([*FILMS, "--task", "figure_4"], "no film has boxes of MS-CXR in regions of Chest ImaGe"),
        ([*LISTED, "--reader", "other"], "--reader is for --against"),
        ([*LISTED, "--against-reader", "other"], "--against-reader is for --against"),
        ([*LISTED, "--against-prompts", "other"], "--against-prompts is for --against"),
        ([*LISTED, "--against", "old"], f"a node looks for --out {MODEL}/{COMPARISON}"),
        ([*LISTED, "--analysis", "figure.toml", "--task", "report"], "leave out --task"),
        (["--data", "phantoms:1:50", *AGAINST], "phantoms do not count"),
        (["--data", "phantoms.csv", *AGAINST], "phantoms do not count"),
        ([*FILMS, *AGAINST], "needs films of your site"),
        (["--data", "nowhere.csv", *AGAINST], "nowhere.csv cannot be read"),
        ([*LISTED, *AGAINST, "--task", "report"], "--task is not for --against"),
    ],
)
def test_wrong_input_is_exit_2_with_what_to_do(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made_up(tmp_path, report="Edema.")
    monkeypatch.chdir(tmp_path)
    manifest = (MODEL / "manifest.toml").read_bytes()

    assert main(["--model", str(MODEL), *arguments]) == 2

    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ") and complaint in said
    assert (MODEL / "manifest.toml").read_bytes() == manifest and not Path("out.json").exists()


def test_a_line_that_is_wrong_is_told(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, object], str]] = [
        ({"size": [200, 300]}, "has 300 x 200 pixels, but its line says"),
        ({"file": "nowhere.png"}, "cannot be read as a picture"),
    ]
    for changes, complaint in wrong:
        with pytest.raises(ModelError, match=complaint):
            read_films(made_up(tmp_path, **changes), read_manifest(MODEL)).load(0)


# ---- another model beside the one in use, on films of the site: what it changes, as a node takes it


PRESENT, REVIEW, ABSENT = FindingState.PRESENT, FindingState.INDETERMINATE, FindingState.ABSENT


def side(name: str, *answers: SiteAnswer, findings: tuple[str, ...] = ("edema",)) -> FilmsByModel:
    model = ComparedModel(
        model=f"m {name}", weights_sha256=name, manifest_sha256="", prompts="own 1", prompts_sha256=""
    )
    return FilmsByModel(model=model, findings=findings, measured=findings, answers=answers)


def answer(**states: FindingState) -> SiteAnswer:
    return SiteAnswer(reason=None, states=states)


def test_states_and_labels_are_compared_film_by_film() -> None:
    labels = [{"edema": True}, {"edema": False}, {}, {"edema": True}]
    unread = SiteAnswer(reason="age", states={})
    old = side("1", answer(edema=PRESENT), answer(edema=PRESENT), answer(edema=REVIEW), answer(edema=ABSENT))
    new = side("2", answer(edema=PRESENT), answer(edema=ABSENT), answer(edema=REVIEW), unread)

    found = compare(labels, old, new, data="films.csv", at="now", by="ada")

    (edema,) = found.findings
    assert (found.films, found.changed) == (4, 2), "a film that is not read any more has changed, too"
    assert (edema.films, edema.changed, edema.present) == (3, 1, (2, 1))
    assert (edema.labelled, edema.right) == (2, (1, 2))
    assert "edema    3      1        2 -> 1   1 -> 2 of 2" in table(found)


def test_what_loses_its_measured_threshold_is_named() -> None:
    findings = ("edema", "fracture", "pneumonia")
    old = replace(side("1", answer(edema=PRESENT, fracture=ABSENT), findings=findings), measured=findings[:2])
    new = replace(side("2", answer(edema=PRESENT)), measured=())

    found = compare([{}], old, new, data="films.csv", at="now", by="ada")

    assert (found.measured, found.unmeasured) == (0, ("edema", "fracture"))
    assert f"A node asks for {LEAST_COMPARED} films" in table(found)


def test_a_comparison_tells_the_new_model_from_that_in_use(tmp_path: Path) -> None:
    (tmp_path / "films.csv").write_text("file\n0.dcm\n", encoding="utf-8")
    (tmp_path / "0.dcm").write_bytes(films.file_bytes(films.thumbnail()))
    new, old, out = tmp_path / "new", tmp_path / "old", tmp_path / COMPARISON
    for model in (new, old):
        model.mkdir()
        (model / "weights").write_text(model.name)
    network = "tests.node.read.test_named_reader:open_scripted"
    compared = ["--model", str(new), "--against", str(old), "--data", str(tmp_path / "films.csv"), "--out", str(out)]

    assert main([*compared, "--reader", network, "--against-reader", network]) == 0

    document = json.loads(out.read_text(encoding="utf-8"))
    found = films_to_compare(str(tmp_path / "films.csv"))
    chexpert = prompts.load("chexpert14")
    for model in (new, old):
        identity = open_reader(model, prompts=chexpert, engine="onnx", reader=network).identity
        assert document[model.name] == asdict(compared_model(identity, chexpert))
        assert identity.weights_sha256 == hash_of(model) != identity.manifest_sha256
    known = {key for key in class_rules() if key != "no_finding"}
    assert {found["finding"] for found in document["findings"]} == known
    [unread] = answer_films(new, found, network=network, engine="onnx", prompt_set="chexpert14", report=quiet).answers
    assert unread == SiteAnswer(reason="reader_failed", states={})
    failing = "tests.node.read.test_named_reader:open_failing"
    assert main([*compared, "--reader", network, "--against-reader", failing]) == 2
    assert main([*compared, "--reader", failing, "--against-reader", network]) == 2
    assert main([*compared, "--reader", network, "--against-reader", network, "--against-prompts", "nowhere.toml"]) == 2


def test_a_film_counts_once_whatever_its_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        cv2.imwrite(str(tmp_path / folder / "0.png"), phantom(0, side=64).pixels)
    (tmp_path / "films.csv").write_text("file\na/0.png\nb/0.png\na/../a/0.png\n", encoding="utf-8")

    found = films_to_compare(str(tmp_path / "films.csv"))

    assert sorted(film.path.resolve() for film in found) == [tmp_path / "a" / "0.png", tmp_path / "b" / "0.png"]
