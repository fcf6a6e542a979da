"""The training loop in plain PyTorch: films, stages, steps, checkpoints, and at the end the model directory (spec §10).

torchrun starts as many processes as the run file says. All of them run this file, each on its own films of a batch, and
make the same updates; the first one writes files and reports. On two cores two processes with one thread each are
faster than one with two.

A step depends only on the weights, the optimizer's state and its own number: every random number comes from the run's
seed and the number of the step. A checkpoint therefore holds nothing else, and a run that was killed goes on from it
with the films and the random numbers that it would have had.
"""

from __future__ import annotations

import csv
import math
import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple, TypedDict, cast

import cv2
import torch
from torch import Tensor, distributed, nn

from models import progress as shown
from models.errors import ModelError
from models.files import replacing
from models.lab.training.batch import Batch, StageFilms, load
from models.lab.training.catalog import Catalog, catalog_of
from models.lab.training.forward import Forward
from models.lab.training.labels import count_unused
from models.lab.training.model_writer import MODEL, TABLE, write_model
from models.lab.training.noise import disturbed
from models.lab.training.objectives import losses_of
from models.lab.training.random_streams import seed_torch, stream
from models.lab.training.runfile import Run
from models.lab.training.stages import Stage
from models.lab.training.store import FilmStore, open_film_store, stock
from models.lab.training.text_encoding import TextEncoder
from models.lab.training.trained_model import TrainedModel, build_model, free, set_box_tokens
from models.lab.training.workers import Stopped
from models.program import command_for
from models.progress import ProgressReport, quiet

CHECKPOINT: Final = "checkpoint.pt"
_HALF: Final = {"cpu": torch.bfloat16, "cuda": torch.float16}
"""The data type of `machine.mixed_precision`, by device."""
_LOWEST: Final = 1e-7
_DECAY: Final = 0.3
"""The lowest learning rate, and the share of the batches at the end in which it falls."""
_PATIENCE: Final = timedelta(minutes=10)
_PATIENCE_WITH_FILMS: Final = timedelta(days=7)
"""How long a process waits for the others: for a step, and until the first one has made the films."""
_COLUMNS: Final = ("stage", "step", "seconds", "pictures_per_second", "learning_rate", "gradient", "total")


def train_by(run: Run, stop: Event) -> Path | None:
    """Make the films, train, and write the model. Returns its directory, or None if the run was stopped.

    stop: set this to end the run after the current step
    Raises ModelError if the output exists already or if torchrun started another number of processes, and OSError if a
    file cannot be written or a process ended unexpectedly.
    """
    output, processes = Path(run.output), run.machine.processes
    if (output / MODEL).exists():
        raise ModelError(f"{output / MODEL} exists already; name another output folder, or delete this directory")
    if _size() != processes:
        raise ModelError(
            f"machine.processes is {processes}, and {_size()} run; start them with torchrun --standalone "
            f"--nproc-per-node {processes} --no-python {command_for('models.train')} RUN.toml"
        )
    output.mkdir(parents=True, exist_ok=True)
    with shown.on(sys.stderr) as bar, _process_group():
        report = bar if is_first() else quiet
        if not _make_films(run, stopped=stop.is_set, report=report):
            return None
        model = train(run, stopped=stop.is_set, report=report)
        if model is None:
            return None
        return write_model(run, model) if is_first() else output / MODEL


def train(run: Run, *, stopped: Stopped = lambda: False, report: ProgressReport = quiet) -> TrainedModel | None:
    """Train all stages, starting at the checkpoint if there is one. Returns None if the run was stopped before the end.

    Raises ModelError if the run file does not fit the network, or if a loss is NaN or infinite.
    """
    torch.set_num_threads(run.machine.threads)
    cv2.setNumThreads(1)
    catalog = catalog_of(run.data.classes)
    film_store = open_film_store(run.data, run.store, catalog)
    if unused := count_unused(film_store.lines(), catalog):
        report(f"not used by this run: {', '.join(f'{count} {what}' for what, count in sorted(unused.items()))}")
    model = build_model(run, catalog, () if run.data.words == "full" else film_store.texts())
    begun = load_checkpoint(Path(run.output), fingerprint=run.fingerprint)
    progress = Progress()
    if begun is not None:
        model.network.load_state_dict(begun["network"])
        model.heads.load_state_dict(begun["heads"])
        progress = Progress(**begun["progress"])
    first = progress.stage
    for number in range(first, len(run.stages)):
        trainer = open_trainer(run, number=number, catalog=catalog, film_store=film_store, model=model)
        if begun is not None and number == first:
            trainer.optimizer.load_state_dict(dict(begun["optimizer"]))
            trainer.scaler.load_state_dict(dict(begun["scaler"]))
        else:
            sums = torch.zeros(len(trainer.stage.losses) + 1)
            progress = Progress(stage=number, seconds=progress.seconds, sums=sums, rows=progress.rows)
            set_box_tokens(model.network, trainer.stage, catalog=catalog, vocabulary=model.vocabulary)
        if not _train_stage(trainer, progress, stopped=stopped, report=report):
            return None
    return model


