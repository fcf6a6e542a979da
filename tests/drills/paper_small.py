"""Runnable: the whole way of the paper, from raw data to its tables, on miniatures and with a small network.

    python -m tests.drills.paper_small [--out DIR]

Miniatures of the five data sets are drawn in their official layouts and prepared; the stages of the published training
follow, by the published run files with the changes of `paper_small.toml`; then each set is evaluated with the tasks of
the paper, and its tables are written. Every step is a command of docs/model/paper.md, and is printed. The last line is
one JSON object with `passed`. What the figures are says nothing: only that there is one for every cell of the tables.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from models import evaluate, join, prepare, train
from models.lab.evaluation import paper
from tests.lab import datasets
from tests.paths import REPOSITORY

RUNS = REPOSITORY / "models" / "lab" / "training" / "runs"
CHANGES = Path(__file__).with_suffix(".toml")
LIMIT_SECONDS = 120.0
"""On two cores."""
PATIENTS, STEPS = 12, 1
"""Of each miniature, and updates of each stage: the fewest that give every figure."""
MADE_BEFORE = ("train-out/published_1/model", "train-out/published_2_and_text")
"""What a stage starts from that an earlier one makes."""
TASKS = {
    "nih": ("detection_nih8",),
    "vindr": ("detection_vindr",),
    "mscxr": ("detection_mscxr", "grounding_mscxr", "region_classification_mscxr", "region_explanation_mscxr"),
    "imagenome": ("region_classification_imagenome", "region_explanation_imagenome"),
    "mimic": ("report_mimic",),
}
"""The tasks of the paper that each set's films suffice for; those of the last two choose nothing on other films."""
CHOSEN = ("nih", "vindr", "mscxr")
ILL = """ FINDINGS: There is cardiomegaly. There is pulmonary edema. There is consolidation. There is atelectasis.
 There is a pleural effusion. The mediastinum is widened. There is a rib fracture. There is a lung nodule.
 There is a lung opacity. There is pleural thickening. There is a pneumothorax. A chest tube is in place.

 IMPRESSION: There is pneumonia.
"""
WELL = " FINDINGS: The lungs are clear.\n\n IMPRESSION: No acute findings.\n"
"""The reports of the two films to test on: no class is without a figure, and a report of no finding is right once."""


class Failed(Exception):
    """A command ended with another exit code than 0, or a cell of the tables has no figure."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.drills.paper_small", description="The paper's way, on miniatures.")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep everything there; default: nothing is kept")
    options, began = parser.parse_args(arguments), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="paper-small-") as folder:
        try:
            figures = go(options.out or Path(folder))
        except Failed as failed:
            figures = {"failed": str(failed)}
    seconds = time.monotonic() - began
    passed = "failed" not in figures and seconds < LIMIT_SECONDS
    sys.stdout.write(json.dumps({"passed": passed, "seconds": round(seconds, 1), **figures}) + "\n")
    return 0 if passed else 1


def go(folder: Path) -> dict[str, Any]:
    """Go from drawing to the tables in a folder. Returns the figures of each task. Raises Failed."""
    draw(folder / "raw")
    prepare_all(folder)
    train_all(folder)
    figures = evaluate_all(folder)
    evaluated = [str(folder / "evaluated" / name) for name in TASKS]
    run("models.lab.evaluation.paper", paper.main, [*evaluated, "--out", str(folder / "tables")])
    if missing := without_figure(figures):
        raise Failed(f"no figure of {', '.join(missing)}")
    return figures


def without_figure(figures: dict[str, dict[str, Any]]) -> list[str]:
    """Return task and key of every cell of the paper's tables that there is no figure for."""
    tables = paper.read_paper().tables
    other = {key for table in tables for keys in table.other.values() for key in keys.values()}
    keys = other.union(*(table.keys for table in tables))
    return [key for key in sorted(keys) if figures.get(key.partition(".")[0], {}).get(key.partition(".")[2]) is None]


