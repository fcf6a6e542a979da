"""Runnable: makes a complete model directory with random weights, small for tests or of the published size.

    python -m tests.support.random_model --size small|full DIRECTORY [--seed N]

Weights are drawn and written in pieces, so the published size needs little memory. The numbers are bit counts of a raw
random stream, which numpy guarantees not to change: equal seeds give equal files everywhere. They are small multiples
of a power of two, exact in float16.
"""

from __future__ import annotations

import math
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.assembly import UNTRAINED, shapes_of
from models.checkpoint.card import complete
from models.checkpoint.files import write_stream
from models.command import command_parser, run
from models.decisions import Decisions
from models.manifest import (
    PUBLISHED_MEAN,
    PUBLISHED_SIZES,
    PUBLISHED_STD,
    WEIGHTS,
    DetectorSizes,
    GeneratorSizes,
    ImageEncoderSizes,
    InputRule,
    Manifest,
    NetworkSizes,
    PostDecoderSizes,
    PromptEncoderSizes,
)
from models.reading.tokenizers import SENTENCE_END, VOCABULARIES, SentenceTokenizer

Size = Literal["small", "full"]
FloatArray = NDArray[np.float32]

DEFAULT_SEED = 36

SMALL_SIZES = NetworkSizes(
    image_encoder=ImageEncoderSizes(patch_size=32, image_size=224, width=96, layers=3, heads=3, output=64),
    prompt_encoder=PromptEncoderSizes(vocabulary=49408, context=77, width=64, layers=2, heads=1, output=64),
    detector=DetectorSizes(dim=64, heads=4, layers=3, boxes_per_prompt=3, feedforward=256, beta=2.0),
    post_decoder=PostDecoderSizes(layers=2),
    generator=GeneratorSizes(
        vocabulary=50257, positions=128, width=64, layers=2, heads=4, prefix_length=5, prefix_hidden=128, max_length=24
    ),
)

# The only words that untrained weights produce: each is one token, and none could be mistaken for a finding.
_WORDS = (
    "amber river maple cloud harbor violet copper silver garden winter lantern canvas marble thunder forest sunset "
    "breeze island candle mountain village bridge window ribbon basket pencil paper velvet ocean desert valley autumn "
    "spring summer morning evening tower castle wagon kettle mirror ladder pepper ginger honey lemon ivory crimson"
)
_PIECE = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class _WeightRule:
    """How the weights with matching names are drawn.

    gain: standard deviation, divided by the root of the number of inputs if `scaled`
    constant: used instead of random numbers; repeated along the tensor
    """

    name: str
    gain: float = 1.0
    scaled: bool = True
    constant: tuple[float, ...] = ()


# The first rule that fits. The gains were tried out: with them prompts, films and boxes differ visibly, scores cover
# most of 0..1, and sentences differ in words and length. Equal gains would give one answer to everything.
_RULES = (
    _WeightRule(name=r".*norm_\w+\.weight", constant=(1.0,)),
    _WeightRule(name=r".*\.(scale_\w+|gate)", constant=(0.5,)),
    _WeightRule(name=r"detector\.box\.contract\.bias", constant=(0.0, 0.0, -0.5, -0.5)),
    _WeightRule(name=r".*\.bias", constant=(0.0,)),
    _WeightRule(name=r"generator\.positions\.weight", gain=0.25, scaled=False),
    _WeightRule(name=r".*\.(tokens|positions)\.weight|.*\.(positions|class_token)", gain=1 / 32, scaled=False),
    _WeightRule(name=r"generator\.prefix\.contract\.weight", gain=8.0),
    _WeightRule(name=r"(generator|prompt_encoder)\.layers\..*(out|contract)\.weight", gain=2.0),
    _WeightRule(name=r"prompt_encoder\.layers\..*packed\.weight", gain=2.0),
    _WeightRule(name=r"detector\.box_tokens", gain=0.7, scaled=False),
    _WeightRule(name=r"detector\.patch\.weight", gain=0.08),
    _WeightRule(name=r"detector\.box\.contract\.weight", gain=3.0),
    _WeightRule(name=r"detector\.score\.contract\.weight", gain=6.0),
    _WeightRule(name=r".*"),
)


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("tests.support.random_model", description="Make an untrained model.")
    parser.add_argument("directory", type=Path, help="the model directory to write")
    parser.add_argument("--size", choices=get_args(Size), required=True, help="full is as published")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        parameters = write_directory(options.directory, size=options.size, seed=options.seed)
    except OSError as error:
        print(f"{options.directory} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{options.directory}: {parameters:,} random parameters, seed {options.seed}")
    return 0


