"""A model card with figures that were made up: what it shows and keeps, with a directory that opens, and pictures."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from models.checkpoint.card import section
from models.checkpoint.files import CARD, verify
from models.contract import FilmReading, FindingState, PromptKind, PromptReading
from models.decisions import ThresholdChange
from models.engines import FloatArray
from models.lab.evaluation.card import PLOTS, main
from models.lab.evaluation.cases import EvaluationCase, Truth
from models.lab.evaluation.detection import Detections
from models.lab.evaluation.document import read_evaluation
from models.lab.evaluation.evaluated_model import Observation
from models.lab.evaluation.pictures import quality, write_sheets
from models.lab.evaluation.request import SHARES
from models.lab.phantoms import FINDINGS
from models.manifest import WEIGHTS, read_manifest, write_manifest
from models.reading.tokenizers import VOCABULARIES
from tests.lab.datasets import Films


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("onnx", "parity.json")
    return Path(shutil.copytree(VOCABULARIES.parent, tmp_path / "model", ignore=ignored))


def test_the_shipped_card_is_short_forbids_use_for_patients_and_shows_the_evaluations_beside_it(model: Path) -> None:
    """All figures, places too, byte for byte as the template writes them."""
    shown = (model / CARD).read_text(encoding="utf-8")
    words = " ".join(shown.split())
    assert "A demonstration, not a medical device." in words
    assert "must never be used for a patient" in words
    assert "never any clinical use" in read_manifest(model).intended_use
    assert (model / CARD).stat().st_size <= 15_000
    paths = sorted((model / "card").glob("*.json"))
    documents = [read_evaluation(path) for path in paths]
    films = []
    for path, document in zip(paths, documents, strict=True):
        pictures = re.findall(rf"!\[(.+)\]\((card/{path.name[0]}-.+)\)", shown)
        figures = f"card/{path.name}"
        films.append(section("films", document=document, shares=SHARES, pictures=pictures, figures=figures))

    assert len(films) == 4
    assert shown.endswith("\n" + section("measured", films=films, documents=documents, plots=PLOTS))


def evaluation(folder: Path, directory: Path, **changes: object) -> Path:
    """Write what `models.evaluate` would, with figures that nobody measured."""
    folder.mkdir()
    (folder / "failures.jpg").write_bytes(b"a picture")
    weights = read_manifest(directory).files[WEIGHTS]
    document = {
        "data": "phantoms:2000000:500",
        "count": 500,
        "model": {"name": "m", "version": "2", "engine": "onnx", "weights_sha256": weights},
        "tasks": {
            "detection": {
                "map": 0.4567,
                "per_class": {"cardiomegaly": 0.91, "fracture": 0.012, "edema": None},
                "deviations": {"map": 0.0123},
                "references": {"constant_box": {"map": 0.0424}},
            },
            "anatomy": {
                "miou": 0.8,
                "per_region": {"right lung": 0.93},
                "references": {"best_constant_box": {"miou": 0.5, "per_region": {"right lung": 0.7}}},
            },
            "report": {
                "ce_micro_f1": 0.61,
                "ce_micro_precision": 0.59,
                "per_class": {"edema": 0.5},
                "reliability": [[0.1, 0.2, 30], [0.8, 0.9, 10]],
            },
        },
        "pictures": ["failures.jpg"],
    }
    path = folder / "evaluation.json"
    path.write_text(json.dumps(document | changes))
    return path


def test_a_card_shows_the_main_figures_has_all_beside_it_and_the_directory_opens(model: Path, tmp_path: Path) -> None:
    kept = (model / CARD).read_text().splitlines()[0]
    drawn = evaluation(tmp_path / "drawn", model)
    points = [[0.1, 0.2, 30], [0.8, 0.9, 10]]
    group = {"films": 20, "macro_auroc": 0.7123, "intervals": {"macro_auroc": [0.65, 0.77]}}
    counts = {"positives": {"edema": 12}, "known": {"edema": 40}}
    films = {"per_class": {"edema": 0.8}, "reliability": points, "by_group": {"sex F": group}, **counts}
    real = evaluation(tmp_path / "real", model, tasks={"films": films}, data="boxes:films/hospital.jsonl")

    assert main(["--model", str(model), str(drawn), str(real)]) == 0

    card = (model / CARD).read_text()
    assert card.startswith(kept)
    for text in (
        "| 0.457 +/- 0.012 | constant box 0.042 |",
        "500 films",
        "the lowest: Average precision by finding: fracture 0.01, cardiomegaly 0.91.",
        "| sex F | 20 | 0.712 (0.650 to 0.770) |",
        "| edema | 12 | 40 | 0.800 |",
    ):
        assert text in card, text
    assert (model / "card" / "1-evaluation.json").read_bytes() == drawn.read_bytes()
    shown = re.findall(r"\]\((card/[^)]+)\)", card)
    assert sorted(shown) == sorted(f"card/{file.name}" for file in (model / "card").iterdir())
    for name in shown:
        if name.endswith(".svg"):
            ElementTree.parse(model / name)
    assert set(shown) <= read_manifest(model).files.keys()
    verify(model, read_manifest(model))


def test_a_card_begins_with_ten_lines_and_three_figures(model: Path, tmp_path: Path) -> None:
    """Those of films of people come before those of phantoms; of decisions, what a node does by default."""
    tasks = {
        "films": {"macro_auroc": 0.75, "false_findings": 0.2, "intervals": {"macro_auroc": [0.7, 0.8]}},
        "sentences": {"false_findings": 0.3, "by_default": {"false_findings": 0.1}},
    }
    drawn = evaluation(tmp_path / "drawn", model)
    real = evaluation(tmp_path / "real", model, data="boxes:films/hospital.jsonl", tasks=tasks, count=90)

    for _ in range(2):
        assert main(["--model", str(model), str(drawn), str(real)]) == 0

    manifest = read_manifest(model)
    lines = (model / CARD).read_text().splitlines()
    assert lines[:4] == [f"# {manifest.name} {manifest.version}", "", "## In ten lines", ""]
    assert lines[4] == f"- For: {manifest.intended_use}." and lines[5].startswith("- Not for: ")
    assert [line for line in lines if line.startswith("- Figure: ")] == [
        "- Figure: AUROC, mean of findings with 15 positives: 0.750 (0.700 to 0.800), 90 films, `hospital.jsonl`.",
        "- Figure: findings called present on a normal film: 0.100, 90 films, `hospital.jsonl`.",
        "- Figure: mAP, IoU 0.1 to 0.7: 0.457 +/- 0.012, 500 films, `phantoms:2000000:500`.",
    ]
    assert all(line.startswith("- ") for line in lines[4:14]) and lines[14] == ""


def test_what_training_wrote_and_a_calibration_are_kept(model: Path, tmp_path: Path) -> None:
    calibrated = "## Calibrated\n\nOn `hospital`.\n"
    (model / CARD).write_text(f"# m 2\n\n- Performance: not measured\n  yet.\n- Other: x\n\n{calibrated}")
    change = ThresholdChange(finding="edema", before=0.5, after=0.6, reason="x", by="anna", at="2026-01-01T00:00:00Z")
    write_manifest(model, replace(read_manifest(model), history=(change,)))

    for number in "12":
        assert main(["--model", str(model), str(evaluation(tmp_path / number, model))]) == 0

    card = (model / CARD).read_text()
    assert "not measured" not in card and "yet" not in card
    assert "- Performance: below, under Measured.\n- Other: x\n" in card
    assert card.index("## Measured") < card.index(calibrated) < card.index("| edema | 0.5 | 0.6 | x | anna |")
    assert card.count("## Calibrated") == 1


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": {"weights_sha256": "0" * 64}}, "did not measure the model"),
        ({"analysis": {"name": "report_regions"}}, "did not measure the model"),
        ({"pictures": ["gone.jpg"]}, "gone.jpg is missing"),
    ],
)
def test_wrong_input_is_exit_2_and_leaves_the_card(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], complaint: str
) -> None:
    card = (model / CARD).read_bytes()

    assert main(["--model", str(model), str(evaluation(tmp_path / "one", model, **changes))]) == 2

    assert complaint in capsys.readouterr().err
    assert (model / CARD).read_bytes() == card
    verify(model, read_manifest(model))


# ---- contact sheets of the best and the worst films


MANIFEST = read_manifest(VOCABULARIES.parent)
HEART = np.array([0.5, 0.6, 0.4, 0.3], dtype=np.float32)
APART = np.array([0.2, 0.2, 0.2, 0.2], dtype=np.float32)
HALF = HEART * np.array([1, 1, 0.5, 1], dtype=np.float32)


def said(
    *found: tuple[str, FloatArray, float],
    asked: bool = True,
    regions: dict[str, FloatArray] | None = None,
    reading: FilmReading | None = None,
) -> Observation:
    detected = Detections(
        np.array([box for _, box, _ in found], dtype=np.float32).reshape(-1, 4),
        np.array([FINDINGS.index(key) for key, _, _ in found], dtype=np.intp),
        np.array([score for _, _, score in found], dtype=np.float32),
    )
    return Observation(
        found=detected if asked else None,
        regions=regions or {},
        region_scores=np.zeros((0, len(FINDINGS)), dtype=np.float32),
        reading=reading,
        hints=np.zeros((0, 4), dtype=np.float32),
    )


def truth(*boxes: FloatArray, key: str = "cardiomegaly", regions: dict[str, FloatArray] | None = None) -> Truth:
    return Truth(boxes={key: np.stack(boxes)} if boxes else {}, regions=regions or {})


EVERY = [(key, APART, 0.1) for key in FINDINGS]


def film(known: Truth, *, name: str) -> EvaluationCase:
    return EvaluationCase(name=name, gray=np.full((64, 64), 0.5, dtype=np.float32), truth=known)


def test_a_film_is_rated_by_the_best_box_of_each_finding_that_it_has() -> None:
    assert quality(truth(HEART), said(*EVERY, ("cardiomegaly", HALF, 0.9))) == pytest.approx(0.5)
    assert quality(truth(HEART), said(*EVERY, ("cardiomegaly", HEART, 0.05))) == 0.0
    assert quality(truth(HALF, HEART), said(*EVERY, ("cardiomegaly", HEART, 0.9))) == pytest.approx(1.0)
    both = Truth(boxes={"cardiomegaly": HEART[np.newaxis], "edema": HEART[np.newaxis]})
    assert quality(both, said(*EVERY, ("cardiomegaly", HEART, 0.9))) == pytest.approx(0.5)


def test_without_a_box_to_find_a_film_is_rated_by_its_lungs_and_heart() -> None:
    known = {"right lung": HEART, "cardiac silhouette": HEART, "left lung": HEART, "spine": HEART}
    seen = {"right lung": HEART, "cardiac silhouette": HALF, "spine": APART}

    assert quality(truth(regions=known), said(regions=seen)) == pytest.approx(0.75)
    assert quality(truth(HEART, regions=known), said(asked=False, regions=seen)) == pytest.approx(0.75)
    assert quality(truth(regions={"spine": HEART}), said(regions=seen)) is None
    assert quality(truth(), said()) is None


def sheets(
    monkeypatch: pytest.MonkeyPatch, known: Sequence[Truth], answers: Sequence[Observation], *, count: int
) -> dict[str, Figure]:
    """The sheets that are written of films of these truths and answers, by name."""
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(Figure, "savefig", lambda sheet, path: drawn.update({path.name: sheet}))
    films = Films(film(truth, name=str(number)) for number, truth in enumerate(known))
    written = write_sheets(Path(), films, known, answers, rule=MANIFEST.input, count=count)
    assert written == list(drawn)
    return drawn


def frames(picture: Axes) -> set[tuple[str, str]]:
    """The color and the place of each box on a picture."""
    colors = {to_rgba(color): name for name, color in (("green", "#3cc85a"), ("orange", "#ff8c00"))}
    named = {"heart": HEART, "apart": APART, "half": HALF}
    found = set()
    for patch in picture.patches:
        assert isinstance(patch, Rectangle)
        box = [patch.get_x() + patch.get_width() / 2, patch.get_y() + patch.get_height() / 2]
        box += [patch.get_width(), patch.get_height()]
        [place] = [name for name, own in named.items() if own == pytest.approx(np.array(box), abs=1e-6)]
        found.add((colors[to_rgba(patch.get_edgecolor())], place))
    return found


def test_true_boxes_are_green_and_those_of_the_model_orange(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [(key, APART, 0.9) for key in FINDINGS]

    def shown(known: Truth, answer: Observation) -> set[tuple[str, str]]:
        [picture] = sheets(monkeypatch, [known], [answer], count=1)["hits.jpg"].axes
        return frames(picture)

    assert shown(truth(HEART), said(*everything)) == {("green", "heart"), ("orange", "apart")}
    beside = said(("cardiomegaly", HALF, 0.9), ("edema", APART, 0.9))
    assert shown(truth(HEART), beside) == {("green", "heart"), ("orange", "half")}, "of findings that the film has"

    def present(state: FindingState) -> FilmReading:
        one = PromptReading(key="edema", kind=PromptKind.PATHOLOGY, probability=0.9, state=state)
        return FilmReading(sentences=(), prompts=(one,))

    green = {("green", "heart")}
    answers = {state: said(*everything, reading=present(state)) for state in FindingState}
    assert shown(truth(HEART), answers[FindingState.PRESENT]) == green | {("orange", "apart")}
    assert shown(truth(HEART), answers[FindingState.ABSENT]) == green

    regions = {"right lung": APART}, {"right lung": HEART}
    alone = shown(truth(regions=regions[0]), said(regions=regions[1]))
    assert alone == {("green", "apart"), ("orange", "heart")}
    assert shown(truth(HALF, regions=regions[0]), said(asked=False, regions=regions[1])) == {("green", "half")}


def test_the_best_and_the_worst_films_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [truth(HEART), truth(), truth(HEART), truth(HEART)]
    best = {0: ("cardiomegaly", HALF, 0.9), 2: ("cardiomegaly", HEART, 0.9)}
    answers = [said(*EVERY, *([best[number]] if number in best else [])) for number in range(4)]

    made = sheets(monkeypatch, known, answers, count=2)

    titles = {name: [picture.get_title() for picture in sheet.axes] for name, sheet in made.items()}
    assert titles == {"hits.jpg": ["2  IoU 1.00", "0  IoU 0.50"], "failures.jpg": ["3  IoU 0.00", "0  IoU 0.50"]}
    assert sheets(monkeypatch, [truth()], [said()], count=2) == {}


def test_any_name_of_a_film_is_drawn(tmp_path: Path) -> None:
    films, answers = Films([film(truth(HEART), name="US$film_{1$.png")]), [said(("cardiomegaly", HALF, 0.9))]

    written = write_sheets(tmp_path, films, [truth(HEART)], answers, rule=MANIFEST.input, count=1)

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(written) != []
