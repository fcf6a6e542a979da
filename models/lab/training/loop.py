"""The training loop: stages, steps, checkpoints. It runs in every process; only the first one writes files and reports.

A step depends only on the weights, the optimizer's state and its own number. A checkpoint therefore holds nothing else,
and a run that continues from it computes what it would have computed without the interruption.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import torch
from torch import Tensor

from models.lab.training import checkpoints
from models.lab.training.catalog import catalog_of
from models.lab.training.checkpoints import Checkpoint
from models.lab.training.labels import count_unused, remark_on, remarks_on, shares_of
from models.lab.training.noise import disturbed
from models.lab.training.process_group import ProcessGroup
from models.lab.training.records import Records
from models.lab.training.runfile import Run
from models.lab.training.stage_trainer import StageTrainer, open_trainer, take_step
from models.lab.training.store import open_film_store
from models.lab.training.trained_model import TrainedModel, build_model, set_box_tokens
from models.progress import ProgressReport, quiet

Stopped = Callable[[], bool]


@dataclass(slots=True, kw_only=True)
class _Progress:
    """The position of the run. sums: of losses and gradient norms since the last row; counted: over how many steps."""

    stage: int
    step: int
    seconds: float
    sums: Tensor
    counted: int


def train(
    run: Run, group: ProcessGroup, *, stopped: Stopped = lambda: False, report: ProgressReport = quiet
) -> TrainedModel | None:
    """Train all stages, starting at the checkpoint if there is one. Returns None if the run was stopped before the end.

    Raises ModelError if the run file does not fit the network, or if a loss is NaN or infinite.
    """
    torch.set_num_threads(run.machine.threads)
    cv2.setNumThreads(1)
    catalog = catalog_of(run.data.classes)
    film_store = open_film_store(run.data, run.store, catalog)
    if group.leads:
        for remark in (
            *remarks_on(run.stages, shares_of(film_store.lines())),
            *remark_on(count_unused(film_store.lines(), catalog)),
        ):
            report(remark)
    model = build_model(run, catalog, () if run.data.words == "full" else film_store.texts())
    checkpoint = checkpoints.load(Path(run.output), fingerprint=run.fingerprint)
    progress = _resumed(checkpoint, model)
    records = _records(run, progress) if group.leads else None
    try:
        for number in range(progress.stage, len(run.stages)):
            trainer = open_trainer(run, group, number=number, catalog=catalog, film_store=film_store, model=model)
            if checkpoint is not None and number == checkpoint["stage"]:
                trainer.optimizer.load_state_dict(dict(checkpoint["optimizer"]))
                trainer.scaler.load_state_dict(dict(checkpoint["scaler"]))
            else:
                sums = torch.zeros(len(trainer.stage.losses) + 1)
                progress = _Progress(stage=number, step=0, seconds=progress.seconds, sums=sums, counted=0)
                set_box_tokens(model.network, trainer.stage, catalog=catalog, vocabulary=model.vocabulary)
            if not _follow(trainer, progress, records, stopped=stopped, report=report):
                return None
    finally:
        if records is not None:
            records.close()
    return model


def _resumed(checkpoint: Checkpoint | None, model: TrainedModel) -> _Progress:
    if checkpoint is None:
        return _Progress(stage=0, step=0, seconds=0.0, sums=torch.zeros(0), counted=0)
    model.network.load_state_dict(checkpoint["network"])
    model.heads.load_state_dict(checkpoint["heads"])
    return _Progress(
        stage=checkpoint["stage"],
        step=checkpoint["step"],
        seconds=checkpoint["seconds"],
        sums=checkpoint["sums"],
        counted=checkpoint["counted"],
    )


def _records(run: Run, progress: _Progress) -> Records:
    return Records(
        Path(run.output),
        losses=list(dict.fromkeys(name for stage in run.stages for name in stage.losses)),
        stages=[stage.name for stage in run.stages],
        position=(progress.stage, progress.step),
        events=run.machine.events,
    )


def _follow(
    trainer: StageTrainer, progress: _Progress, records: Records | None, *, stopped: Stopped, report: ProgressReport
) -> bool:
    """Train one stage from the current position to its end. Returns False if the run was stopped."""
    machine = trainer.run.machine
    began, first = time.monotonic(), progress.step
    before = progress.seconds
    report(f"stage {trainer.stage.name}: {trainer.steps - first:,} steps to take")
    with disturbed(trainer.model.network.train(), trainer.stage.noise):
        while progress.step < trainer.steps:
            outcome = take_step(trainer, progress.step, stop=stopped())
            progress.step += 1
            progress.counted += 1
            progress.sums += torch.cat([outcome.losses, torch.tensor([outcome.gradient])])
            progress.seconds = before + time.monotonic() - began
            is_last = progress.step == trainer.steps
            if progress.step % machine.log == 0 or is_last:
                if records is not None:
                    pictures = (progress.step - first) * trainer.stage.batch * trainer.stage.accumulation
                    speed = pictures / (progress.seconds - before)
                    records.add(_row(trainer, progress, speed), update=progress.step)
                progress.sums, progress.counted = torch.zeros_like(progress.sums), 0
            if progress.step == first + machine.log and not is_last:
                report(_time_left(trainer, progress, taken=progress.seconds - before))
            report(f"stage {trainer.stage.name}", progress.step, trainer.steps)
            if outcome.halt or is_last or progress.step % machine.checkpoint == 0:
                _keep(trainer, progress)
            if outcome.halt and not is_last:
                return False
    return True


def _time_left(trainer: StageTrainer, progress: _Progress, *, taken: float) -> str:
    """Say how long the rest of a stage takes; taken: seconds of the first `log` steps since the start."""
    seconds = taken / trainer.run.machine.log
    hours = (trainer.steps - progress.step) * seconds / 3600
    return f"stage {trainer.stage.name}: {seconds:.3g} s a step, {hours:.3g} hours left of this stage"


def _row(trainer: StageTrainer, progress: _Progress, speed: float) -> dict[str, float | str]:
    means = (progress.sums / progress.counted).tolist()
    losses = dict(zip(trainer.stage.losses, means, strict=False))
    return {
        "stage": trainer.stage.name,
        "step": progress.step,
        "seconds": progress.seconds,
        "pictures_per_second": speed,
        "learning_rate": trainer.rate(progress.step - 1),
        "gradient": means[-1],
        "total": sum(losses[name] * weight for name, weight in trainer.stage.losses.items()),
        **losses,
    }


def _keep(trainer: StageTrainer, progress: _Progress) -> None:
    """Write a checkpoint, in the first process only."""
    if not trainer.group.leads:
        return
    checkpoint: Checkpoint = {
        "fingerprint": trainer.run.fingerprint,
        "stage": progress.stage,
        "step": progress.step,
        "seconds": progress.seconds,
        "sums": progress.sums,
        "counted": progress.counted,
        "network": dict(trainer.model.network.state_dict()),
        "heads": dict(trainer.model.heads.state_dict()),
        "optimizer": trainer.optimizer.state_dict(),
        "scaler": trainer.scaler.state_dict(),
    }
    checkpoints.save(Path(trainer.run.output), checkpoint)
