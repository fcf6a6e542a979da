"""Documents of people in the folder of a study: questions and corrections, which go with the study."""

from __future__ import annotations

from pathlib import Path

from node.domain import JsonObject
from node.store import files
from node.store.folders import Folders
from node.store.place import SafePlace


def keep(study: Path, name: str, *, content: JsonObject, folders: Folders, place: SafePlace) -> None:
    """Write a document into the folder of a study, synced.

    name: below the folder
    Raises FileNotFoundError if the study was removed: retention would not remove a folder that is made again.
    """
    path = study / name
    with folders.of(study) as make:
        (study / "received").stat()
        make(path.parent)
    place.write(path, files.to_json(content))