# One stage: what its steps need, and one step.


@dataclass(slots=True, kw_only=True)
class Progress:
    """The position of a run.

    sums: sums of losses and gradient norms over the `counted` steps since the last row; rows: those of its log so far
    """

    stage: int = 0
    step: int = 0
    seconds: float = 0.0
    sums: Tensor = field(default_factory=lambda: torch.zeros(0))
    counted: int = 0
    rows: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTrainer:
    """A stage in training.

    number: index of the stage in its run; weights: the weights it trains; steps: number of updates
    """

    run: Run
    number: int
    stage: Stage
    steps: int
    catalog: Catalog
    films: StageFilms
    model: TrainedModel
    weights: list[nn.Parameter]
    text_encoder: TextEncoder
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def batches(self, step: int) -> Iterator[Batch]:
        """Read and augment the batches from a step on; if the run has loaders, before the steps need them."""
        places = range(step * self.stage.accumulation, self.steps * self.stage.accumulation)
        return load(self.films, places, loaders=self.run.machine.loaders)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        every = self.stage.accumulation
        return learning_rate(self.stage, batch=(step + 1) * every - 1, batches=self.steps * every)


class Outcome(NamedTuple):
    """The result of one step. losses: [loss], unweighted, over all processes; gradient: its norm before clipping."""

    losses: Tensor
    gradient: float
    halt: bool


