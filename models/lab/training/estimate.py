"""Says before a run how long it takes and what it needs: measures a few updates, and multiplies by the run's steps.

Model, batch, losses, noise and device are the run's own; the films are a sample of the run's, or made up where its
files are not there. Everything is made in a temporary folder, and nothing of the run is written.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import cv2
import torch

from models.errors import ModelError
from models.lab.training.catalog import Catalog, catalog_of
from models.lab.training.films import find_films
from models.lab.training.made_up import write_made_up
from models.lab.training.noise import disturbed
from models.lab.training.process_group import ProcessGroup, open_group
from models.lab.training.runfile import FilmSource, Run
from models.lab.training.stage_trainer import StageTrainer, open_trainer, steps_of, take_step
from models.lab.training.store import open_film_store, stock
from models.lab.training.trained_model import TrainedModel, build_model
from models.progress import ProgressReport, quiet

_SAMPLE: Final = 64
"""Films of each source that are made ready."""
_MOST_STEPS, _SECONDS = 5, 30.0
"""A stage is measured for so many updates, or until so much time has passed."""
_LEAST_WARM_UP, _MOST_WARM_UP = {"cpu": 1, "cuda": 3}, 20
"""Updates before those that count. With float16 the first ones may change nothing until the scale of the loss fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """One stage. steps: None if the number of films is not known.

    seconds: of an update, with the run's loaders; updating, reading: measured, in one process; measured: updates
    gpu_bytes: what PyTorch holds on the GPU at most, 0 on a CPU; state_bytes: of the optimizer
    """

    name: str
    batch: int
    accumulation: int
    steps: int | None
    seconds: float
    updating: float
    reading: float
    measured: int
    gpu_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a run needs.

    device: its name; films, stored: of an epoch, and on disk; None if not known
    missing: the files of films that are not there, so that made-up films were used; is_random: the model to start from
    is not there either
    storing_seconds: until the films are stored, None if they are made up
    process_bytes: memory of each process that trains; disk, in bytes: a stored film, a checkpoint, the model
    """

    device: str
    films: int | None
    stored: int | None
    missing: tuple[str, ...]
    is_random: bool
    storing_seconds: float | None
    stages: tuple[StageEstimate, ...]
    process_bytes: int
    film_bytes: int
    checkpoint_bytes: int
    model_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Films:
    """The run's films. of_epoch, stored: how many; None: not known; missing: files that are not there."""

    of_epoch: int | None
    stored: int | None
    missing: tuple[str, ...]


def estimate(run: Run, *, films: int | None, report: ProgressReport) -> Estimate:
    """Measure a few updates of each stage of a run.

    films: how many an epoch has; needed only where the run's files of films are not there
    Raises ModelError if the run's device or words are not there, or its films have mistakes.
    """
    if run.machine.device == "cuda" and not torch.cuda.is_available():
        raise ModelError("machine.device is cuda, and PyTorch finds no GPU here; estimate on the machine of the run")
    is_random = bool(run.start) and not Path(run.start).exists()
    if is_random and run.data.words == "start":
        raise ModelError(f"{run.start} is not there, and the run takes its words; make it, or correct start")
    counted = _counted(run, films)
    catalog = catalog_of(run.data.classes)
    with tempfile.TemporaryDirectory(prefix="estimate-") as folder:
        trial = _trial(run, counted, Path(folder), catalog, is_random=is_random)
        report("making films ready to measure with")
        began = time.monotonic()
        stock(trial.data, trial.store, renderers=1, report=quiet)
        spent = time.monotonic() - began
        made = _sizes(trial.store)
        with open_group(trial, _follow) as group:
            model, stages = _measure(trial, group, report)
    weights = sum(weight.numel() for weight in model.network.state_dict().values())
    is_known = counted.stored is not None and not counted.missing
    return Estimate(
        device=torch.cuda.get_device_name() if run.machine.device == "cuda" else "CPU",
        films=counted.of_epoch,
        stored=counted.stored,
        missing=counted.missing,
        is_random=is_random,
        storing_seconds=spent / made.films * (counted.stored or 0) / run.machine.renderers if is_known else None,
        stages=tuple(
            replace(own, steps=_steps(run, number, counted.of_epoch), seconds=_expected(run, own))
            for number, own in enumerate(stages)
        ),
        process_bytes=_peak_memory(),
        film_bytes=made.bytes // made.films,
        checkpoint_bytes=4 * weights + max(own.state_bytes for own in stages),
        model_bytes=(2 if run.model.store == "half" else 4) * weights,
    )


def _counted(run: Run, films: int | None) -> _Films:
    """Count the films of an epoch and those that are stored. Raises ModelError if a file of films has mistakes."""
    data = run.data
    missing = tuple(source.file for source in data.films if not Path(source.file).exists())
    if missing:
        return _Films(of_epoch=films, stored=films, missing=missing)
    counts = [len(find_films(source)) for source in data.films]
    most = max([data.phantoms, *counts])
    uses = [source.times(own=own, most=most) for source, own in zip(data.films, counts, strict=True)]
    of_epoch = data.phantoms + sum(own * times for own, times in zip(counts, uses, strict=True))
    return _Films(of_epoch=of_epoch, stored=data.phantoms + sum(counts), missing=())


