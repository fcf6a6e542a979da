"""Read what a model states of its error when two films are compared."""

from __future__ import annotations

from pathlib import Path

from models.contract import ChangeError
from node.errors import InputError


def read_change_error(directory: Path) -> ChangeError | None:
    """Read the error of change from a model's manifest; None if it states none.

    Raises InputError if the manifest cannot be read.
    """
    from models.errors import ModelError
    from models.manifest import read_manifest

    try:
        return read_manifest(directory).change
    except ModelError as error:
        raise InputError(str(error)) from error
