"""Documents of people in the folder of a study: questions and corrections, which go with the study."""

from __future__ import annotations

from pathlib import Path

from node.domain import JsonObject
from node.store import files
from node.store.place import SafePlace


def keep(study: Path, name: str, *, content: JsonObject, lock: Path, place: SafePlace) -> None:
    """Write a document into the folder of a study, synced.

    name: below the folder; lock: held by who makes and removes such folders
    Raises FileNotFoundError if the study was removed: no janitor would remove a folder that is made again.
    """
    path = study / name
    with files.lock(lock):
        (study / "received").stat()
        files.make_folder(path.parent)
    place.write(path, files.to_json(content))
