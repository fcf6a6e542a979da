"""Copies of model directories that take no space where links are possible."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def linked_copy(source: Path, target: Path) -> Path:
    """Copy a directory by hard links; what a test changes in the copy it must unlink first."""
    return Path(shutil.copytree(source, target, copy_function=_link))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copyfile(source, target)
