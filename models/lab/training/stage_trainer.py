"""Trains one stage: what its steps need, and one step. The run, the stage and the step's number determine a step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from models.errors import ModelError
from models.lab.training.batches import Batches, StageFilms
from models.lab.training.catalog import Catalog
from models.lab.training.forward import Forward
from models.lab.training.objectives import losses_of
from models.lab.training.process_group import ProcessGroup
from models.lab.training.random_streams import seed_torch, stream
from models.lab.training.runfile import Run
from models.lab.training.stages import Stage
from models.lab.training.store import FilmStore
from models.lab.training.text_encoding import TextEncoder
from models.lab.training.trained_model import TrainedModel, free

_HALF: Final = {"cpu": torch.bfloat16, "cuda": torch.float16}
"""What `machine.mixed_precision` computes in."""
_LOWEST: Final = 1e-7
_DECAY: Final = 0.3
"""The lowest learning rate, and the share of the batches at the end in which it falls."""


class Outcome(NamedTuple):
    """The result of one step. losses: [loss], unweighted, over all processes; gradient: its norm before clipping."""

    losses: Tensor
    gradient: float
    halt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTrainer:
    """A stage in training.

    number: of the stage in its run; weights: the weights it trains; steps: how many updates it has
    """

    run: Run
    group: ProcessGroup
    number: int
    stage: Stage
    steps: int
    catalog: Catalog
    batches: Batches
    model: TrainedModel
    weights: list[nn.Parameter]
    text_encoder: TextEncoder
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        every = self.stage.accumulation
        return learning_rate(self.stage, batch=(step + 1) * every - 1, batches=self.steps * every)


def open_trainer(
    run: Run, group: ProcessGroup, *, number: int, catalog: Catalog, film_store: FilmStore, model: TrainedModel
) -> StageTrainer:
    """Enable the gradients of a stage's weights, make its optimizer. Raises ModelError if it names no weights."""
    stage = run.stages[number]
    weights, heads = free(model.network, stage), list(model.heads.parameters())
    groups = [{"params": weights, "weight_decay": stage.weight_decay}, {"params": heads, "weight_decay": 0.0}]
    encoder = model.network.prompt_encoder
    on_gpu = run.machine.device == "cuda"  # bfloat16 needs no scaled loss
    learns = any(weight.requires_grad for weight in encoder.parameters())
    steps = stage.steps or max(1, stage.epochs * len(film_store) // (stage.batch * stage.accumulation))
    films = StageFilms(run, group, number=number, catalog=catalog, film_store=film_store)
    return StageTrainer(
        run=run,
        group=group,
        number=number,
        stage=stage,
        steps=steps,
        catalog=catalog,
        batches=Batches(films, end=steps * stage.accumulation, loaders=run.machine.loaders),
        model=model,
        weights=[*weights, *heads],
        text_encoder=TextEncoder(encoder, model.vocabulary, learns=learns, forgets=stage.noise.words),
        optimizer=torch.optim.AdamW(groups, lr=stage.learning_rate, fused=True),
        scaler=torch.amp.GradScaler(run.machine.device, enabled=run.machine.mixed_precision and on_gpu),
    )


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


def take_step(trainer: StageTrainer, step: int, *, stop: bool) -> Outcome:
    """Perform one update. stop: whether this process wants to stop after it; if one process does, all do.

    Raises ModelError if a loss is NaN or infinite, or if another process has ended.
    """
    stage, optimizer, scaler = trainer.stage, trainer.optimizer, trainer.scaler
    weights = torch.tensor(list(stage.losses.values()))
    seen = torch.zeros(len(weights))
    for place in range(step * stage.accumulation, (step + 1) * stage.accumulation):
        losses = _losses(trainer, place) / stage.accumulation
        total = (losses * weights.to(losses.device)).sum()
        if not total.isfinite():
            raise ModelError(f"stage {stage.name}: the loss of step {step} is NaN or infinite; lower learning_rate")
        torch.autograd.backward(scaler.scale(total))
        seen += losses.detach().cpu()
    scaler.unscale_(optimizer)
    *_, wishes = numbers = trainer.group.average(trainer.weights, torch.cat([seen, torch.tensor([float(stop)])]))
    norm = nn.utils.clip_grad_norm_(trainer.weights, stage.clip)
    for group in optimizer.param_groups:
        group["lr"] = trainer.rate(step)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return Outcome(losses=numbers[:-1], gradient=float(norm), halt=bool(wishes > 0))


def _losses(trainer: StageTrainer, place: int) -> Tensor:
    """Compute the losses of a batch [loss], in the stage's order; place: the number of the batch in the stage."""
    run, stage, group = trainer.run, trainer.stage, trainer.group
    # The same in all processes: every process then draws equally many questions and none waits for a slower one.
    rng = stream(run.seed, "batch", trainer.number, place)
    seed_torch(run.seed, "noise", trainer.number, place, group.rank)
    forward = Forward(
        trainer.model.network,
        trainer.model.heads,
        trainer.text_encoder,
        trainer.model.vocabulary,
        trainer.batches[place].to(run.machine.device),
        catalog=trainer.catalog,
        stage=stage,
        rng=rng,
    )
    with torch.autocast(run.machine.device, _HALF[run.machine.device], enabled=run.machine.mixed_precision):
        losses = losses_of(forward)
    return torch.stack([losses[name].float() for name in stage.losses])