def draw(raw: Path) -> None:
    """Draw the five data sets in their official layouts, and a WordNet; the two films to test on differ."""
    for name in ("nih", "vindr", "mimic", "mscxr", "imagenome"):
        (raw / name).mkdir(parents=True)
    datasets.chest_xray_14(raw / "nih", patients=PATIENTS)
    datasets.vindr_cxr(raw / "vindr", train=PATIENTS, test=PATIENTS)
    datasets.mimic_cxr(raw / "mimic", patients=PATIENTS)
    datasets.ms_cxr(raw / "mscxr", patients=PATIENTS)
    datasets.chest_imagenome(raw / "imagenome", patients=PATIENTS)
    datasets.wordnet(raw)
    last = PATIENTS - 1
    scene = datasets.scene_graph(last)
    scene["attributes"] = scene["attributes"][1:]
    scenes = raw / "imagenome" / "silver_dataset" / "scene_graph"
    (scenes / f"{datasets.dicom_id(2 * last)}_SceneGraph.json").write_text(json.dumps(scene), encoding="utf-8")
    for patient, report in ((last - 1, ILL), (last, WELL)):
        study = Path(f"p{10_000_000 + patient}", f"s{50_000_000 + patient}.txt")
        (raw / "mimic" / "files" / "p10" / study).write_text(report, encoding="utf-8")


def prepare_all(folder: Path) -> None:
    """Prepare each; Chest ImaGenome and MS-CXR add to the films of MIMIC-CXR."""
    mimic = ["--mimic", str(folder / "prepared" / "mimic")]
    for name, more in {"nih": [], "vindr": [], "mimic": [], "mscxr": mimic, "imagenome": mimic}.items():
        out = folder / "prepared" / name
        run("models.prepare", prepare.main, [name, str(folder / "raw" / name), str(out), "--processes", "1", *more])


def train_all(folder: Path) -> None:
    """Train stages 1 and 2 and the text-only pre-training, join these two, and train stage 3."""
    made = folder / "train-out"
    for name in ("published_1", "published_2", "published_text"):
        run("models.train", train.main, [str(run_file(folder, name))])
    models = [str(made / name) for name in ("published_2/model", "published_text/model", "published_2_and_text")]
    run("models.join", join.main, models)
    run("models.train", train.main, [str(run_file(folder, "published_3"))])


def run_file(folder: Path, name: str) -> Path:
    """Write a published run file with the changes of `paper_small.toml`; returns its path."""
    table = tomllib.loads((RUNS / f"{name}.toml").read_text(encoding="utf-8"))
    changes = tomllib.loads(CHANGES.read_text(encoding="utf-8"))
    [stage] = table["stages"]
    stage |= changes["stage"] | {"steps": STEPS}
    table["machine"] |= changes["machine"]
    for part, sizes in changes["network"].items():
        table["network"][part] |= sizes
    table["output"] = str(folder / table["output"])
    table["start"] = str(folder / table["start"]) if table["start"] in MADE_BEFORE else ""
    for films in table["data"]["films"]:
        films["file"] = str(folder / films["file"])
    path = folder / f"{name}.toml"
    path.write_text(tomli_w.dumps(table), encoding="utf-8")
    return path


def evaluate_all(folder: Path) -> dict[str, Any]:
    """Evaluate the model of stage 3 on each set. Returns the figures of each task."""
    model, figures = folder / "train-out" / "published_3" / "model", dict[str, Any]()
    for name, tasks in TASKS.items():
        prepared, out = folder / "prepared" / name, folder / "evaluated" / name
        arguments = ["--model", str(model), "--data", f"boxes:{prepared / 'test.jsonl'}", "--task", "paper"]
        arguments += ["--choose-on", str(prepared / "validate.jsonl")] if name in CHOSEN else []
        arguments += [] if name in ("nih", "vindr") else ["--metric-files", str(folder / "raw")]
        run("models.evaluate", evaluate.main, [*arguments, "--engine", "torch", "--resamples", "10", "--out", str(out)])
        made = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))["tasks"]
        if missing := set(tasks) - made.keys():
            raise Failed(f"the films of {name} gave no figures of {', '.join(sorted(missing))}")
        figures |= {task: _single(made[task]) for task in tasks}
    return figures


def _single(made: dict[str, Any]) -> dict[str, Any]:
    """Keep the figures that are one number or unknown, and the settings."""
    return {key: value for key, value in made.items() if isinstance(value, float | None) or key == "settings"}


def run(module: str, command: Callable[[list[str]], int], arguments: list[str]) -> None:
    """Run a command in this process, and print it. Raises Failed if it fails."""
    line = shlex.join(["python", "-m", module, *arguments])
    sys.stdout.write(f"$ {line}\n")
    sys.stdout.flush()
    if status := command(arguments):
        raise Failed(f"exit code {status} of {line}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
