"""Admits a model: the first one of a node, one that it has served before, or one that was compared with it."""

from __future__ import annotations

from datetime import UTC, datetime

from node import command_for, log
from node.config import Settings
from node.domain import ModelIdentity
from node.errors import InputError
from node.prompt_set import PromptSet
from node.store.promotions import Promotions, key_of


def admit(settings: Settings, model: ModelIdentity, prompts: PromptSet) -> None:
    """Let a model be served, and store that it is; the change of a model is logged with its comparison.

    Raises InputError for a model that nobody has compared, or of which no threshold was measured, unless
    `model.uncompared` accepts it.
    """
    promotions, key = Promotions(settings.storage.directory), key_of(model, prompts)
    if promotions.has_served(key):
        return
    names = {"model": f"{model.name} {model.version}", "prompts": f"{prompts.name} {prompts.version}"}
    if promotions.has_served_any():
        compared = promotions.comparison(key) or {}
        if compared.get("measured"):
            log.get().info(
                "model.promoted",
                **names,
                films=compared["films"],
                changed=compared["changed"],
                compared_at=compared["at"],
                compared_by=compared["by"],
            )
        elif settings.model.uncompared == "accept":
            log.get().warning("model.accepted", **names)
        else:
            raise InputError(_objection(settings, names["model"], is_compared=bool(compared)))
    promotions.mark_served(key, {**names, "at": datetime.now(UTC).isoformat(timespec="seconds")})


def _objection(settings: Settings, name: str, *, is_compared: bool) -> str:
    accept = 'or set model.uncompared = "accept"'
    if is_compared:
        tune = f"{command_for('models.evaluate')} --tune"
        return f"{name}: no threshold of this model was measured; run `{tune}`, compare it again, {accept}"
    compare = f"{command_for('node')} shadow node.toml --model {settings.model.directory}"
    return (
        f"{name} was never compared, with these prompts, with what this node has served; name the model in use in the"
        f" settings, and run `{compare}`, {accept}"
    )
