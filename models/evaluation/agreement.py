"""Runnable: says how often int8 and float32 read a film alike, and refuses a model that they read differently.

    python -m models.evaluation.agreement --model DIR [--films 200] [--engine onnx] [--out FILE]

Phantoms are read twice, as the node reads them. States of findings should be the same; sentences may differ in a word.
Exit 0: within the limits; 1: beyond one; 2: wrong input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from models.command import command_parser, exit_status, run
from models.engines import ENGINES
from models.evaluation.prompt_set import DEFAULT, read_questions
from models.files import replacing
from models.manifest import read_manifest
from models.reading.answers import FilmReading

LEAST_STATES: Final = 1.0
LEAST_SENTENCES: Final = 0.95

_FIRST: Final = 1_000_000
"""Seeds from here on draw phantoms that no training saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What was compared, and how much of it is the same.

    states: findings of all films; sentences: generated ones, before any is withheld; reports: films whose whole reports
    have the same sentences
    """

    films: int
    states: int
    same_states: int
    sentences: int
    same_sentences: int
    same_reports: int

    def shortfalls(self) -> list[str]:
        """Name what agrees less than it must."""
        return [
            f"{100 * same / compared:.2f} % of {name} are the same; at least {100 * least:g} % must be"
            for name, same, compared, least in (
                ("states", self.same_states, self.states, LEAST_STATES),
                ("sentences", self.same_sentences, self.sentences, LEAST_SENTENCES),
            )
            if compared and same < least * compared
        ]

    def table(self) -> str:
        """Show what was compared, one kind to a line."""
        rows = (
            ("states", self.same_states, self.states),
            ("sentences", self.same_sentences, self.sentences),
            ("reports", self.same_reports, self.films),
        )
        return "\n".join(f"{name:10}{same:7} of {compared:7}" for name, same, compared in rows)


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.evaluation.agreement", description="Compare int8 with float32 on phantoms.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("--films", type=int, default=200, help="how many phantoms are read; default: %(default)s")
    parser.add_argument("--engine", choices=ENGINES, default="onnx", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=0, help="0: as the node")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the figures go as JSON")
    options = parser.parse_args(arguments)
    return exit_status(
        lambda: _compare(
            options.model, engine=options.engine, films=options.films, threads=options.threads, out=options.out
        )
    )


def agreement_of(readings: Iterable[tuple[FilmReading, FilmReading]]) -> Agreement:
    """Compare the two readings of each film, which were asked the same prompts."""
    films = states = same_states = sentences = same_sentences = same_reports = 0
    for first, second in readings:
        films += 1
        same_reports += [sentence.text for sentence in first.sentences] == [
            sentence.text for sentence in second.sentences
        ]
        for former, latter in zip(first.prompts, second.prompts, strict=True):
            states += former.state is not None
            same_states += former.state is not None and former.state == latter.state
            sentences += bool(former.generated or latter.generated)
            same_sentences += bool(former.generated) and former.generated == latter.generated
    return Agreement(
        films=films,
        states=states,
        same_states=same_states,
        sentences=sentences,
        same_sentences=same_sentences,
        same_reports=same_reports,
    )


def _compare(directory: Path, *, engine: str, films: int, threads: int, out: Path | None) -> int:
    from models.evaluation.cases import Phantoms
    from models.phantoms import PhantomSet
    from models.reading.reader import ChexReader, open_reader

    prompts = read_questions(DEFAULT).prompts
    readers = [
        open_reader(directory, engine=engine, threads=threads, precision=precision, checked=True)
        for precision in ("float32", "int8")
    ]
    cases = Phantoms(PhantomSet(first=_FIRST, count=films), read_manifest(directory))

    def read(reader: ChexReader, index: int) -> FilmReading:
        return reader.report(reader.look(cases.load(index).gray), prompts)

    agreement = agreement_of((read(readers[0], index), read(readers[1], index)) for index in range(films))
    print(agreement.table())
    for text in agreement.shortfalls():
        print(text, file=sys.stderr)
    if out is not None:
        _save(out, agreement, {"engine": engine, "weights_sha256": readers[0].weights_sha256})
    return 1 if agreement.shortfalls() else 0


def _save(path: Path, agreement: Agreement, facts: Mapping[str, str]) -> None:
    with replacing(path) as file:
        file.write(json.dumps({**facts, **asdict(agreement)}, indent=2).encode() + b"\n")


if __name__ == "__main__":
    run(main)
