"""The command that measures a model: the shipped one on phantoms and on made-up films of a file, what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import cv2
import numpy as np
import pytest

from models.contract import Box, FilmReading, PromptKind, PromptReading, ScoredBox, Side
from models.errors import ModelError
from models.evaluate import main
from models.lab.evaluation.boxes_file import read_films
from models.lab.evaluation.cases import Phantoms, Truth, shown
from models.lab.evaluation.evaluated_model import (
    EvaluatedModel,
    as_read,
    open_model,
    read_questions,
    settings_of,
    side_of,
)
from models.lab.evaluation.place_accuracy import placed
from models.lab.evaluation.request import DEFAULT, TASKS
from models.lab.phantoms import FINDINGS, parse_set
from models.lab.training.split import HeldOut
from models.manifest import DetectionRule, read_manifest
from models.reading.sentence_check import NOT_MEASURED
from models.reading.tokenizers import VOCABULARIES

MODEL = VOCABULARIES.parent
QUICK = ["--engine", "torch", "--resamples", "3"]

# design §8; extra keys are allowed.
SCHEMA: list[tuple[str, str, type]] = [
    ("detection", "map", float),
    ("detection", "per_class", dict),
    ("anatomy", "miou", float),
    ("anatomy", "per_region", dict),
    ("region_classification", "auroc_pooled", float),
    ("region_classification", "auroc_per_pair", float),
    ("report", "ce_micro_f1", float),
    ("report", "per_class", dict),
    ("sentences", "withheld_share", float),
    ("sentences", "replaced_by_rule", float),
    ("sentences", "own_present_share", float),
    ("sentences", "per_reason", dict),
    ("hints", "accuracy", float),
]

Run = Callable[..., dict[str, object]]


@pytest.fixture(scope="module")
def evaluated() -> EvaluatedModel:
    return open_model(MODEL, engine="torch", questions=read_questions(DEFAULT))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the model, to change."""
    return Path(shutil.copytree(MODEL, tmp_path / "model", ignore=shutil.ignore_patterns("onnx", "parity.json")))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command, which must succeed, and gives its document."""

    def evaluate(*arguments: str) -> dict[str, object]:
        assert main(["--model", str(MODEL), "--json", *QUICK, *arguments]) == 0, capsys.readouterr().err
        document: dict[str, object] = json.loads(capsys.readouterr().out)
        return document

    return evaluate


def made_up(folder: Path, **changes: object) -> Path:
    """Two films of 300 x 200 pixels, of which the square from 50 to 250 is seen, with lungs and labels."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(2):
        name = f"film{number}.png"
        cv2.imwrite(str(folder / name), rng.integers(0, 255, (200, 300), dtype=np.uint8))
        lungs = [
            {"label": "Right Lung", "xyxy": [50.0, 0.0, 150.0, 200.0]},
            {"label": "Left Lung", "xyxy": [160.0, 20.0, 300.0, 180.0]},
        ]
        line = {"file": name, "size": [300, 200], "patient": f"p{number}", "boxes": lungs, "nih_labels": ["Edema"]}
        lines.append(json.dumps(line | changes))
    path = folder / "films.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def tasks_of(document: Mapping[str, object]) -> Mapping[str, Mapping[str, object]]:
    tasks = document["tasks"]
    assert isinstance(tasks, Mapping)
    return tasks


@pytest.mark.drill(part="laboratory")
def test_every_task_is_measured_on_phantoms(run: Run, tmp_path: Path) -> None:
    document = run("--data", "phantoms:2000000:4", "--out", str(tmp_path), "--pictures", "2")

    assert (document["data"], document["count"], document["split"]) == ("phantoms:2000000:4", 4, "test")
    assert list(tasks_of(document)) == [task for task in TASKS if task != "views" or read_manifest(MODEL).views]
    for task, key, kind in SCHEMA:
        value = tasks_of(document)[task][key]
        # Of four films no pair can have five with and five without.
        assert isinstance(value, kind) or (key, value) == ("auroc_per_pair", None), (task, key)
        assert not isinstance(value, float) or 0 <= value <= 1
    assert json.loads((tmp_path / "evaluation.json").read_text()) == document
    tables, _, summary = (tmp_path / "evaluation.md").read_text().partition("## Summary\n\n")
    assert "| ce_micro_f1 | 0." in tables
    assert len(summary.splitlines()) == len(tasks_of(document)) + 2 <= 10
    assert "nothing of this holds for patient films" in summary
    for name in ("hits.jpg", "failures.jpg"):
        assert cv2.imread(str(tmp_path / name)) is not None


