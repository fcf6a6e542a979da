"""Admits a model: the first one of a node, one that it has served before, or one that was compared with it."""

from __future__ import annotations

from datetime import UTC, datetime

from node import command_for, log
from node.codec import decode
from node.config import CHEX, Settings
from node.domain import JsonObject, ModelIdentity
from node.errors import InputError
from node.prompt_set import PromptSet
from node.read.manifest import read_threshold_changes
from node.store.promotions import LEAST_FILMS, Promotions, key_of


def admit(settings: Settings, model: ModelIdentity, prompts: PromptSet) -> None:
    """Let a model be served, and store that it is; the change of a model is logged with its comparison.

    Raises InputError for a model that nobody has compared, or of which no threshold was measured, unless
    `model.uncompared` accepts it.
    """
    promotions, key = Promotions(settings.storage.directory), key_of(model, prompts)
    has_served_any = promotions.has_served_any()  # looked at first: another process may be admitting it
    if promotions.has_served(key):
        return
    names = {"model": f"{model.name} {model.version}", "prompts": prompts.title}
    thresholds = {"thresholds": chosen} if (chosen := read_threshold_changes(settings.model.directory)) else {}
    if has_served_any:
        compared = promotions.comparison(key) or {}
        objection = _objection(settings, names["model"], compared)
        if not objection:
            log.get().info(
                "model.promoted",
                **names,
                **thresholds,
                films=compared["films"],
                changed=compared["changed"],
                compared_at=compared["at"],
                compared_by=compared["by"],
            )
        elif settings.model.uncompared == "accept":
            log.get().warning("model.accepted", **names, **thresholds)
        else:
            raise InputError(objection)
    promotions.mark_served(key, {**names, "at": datetime.now(UTC).isoformat(timespec="seconds")})


def _reader_option(settings: Settings) -> str:
    """Return the option of `shadow` that names another network than ChEX."""
    return "" if settings.model.reader == CHEX else f" --reader {settings.model.reader}"


def _objection(settings: Settings, name: str, compared: JsonObject) -> str:
    """Say why a model may not be served, and what to do; "" if it may."""
    model = settings.model
    accept = 'or set model.uncompared = "accept"'
    compare = (
        f"{command_for('node')} shadow node.toml --model {model.directory}{_reader_option(settings)} "
        f"--prompt-set {model.prompts}"
    )
    if not compared:
        return (
            f"{name} was never compared, with these prompts, with what this node has served; name the model and prompts"
            f" in use in the settings, and run `{compare}`, {accept}"
        )
    again = f"run `{command_for('models.calibrate')}`, compare it again, {accept}"
    if not compared.get("measured"):
        return f"{name}: no threshold of this model was measured; {again}"
    if lost := decode(list[str], compared.get("unmeasured", [])):
        return f"{name}: the model in use has a measured threshold for {', '.join(lost)}, this one has none; {again}"
    films, wanted = (int(str(compared.get(key, default))) for key, default in (("films", 0), ("wanted", LEAST_FILMS)))
    if films < wanted:
        return f"{name} was compared on {films} films, which is too few; run `{compare} --last {LEAST_FILMS}`, {accept}"
    return ""
