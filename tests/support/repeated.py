"""Runnable: measure how far a model's answers differ between two films between which nothing changed.

    python -m tests.support.repeated [--model DIR] [--phantoms 100] [--first SEED]

Each phantom is read twice, cropped, turned, shifted and exposed a little differently. The first half chooses the error
(`change`, which a manifest may state), the second half says how often findings are called changed with it: of the same
phantom, where nothing changed, and of the next phantom, where the truth tells which findings are new or gone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from models import progress
from models.contract import Box, ChangeError
from models.decisions import PHANTOMS
from models.lab.phantoms import phantom
from models.lab.training.augment import vary
from models.lab.training.stages import Augmentation
from models.reading.tokenizers import VOCABULARIES
from models.site_films import error_of
from node.answers.comparison import Change, ComparedFinding, ReadFilm, compare
from node.domain import Film, FilmView
from node.prompt_set import PromptSet
from node.read import prompts
from node.read.decoding import Radiograph
from node.read.film import film_of
from node.read.framing import Framing
from node.read.model import RadiographReader, open_reader

SIDE: Final = 224
AGAIN: Final = Augmentation(
    area=(0.92, 1.0),
    aspect=1.03,
    scale=(0.97, 1.03),
    shift=0.02,
    rotate=3.0,
    brightness=0.1,
    contrast=0.1,
    gamma=0.1,
    blur=0.3,
    noise=0.02,
    jpeg=0.3,
)
"""How two films of one patient differ though nothing of the patient changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One phantom that was read twice, and the findings that are on it."""

    films: tuple[Film, Film]
    there: frozenset[str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.support.repeated", description=__doc__)
    parser.add_argument("--model", type=Path, default=VOCABULARIES.parent)
    parser.add_argument("--phantoms", type=int, default=200, metavar="COUNT", help="half of them choose the error")
    parser.add_argument("--first", type=int, default=3_000_000, metavar="SEED")
    arguments = parser.parse_args()
    asked = prompts.load("chexpert14")
    reader: RadiographReader = open_reader(arguments.model, prompts=asked, engine="onnx", threads=1, trusted="phantoms")
    with progress.on(sys.stderr) as say:
        pairs = []
        for number, seed in enumerate(range(arguments.first, arguments.first + arguments.phantoms), 1):
            pairs.append(pair_of(reader, asked, seed))
            say("reading phantoms twice", number, arguments.phantoms)
    half = len(pairs) // 2
    error = error_of([pair.films for pair in pairs[:half]], population=PHANTOMS)
    figures = {
        "change": asdict(error),
        "unchanged": called(reader, [pair.films for pair in pairs[half:]], error),
        "changed": told_apart(reader, pairs[half:], error),
    }
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return 0


def pair_of(reader: RadiographReader, asked: PromptSet, seed: int) -> Pair:
    """Draw one phantom and read it twice."""
    drawn = phantom(seed, side=SIDE)
    rng = np.random.default_rng([seed, 1])
    first, second = (read(reader, asked, vary(drawn.pixels, AGAIN, rng, size=SIDE), f"1.2.{seed}") for _ in range(2))
    return Pair(films=(first, second), there=frozenset(str(key) for key in drawn.findings))


def read(
    reader: RadiographReader, asked: PromptSet, gray: np.ndarray[tuple[int, ...], np.dtype[np.float32]], uid: str
) -> Film:
    """Read a square picture as an upright film that tells its sides."""
    square = Box(left=0, top=0, right=SIDE, bottom=SIDE)
    image = Radiograph(gray=gray, framing=Framing(columns=SIDE, rows=SIDE, square=square), sides_known=True)
    reading = reader.read(image, asked)
    return film_of(reading, image, asked, source=uid, model=reader.identity, view=FilmView(tag="PA"))


def called(reader: RadiographReader, films: Sequence[tuple[Film, Film]], error: ChangeError) -> dict[str, int]:
    """Count what findings of these films are called."""
    counts: Counter[str] = Counter()
    for earlier, later in films:
        for found in _compare(reader, earlier, later, error):
            counts[found.obstacle or found.change] += 1
    return dict(counts.most_common())


def told_apart(reader: RadiographReader, pairs: Sequence[Pair], error: ChangeError) -> dict[str, dict[str, int]]:
    """Count what findings are called that are on one of two phantoms only."""
    counts: dict[str, Counter[str]] = {Change.NEW: Counter(), Change.GONE: Counter()}
    for earlier, later in pairwise(pairs):
        for found in _compare(reader, earlier.films[0], later.films[0], error):
            if found.prompt in later.there - earlier.there:
                counts[Change.NEW][found.obstacle or found.change] += 1
            elif found.prompt in earlier.there - later.there:
                counts[Change.GONE][found.obstacle or found.change] += 1
    return {name: dict(counter.most_common()) for name, counter in counts.items()}


def _compare(reader: RadiographReader, earlier: Film, later: Film, error: ChangeError) -> tuple[ComparedFinding, ...]:
    first, second = (ReadFilm(film=film, model=reader.identity, prompts_sha256="") for film in (earlier, later))
    return compare(first, second, error=error).findings


if __name__ == "__main__":
    sys.exit(main())
