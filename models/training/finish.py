"""The end of a run: a model directory, whole or not at all (DESIGN.md 4)."""

from __future__ import annotations

import csv
import math
import shutil
from pathlib import Path

from models.checkpoint import CARD, file_sha256, save_weights
from models.checkpoint.importer import new_directory
from models.manifest import WEIGHTS, Decisions, InputRule, Manifest, read_manifest, write_manifest
from models.tokenizers import VOCABULARIES
from models.training.pupil import PROMPT_TOKENS, SENTENCE_TOKENS, Pupil
from models.training.records import TABLE
from models.training.runfile import Run

MODEL = "model"
"""The model directory, in the run's folder."""


def write_model(run: Run, pupil: Pupil) -> Path:
    """Write the model directory of a finished run. Raises OSError where the disk fails."""
    directory = Path(run.output) / MODEL
    state = pupil.state()
    half = {"float32": (), "half_embeddings": (PROMPT_TOKENS, SENTENCE_TOKENS), "half": tuple(state)}[run.model.store]
    with new_directory(directory) as aside:
        save_weights(aside / WEIGHTS, state, half=half)
        (aside / "vocab").mkdir()
        for vocabulary in sorted(VOCABULARIES.iterdir()):
            shutil.copyfile(vocabulary, aside / "vocab" / vocabulary.name)
        parameters = sum(weight.numel() for weight in state.values())
        (aside / CARD).write_text(_card(run, parameters=parameters), encoding="utf-8")
        names = [WEIGHTS, CARD, *(f"vocab/{path.name}" for path in sorted((aside / "vocab").iterdir()))]
        write_manifest(aside, _manifest(run, pupil, files={name: file_sha256(aside / name) for name in names}))
        read_manifest(aside)
    return directory


def _manifest(run: Run, pupil: Pupil, *, files: dict[str, str]) -> Manifest:
    """Make the manifest. Learned scale and offset become temperature and threshold; evaluation calibrates them."""
    scale, offset = pupil.heads.scale.item(), pupil.heads.offset.item()
    return Manifest(
        name=run.model.name,
        version=run.model.version,
        licence=run.model.licence,
        trained_on=run.model.trained_on,
        intended_use=run.model.intended_use,
        gray=run.model.gray,
        input=InputRule(
            size=run.network.image_encoder.image_size, mean=run.model.mean, std=run.model.std, resize=run.model.resize
        ),
        sizes=run.network,
        decisions=Decisions(
            temperature=math.exp(-scale),
            # Where the logit is 0 the difference of cosines is -offset / scale.
            default_threshold=1 / (1 + math.exp(offset)),
            review_band=0.1,
            box_threshold=0.5,
            region_threshold=0.5,
        ),
        files=files,
    )


def _card(run: Run, *, parameters: int) -> str:
    data = run.data
    films = [
        f"films of `{Path(one.file).name}`, without {one.held_out:.0%} of the patients, {one.repeat} times an epoch"
        for one in data.films
    ]
    if data.phantoms:
        films.insert(0, f"phantoms, seeds {data.first_seed} to {data.first_seed + data.phantoms - 1}")
    rows = "\n".join(_stage_rows(run))
    return f"""# {run.model.name} {run.model.version}

**A demonstration, not a medical device.** Its boxes, probabilities and sentences must never be used for a patient, not
even as a hint.

- Architecture: ChEX, {parameters:,} parameters; sizes stand in `manifest.toml`.
- Trained on: {run.model.trained_on}
- Films: {"; ".join(films)}.
- Intended use: {run.model.intended_use}
- Licence: {run.model.licence}; the vocabularies in `vocab/` have their own.
- Thresholds: as the training left them, **not calibrated**.
- Performance: not measured yet; `python -m models.evaluate` measures it.

## Training

By `python -m models.train`, seed {run.seed}. Losses are means over the last rows of the log, before their weights.

| stage | steps | batch | seconds so far | losses |
|---|---|---|---|---|
{rows}
"""


def _stage_rows(run: Run) -> list[str]:
    """Tell of each stage how long it was and what its losses came to."""
    with (Path(run.output) / TABLE).open(encoding="utf-8", newline="") as file:
        last = {row["stage"]: row for row in csv.DictReader(file)}
    return [
        f"| {stage.name} | {row['step']} | {stage.batch} x {stage.accumulation} | {float(row['seconds']):.0f} | "
        + ", ".join(f"{name} {float(row[name]):.3g}" for name in stage.losses)
        + " |"
        for stage in run.stages
        if (row := last.get(stage.name)) is not None
    ]
