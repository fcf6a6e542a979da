"""Runnable: estimates what drafts would gain: tokens that earlier sentences propose, and one pass then checks together.

    python -m models.lab.evaluation.drafts --model DIR --data phantoms:SEED:COUNT|boxes:FILE.jsonl [--held-out FILE]
        [--timed DIR]

The sentences of the first half of the films are the book. Those of the other half are written again: after what stands
there, the book proposes how most of its sentences go on, and a pass writes what of this was right, and one token more.
`--timed` names a model whose passes are timed, as one of the published size. What a pass writes, divided by what it
takes beside a pass of one token, is the estimate. In a timed pass the tokens are those of several sentences.
Exit 0: estimated; 2: wrong input.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from models.command import command_parser, exit_status, run
from models.contract import Trusted
from models.decisions import PHANTOMS
from models.engines import ENGINES
from models.lab.evaluation.agreement import films_of
from models.lab.evaluation.prompt_set import DEFAULT, read_questions
from models.manifest import read_manifest
from models.reading.tokenizers import SENTENCE_END, SentenceTokenizer

if TYPE_CHECKING:
    from models.network.packed_decoding import PackedWriter, Writing

PASSES: Final = (2, 4, 8)
"""Tokens of a pass: the last one that stands, and those that the book proposes."""
_LAST: Final = 3
"""Tokens by which the book goes on where no sentence begins so."""

Ids = tuple[int, ...]
"""The tokens of a sentence from the first word to END."""


class Book:
    """How sentences went on: after their whole beginning, and after their last few tokens."""

    def __init__(self, sentences: Iterable[Ids]) -> None:
        self._begun: dict[Ids, Counter[int]] = {}
        self._within: dict[Ids, Counter[int]] = {}
        for ids in sentences:
            for place, token in enumerate(ids):
                self._begun.setdefault(ids[:place], Counter())[token] += 1
                if place >= _LAST:
                    self._within.setdefault(ids[place - _LAST : place], Counter())[token] += 1

    def proposed(self, written: Ids, count: int) -> Ids:
        """Return the likeliest next tokens, at most so many, and none after END."""
        ids = written
        while len(ids) < len(written) + count and SENTENCE_END not in ids[-1:]:
            following = self._begun.get(ids) or self._within.get(ids[-_LAST:])
            if following is None:
                break
            ids += (following.most_common(1)[0][0],)
        return ids[len(written) :]


def tokens_a_pass(book: Book, sentences: Sequence[Ids], *, checked: int) -> float:
    """Return how many tokens of sentences a pass writes that checks so many, its first token among them."""
    passes = 0
    for ids in sentences:
        place = 0
        while place < len(ids):
            proposed = book.proposed(ids[:place], checked - 1)
            right = [first == second for first, second in zip(proposed, ids[place:], strict=False)]
            place += ([*right, False]).index(False) + 1
            passes += 1
    return sum(map(len, sentences)) / max(passes, 1)


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.lab.evaluation.drafts", description="Estimate what drafts of sentences would gain.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("--data", required=True, metavar="FILMS", help="phantoms:SEED:COUNT or boxes:FILE.jsonl")
    parser.add_argument("--held-out", metavar="SHARE_OR_FILE", help="of a file, only patients that a training held out")
    parser.add_argument("--engine", choices=ENGINES, default="onnx", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=0, help="0: as the node")
    parser.add_argument("--timed", type=Path, metavar="DIR", help="a model directory whose passes are timed")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _estimate(options))


def _estimate(options: argparse.Namespace) -> int:
    films = _sentences(options)
    half = len(films) // 2
    counted = [ids for film in films[half:] for ids in film]
    book = Book(ids for film in films[:half] for ids in film)
    print(f"{len(counted)} sentences of {len(films) - half} films, {len(set(counted))} distinct")
    written = {checked: tokens_a_pass(book, counted, checked=checked) for checked in PASSES}
    for checked, tokens in written.items():
        print(f"a pass of {checked} tokens writes {tokens:.2f}")
    if options.timed is not None:
        for name, seconds in _seconds(options.timed).items():
            for checked, tokens in written.items():
                times = seconds[checked] / seconds[1]
                print(
                    f"{name}, {checked} tokens: {1000 * seconds[checked]:.1f} ms, {times:.2f} times one token; "
                    f"estimate: {tokens / times:.2f} times as fast"
                )
    return 0


def _sentences(options: argparse.Namespace) -> list[list[Ids]]:
    """Read films. Returns the sentences of each."""
    from models.reading.reader import open_reader

    films, _ = films_of(options.data, options.held_out, read_manifest(options.model))
    trusted: Trusted = "phantoms" if options.data.startswith(PHANTOMS) else "real"
    reader = open_reader(options.model, engine=options.engine, threads=options.threads, trusted=trusted, checked=True)
    tokenizer, prompts = SentenceTokenizer(options.model / "vocab"), read_questions(DEFAULT).prompts
    readings = (reader.report(reader.look(films.load(index).gray), prompts) for index in range(len(films)))
    return [
        [(*tokenizer.encode(prompt.generated), SENTENCE_END) for prompt in reading.prompts if prompt.generated]
        for reading in readings
    ]


def _seconds(directory: Path) -> Mapping[str, Mapping[int, float]]:
    """Time passes in float32 and int4, which take turns: the median seconds by the tokens of a pass.

    They are those of the processor with one thread, so that other work on the machine counts little.
    """
    import torch

    from models.checkpoint.weights import load_generator, release_pages
    from models.network.packed_decoding import PackedWriter
    from models.network.products import Choice

    generator = load_generator(directory).generator
    torch.set_num_threads(1)
    choices: Mapping[str, Choice | None] = {"float32": None, "int4": Choice(form="int4", reason="it is timed")}
    writers = {
        name: PackedWriter(generator, max_length=generator.sizes.max_length, choice=choice, release=release_pages)
        for name, choice in choices.items()
    }
    taken = {name: {rows: list[float]() for rows in (1, *PASSES)} for name in writers}
    active = {(name, rows): _begun(writer, rows) for name, writer in writers.items() for rows in (1, *PASSES)}
    while active:
        for (name, rows), writing in active.items():
            began = time.thread_time()
            list(writers[name].step([writing]))
            taken[name][rows].append(time.thread_time() - began)
        whole = {key: writing for key, writing in active.items() if len(writing.current) == key[1]}
        active = {key: writing for key, writing in whole.items() if not writing.is_over}
    return {name: {rows: median(seconds) for rows, seconds in of.items()} for name, of in taken.items()}


def _begun(writer: PackedWriter, rows: int) -> Writing:
    """Return so many sentences of drawn features, whose prefixes are computed."""
    import torch

    writing = writer.start(torch.randn(rows, writer.dim, generator=torch.Generator().manual_seed(rows)))
    list(writer.join([writing]))
    return writing


if __name__ == "__main__":
    run(main)
