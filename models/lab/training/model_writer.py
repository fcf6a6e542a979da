"""Writes the model directory at the end of a run, completely or not at all (design §4)."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from models.checkpoint.assembly import INITIAL, PARTS, UNTRAINED, origin_of, part_of
from models.checkpoint.card import complete, section
from models.checkpoint.importer import new_directory
from models.checkpoint.weights import save_weights
from models.decisions import Decisions
from models.lab.training.runfile import Run
from models.lab.training.trained_model import TrainedModel, begins_with, trained_weights
from models.manifest import PUBLISHED_MEAN, PUBLISHED_STD, WEIGHTS, InputRule, Manifest, read_manifest

MODEL, TABLE = "model", "log.csv"
"""The names of the model directory and of the log in the run's output folder."""


def write_model(run: Run, model: TrainedModel) -> Path:
    """Write the model directory of a finished run.

    Raises OSError if a file cannot be written, and ModelError if `start_share` needs the weights of `start` and they no
    longer fit.
    """
    directory = Path(run.output) / MODEL
    state = _averaged(run, model)
    with new_directory(directory) as aside:
        save_weights(aside / WEIGHTS, state, half=run.model.store == "half")
        parameters = sum(weight.numel() for weight in state.values())
        complete(aside, _manifest(run, model), card=_card(run, parameters=parameters))
    return directory


def _averaged(run: Run, model: TrainedModel) -> dict[str, Tensor]:
    """Average the trained weights with those that the run started from, by `start_share`."""
    trained = dict(model.network.state_dict())
    if not run.start_share:
        return trained
    begun = trained_weights(Path(run.start), model.network.sizes)
    return trained | {name: trained[name].cpu().lerp(weight, run.start_share) for name, weight in begun.items()}


def _manifest(run: Run, model: TrainedModel) -> Manifest:
    """Make the manifest. The learned scale and offset become temperature and threshold; evaluation calibrates them."""
    scale, offset = model.heads.scale.item(), model.heads.offset.item()
    return Manifest(
        name=run.model.name,
        version=run.model.version,
        licence=run.model.licence,
        trained_on=run.model.trained_on,
        intended_use=run.model.intended_use,
        gray=run.model.gray,
        input=InputRule(
            size=run.network.image_encoder.image_size, mean=PUBLISHED_MEAN, std=PUBLISHED_STD, resize=run.model.resize
        ),
        sizes=model.network.sizes,
        decisions=Decisions(
            temperature=math.exp(-scale),
            # The logit is 0 where the difference of cosines is -offset / scale.
            default_threshold=1 / (1 + math.exp(offset)),
            review_band=0.1,
            box_threshold=0.5,
            region_threshold=0.5,
            merge_overlap=0.4,  # the boxes of one prompt often lie on each other
            most_boxes=3,
        ),
        ages=run.model.ages,
        origins=_origins(run, model),
        vocabulary=model.vocabulary.learned,
    )


def _origins(run: Run, model: TrainedModel) -> dict[str, str]:
    """Say where the weights of each part came from; empty if all came from this run."""
    own = {
        part_of(name)
        for name in model.network.state_dict()
        if any(begins_with(name, stage.train) and not begins_with(name, stage.frozen) for stage in run.stages)
    }
    if own == set(PARTS):
        return {}
    origins = dict.fromkeys(PARTS, f"{INITIAL}, seed {run.seed}")
    if run.start:
        start = read_manifest(Path(run.start))
        known = {part: start.origins.get(part, origin_of(start)) for part in PARTS}
        origins |= {part: origin for part, origin in known.items() if UNTRAINED not in origin}
    return origins | dict.fromkeys(own, f"{run.model.name} {run.model.version}, trained on {run.model.trained_on}")


def _card(run: Run, *, parameters: int) -> str:
    data = run.data
    films = [
        f"films of `{Path(source.file).name}`"
        + (f", without the patients held out (`{Path(source.held_out).name}`)" if source.held_out else "")
        + f", {source.repeat} times an epoch"
        for source in data.films
    ]
    if data.phantoms:
        films.insert(0, f"phantoms, seeds {data.first_seed} to {data.first_seed + data.phantoms - 1}")
    begun = read_manifest(Path(run.start)) if run.start_share else None
    return section(
        "trained",
        model=run.model,
        parameters=parameters,
        films=films,
        start_share=run.start_share,
        begun=begun and f"{begun.name} {begun.version}",
        seed=run.seed,
        stages=list(_stage_rows(run)),
    )


def _stage_rows(run: Run) -> Iterator[tuple[object, ...]]:
    """Yield a table row for each stage: its length and its last losses."""
    with (Path(run.output) / TABLE).open(encoding="utf-8", newline="") as file:
        last = {row["stage"]: row for row in csv.DictReader(file)}
    for stage in run.stages:
        if (row := last.get(stage.name)) is not None:
            losses = ", ".join(f"{name} {float(row[name]):.3g}" for name in stage.losses)
            batch = f"{stage.batch} x {stage.accumulation}"
            yield stage.name, row["step"], batch, f"{float(row['seconds']):.0f}", losses