def open_trainer(
    run: Run, *, number: int, catalog: Catalog, film_store: FilmStore, model: TrainedModel
) -> StageTrainer:
    """Enable the gradients of a stage's weights, make its optimizer. Raises ModelError if it names no weights."""
    stage = run.stages[number]
    weights, heads = free(model.network, stage), list(model.heads.parameters())
    groups = [{"params": weights, "weight_decay": stage.weight_decay}, {"params": heads, "weight_decay": 0.0}]
    encoder = model.network.prompt_encoder
    on_gpu = run.machine.device == "cuda"  # bfloat16 needs no scaled loss
    learns = any(weight.requires_grad for weight in encoder.parameters())
    return StageTrainer(
        run=run,
        number=number,
        stage=stage,
        steps=stage.steps or max(1, stage.epochs * len(film_store) // (stage.batch * stage.accumulation)),
        catalog=catalog,
        films=StageFilms(run, number=number, catalog=catalog, film_store=film_store, part=rank(), parts=_size()),
        model=model,
        weights=[*weights, *heads],
        text_encoder=TextEncoder(encoder, model.vocabulary, learns=learns, forgets=stage.noise.words),
        optimizer=torch.optim.AdamW(groups, lr=stage.learning_rate, fused=True),
        scaler=torch.amp.GradScaler(run.machine.device, enabled=run.machine.mixed_precision and on_gpu),
    )


def _train_stage(trainer: StageTrainer, progress: Progress, *, stopped: Stopped, report: ProgressReport) -> bool:
    """Train one stage from the current position to its end. Returns False if the run was stopped."""
    machine, name = trainer.run.machine, f"stage {trainer.stage.name}"
    began, first, before = time.monotonic(), progress.step, progress.seconds
    batches = trainer.batches(first)
    report(f"{name}: {trainer.steps - first:,} steps to take")
    with disturbed(trainer.model.network.train(), trainer.stage.noise):
        while progress.step < trainer.steps:
            outcome = take_step(trainer, progress.step, batches, stop=stopped())
            progress.step += 1
            progress.counted += 1
            progress.sums += torch.cat([outcome.losses, torch.tensor([outcome.gradient])])
            progress.seconds = before + time.monotonic() - began
            is_last = progress.step == trainer.steps
            if progress.step % machine.log == 0 or is_last:
                pictures = (progress.step - first) * trainer.stage.batch * trainer.stage.accumulation
                progress.rows.append(_row(trainer, progress, speed=pictures / (progress.seconds - before)))
                if is_first():
                    _write_log(trainer.run, progress.rows)
                progress.sums, progress.counted = torch.zeros_like(progress.sums), 0
            if progress.step == first + machine.log and not is_last:
                seconds = (progress.seconds - before) / machine.log
                hours = (trainer.steps - progress.step) * seconds / 3600
                report(f"{name}: {seconds:.3g} s a step, {hours:.3g} hours left of this stage")
            report(name, progress.step, trainer.steps)
            if (outcome.halt or is_last or progress.step % machine.checkpoint == 0) and is_first():
                save_checkpoint(trainer, progress)
            if outcome.halt and not is_last:
                return False
    return True


def take_step(trainer: StageTrainer, step: int, batches: Iterator[Batch], *, stop: bool) -> Outcome:
    """Perform one update. stop: whether this process wants to stop after it; if one process does, all do.

    batches: those from this step on
    Raises ModelError if a loss is NaN or infinite, or if another process has ended.
    """
    stage, optimizer, scaler = trainer.stage, trainer.optimizer, trainer.scaler
    weights = torch.tensor(list(stage.losses.values()))
    seen = torch.zeros(len(weights))
    for place in range(step * stage.accumulation, (step + 1) * stage.accumulation):
        losses = _losses(trainer, place, next(batches)) / stage.accumulation
        total = (losses * weights.to(losses.device)).sum()
        if not total.isfinite():
            raise ModelError(f"stage {stage.name}: the loss of step {step} is NaN or infinite; lower learning_rate")
        torch.autograd.backward(scaler.scale(total))
        seen += losses.detach().cpu()
    scaler.unscale_(optimizer)
    *_, wishes = numbers = _average(trainer.weights, torch.cat([seen, torch.tensor([float(stop)])]))
    norm = nn.utils.clip_grad_norm_(trainer.weights, stage.clip)
    for group in optimizer.param_groups:
        group["lr"] = trainer.rate(step)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return Outcome(losses=numbers[:-1], gradient=float(norm), halt=bool(wishes > 0))


def _losses(trainer: StageTrainer, place: int, batch: Batch) -> Tensor:
    """Compute the losses of a batch [loss], in the stage's order; place: the number of the batch in the stage."""
    run, stage = trainer.run, trainer.stage
    # The same in all processes: every process then draws equally many questions and none waits for a slower one.
    rng = stream(run.seed, "batch", trainer.number, place)
    seed_torch(run.seed, "noise", trainer.number, place, rank())
    forward = Forward(
        trainer.model.network,
        trainer.model.heads,
        trainer.text_encoder,
        trainer.model.vocabulary,
        batch.to(run.machine.device),
        catalog=trainer.catalog,
        stage=stage,
        rng=rng,
    )
    with torch.autocast(run.machine.device, _HALF[run.machine.device], enabled=run.machine.mixed_precision):
        losses = losses_of(forward)
    return torch.stack([losses[name].float() for name in stage.losses])


def learning_rate(stage: Stage, *, batch: int, batches: int) -> float:
    """Return the rate at a batch, counted in batches, not in updates (spec §10); batches: how many the stage has.

    "cosine" is timm's CosineLRScheduler with one cycle: the warm-up replaces the beginning of the cycle.
    """
    if batch < stage.warm_up:
        return stage.learning_rate * batch / stage.warm_up
    done = min(batch / batches, 1.0)
    if stage.schedule == "cosine":
        return _LOWEST + (stage.learning_rate - _LOWEST) * (1 + math.cos(math.pi * done)) / 2
    return max(_LOWEST, stage.learning_rate * min(1.0, (1 - done) / _DECAY))


# The checkpoint, and the log.


class Checkpoint(TypedDict):
    """Everything a run needs to continue as if it had not been stopped.

    fingerprint: identifies the run; progress: the fields of `Progress`; network, heads, optimizer, scaler: state dicts
    """

    fingerprint: str
    progress: dict[str, Any]
    network: dict[str, Tensor]
    heads: dict[str, Tensor]
    optimizer: Mapping[str, object]
    scaler: Mapping[str, object]


def save_checkpoint(trainer: StageTrainer, progress: Progress) -> None:
    """Write the checkpoint. It replaces the previous one atomically: a kill at any moment leaves a complete file."""
    checkpoint = {
        "fingerprint": trainer.run.fingerprint,
        "progress": asdict(progress),
        "network": dict(trainer.model.network.state_dict()),
        "heads": dict(trainer.model.heads.state_dict()),
        "optimizer": trainer.optimizer.state_dict(),
        "scaler": trainer.scaler.state_dict(),
    }
    with replacing(Path(trainer.run.output) / CHECKPOINT) as file:
        torch.save(checkpoint, file)


def load_checkpoint(folder: Path, *, fingerprint: str) -> Checkpoint | None:
    """Read the checkpoint; None if there is none. Raises ModelError if it is damaged or belongs to another run."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        checkpoint = cast("Checkpoint", torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ModelError(f"{path} cannot be read ({error}); delete it to start the run from the beginning") from error
    if checkpoint["fingerprint"] != fingerprint:
        raise ModelError(
            f"{path} belongs to a run with other settings, or to another version of this program; restore these, or "
            "name another output folder"
        )
    return checkpoint


def _write_log(run: Run, rows: Sequence[Mapping[str, str]]) -> None:
    """Write the table of a run as CSV: as a checkpoint has its rows, every step is in it once, also after a kill."""
    columns = [*_COLUMNS, *dict.fromkeys(name for stage in run.stages for name in stage.losses)]
    with (Path(run.output) / TABLE).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _row(trainer: StageTrainer, progress: Progress, *, speed: float) -> dict[str, str]:
    means = (progress.sums / progress.counted).tolist()
    losses = dict(zip(trainer.stage.losses, means, strict=False))
    numbers = {
        "step": progress.step,
        "seconds": progress.seconds,
        "pictures_per_second": speed,
        "learning_rate": trainer.rate(progress.step - 1),
        "gradient": means[-1],
        "total": sum(losses[name] * weight for name, weight in trainer.stage.losses.items()),
        **losses,
    }
    return {"stage": trainer.stage.name} | {key: f"{number:.6g}" for key, number in numbers.items()}


# Several processes.


def rank() -> int:
    """Return the number of this process, which torchrun gave it."""
    return int(os.environ.get("RANK", "0"))


def is_first() -> bool:
    """Return whether this process is the one that writes files and reports."""
    return rank() == 0


def _size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _make_films(run: Run, *, stopped: Stopped, report: ProgressReport) -> bool:
    """Let the first process make the missing films; the others wait for it. Returns False in all if it was stopped.

    Raises as `stock`, and ModelError if the first process has ended.
    """
    is_made = not is_first() or stock(
        run.data, run.store, renderers=run.machine.renderers, report=report, stopped=stopped
    )
    if _size() == 1:
        return is_made
    told = torch.tensor([is_made])
    try:
        distributed.monitored_barrier(timeout=_PATIENCE_WITH_FILMS)
        distributed.broadcast(told, src=0)
    except RuntimeError as error:
        raise ModelError(f"process {rank()} lost the others ({error}); run the command again") from error
    return bool(told.item())


def _average(weights: Sequence[nn.Parameter], numbers: Tensor) -> Tensor:
    """Average the gradients of weights over all processes, in place; a weight without a gradient counts as zeros.

    numbers: [n], further numbers to average, which are returned. Raises ModelError if another process has ended.
    """
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    if _size() == 1:
        return numbers
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), numbers])
    try:
        distributed.all_reduce(flat)
    except RuntimeError as error:
        raise ModelError(f"process {rank()} lost the others ({error}); run the command again") from error
    flat /= _size()
    *parts, numbers = torch.split(flat, [*(gradient.numel() for gradient in gradients), len(numbers)])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return numbers


@contextmanager
def _process_group() -> Iterator[None]:
    """Meet the other processes that torchrun started, if there are any."""
    if _size() == 1:
        yield
        return
    distributed.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield
    finally:
        distributed.destroy_process_group()
