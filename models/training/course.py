"""One stage at work: what its steps need, and a step. A step is decided by the run, the stage and its own number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.errors import ModelError
from models.training.augment import augment
from models.training.batch import Batch, collate
from models.training.catalog import Catalog
from models.training.draws import film_numbers, seed_torch, stream
from models.training.forward import Forward
from models.training.objectives import losses_of
from models.training.parts import free
from models.training.pupil import Pupil
from models.training.runfile import Run
from models.training.schedule import learning_rate
from models.training.stages import Stage
from models.training.store import Library
from models.training.team import Team
from models.training.texts import Speech


class Outcome(NamedTuple):
    """Of one step. losses: [loss], unweighted, of all processes; gradient: their norm before it is clipped."""

    losses: Tensor
    gradient: float
    halt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A stage, number `number` of its run; weights: those that learn; steps: updates there will be."""

    run: Run
    team: Team
    number: int
    stage: Stage
    steps: int
    catalog: Catalog
    library: Library
    pupil: Pupil
    weights: list[nn.Parameter]
    speech: Speech
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def rate(self, step: int) -> float:
        """Give the learning rate of a step."""
        every = self.stage.accumulation
        return learning_rate(self.stage, batch=(step + 1) * every - 1, batches=self.steps * every)


def open_course(run: Run, team: Team, *, number: int, catalog: Catalog, library: Library, pupil: Pupil) -> Course:
    """Free the weights of a stage and make its optimizer. Raises ModelError where the stage names no weights."""
    stage = run.stages[number]
    weights, heads = free(pupil.network, stage), list(pupil.heads.parameters())
    groups = [{"params": weights, "weight_decay": stage.weight_decay}, {"params": heads, "weight_decay": 0.0}]
    encoder = pupil.network.prompt_encoder
    learns = any(weight.requires_grad for weight in encoder.parameters())
    return Course(
        run=run,
        team=team,
        number=number,
        stage=stage,
        steps=steps_of(stage, films=len(library)),
        catalog=catalog,
        library=library,
        pupil=pupil,
        weights=[*weights, *heads],
        speech=Speech(encoder, pupil.tongue, learns=learns, forgets=stage.noise.words),
        optimizer=torch.optim.AdamW(groups, lr=stage.learning_rate, fused=True),
        scaler=torch.amp.GradScaler(run.machine.device, enabled=run.machine.mixed_precision),
    )


def steps_of(stage: Stage, *, films: int) -> int:
    """Count the updates of a stage."""
    return stage.steps or max(1, stage.epochs * films // (stage.batch * stage.accumulation))


def take_step(course: Course, step: int, *, stop: bool) -> Outcome:
    """Make one update. stop: whether this process wants to stop after it; all do if one does.

    Raises ModelError where a loss is no number, or another process is gone.
    """
    stage, optimizer, scaler = course.stage, course.optimizer, course.scaler
    weights = torch.tensor(list(stage.losses.values()))
    seen = torch.zeros(len(weights))
    for place in range(step * stage.accumulation, (step + 1) * stage.accumulation):
        losses = _losses(course, place) / stage.accumulation
        total = (losses * weights.to(losses.device)).sum()
        if not total.isfinite():
            raise ModelError(f"stage {stage.name}: the loss of step {step} is no number; lower learning_rate")
        torch.autograd.backward(scaler.scale(total))
        seen += losses.detach().cpu()
    scaler.unscale_(optimizer)
    *_, wishes = numbers = course.team.average(course.weights, torch.cat([seen, torch.tensor([float(stop)])]))
    norm = nn.utils.clip_grad_norm_(course.weights, stage.clip)
    for group in optimizer.param_groups:
        group["lr"] = course.rate(step)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return Outcome(losses=numbers[:-1], gradient=float(norm), halt=bool(wishes > 0))


def _losses(course: Course, place: int) -> Tensor:
    """Compute the losses of a batch [loss], in the stage's order; place: of the batch in the stage."""
    run, stage, team = course.run, course.stage, course.team
    own = stage.batch // team.size
    first = place * stage.batch + team.rank * own
    # The same in all processes: a batch asks its films alike, and no process waits for one that drew more questions.
    rng = stream(run.seed, "batch", course.number, place)
    seed_torch(run.seed, "noise", course.number, place, team.rank)
    numbers = film_numbers(run.seed, course.number, first=first, count=own, films=len(course.library))
    forward = Forward(
        course.pupil.network,
        course.pupil.heads,
        course.speech,
        course.pupil.tongue,
        _batch(course, numbers, rng_of=first),
        catalog=course.catalog,
        stage=stage,
        rng=rng,
    )
    with torch.autocast(run.machine.device, torch.float16, enabled=run.machine.mixed_precision):
        losses = losses_of(forward)
    return torch.stack([losses[name].float() for name in stage.losses])


def _batch(course: Course, numbers: list[int], *, rng_of: int) -> Batch:
    """Show films as this step shows them; rng_of: the place of the first one, by which changes are drawn."""
    run, stage = course.run, course.stage
    size = run.network.image_encoder.image_size
    shown = []
    for place, number in enumerate(numbers, rng_of):
        rng = stream(run.seed, "film", course.number, place)
        pixels, truth = course.library.film(number)
        shown.append(augment(pixels, truth, stage.augmentation, rng, catalog=course.catalog, size=size))
    return collate(
        shown,
        catalog=course.catalog,
        drawing=stage.drawing,
        rng=stream(run.seed, "questions", course.number, rng_of),
        mean=run.model.mean,
        std=run.model.std,
        device=run.machine.device,
    )