def write_directory(directory: Path, *, size: Size, seed: int) -> int:
    """Write a model directory with random weights, its manifest last. Returns the number of parameters."""
    sizes = SMALL_SIZES if size == "small" else PUBLISHED_SIZES
    directory.mkdir(parents=True, exist_ok=True)
    shapes = shapes_of(sizes)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    numbers = (values for name, shape in shapes.items() for values in draw(name, shape, seed=seed))
    write_stream(directory / WEIGHTS, shapes, numbers)
    manifest = _manifest(size=size, sizes=sizes, seed=seed)
    complete(directory, manifest, card=f"# {manifest.name}\n\nRandom weights. This model has learned nothing.\n")
    return parameters


def _manifest(*, size: Size, sizes: NetworkSizes, seed: int) -> Manifest:
    return Manifest(
        name=f"chex-{size}-untrained",
        version=f"1.{seed}",
        licence="Apache-2.0",
        trained_on=f"nothing: random weights, {UNTRAINED}",
        intended_use="tests of the program; never any clinical use",
        gray="voi",
        input=InputRule(size=sizes.image_encoder.image_size, mean=PUBLISHED_MEAN, std=PUBLISHED_STD, resize="direct"),
        sizes=sizes,
        decisions=Decisions(
            temperature=0.15, default_threshold=0.7, review_band=0.1, box_threshold=0.5, region_threshold=0.5
        ),
    )


def draw(name: str, shape: tuple[int, ...], *, seed: int) -> Iterator[FloatArray]:
    """Draw one weight, flat, in pieces of whole rows. Each weight has its own random stream, independent of the others.

    The generator's token embeddings are drawn so that it produces only a few everyday words.
    """
    pieces = _draw(name, shape, seed=seed)
    if name != "generator.tokens.weight":
        yield from pieces
        return
    said, place = _said_tokens(), 0
    for values in pieces:
        _speak_only(values, said, first=place // shape[1], width=shape[1])
        place += len(values)
        yield values


def _draw(name: str, shape: tuple[int, ...], *, seed: int) -> Iterator[FloatArray]:
    rule = next(rule for rule in _RULES if re.fullmatch(rule.name, name))
    count = math.prod(shape)
    if rule.constant:
        yield np.resize(np.array(rule.constant, dtype=np.float32), count)
        return
    inputs = math.prod(shape[1:]) if name.endswith(".weight") else shape[0]
    deviation = rule.gain / math.sqrt(inputs) if rule.scaled else rule.gain
    # The sum of eight random bits has nine values and deviation root 2, scaled by the nearest power of two.
    step = np.float32(2.0 ** round(math.log2(deviation / math.sqrt(2))))
    stream = np.random.PCG64([seed, zlib.crc32(name.encode())])
    row = shape[-1]
    piece = max(_PIECE // row, 1) * row
    for start in range(0, count, piece):
        size = min(piece, count - start)
        raw = stream.random_raw(-(-size // 8)).astype("<u8").view(np.uint8)[:size]
        yield (np.bitwise_count(raw).astype(np.float32) - 4) * step


def _said_tokens() -> NDArray[np.int64]:
    """List the tokens that an untrained generator may produce: the words, and the end of a sentence."""
    tokenizer = SentenceTokenizer(VOCABULARIES)
    return np.array([*(tokenizer.encode(f" {word}")[0] for word in _WORDS.split()), SENTENCE_END])


def _speak_only(values: FloatArray, said: NDArray[np.int64], *, first: int, width: int) -> None:
    """Lengthen the rows of some tokens so that one of them is always the most likely; changes `values` in place."""
    rows = values.reshape(-1, width)
    mine = said[(said >= first) & (said < first + len(rows))] - first
    rows[mine] *= 4
    rows[mine[mine + first == SENTENCE_END]] *= 2


if __name__ == "__main__":
    run(main)