def test_films_of_a_file_are_measured_on_what_is_known_of_them(run: Run, tmp_path: Path) -> None:
    document = run("--data", f"boxes:{made_up(tmp_path)}")

    assert list(tasks_of(document)) == ["anatomy", "report", "sentences", "films"]
    anatomy = tasks_of(document)["anatomy"]
    assert set(anatomy["per_region"]) == {"right lung", "left lung"}  # type: ignore[call-overload] # JSON
    assert anatomy["references"]["best_constant_box"]["miou"] == 1.0  # type: ignore[index] # JSON
    assert tasks_of(document)["report"]["films_with"]["edema"] == 2  # type: ignore[index] # JSON
    assert set(tasks_of(document)["report"]["checked"]) >= {"ce_micro_f1"}  # type: ignore[call-overload] # JSON


def test_boxes_of_a_file_lie_in_the_square_the_network_sees(tmp_path: Path) -> None:
    truth = read_films(made_up(tmp_path), read_manifest(MODEL)).load(0).truth

    assert truth.regions["right lung"] == pytest.approx([0.25, 0.5, 0.5, 1.0])
    # What reaches beyond the square is cut off: from 160 to 250 of 50 to 250.
    assert truth.regions["left lung"] == pytest.approx([0.775, 0.5, 0.45, 0.8])
    assert (truth.labels["edema"], truth.labels["pneumonia"]) == (True, False)
    assert "fracture" not in truth.labels


def test_only_held_out_patients_are_measured_where_asked(tmp_path: Path) -> None:
    path = made_up(tmp_path)
    manifest = read_manifest(MODEL)

    # By the hashes of their names alone: p0 is part 524 of 1000, p1 is part 587 of 1000.
    counts = {share: len(read_films(path, manifest, held_out=HeldOut(share=share))) for share in (0.555, 0.592)}

    assert counts == {0.555: 1, 0.592: 2}
    with pytest.raises(ModelError, match="no film of patients that were held out"):
        read_films(path, manifest, held_out=HeldOut(share=0.001))


def test_gray_values_are_those_that_the_model_wants() -> None:
    ramp = np.tile(np.arange(100, 200, dtype=np.uint8), (4, 1))

    assert shown(ramp, "voi").max() == pytest.approx(199 / 255)
    assert (shown(ramp, "mimic_jpg").min(), shown(ramp, "mimic_jpg").max()) == (0.0, 1.0)


def test_what_is_said_of_a_film_does_not_depend_on_other_films(evaluated: EvaluatedModel) -> None:
    films = Phantoms(parse_set("phantoms:2000000:2"), evaluated.manifest)

    alone = evaluated.observe(films.load(1), TASKS)
    evaluated.observe(films.load(0), TASKS)
    again = evaluated.observe(films.load(1), TASKS)

    assert alone.found is not None and again.found is not None
    assert np.array_equal(alone.found.boxes, again.found.boxes)
    assert np.array_equal(alone.region_scores, again.region_scores)


