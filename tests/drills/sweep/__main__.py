"""Runnable: sweep the model over phantoms and films, and look for what contradicts itself.

    python -m tests.drills.sweep [--phantoms 250] [--films FILE.jsonl[:EVERY] ...] [--model DIR]

Every film is read as the node does by default, and again with every threshold accepted. No sentence may contradict a
decision or a reported box, by patterns that share nothing with `language`, deny anything, or say without a note how
severe it is. Sentences by rule, impression and evidence name one zone, and a finding to be reviewed says so. Sentences
that do not leave are counted by reason. Nothing may be present without a measured threshold. The last line is one JSON
object with `passed`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from models import progress
from models.contract import Trusted
from models.reading.tokenizers import VOCABULARIES
from node.read import prompts
from node.read.film import film_of
from node.read.model import RadiographReader, open_reader
from tests.drills.sweep.checks import Swept, look, measured_on
from tests.drills.sweep.films import Films, of_file, of_phantoms


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="tests.drills.sweep", description=__doc__)
    parser.add_argument("--phantoms", type=int, default=250, metavar="COUNT")
    parser.add_argument("--first", type=int, default=2_000_000, metavar="SEED", help="of the phantoms")
    parser.add_argument(
        "--films",
        nargs="*",
        default=[],
        metavar="FILE.jsonl[:EVERY]",
        help="lists of real films; EVERY 10 takes a tenth",
    )
    parser.add_argument("--model", type=Path, default=VOCABULARIES.parent)
    arguments = parser.parse_args(words)
    sources: list[tuple[str, Trusted, Films]] = []
    if arguments.phantoms:
        sources.append(("phantoms", "phantoms", of_phantoms(arguments.first, arguments.phantoms)))
    for name in arguments.films:
        path, _, every = name.partition(":")
        sources.append((Path(path).stem, "real", of_file(Path(path), every=int(every or 1))))
    figures: dict[str, dict[str, object]] = {}
    with progress.on(sys.stderr) as say:
        for name, by_default, films in sources:
            for trusted in (by_default, "any"):
                found = run(arguments.model, trusted, films, name=name, say=say).figures()
                figures[f"{name}, {trusted}"] = found
                say(json.dumps({f"{name}, {trusted}": found}))
    passed = bool(figures) and all(each["passed"] for each in figures.values())
    sys.stdout.write(json.dumps({"passed": passed, **figures}) + "\n")
    return 0 if passed else 1


def run(model: Path, trusted: Trusted, films: Films, *, name: str, say: progress.ProgressReport) -> Swept:
    """Sweep over films; trusted: which thresholds may call a finding present."""
    asked = prompts.load("chexpert14")
    reader: RadiographReader = open_reader(model, prompts=asked, engine="onnx", threads=1, trusted=trusted)
    measured, swept = measured_on(model, trusted, asked), Swept()
    for number, (film_name, image) in enumerate(films.images(reader), 1):
        known, reading = len(swept.faults), reader.read(image, asked)
        film = film_of(reading, image, asked, source="1.2.3", model=reader.identity, ratio=reading.ratio)
        look(film, reading.regions, name=film_name, measured=measured, swept=swept)
        for fault in swept.faults[known:]:
            say(f"{name}, {trusted}: {fault}")
        say(f"{name}, {trusted}", number, films.count)
    return swept


if __name__ == "__main__":
    sys.exit(main())
