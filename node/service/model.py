"""Opens the model of a process, and tells in metrics and log what it is and with which prompts it reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from models.contract import PromptKind
from node import log
from node.config import Settings
from node.dicom.identity import VERSION
from node.metrics import Metrics
from node.prompt_set import PromptSet
from node.read.manifest import not_calibrated
from node.read.model import RadiographReader
from node.read.open_model import OpenModel, open_configured
from node.service.promotion import admit


def open_model(
    settings: Settings, prompts: PromptSet, metrics: Metrics, reader: Callable[[], RadiographReader] | None
) -> OpenModel:
    """Open the settings' model, or another reader, for a prompt set, and publish its identity.

    Raises InputError as `open_reader` and `admit`.
    """
    opened = reader() if reader is not None else open_configured(settings, prompts, on_written=metrics.on_written)
    identity = opened.identity
    admit(settings, identity, prompts)
    model = OpenModel(reader=opened, prompts=prompts)
    publish(model, metrics)
    metrics.engine_info.labels(identity.engine, next((fallback.reason for fallback in opened.fallbacks), "none")).set(1)
    for stage in opened.parity:
        # Asked at each scrape: a runtime on a GPU goes on comparing films.
        metrics.parity_difference.labels(stage).set_function(partial(_found, opened, stage))
        metrics.parity_tolerance.labels(stage).set_function(partial(_allowed, opened, stage))
    for fallback in opened.fallbacks:
        log.get().warning("runtime.fell_back", engine=fallback.engine, reason=fallback.reason, message=fallback.message)
    log.get().info(
        "model.opened",
        model=f"{identity.name} {identity.version}",
        engine=identity.engine,
        prompts=prompts.title,
        weights_sha256=identity.weights_sha256,
    )
    own = settings.model
    if reader is None and (text := not_calibrated(own.directory, prompts, reader=own.reader)):
        log.get().warning("model.not_calibrated", message=text)
    return model


def publish(model: OpenModel, metrics: Metrics) -> None:
    """Say in the metrics which model and prompts read; those that read before are not named any more."""
    identity, prompts = model.reader.identity, model.prompts
    metrics.build_info.clear()
    metrics.build_info.labels(VERSION, f"{identity.name} {identity.version}", prompts.title).set(1)
    pathologies = [prompt.key for prompt in prompts.prompts if prompt.kind is PromptKind.PATHOLOGY]
    metrics.expect(destinations=(), prompts=pathologies)


def _found(reader: RadiographReader, stage: str) -> float:
    return reader.parity[stage].largest


def _allowed(reader: RadiographReader, stage: str) -> float:
    return reader.parity[stage].tolerance
