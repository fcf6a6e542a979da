"""Read which thresholds of a model were chosen again, when, by whom and why."""

from __future__ import annotations

from pathlib import Path


def read_threshold_changes(directory: Path) -> str:
    """Return the history of a model's thresholds, the newest first; "" if it has none, or no manifest."""
    from models.errors import ModelError
    from models.manifest import read_manifest

    try:
        history = read_manifest(directory).history
    except ModelError:
        return ""
    return "; ".join(change.described for change in reversed(history))
