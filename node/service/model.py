"""Opens the model of a process if it is admitted; metrics and log name the model and its prompts.

Admitted is the first model of a node, one that it has served before, and one that was compared with such a one:

    storage.directory/models/<key>.served.json    a model with its prompt set that this node has read films with
    model.directory/comparison.json               result of `models.evaluate --against`, on films of the site

The key names weights, manifest (thresholds) and prompts; so other thresholds count as another model. No patient data.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from models.contract import COMPARISON, LEAST_COMPARED, ComparedModel, ModelComparison, PromptKind
from models.documents import decode
from models.program import command_for
from node import log
from node.config import CHEX, Settings
from node.dicom.identity import VERSION
from node.domain import JsonObject, ModelIdentity, derive_uid
from node.errors import InputError
from node.metrics import Metrics
from node.prompt_set import PromptSet
from node.read.manifest import not_calibrated, read_threshold_changes
from node.read.model import OpenModel, RadiographReader, open_configured
from node.store import files

_SERVED: Final = ".served.json"


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
    """Set the metric that names the current model and prompts; earlier ones are dropped."""
    identity, prompts = model.reader.identity, model.prompts
    metrics.build_info.clear()
    metrics.build_info.labels(VERSION, f"{identity.name} {identity.version}", prompts.title).set(1)
    pathologies = [prompt.key for prompt in prompts.prompts if prompt.kind is PromptKind.PATHOLOGY]
    metrics.expect(destinations=(), prompts=pathologies)


def _found(reader: RadiographReader, stage: str) -> float:
    return reader.parity[stage].largest


def _allowed(reader: RadiographReader, stage: str) -> float:
    return reader.parity[stage].tolerance


def admit(settings: Settings, model: ModelIdentity, prompts: PromptSet) -> None:
    """Let a model be served, and store that it is; the change of a model is logged with its comparison.

    Raises InputError for a model that was not compared, or that has no measured threshold, unless
    `model.uncompared` accepts it.
    """
    served, wanted = ServedModels(settings.storage.directory), _as_compared(model, prompts)
    if served.has(wanted):
        return
    names: JsonObject = {"model": wanted.model, "prompts": wanted.prompts}
    thresholds = {"thresholds": chosen} if (chosen := read_threshold_changes(settings.model.directory)) else {}
    try:
        compared = _comparison_for(settings, wanted, served)
    except InputError:
        if settings.model.uncompared != "accept":
            raise
        log.get().warning("model.accepted", **names, **thresholds)
    else:
        if compared is not None:
            log.get().info(
                "model.promoted",
                **names,
                **thresholds,
                films=compared.films,
                changed=compared.changed,
                compared_at=compared.at,
                compared_by=compared.by,
            )
    served.add(wanted, {**names, "at": datetime.now(UTC).isoformat(timespec="seconds")})


def refusal(settings: Settings, model: ModelIdentity, prompts: PromptSet) -> str | None:
    """Return why `admit` would refuse a model, with the remedy; None if it would not. Stores nothing."""
    try:
        _comparison_for(settings, _as_compared(model, prompts), ServedModels(settings.storage.directory))
    except InputError as error:
        return None if settings.model.uncompared == "accept" else str(error)
    return None


def _comparison_for(settings: Settings, wanted: ComparedModel, served: ServedModels) -> ModelComparison | None:
    """Return the comparison that a model needs; None if the node has served it, or none yet. Raises InputError."""
    has_served_any = served.has_any()  # looked at first: another process may be admitting the model
    return _compared(settings, wanted, served) if has_served_any and not served.has(wanted) else None


class ServedModels:
    """The models that the node of a storage folder has served, each with its prompt set."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "models"

    def has_any(self) -> bool:
        """Whether this node has served a model at all."""
        return any(self._folder.glob(f"*{_SERVED}"))

    def has(self, model: ComparedModel) -> bool:
        """Whether this node has served a model."""
        return self._mark(model).exists()

    def add(self, model: ComparedModel, content: JsonObject) -> None:
        """Store, synced, that a model is served."""
        files.make_folder(self._folder)
        files.write(self._mark(model), files.to_json(content))

    def _mark(self, model: ComparedModel) -> Path:
        return self._folder / f"{_key(model)}{_SERVED}"


def _key(model: ComparedModel) -> str:
    return derive_uid("model", model.weights_sha256, model.manifest_sha256, model.prompts_sha256)


def _as_compared(model: ModelIdentity, prompts: PromptSet) -> ComparedModel:
    return ComparedModel(
        model=f"{model.name} {model.version}",
        weights_sha256=model.weights_sha256,
        manifest_sha256=model.manifest_sha256,
        prompts=prompts.title,
        prompts_sha256=prompts.sha256,
    )


def _compared(settings: Settings, wanted: ComparedModel, served: ServedModels) -> ModelComparison:
    """Return the comparison by which a model may be served. Raises InputError with reason and remedy."""
    model, name, path = settings.model, wanted.model, settings.model.directory / COMPARISON
    reader = "" if model.reader == CHEX else f" --reader {model.reader}"
    accept = 'or set model.uncompared = "accept"'
    compare = (
        f"run `{command_for('models.evaluate')} --model {model.directory}{reader} --prompts {model.prompts} "
        f"--against DIR --data FILMS.csv --out {path}`, DIR for the model in use, and "
        f"--against-prompts if it has others, {accept}"
    )
    again = f"run `{command_for('models.calibrate')}`, compare it again, {accept}"
    try:
        found = decode(ModelComparison, json.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{name} was never compared, with these prompts, with what this node has served; {compare}"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is no comparison of models ({error}); {compare}") from error
    if _key(found.new) != _key(wanted):
        raise InputError(f"{path}: compares other weights, thresholds or prompts than those of {name}; {compare}")
    if not served.has(found.old):
        raise InputError(f"{name} was compared with {found.old.model}, which this node has not served; {compare}")
    if not found.measured:
        raise InputError(f"{name}: no threshold of this model was measured; {again}")
    if found.unmeasured:
        lost = ", ".join(found.unmeasured)
        raise InputError(f"{name}: the model in use has a measured threshold for {lost}, this one has none; {again}")
    if found.films < LEAST_COMPARED:
        raise InputError(
            f"{name} was compared on {found.films} films, which is too few; list {LEAST_COMPARED}, and {compare}"
        )
    return found
