"""Assembles a network from a source, another model directory for what it lacks, and random weights for the rest.

All weights are checked before the first is written: none is missing, none is unknown, each has its shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.checkpoint import claims, published
from models.checkpoint.contents import Contents, Kind
from models.errors import ModelError
from models.manifest import PUBLISHED_SIZES, Manifest, NetworkSizes
from models.random_weights import draw, shapes_of

FloatArray = NDArray[np.float32]

UNTRAINED = "random weights"
"""The origin of weights drawn to complete an import; a training initializes such parts again."""
INITIAL = "not trained yet"
"""The origin of a training's initial weights; later trainings continue from them."""
PARTS = ("image_encoder", "prompt_encoder", "detector", "post_decoder", "generator.prefix", "generator")
"""The parts of the network by the beginnings of their weights' names; the first match counts."""

_PARTS_OF: Mapping[Kind, tuple[str, ...]] = {
    "ChEX": PARTS,
    "CheXzero": ("image_encoder", "prompt_encoder"),
    "GPT-2": ("generator",),
}
# Given by the vocabularies, which every model directory has from us.
_ROWS = {
    "prompt_encoder.tokens.weight": PUBLISHED_SIZES.prompt_encoder.vocabulary,
    "prompt_encoder.positions": PUBLISHED_SIZES.prompt_encoder.context,
    "generator.tokens.weight": PUBLISHED_SIZES.generator.vocabulary,
}
_PIECE = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A model directory that provides what a source does not hold."""

    manifest: Manifest
    state: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network whose weights are known but not yet copied.

    shapes: by our names, in the order of the file
    state: the weights that are not drawn at random; origins: of each of PARTS
    """

    sizes: NetworkSizes
    shapes: Mapping[str, tuple[int, ...]]
    state: Mapping[str, Tensor]
    origins: Mapping[str, str]
    seed: int

    @property
    def parameters(self) -> int:
        """The number of its parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def numbers(self) -> Iterator[FloatArray]:
        """Yield all weights in order, in pieces. Raises ModelError for a number that is not finite."""
        for name, shape in self.shapes.items():
            if name in self.state:
                yield from _pieces(name, self.state[name], origin=self.origins[part_of(name)])
            else:
                yield from draw(name, shape, seed=self.seed)


def origin_of(manifest: Manifest) -> str:
    """Return where a part came from, if it came from the training of a whole model."""
    return f"{manifest.name} {manifest.version}, trained on {manifest.trained_on}"


def part_of(name: str) -> str:
    """Return which of PARTS a weight belongs to."""
    return next(part for part in PARTS if name.startswith(f"{part}."))


def assemble(contents: Contents, *, place: str, rest: Rest | None, generator_heads: int | None, seed: int) -> Network:
    """Assemble a network.

    place: the name of the source among the origins; generator_heads: of GPT-2, if --gpt2-heads gives it
    Raises ModelError that names the key, what was expected and what was found.
    """
    claims.check_behavior(contents)
    state = published.rename(contents.state)
    try:
        sizes = _sizes(contents, state, rest=rest, generator_heads=generator_heads)
    except ValueError as error:
        raise ModelError(f"the sizes of its weights do not fit together: {error}") from error
    shapes = shapes_of(sizes)
    _check(contents, shapes)
    if contents.kind == "ChEX":
        claims.check_sizes(contents, sizes)
    if rest is not None:
        _check_rest(rest, shapes, taken=state)
        state = {**rest.state, **state}
    origins = {part: f"{UNTRAINED}, seed {seed}" for part in PARTS}
    if rest is not None:
        origins = {part: rest.manifest.origins.get(part, origin_of(rest.manifest)) for part in PARTS}
    origins |= dict.fromkeys(_PARTS_OF[contents.kind], place)
    return Network(sizes=sizes, shapes=shapes, state=state, origins=origins, seed=seed)


def _sizes(
    contents: Contents, state: Mapping[str, Tensor], *, rest: Rest | None, generator_heads: int | None
) -> NetworkSizes:
    base = rest.manifest.sizes if rest is not None else PUBLISHED_SIZES
    if contents.kind == "CheXzero":
        dim = published.dim_of(state)
        if rest is None and dim != base.dim:
            detector = replace(base.detector, dim=dim, feedforward=4 * dim, heads=math.gcd(base.detector.heads, dim))
            base = replace(
                base,
                detector=detector,
                image_encoder=replace(base.image_encoder, output=dim),
                prompt_encoder=replace(base.prompt_encoder, output=dim),
            )
        return published.with_encoders(base, state)
    width = published.generator_width_of(state)
    heads = claims.generator_heads(contents, width=width, option=generator_heads)
    if contents.kind == "GPT-2":
        return published.with_language_model(base, state, heads=heads)
    return published.sizes_of(
        state,
        heads=claims.heads(contents),
        generator_heads=heads,
        max_length=claims.max_length(contents),
        beta=claims.beta(contents),
    )


def _check(contents: Contents, shapes: published.Shapes) -> None:
    """Compare a source with the network that its sizes describe, key by key under the published names."""
    parts = _PARTS_OF[contents.kind]
    expected = published.their_shapes({name: shape for name, shape in shapes.items() if part_of(name) in parts})
    found = contents.state
    for problem, keys in (
        ("is missing", expected.keys() - found.keys()),
        ("is unknown", found.keys() - expected.keys()),
    ):
        if keys:
            more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
            raise ModelError(f"{min(keys)} {problem}{more}; expected the {len(expected)} weights of {contents.kind}")
    for key, shape in expected.items():
        tensor = found[key]
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{key} has the shape {list(tensor.shape)}, expected {list(shape)}")
        if not tensor.is_floating_point():
            raise ModelError(f"{key} holds {tensor.dtype}, expected floating-point numbers")
    for name, rows in _ROWS.items():
        key = published.their_name(name)
        if key in found and found[key].shape[0] != rows:
            raise ModelError(f"{key} has {found[key].shape[0]} rows, expected {rows} as the vocabularies ask for")


def _check_rest(rest: Rest, shapes: published.Shapes, *, taken: Mapping[str, Tensor]) -> None:
    """Check that the other model directory's weights fit the part."""
    for name, shape in shapes.items():
        if name not in taken and (name not in rest.state or tuple(rest.state[name].shape) != shape):
            found = list(rest.state[name].shape) if name in rest.state else "missing"
            raise ModelError(
                f"{rest.manifest.name}, the rest, does not fit: {published.their_name(name)} is {found}, "
                f"expected {list(shape)}; choose another --rest, or leave it out for random weights"
            )


def _pieces(name: str, tensor: Tensor, *, origin: str) -> Iterator[FloatArray]:
    """Divide a weight into pieces of whole rows, so that only one piece is in memory."""
    rows = max(_PIECE // max(math.prod(tensor.shape[1:]), 1), 1)
    for start in range(0, tensor.shape[0], rows):
        values = tensor[start : start + rows].to(torch.float32).contiguous()
        if len(wrong := values[~torch.isfinite(values)]):
            key = published.their_name(name)
            raise ModelError(f"{origin}: {key} holds {wrong[0].item()}, expected finite numbers in float32")
        yield values.numpy()
