"""The prepared lines of MIMIC-CXR, which Chest ImaGenome and MS-CXR add to: by the name of the film's DICOM object."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, cast

from models.errors import ModelError
from models.lab.lines import FilmLine

SPLITS: Final = ("train", "validate", "test")


class Place(NamedTuple):
    """Where a line is; crc: of its bytes, so that a line that was made anew is another one."""

    file: str
    offset: int
    crc: int


def places_of(folder: Path) -> Iterator[tuple[str, str, Place]]:
    """Yield split, name and place of each line. Raises ModelError if a file cannot be read."""
    for split in SPLITS:
        path, offset = folder / f"{split}.jsonl", 0
        if not path.is_file():  # as of a miniature: a split without films has no file
            continue
        with path.open("rb") as file:
            for line in file:
                try:
                    name = Path(json.loads(line)["file"]).stem
                except (KeyError, TypeError, ValueError) as error:
                    raise ModelError(f"{path}, byte {offset}: is no line of a film; prepare mimic again") from error
                yield split, name, Place(file=str(path), offset=offset, crc=zlib.crc32(line))
                offset += len(line)


def line_at(place: Place, out: Path) -> FilmLine:
    """Read a line, for a file of lines in another folder."""
    path = Path(place.file)
    with path.open("rb") as file:
        file.seek(place.offset)
        line = cast("FilmLine", json.loads(file.readline()))
    line["file"] = os.path.relpath((path.parent / line["file"]).resolve(), out.resolve())
    return line