def test_a_film_is_shown_to_the_view_head_as_it_is_and_otherwise(
    evaluated: EvaluatedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    films = Phantoms(parse_set("phantoms:2000000:6"), evaluated.manifest)
    monkeypatch.setattr(evaluated, "reader", SimpleNamespace(look=lambda gray: gray, view=lambda gray: gray))
    turns = set[int]()

    for number in range(6):
        case = films.load(number)
        seen = {picture.kind: np.asarray(picture.reading) for picture in evaluated._views(case)}
        assert list(seen) == ["frontal", "mirrored", "rotated", "lateral", "other"]
        assert {picture.view for picture in evaluated._views(case)} == {case.truth.view} <= {"AP", "PA"}
        assert np.array_equal(seen["frontal"], case.gray) and np.array_equal(seen["mirrored"], case.gray[:, ::-1])
        turns |= {turn for turn in range(4) if np.array_equal(seen["rotated"], np.rot90(case.gray, turn))}
        assert not any(np.array_equal(seen[kind], case.gray) for kind in ("lateral", "other"))
    for number in range(30):
        named = replace(case, name=f"film {number}", others=dict)
        rotated = next(np.asarray(seen.reading) for seen in evaluated._views(named) if seen.kind == "rotated")
        turns |= {turn for turn in range(4) if np.array_equal(rotated, np.rot90(case.gray, turn))}
    assert turns == {1, 2, 3}


def test_a_model_is_measured_on_phantoms_by_its_decisions_for_them(evaluated: EvaluatedModel) -> None:
    shipped = read_manifest(MODEL)

    drawn = EvaluatedModel(MODEL, shipped, evaluated._engine, evaluated.questions, "phantoms")

    assert evaluated.manifest == shipped
    assert drawn.manifest == shipped.on_phantoms() != shipped
    assert drawn.deciding_by(replace(shipped, name="other")).manifest == replace(shipped.on_phantoms(), name="other")


def test_a_prompt_set_must_ask_for_every_finding() -> None:
    questions = read_questions(DEFAULT)
    without = replace(
        questions,
        prompts=tuple(
            replace(prompt, kind=PromptKind.REGION, negatives=()) if prompt.key == "edema" else prompt
            for prompt in questions.prompts
            if prompt.key != "fracture"
        ),
    )

    with pytest.raises(ModelError, match="does not ask for edema, fracture; use one that does"):
        open_model(MODEL, engine="torch", questions=without)


def test_a_mined_label_alone_makes_no_film_without_boxes(evaluated: EvaluatedModel) -> None:
    case = Phantoms(parse_set("phantoms:2000000:1"), evaluated.manifest).load(0)
    mined = Truth(located=frozenset({"lung_opacity"}), labels={"no_finding": True}, mined_normal=True)
    truths = {
        "mined": mined,
        "read, too": replace(mined, read_as="Normal"),
        "mined as ill": replace(mined, labels={"no_finding": False}, mined_normal=False),
        "boxes unknown": replace(mined, located=frozenset(), read_as="Normal"),
    }

    films = {name: placed(evaluated, replace(case, truth=truth)) for name, truth in truths.items()}
    of_patient = placed(evaluated, replace(case, truth=replace(mined, patient="p7")))
    assert {film.patient for film in of_patient.values()} == {"p7"}
    assert {film.patient for film in films["mined"].values()} == {case.name}

    assert {name for name, film in films.items() if film["lung_opacity"].true is not None} == {
        "read, too",
        "mined as ill",
    }


@pytest.mark.parametrize(
    ("scored_by", "prompts", "weights"), [("both", True, True), ("prompts", True, False), ("weights", False, True)]
)
def test_boxes_are_scored_as_the_manifest_has_it(
    scored_by: Literal["prompts", "weights", "both"], prompts: bool, weights: bool
) -> None:
    rule = DetectionRule(scored_by=scored_by, temperature=0.3, scales={"edema": 1.5}, overlap=0.4)

    settings = settings_of(rule)

    assert (settings.by_prompts, settings.by_weights) == (prompts, weights)
    assert (settings.temperature, settings.overlap, settings.merge) == (0.3, 0.4, "suppress")
    assert settings.scales == tuple(1.5 if key == "edema" else 1.0 for key in FINDINGS)


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
        (["--data", "boxes:films.jsonl", "--task", "hints"], "its labels suffice for anatomy, report"),
        (["--data", "boxes:films.jsonl", "--task", "detection_vindr"], "no labels for the task detection_vindr"),
        (["--data", "phantoms:2000000:1", "--task", "detection_mscxr"], "no labels for the task detection_mscxr"),
        (["--data", "boxes:films.jsonl", "--choose-on", "films.jsonl"], "--choose-on is for the tasks"),
        (["--data", "boxes:films.jsonl", "--prompts", "nowhere.toml"], "the prompt set cannot be read"),
        (["--data", "boxes:films.jsonl", "--prompts", "films.jsonl"], "no prompt set 'films.jsonl'; there are"),
        (["--data", "boxes:films.jsonl", "--model", "nowhere"], "name a model directory"),
    ],
)
def test_wrong_input_is_exit_2_with_what_to_do(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made_up(tmp_path)
    monkeypatch.chdir(tmp_path)
    manifest = (MODEL / "manifest.toml").read_bytes()

    assert main(["--model", str(MODEL), *QUICK, *arguments]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert complaint in lines[-1]
    assert lines[-1].startswith("error: ")
    assert (MODEL / "manifest.toml").read_bytes() == manifest


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"size": [200, 300]}, "has 300 x 200 pixels, but its line says"),
        ({"file": "nowhere.png"}, "cannot be read as a picture"),
        (
            {"hints": [{"text": "?", "finding": "edem", "side": "left"}]},
            "line 1: hints.*: no catalog has the class 'edem'",
        ),
    ],
)
def test_a_line_that_is_wrong_is_told(changes: dict[str, object], complaint: str, tmp_path: Path) -> None:
    path = made_up(tmp_path, **changes)

    with pytest.raises(ModelError, match=complaint):
        read_films(path, read_manifest(MODEL)).load(0)
