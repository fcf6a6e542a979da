"""The films of a sweep: phantoms, the pictures of a list, and croppings and exposures of one real film."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from models.contract import Box
from models.lab.phantoms import phantom
from node.read.decoding import Radiograph
from node.read.framing import Framing
from node.read.model import RadiographReader

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Films:
    """Films by name, made or read one by one; each is upright and tells its sides."""

    count: int
    pictures: Callable[[], Iterator[tuple[str, Picture]]]

    def images(self, reader: RadiographReader) -> Iterator[tuple[str, Radiograph]]:
        """Yield each film as the node's decoder would."""
        for name, picture in self.pictures():
            rows, columns = picture.shape
            left, top, right, bottom = reader.square(columns, rows)
            yield (
                name,
                Radiograph(
                    gray=picture.astype(np.float32) / np.float32(255),
                    framing=Framing(
                        columns=columns, rows=rows, square=Box(left=left, top=top, right=right, bottom=bottom)
                    ),
                    sides_known=True,
                ),
            )


def of_phantoms(first: int, count: int) -> Films:
    """Draw phantoms of consecutive seeds."""

    def pictures() -> Iterator[tuple[str, Picture]]:
        for seed in range(first, first + count):
            yield f"phantom {seed}", phantom(seed, side=224).pixels

    return Films(count=count, pictures=pictures)


def of_file(path: Path, *, every: int = 1) -> Films:
    """Read the pictures that a list names, as `models.evaluate` reads them; every: 10 takes a tenth of them."""
    names = [json.loads(line)["file"] for line in path.read_text(encoding="utf-8").splitlines()][::every]

    def pictures() -> Iterator[tuple[str, Picture]]:
        for name in names:
            picture = cv2.imread(str(path.parent / name), cv2.IMREAD_GRAYSCALE)
            if picture is None:
                raise FileNotFoundError(f"{path.parent / name} is no picture")
            yield name, np.asarray(picture, dtype=np.uint8)

    return Films(count=len(names), pictures=pictures)


def of_picture(picture: Picture, *, count: int) -> Films:
    """Crop, brighten and blur one real film at random, always in the same way."""

    def pictures() -> Iterator[tuple[str, Picture]]:
        rng = np.random.default_rng(0)
        for number in range(count):
            rows, columns = picture.shape
            top, left = (int(rng.integers(0, size // 5)) for size in (rows, columns))
            cut = picture[top : rows - rows // 5 + top, left : columns - columns // 5 + left]
            exposed = 255 * (cut / 255) ** float(rng.uniform(0.5, 2.0)) + rng.normal(
                0, float(rng.uniform(0, 12)), cut.shape
            )
            blurred = cv2.GaussianBlur(exposed.clip(0, 255), (0, 0), float(rng.uniform(0.3, 2.0)))
            yield f"cropping {number}", np.asarray(blurred, dtype=np.uint8)

    return Films(count=count, pictures=pictures)
