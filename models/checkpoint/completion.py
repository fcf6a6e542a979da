"""Writes everything in a model directory except its weights, after the weights are written (design §4)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from models.checkpoint.files import CARD, file_sha256
from models.manifest import WEIGHTS, Manifest, read_manifest, write_manifest
from models.reading.tokenizers import VOCABULARIES
from models.rewriting import with_ten_lines


def complete(directory: Path, manifest: Manifest, *, card: str) -> None:
    """Write the vocabularies, the card and, last, the manifest of a new model directory.

    manifest: without hashes; those of all files are added
    """
    (directory / "vocab").mkdir(exist_ok=True)
    for vocabulary in sorted(VOCABULARIES.iterdir()):
        shutil.copyfile(vocabulary, directory / "vocab" / vocabulary.name)
    (directory / CARD).write_text(with_ten_lines(card, manifest), encoding="utf-8")
    names = [WEIGHTS, CARD, *(f"vocab/{path.name}" for path in sorted((directory / "vocab").iterdir()))]
    write_manifest(directory, replace(manifest, files={name: file_sha256(directory / name) for name in names}))
    read_manifest(directory)
