"""Runnable: says how often int8 or int4 and float32 read a film alike, and refuses a model that they read differently.

    python -m models.lab.evaluation.agreement --model DIR --data phantoms:SEED:COUNT|boxes:FILE.jsonl...
        [--precision int8|int4] [--held-out FILE]

Films are read twice, as the node reads them. States of findings should be the same on phantoms, and nearly all of them
on films of people, where a state that changed must lie near a threshold; sentences may differ in a word.
With `--write`, the model directory gets agreement.json (of int4 agreement-int4.json) and a table in its card.
Exit 0: within the limits; 1: beyond one, or a file could not be written; 2: wrong input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal, get_args

from models.checkpoint.files import CARD, file_sha256
from models.command import command_parser, exit_status, run
from models.contract import FilmReading, FindingState, PromptReading, Trusted
from models.decisions import PHANTOMS, Decisions
from models.engines import ENGINES, FloatArray
from models.errors import ModelError
from models.files import replacing
from models.lab.evaluation.cases import CaseSource
from models.lab.evaluation.prompt_set import DEFAULT, Questions, read_questions
from models.manifest import WEIGHTS, Manifest, read_manifest, write_manifest

FewBits = Literal["int8", "int4"]

TABLES: Final[Mapping[FewBits, str]] = {"int8": "agreement.json", "int4": "agreement-int4.json"}
DATA: Final = "phantoms:1000000:200"
"""Phantoms that no training saw."""
LEAST_STATES_OF_PHANTOMS: Final = 1.0
LEAST_STATES: Final = 0.99
MOST_DISTANCE: Final = 0.01
"""Of the probability of a finding whose state changed from the limit between two states."""
LEAST_SENTENCES: Final = 0.95
_BOXES: Final = "boxes:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedState:
    """A finding with another state in few bits; film: from 0; distance: from the nearest limit of a state."""

    film: int
    prompt: str
    probability: float
    float32: FindingState | None
    few_bits: FindingState | None
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What was compared, and how much of it is the same.

    precision: what is compared with float32
    data: the films, and held_out: whose they are
    states: findings of all films; sentences: generated ones, before any is withheld; reports: films whose whole reports
    have the same sentences
    """

    precision: FewBits
    data: str
    films: int
    states: int
    same_states: int
    sentences: int
    same_sentences: int
    same_reports: int
    held_out: str = ""
    changed: tuple[ChangedState, ...] = ()

    def shortfalls(self) -> list[str]:
        """Name what agrees less than it must."""
        least_states = LEAST_STATES_OF_PHANTOMS if self.data.startswith(PHANTOMS) else LEAST_STATES
        return [
            f"{self.data}: {100 * same / compared:.2f} % of {name} are the same; at least {100 * least:g} % must be"
            for name, same, compared, least in (
                ("states", self.same_states, self.states, least_states),
                ("sentences", self.same_sentences, self.sentences, LEAST_SENTENCES),
            )
            if compared and same < least * compared
        ] + [
            f"{self.data}, film {change.film}: {change.prompt} changed from {change.float32} to {change.few_bits} "
            f"{change.distance:.3f} from a threshold; at most {MOST_DISTANCE:g} is allowed"
            for change in self.changed
            if change.distance > MOST_DISTANCE
        ]

    def rows(self) -> list[tuple[str, int, int]]:
        """Return what was compared, how many are the same, and of how many."""
        return [
            ("states of findings", self.same_states, self.states),
            ("generated sentences", self.same_sentences, self.sentences),
            ("films with the same report", self.same_reports, self.films),
        ]


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.lab.evaluation.agreement", description="Compare int8 or int4 with float32.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument(
        "--data", action="append", metavar="FILMS", help=f"phantoms:SEED:COUNT or boxes:FILE.jsonl; default: {DATA}"
    )
    parser.add_argument("--precision", choices=get_args(FewBits), default="int8", help="default: %(default)s")
    parser.add_argument("--held-out", metavar="SHARE_OR_FILE", help="of a file, only patients that a training held out")
    parser.add_argument("--engine", choices=ENGINES, default="onnx", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=0, help="0: as the node")
    parser.add_argument("--write", action="store_true", help="write a table and the card into the model directory")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _compare(options))


def agreement_of(
    readings: Iterable[tuple[FilmReading, FilmReading]],
    decisions: Decisions,
    *,
    precision: FewBits,
    data: str,
    held_out: str = "",
) -> Agreement:
    """Compare the readings of each film in float32 and in few bits, which were asked the same prompts."""
    films = states = same_states = sentences = same_sentences = same_reports = 0
    changed: list[ChangedState] = []
    for first, second in readings:
        same_reports += [sentence.text for sentence in first.sentences] == [
            sentence.text for sentence in second.sentences
        ]
        for former, latter in zip(first.prompts, second.prompts, strict=True):
            states += former.state is not None
            if former.state != latter.state:
                changed.append(_change(films, former, latter, decisions))
            same_states += former.state is not None and former.state == latter.state
            sentences += bool(former.generated or latter.generated)
            same_sentences += bool(former.generated) and former.generated == latter.generated
        films += 1
    return Agreement(
        precision=precision,
        data=data,
        held_out=held_out,
        films=films,
        states=states,
        same_states=same_states,
        sentences=sentences,
        same_sentences=same_sentences,
        same_reports=same_reports,
        changed=tuple(changed),
    )


