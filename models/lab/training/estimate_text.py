"""An estimate as text: what was measured, what was multiplied, and the figures."""

from __future__ import annotations

from collections.abc import Iterator

from models.lab.training.batches import AHEAD
from models.lab.training.estimate import Estimate, StageEstimate
from models.lab.training.runfile import Run

_FLOAT32 = 4
_HOUR = 3600
_UNKNOWN = "not known"


def text(run: Run, made: Estimate) -> str:
    """Write an estimate for a terminal."""
    return "\n".join([*_conditions(run, made), "", *_table(made), "", *_sums(run, made)])


def _conditions(run: Run, made: Estimate) -> Iterator[str]:
    precision = "mixed precision" if run.machine.mixed_precision else "float32"
    yield f"{run.model.name} {run.model.version}: an estimate; nothing was trained and nothing written"
    yield f"measured:   updates of the run's model with its batches and losses, warmed up; {made.device}, {precision}"
    yield "multiplied: seconds a step by the run's steps, bytes of a film by its films"
    if made.missing:
        yield f"made up:    the films, since {', '.join(made.missing)} cannot be found; real ones take other times"
    if made.is_random:
        yield f"made up:    the weights, since {run.start} cannot be found; that changes no time"


def _table(made: Estimate) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        ("stage", "films a step", "measured", "s a step", "of it reading", "steps", "hours", "GPU memory")
    ]
    rows += [_row(stage) for stage in made.stages]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        columns = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([name.ljust(widths[0]), *columns])


def _row(stage: StageEstimate) -> tuple[str, ...]:
    is_read_beside = stage.seconds < stage.updating
    return (
        stage.name,
        f"{stage.batch} x {stage.accumulation}",
        f"{stage.measured} steps",
        f"{stage.seconds:.3g}",
        "by loaders" if is_read_beside else f"{stage.reading:.3g}",
        _UNKNOWN if stage.steps is None else f"{stage.steps:,}",
        _UNKNOWN if stage.steps is None else f"{stage.steps * stage.seconds / _HOUR:.3g}",
        _gigabytes(stage.gpu_bytes) if stage.gpu_bytes else "none",
    )


def _sums(run: Run, made: Estimate) -> Iterator[str]:
    known = [(stage.steps, stage.seconds) for stage in made.stages if stage.steps is not None]
    if len(known) == len(made.stages):
        steps, hours = sum(steps for steps, _ in known), sum(steps * seconds for steps, seconds in known) / _HOUR
        yield f"steps:  {steps:,} in {hours:.3g} hours"
    else:
        yield f"steps:  {_UNKNOWN}, since an epoch has films that are not there; give their number by --films"
    if made.storing_seconds is not None:
        yield f"films:  {made.storing_seconds / _HOUR:.2g} hours before the first step to store {made.stored:,}, once"
    side, batch = run.network.image_encoder.image_size, max(stage.batch for stage in run.stages)
    ahead = _gigabytes(run.machine.loaders * AHEAD * batch * side**2 * _FLOAT32)
    loaders = f"; {run.machine.loaders} loaders beside it, and {ahead} of /dev/shm" if run.machine.loaders else ""
    gpu = max(stage.gpu_bytes for stage in made.stages)
    yield (
        f"memory: {f'{_gigabytes(gpu)} on the GPU, ' if gpu else ''}{_gigabytes(made.process_bytes)} for each of "
        f"{run.machine.processes} processes that train{loaders}"
    )
    films = _UNKNOWN if made.stored is None else _gigabytes(made.stored * made.film_bytes)
    yield (
        f"disk:   films {films}, checkpoint {_gigabytes(made.checkpoint_bytes)} (twice while it is written), "
        f"model {_gigabytes(made.model_bytes)}"
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"
