"""The run itself: stages, steps, checkpoints. The same in every process; only the first one writes and reports.

A step depends on nothing but weights, the optimizer's state and its number. So a checkpoint needs no more, and a run
that goes on computes what it would have computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import torch
from torch import Tensor

from models.progress import Report, quiet
from models.training import checkpoints
from models.training.catalog import catalog_of
from models.training.checkpoints import Standing
from models.training.course import Course, open_course, take_step
from models.training.noise import disturbed
from models.training.pupil import Pupil, enroll
from models.training.records import Records
from models.training.runfile import Run
from models.training.store import open_library
from models.training.team import Team

Stopped = Callable[[], bool]


@dataclass(slots=True, kw_only=True)
class _Progress:
    """Where the run stands. sums: of losses since the last row, and of gradients' norms; counted: steps of them."""

    stage: int
    step: int
    seconds: float
    sums: Tensor
    counted: int


def train(run: Run, team: Team, *, stopped: Stopped = lambda: False, report: Report = quiet) -> Pupil | None:
    """Train all stages, from the checkpoint on where there is one. None where it was stopped before the end.

    Raises ModelError where the run file asks for what the network has not, or a loss is no number.
    """
    torch.set_num_threads(run.machine.threads)
    cv2.setNumThreads(1)
    catalog = catalog_of(run.data.classes)
    library = open_library(run.data, run.store, catalog)
    pupil = enroll(run, catalog, library.texts() if run.data.words == "seen" else ())
    standing = checkpoints.load(Path(run.output), fingerprint=run.fingerprint)
    progress = _resumed(standing, pupil)
    records = _records(run, progress) if team.leads else None
    try:
        for number in range(progress.stage, len(run.stages)):
            course = open_course(run, team, number=number, catalog=catalog, library=library, pupil=pupil)
            if standing is not None and number == standing["stage"]:
                course.optimizer.load_state_dict(dict(standing["optimizer"]))
                course.scaler.load_state_dict(dict(standing["scaler"]))
            else:
                sums = torch.zeros(len(course.stage.losses) + 1)
                progress = _Progress(stage=number, step=0, seconds=progress.seconds, sums=sums, counted=0)
            if not _follow(course, progress, records, stopped=stopped, report=report):
                return None
    finally:
        if records is not None:
            records.close()
    return pupil


def _resumed(standing: Standing | None, pupil: Pupil) -> _Progress:
    if standing is None:
        return _Progress(stage=0, step=0, seconds=0.0, sums=torch.zeros(0), counted=0)
    pupil.network.load_state_dict(standing["network"])
    pupil.heads.load_state_dict(standing["heads"])
    return _Progress(
        stage=standing["stage"],
        step=standing["step"],
        seconds=standing["seconds"],
        sums=standing["sums"],
        counted=standing["counted"],
    )


def _records(run: Run, progress: _Progress) -> Records:
    return Records(
        Path(run.output),
        losses=list(dict.fromkeys(name for stage in run.stages for name in stage.losses)),
        stages=[stage.name for stage in run.stages],
        standing=(progress.stage, progress.step),
        events=run.machine.events,
    )


def _follow(course: Course, progress: _Progress, records: Records | None, *, stopped: Stopped, report: Report) -> bool:
    """Train one stage from where it stands. Returns False where it was stopped."""
    machine = course.run.machine
    began, first = time.monotonic(), progress.step
    before = progress.seconds
    with disturbed(course.pupil.network.train(), course.stage.noise):
        while progress.step < course.steps:
            outcome = take_step(course, progress.step, stop=stopped())
            progress.step += 1
            progress.counted += 1
            progress.sums += torch.cat([outcome.losses, torch.tensor([outcome.gradient])])
            progress.seconds = before + time.monotonic() - began
            is_last = progress.step == course.steps
            if progress.step % machine.log == 0 or is_last:
                if records is not None:
                    pictures = (progress.step - first) * course.stage.batch * course.stage.accumulation
                    speed = pictures / (progress.seconds - before)
                    records.add(_row(course, progress, speed), update=progress.step)
                progress.sums, progress.counted = torch.zeros_like(progress.sums), 0
            report(f"stage {course.stage.name}", progress.step, course.steps)
            if outcome.halt or is_last or progress.step % machine.checkpoint == 0:
                _keep(course, progress)
            if outcome.halt and not is_last:
                return False
    return True


def _row(course: Course, progress: _Progress, speed: float) -> dict[str, float | str]:
    means = (progress.sums / progress.counted).tolist()
    losses = dict(zip(course.stage.losses, means, strict=False))
    return {
        "stage": course.stage.name,
        "step": progress.step,
        "seconds": progress.seconds,
        "pictures_per_second": speed,
        "learning_rate": course.rate(progress.step - 1),
        "gradient": means[-1],
        "total": sum(losses[name] * weight for name, weight in course.stage.losses.items()),
        **losses,
    }


def _keep(course: Course, progress: _Progress) -> None:
    """Write a checkpoint, in the first process."""
    if not course.team.leads:
        return
    standing: Standing = {
        "fingerprint": course.run.fingerprint,
        "stage": progress.stage,
        "step": progress.step,
        "seconds": progress.seconds,
        "sums": progress.sums,
        "counted": progress.counted,
        "network": dict(course.pupil.network.state_dict()),
        "heads": dict(course.pupil.heads.state_dict()),
        "optimizer": course.optimizer.state_dict(),
        "scaler": course.scaler.state_dict(),
    }
    checkpoints.save(Path(course.run.output), standing)