def _change(film: int, former: PromptReading, latter: PromptReading, decisions: Decisions) -> ChangedState:
    """Describe a change; where both probabilities lie beyond a limit, the one that is further from it counts."""
    threshold = decisions.threshold(former.key)
    values = [reading.probability for reading in (former, latter) if reading.probability is not None]
    limits = (threshold, decisions.lower(former.key))
    return ChangedState(
        film=film,
        prompt=former.key,
        probability=values[0],
        float32=former.state,
        few_bits=latter.state,
        distance=min(max(abs(value - limit) for value in values) for limit in limits),
    )


def write_agreement(directory: Path, agreements: Sequence[Agreement], *, engine: str, questions: Questions) -> None:
    """Write the table of a precision and the card's part about it, and their hashes into the manifest at the end."""
    manifest, table = read_manifest(directory), TABLES[agreements[0].precision]
    document = {
        "version": 1,
        "weights_sha256": manifest.files[WEIGHTS],
        "engine": engine,
        "prompts": questions.name,
        "prompts_sha256": questions.sha256,
        "passed": not any(agreement.shortfalls() for agreement in agreements),
        "data": [_document(agreement) for agreement in agreements],
    }
    with replacing(directory / table) as file:
        file.write(json.dumps(document, indent=2).encode() + b"\n")
    card = (directory / CARD).read_text(encoding="utf-8")
    with replacing(directory / CARD) as file:
        file.write(_with_agreement(card, agreements).encode())
    hashes = {name: file_sha256(directory / name) for name in (table, CARD)}
    write_manifest(directory, replace(manifest, files={**manifest.files, **hashes}))


def _document(agreement: Agreement) -> dict[str, object]:
    """Return an agreement as the table has it: states in few bits by the name of the precision, which is left out."""
    changed = [asdict(change) for change in agreement.changed]
    for change in changed:
        change[agreement.precision] = change.pop("few_bits")
    document = asdict(agreement) | {"changed": changed}
    del document["precision"]
    return document


def _with_agreement(card: str, agreements: Sequence[Agreement]) -> str:
    """Return a card with the part about the agreement, before what was measured."""
    precision = agreements[0].precision
    title = f"## {precision} beside float32"
    before, heading, measured = card.partition("\n## Measured")
    kept, found, own = before.partition(f"\n{title}\n")
    following = own.find("\n## ") if found else -1
    kept = (kept + (own[following:] if following >= 0 else "")).rstrip()
    command = f"python -m models.lab.evaluation.agreement --precision {precision}"
    lines = ["", title, "", f"By `{command}`, see `{TABLES[precision]}`.", ""]
    lines += ["| films | compared | the same | of |", "| --- | --- | --- | --- |"]
    for agreement in agreements:
        patients = f", only patients held out (`{agreement.held_out}`)" if agreement.held_out else ""
        lines += [
            f"| `{agreement.data}`{patients} | {name} | {same:,} ({same / max(of, 1):.1%}) | {of:,} |"
            for name, same, of in agreement.rows()
        ]
    lines += ["", *(_told(agreement) for agreement in agreements if agreement.changed)]
    return "\n".join([kept, *lines]).rstrip() + "\n" + heading + measured


def _told(agreement: Agreement) -> str:
    furthest = max(change.distance for change in agreement.changed)
    return f"- `{agreement.data}`: states that changed lie at most {furthest:.3f} from the limit between two states."


def _compare(options: argparse.Namespace) -> int:
    questions = read_questions(DEFAULT)
    agreements = [_agreement(options, data, questions) for data in options.data or [DATA]]
    for agreement in agreements:
        print(agreement.data)
        for name, same, compared in agreement.rows():
            print(f"  {name:30}{same:7} of {compared:7}")
        for change in agreement.changed:
            print(f"  {change}")
    shortfalls = [text for agreement in agreements for text in agreement.shortfalls()]
    for text in shortfalls:
        print(text, file=sys.stderr)
    if options.write:
        write_agreement(options.model, agreements, engine=options.engine, questions=questions)
    return 1 if shortfalls else 0


def _agreement(options: argparse.Namespace, data: str, questions: Questions) -> Agreement:
    """Read some films in both precisions."""
    from models.reading.reader import ChexReader, open_reader

    films, held_out = films_of(data, options.held_out, read_manifest(options.model))
    trusted: Trusted = "phantoms" if data.startswith(PHANTOMS) else "real"
    first, second = (
        open_reader(
            options.model,
            engine=options.engine,
            threads=options.threads,
            precision=precision,
            trusted=trusted,
            checked=True,
        )
        for precision in ("float32", options.precision)
    )

    def read(reader: ChexReader, gray: FloatArray) -> FilmReading:
        return reader.report(reader.look(gray), questions.prompts)

    grays = (films.load(index).gray for index in range(len(films)))
    return agreement_of(
        ((read(first, gray), read(second, gray)) for gray in grays),
        first.manifest.decisions,
        precision=options.precision,
        data=data if trusted == "phantoms" else f"{_BOXES}{Path(data.removeprefix(_BOXES)).name}",
        held_out=held_out,
    )


def films_of(data: str, held_out: str | None, manifest: Manifest) -> tuple[CaseSource, str]:
    """Return the films, and the share or the name of the file of held-out patients. Raises ModelError."""
    from models.lab.evaluation.boxes_file import read_films
    from models.lab.evaluation.cases import Phantoms
    from models.lab.phantoms import parse_set
    from models.lab.training.split import read_held_out

    if data.startswith(_BOXES):
        patients = None if held_out is None else read_held_out(held_out)
        films = read_films(Path(data.removeprefix(_BOXES)), manifest, held_out=patients)
        return films, "" if held_out is None else Path(held_out).name
    try:
        return Phantoms(parse_set(data), manifest), ""
    except ValueError as error:
        raise ModelError(f"--data: {error}, or boxes:FILE.jsonl for the films of a file") from error


if __name__ == "__main__":
    run(main)
