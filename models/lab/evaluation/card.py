"""Runnable: writes figures, plots and failures into the card of a model directory.

    python -m models.lab.evaluation.card --model DIR EVALUATION.json...

What training wrote about the model is kept; everything from `## Measured` on is replaced, so the command can be
repeated with all evaluations of a model: the main figures stand in the card, all of them in the evaluations, which lie
beside it.
The manifest gets the hashes of the written files at the very end: after an interruption the directory is refused until
the command is run again. Exit 0: done; 1: a file could not be written; 2: wrong input.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from models.checkpoint.card import joined, parts_of, section, with_line, with_ten_lines
from models.checkpoint.files import CARD, file_sha256
from models.command import command_parser, exit_status, run
from models.decisions import PHANTOMS
from models.errors import ModelError
from models.lab.evaluation.document import inner, read_evaluation
from models.lab.evaluation.request import SHARES
from models.manifest import WEIGHTS, Manifest, read_manifest, write_manifest

FOLDER: Final = "card"
HEADING: Final = "## Measured"
_PERFORMANCE: Final = "- Performance: below, under Measured."
PLOTS: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "detection": ("per_class", "Average precision by finding", "", ""),
    "anatomy": ("per_region", "IoU by region; gray: best constant box", "best_constant_box", "per_region"),
    "region_classification": ("per_finding", "AUROC by finding, mean of regions", "", ""),
    "films": ("per_class", "AUROC by finding", "", ""),
}
"""By task: its table, the title, and the reference whose table is drawn with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation; path: its JSON file, which has its pictures beside it."""

    path: Path
    document: Mapping[str, object]

    @property
    def tasks(self) -> Mapping[str, object]:
        """The figures by task."""
        return inner(self.document, "tasks")

    @property
    def pictures(self) -> list[Path]:
        """The contact sheets."""
        names = self.document.get("pictures")
        return [self.path.parent / str(name) for name in names] if isinstance(names, list) else []


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.lab.evaluation.card", description="Fill a model card.")
    parser.add_argument("evaluations", type=Path, nargs="+", metavar="JSON", help="evaluation.json of models.evaluate")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _fill(options))


def _fill(options: argparse.Namespace) -> int:
    evaluations = [Evaluation(path=path, document=read_evaluation(path)) for path in options.evaluations]
    fill_card(options.model, evaluations)
    print(f"{options.model / CARD}: {len(evaluations)} evaluations")
    return 0


def fill_card(directory: Path, evaluations: Sequence[Evaluation]) -> None:
    """Write the card, its plots and pictures, and the manifest with their hashes.

    Raises ModelError if an evaluation is not of these weights or matplotlib is missing, and OSError if a file cannot be
    written.
    """
    if find_spec("matplotlib") is None:
        raise ModelError("matplotlib is missing; run pip install -c constraints.txt '.[evaluate]'")
    manifest = read_manifest(directory)
    for evaluation in evaluations:
        measured_weights = inner(evaluation.document, "model").get("weights_sha256")
        if measured_weights != manifest.files.get(WEIGHTS) or "analysis" in evaluation.document:
            raise ModelError(
                f"{evaluation.path} did not measure the model in {directory} as it is; leave it out, or run "
                "models.evaluate again"
            )
    if missing := [path for evaluation in evaluations for path in evaluation.pictures if not path.is_file()]:
        raise ModelError(f"{missing[0]} is missing; run models.evaluate with --out again")
    card = directory / CARD
    try:
        text, calibrated = parts_of(card.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{card} cannot be read ({error.strerror}); restore the model directory") from error
    shutil.rmtree(directory / FOLDER, ignore_errors=True)
    (directory / FOLDER).mkdir()
    measured = section(
        "measured",
        films=[_figures(directory, evaluation, number=number) for number, evaluation in enumerate(evaluations, 1)],
        documents=[evaluation.document for evaluation in evaluations],
        plots=PLOTS,
    )
    head = with_line(text.partition(HEADING)[0].rstrip(), "- Performance:", _PERFORMANCE)
    # Those of patient films come before those of phantoms.
    documents = sorted((own.document for own in evaluations), key=lambda each: str(each["data"]).startswith(PHANTOMS))
    figures = section("first_figures", documents=documents).splitlines()
    text = with_ten_lines(f"{head}\n{measured.rstrip()}\n", manifest, figures[:3])
    card.write_text(joined(text, calibrated, manifest.history), encoding="utf-8")
    write_manifest(directory, _hashed(directory, manifest))


def _hashed(directory: Path, manifest: Manifest) -> Manifest:
    """Return the manifest with the hashes of the card and of its pictures."""
    files = {name: sha256 for name, sha256 in manifest.files.items() if not name.startswith(f"{FOLDER}/")}
    shown_files = sorted(path for path in (directory / FOLDER).iterdir())
    files[CARD] = file_sha256(directory / CARD)
    return replace(manifest, files=files | {f"{FOLDER}/{path.name}": file_sha256(path) for path in shown_files})


def _figures(directory: Path, evaluation: Evaluation, *, number: int) -> str:
    """Write what the card shows of an evaluation; draw its plots, and put all its figures and pictures beside them."""
    path = f"{FOLDER}/{number}-{evaluation.path.name}"
    shutil.copyfile(evaluation.path, directory / path)
    plots = [plot for task in evaluation.tasks for plot in _plots(directory, evaluation, task, number=number)]
    return section(
        "films",
        document=evaluation.document,
        shares=SHARES,
        pictures=[*plots, *_pictures(directory, evaluation, number=number)],
        figures=path,
    )


def _plots(directory: Path, evaluation: Evaluation, task: str, *, number: int) -> Iterator[tuple[str, str]]:
    """Draw the plots of a task; yields the name of each, and its path."""
    from models.lab.evaluation import plots

    made, drawn = inner(evaluation.tasks, task), dict[str, str]()
    if task in PLOTS:
        table, title, reference, beside = PLOTS[task]
        marks = _numbers(inner(inner(inner(made, "references"), reference), beside)) if reference else None
        drawn[task] = plots.bars(title, _numbers(inner(made, table)), references=marks)
    points = made.get("reliability")
    if isinstance(points, list) and points:
        line = [(float(point[0]), float(point[1])) for point in points]
        drawn[f"{task}-reliability"] = plots.reliability(line)
    for name, drawing in drawn.items():
        path = f"{FOLDER}/{number}-{name}.svg"
        (directory / path).write_text(drawing, encoding="utf-8")
        yield name.replace("_", " "), path


def _pictures(directory: Path, evaluation: Evaluation, *, number: int) -> Iterator[tuple[str, str]]:
    """Copy the contact sheets; yields the name of each, and its path."""
    for picture in evaluation.pictures:
        path = f"{FOLDER}/{number}-{picture.name}"
        shutil.copyfile(picture, directory / path)
        yield picture.stem, path


def _numbers(table: Mapping[str, object]) -> dict[str, float | None]:
    return {name: float(value) if isinstance(value, float | int) else None for name, value in table.items()}


if __name__ == "__main__":
    run(main)
