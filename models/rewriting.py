"""Writes other decisions into a model directory: manifest, card and hashes (design §4).

The card is written first and the manifest, with the card's hash, last: after an interruption between them the directory
is refused until the command is run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from models.checkpoint.files import CARD, compare_hashes, file_sha256, require_plain_files
from models.decisions import ThresholdChange
from models.errors import ModelError
from models.files import replacing
from models.manifest import Manifest, read_manifest, write_manifest

HISTORY: Final = "## Thresholds that were chosen again"


def open_to_change(directory: Path) -> Manifest:
    """Read the manifest of a model directory whose files are those that it names, but for the card.

    The card is written again in any case, perhaps after an interruption. Raises ModelError as `files.verify`.
    """
    manifest = read_manifest(directory)
    require_plain_files(directory, manifest)
    others = {name: sha256 for name, sha256 in manifest.files.items() if name != CARD}
    compare_hashes(directory, replace(manifest, files=others))
    return manifest


def rewrite(directory: Path, manifest: Manifest) -> None:
    """Write a manifest with its history in the card, and the card's hash. Raises ModelError, or OSError."""
    card = directory / CARD
    try:
        text = card.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{card} cannot be read ({error}); restore the model directory") from error
    with replacing(card) as file:
        file.write(with_history(text, manifest.history).encode())
    write_manifest(directory, replace(manifest, files=dict(manifest.files) | {CARD: file_sha256(card)}))


def with_history(card: str, history: Sequence[ThresholdChange]) -> str:
    """Return a card that ends with the thresholds that were chosen again; an older table of them is replaced."""
    kept = card.partition(f"\n{HISTORY}\n")[0].rstrip() + "\n"
    if not history:
        return kept
    rows = [
        f"| {change.at} | {change.finding} | {change.before:g} | {change.after:g} | {_cell(change.reason)} | "
        f"{_cell(change.by)} |"
        for change in history
    ]
    return "\n".join(
        [kept, HISTORY, "", "| when | finding | before | after | why | by whom |", "|---" * 6 + "|", *rows, ""]
    )


def _cell(text: str) -> str:
    """Return a text that stays in its cell of a table."""
    return text.replace("\\", "\\\\").replace("|", "\\|")
