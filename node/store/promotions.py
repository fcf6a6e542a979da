"""Which models a node has served, and which it has compared with the model in use before serving them.

    models/<key>.served.json      a model with its prompt set that this node has read films with
    models/<key>.compared.json    one that `node shadow` has compared, and what came of it

The key names weights, manifest (thresholds) and prompts; so other thresholds count as another model. No patient data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node.domain import JsonObject, ModelIdentity, derive_uid
from node.prompt_set import PromptSet
from node.store import files

LEAST_FILMS: Final = 50
"""The films that a comparison must have before a model is served; all of them, if the node has fewer."""

_SERVED: Final = ".served.json"
_COMPARED: Final = ".compared.json"


class Promotions:
    """The models of one storage folder."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "models"

    def has_served_any(self) -> bool:
        """Whether this node has served a model at all."""
        return any(self._folder.glob(f"*{_SERVED}"))

    def has_served(self, key: str) -> bool:
        """Whether this node has served a model."""
        return (self._folder / f"{key}{_SERVED}").exists()

    def mark_served(self, key: str, content: JsonObject) -> None:
        """Store, synced, that a model is served."""
        self._keep(f"{key}{_SERVED}", content)

    def comparison(self, key: str) -> JsonObject | None:
        """Return what the newest comparison of a model found; None if there was none."""
        return files.read_json(self._folder / f"{key}{_COMPARED}")

    def keep_comparison(self, key: str, content: JsonObject) -> None:
        """Store what a comparison found, synced; it replaces an older one."""
        self._keep(f"{key}{_COMPARED}", content)

    def _keep(self, name: str, content: JsonObject) -> None:
        files.make_folder(self._folder)
        files.write(self._folder / name, files.to_json(content))


def key_of(model: ModelIdentity, prompts: PromptSet) -> str:
    """Return the key of a model and its prompt set."""
    return derive_uid("model", model.weights_sha256, model.manifest_sha256, prompts.sha256)