def _trial(run: Run, films: _Films, folder: Path, catalog: Catalog, *, is_random: bool) -> Run:
    """Return the run with a sample of its films in a folder, and without loaders, whose work is measured apart."""
    sources = [replace(source, most=min(source.most or _SAMPLE, _SAMPLE)) for source in run.data.films]
    if films.missing:
        sources = [FilmSource(file=str(write_made_up(folder, run.data, catalog, count=_SAMPLE)))]
    steps = [_steps(run, number, films.of_epoch) for number in range(len(run.stages))]
    return replace(
        run,
        start="" if is_random else run.start,
        start_share=0.0 if is_random else run.start_share,
        data=replace(
            run.data, phantoms=min(run.data.phantoms, _SAMPLE), films=tuple(sources), store=str(folder / "films")
        ),
        stages=tuple(
            replace(stage, epochs=0, steps=number or _MOST_WARM_UP + _MOST_STEPS)
            for stage, number in zip(run.stages, steps, strict=True)
        ),
        machine=replace(run.machine, loaders=0),
    )


def _steps(run: Run, number: int, films: int | None) -> int | None:
    stage = run.stages[number]
    if films is None:
        return stage.steps or None
    return steps_of(stage, films=films)


def _follow(run: Run, group: ProcessGroup) -> None:
    """Take the same updates in one of the other processes."""
    _measure(run, group, quiet)


def _measure(run: Run, group: ProcessGroup, report: ProgressReport) -> tuple[TrainedModel, list[StageEstimate]]:
    torch.set_num_threads(run.machine.threads)
    cv2.setNumThreads(1)
    catalog = catalog_of(run.data.classes)
    film_store = open_film_store(run.data, run.store, catalog)
    model = build_model(run, catalog, () if run.data.words == "full" else film_store.texts())
    stages = []
    for number, stage in enumerate(run.stages):
        report(f"measuring stage {stage.name}")
        trainer = open_trainer(run, group, number=number, catalog=catalog, film_store=film_store, model=model)
        with disturbed(model.network.train(), stage.noise):
            stages.append(_stage(trainer))
    return model, stages


def _stage(trainer: StageTrainer) -> StageEstimate:
    """Measure the updates of one stage, and apart from them what reading and augmenting their films took."""
    on_gpu = trainer.run.machine.device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = _warmed_up(trainer)
    first, began = step, _now(on_gpu)
    while step < first + _MOST_STEPS:
        is_late = time.monotonic() - began > _SECONDS
        outcome = take_step(trainer, step, stop=is_late)
        step += 1
        if outcome.halt:
            break
    updating = (_now(on_gpu) - began) / (step - first)
    return StageEstimate(
        name=trainer.stage.name,
        batch=trainer.stage.batch,
        accumulation=trainer.stage.accumulation,
        steps=None,
        seconds=updating,
        updating=updating,
        reading=_reading(trainer, first),
        measured=step - first,
        gpu_bytes=torch.cuda.max_memory_reserved() if on_gpu else 0,
        state_bytes=sum(part.nbytes for part in _parts(trainer.optimizer)),
    )


def _warmed_up(trainer: StageTrainer) -> int:
    """Take updates until the optimizer's state is there, on a GPU at least three. Returns how many."""
    for step in range(_MOST_WARM_UP):
        take_step(trainer, step, stop=False)
        if trainer.optimizer.state and step + 1 >= _LEAST_WARM_UP[trainer.run.machine.device]:
            return step + 1
    raise ModelError(
        f"stage {trainer.stage.name}: {_MOST_WARM_UP} updates changed nothing, since their gradients are NaN or "
        "infinite; set mixed_precision = false"
    )


def _reading(trainer: StageTrainer, step: int) -> float:
    """Measure how long the films of an update take to read and augment, by its first batches."""
    count = trainer.stage.accumulation
    first, began = step * count, time.monotonic()
    for done in range(1, count + 1):
        _ = trainer.batches[first + done - 1]
        if time.monotonic() - began > _SECONDS / 3:
            break
    return (time.monotonic() - began) / done * count


def _parts(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for state in optimizer.state.values():
        yield from (part for part in state.values() if isinstance(part, torch.Tensor))


def _expected(run: Run, stage: StageEstimate) -> float:
    """Return the seconds of an update; loaders read while the step computes, as many at a time as there are cores."""
    loaders = min(run.machine.loaders, len(os.sched_getaffinity(0)))
    if not loaders:
        return stage.updating
    return max(stage.updating - stage.reading, stage.reading / loaders)


def _now(on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
    return time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    films: int
    bytes: int


def _sizes(store: Path) -> _Made:
    """Count the stored films of the sample, and their bytes."""
    lines = sum(path.read_bytes().count(b"\n") for path in store.glob("*.jsonl"))
    return _Made(films=lines, bytes=sum(path.stat().st_size for path in store.glob("*.[jn]*")))


def _peak_memory() -> int:
    """Return the peak of this process's memory in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
