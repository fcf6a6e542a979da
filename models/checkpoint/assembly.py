"""Assembles a network from a source, another model directory for what it lacks, and zeros for the rest.

All weights are checked before the first is written: none is missing, none is unknown, each has its shape. The source's
configuration is compared with what this network computes and with the shapes: a missing key is accepted, because older
versions of the published program had other keys; one that is present must match.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.checkpoint import published
from models.checkpoint.source import Contents, Kind
from models.errors import ModelError
from models.manifest import PUBLISHED_SIZES, Manifest, NetworkSizes
from models.network.chex import Chex, without_numbers
from models.progress import ProgressReport

_LANGUAGE_MODEL = "txt_decoder.language_model_url"
_PUBLISHED_LANGUAGE_MODEL = "healx/gpt-2-pubmed-medium"
_GENERATION = "txt_decoder.generation_kwargs"
_PREFIX_LAYERS = "txt_decoder.n_projection_layers"
_PREFIX_SHARED = "txt_decoder.shared_projection"
_LENGTH = (f"{_GENERATION}.max_length", "txt_decoder.max_length")

# How the published network computes, as far as a configuration could say otherwise (spec §2 to 7).
_CHEX: Mapping[str, object] = {
    "model_class": "ChEX",
    "act": "gelu",
    "layer_scale": True,
    "img_encoder.model_class": "ChexzeroImageEncoder",
    "img_encoder.add_cls_features": False,
    "img_encoder.use_pretrained_projection": True,
    "img_encoder.additional_projection_layers": 0,
    "img_encoder.projection_bn": False,
    "img_encoder.normalize_projected": False,
    "txt_encoder.model_class": "ChexzeroTextEncoder",
    "txt_encoder.n_projection_layers": 0,
    "txt_encoder.projection_bn": False,
    "txt_encoder.normalize_projected": False,
    "detector.model_class": "TokenDetector",
    "detector.multiregion_sa": True,
    "detector.decoder_sa": False,
    "detector.decoder_ff": True,
    "detector.shortcut_tokens": False,
    "detector.use_pos_embeddings": True,
    "detector.shortcut_pos_embeddings": False,
    "detector.clip_pos": False,
    "detector.predictor_hidden_layers": 1,
    "detector.patch_project_layers": 1,
    "detector.out_project_layers": 2,
    "detector.skip_con_roi_pool": True,
    "post_decoder_patches": True,
    "post_decoder_cls": True,
    "post_decoder_gate": True,
    "txt_decoder.model_class": "PTunedDecoderModel",
    "txt_decoder.position_offset": None,
    f"{_GENERATION}.do_sample": False,
    f"{_GENERATION}.num_beams": 1,
    f"{_GENERATION}.repetition_penalty": 1.0,
    f"{_GENERATION}.no_repeat_ngram_size": 0,
    f"{_GENERATION}.min_length": 0,
    f"{_GENERATION}.use_cache": True,
}
_GPT2: Mapping[str, object] = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}

# What both a configuration and the shape of a weight say: the size, and that weight.
_COUNTED = {
    "d_model": ("detector.dim", "detector.multiregion_tokens"),
    "detector.multiregions": ("detector.boxes_per_prompt", "detector.multiregion_tokens"),
    "detector.n_decoder_layers": ("detector.layers", "detector.decoder.decoder_layers.*"),
    "n_post_decoder_layers": ("post_decoder.layers", "post_decoder.post_decoder_layers.*"),
    "txt_decoder.prefix_length_factor": ("generator.prefix_length", "txt_decoder.prefix_proj"),
}
FloatArray = NDArray[np.float32]

UNTRAINED = "never trained"
"""The origin of the zeros that complete an import; a training initializes such parts."""
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


def check_behavior(contents: Contents) -> None:
    """Refuse the configuration of a network that computes something else. Raises ModelError that names the key."""
    expected = _CHEX if contents.kind == "ChEX" else _GPT2
    for key, wanted in expected.items():
        for found in _values(contents.config, key):
            if found != wanted:
                raise ModelError(
                    f"{contents.config_place}: {key} is {found!r}, expected {wanted!r}; no other value is supported"
                )
    known = {*expected, *_LENGTH}
    for rules in _values(contents.config, _GENERATION):
        for name in rules if isinstance(rules, Mapping) else ():
            if f"{_GENERATION}.{name}" not in known:
                raise ModelError(
                    f"{contents.config_place}: {_GENERATION}.{name} is unknown, expected greedy decoding without it"
                )


def check_sizes(contents: Contents, sizes: NetworkSizes) -> None:
    """Compare the numbers of a ChEX configuration with the shapes of its weights. Raises ModelError."""
    for key, (size, weight) in _COUNTED.items():
        told = attrgetter(size)(sizes)
        for found in _values(contents.config, key):
            if found != told:
                raise ModelError(f"{contents.config_place}: {key} is {found!r}, but {weight} says {told}")


def beta_of(contents: Contents) -> float:
    """Return the exponent of the soft boxes."""
    found = next(_values(contents.config, "detector.soft_roi_beta"), None)
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found <= sys.float_info.max:
        return float(found)
    raise ModelError(f"{contents.config_place}: detector.soft_roi_beta is {found!r}, expected a finite number above 0")


def is_prefix_linear(contents: Contents) -> bool:
    """Return whether one linear layer instead of two makes the prefix: an ablation of Table 4. Raises ModelError."""
    layers = next(_values(contents.config, _PREFIX_LAYERS), 2)
    if isinstance(layers, bool) or layers not in (1, 2):
        raise ModelError(f"{contents.config_place}: {_PREFIX_LAYERS} is {layers!r}, expected 1 or 2")
    return layers == 1


def is_prefix_shared(contents: Contents) -> bool:
    """Return whether all layers of GPT-2 share one prefix: an ablation of Table 4. Raises ModelError."""
    shared = next(_values(contents.config, _PREFIX_SHARED), False)
    if not isinstance(shared, bool):
        raise ModelError(f"{contents.config_place}: {_PREFIX_SHARED} is {shared!r}, expected True or False")
    return shared


def max_length_of(contents: Contents) -> int:
    """Return the tokens of a sentence, the leading BOS included; the generation settings come first (spec §7.3)."""
    is_there = next((key for key in _LENGTH if any(_values(contents.config, key))), _LENGTH[-1])
    return _whole(contents, is_there)


def generator_heads_of(contents: Contents, *, width: int, option: int | None) -> int:
    """Return the heads of GPT-2: by its name, by its own configuration, or from the command line; never those of ChEX.

    width: width of GPT-2; the name alone does not suffice, because small networks for tests use it too
    Raises ModelError if none of them gives the number, or if two disagree.
    """
    known: int | None = None
    if contents.kind == "GPT-2" and "n_head" in contents.config:
        known = _whole(contents, "n_head")
    url = next(_values(contents.config, _LANGUAGE_MODEL), None)
    if url == _PUBLISHED_LANGUAGE_MODEL and width == PUBLISHED_SIZES.generator.width:
        known = PUBLISHED_SIZES.generator.heads
    if known is not None and option not in (None, known):
        raise ModelError(f"--gpt2-heads is {option}, but this GPT-2 has {known} heads; leave the option out")
    if known is None and option is None:
        named = f" ({_LANGUAGE_MODEL} is {url!r})" if url else ""
        raise ModelError(f"no weight tells how many heads a GPT-2 of width {width} has{named}; give it: --gpt2-heads N")
    return known or option or 0


def _whole(contents: Contents, key: str) -> int:
    found = next(_values(contents.config, key), None)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ModelError(f"{contents.config_place}: {key} is {found!r}, expected a whole number")
    return found


def _values(config: Mapping[str, object], key: str) -> Iterator[object]:
    """Yield the value at a dotted key, or nothing if there is no such key."""
    found: object = config
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return
        found = found[part]
    yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A model directory that provides what a source does not hold."""

    manifest: Manifest
    state: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network whose weights are known but not yet copied.

    shapes: by our names, in the order of the file
    state: the weights that are known, all others are zeros; origins: the origin of each of PARTS
    """

    sizes: NetworkSizes
    shapes: Mapping[str, tuple[int, ...]]
    state: Mapping[str, Tensor]
    origins: Mapping[str, str]

    @property
    def parameters(self) -> int:
        """The number of its parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def numbers(self, report: ProgressReport) -> Iterator[FloatArray]:
        """Yield all weights in order, in pieces. Raises ModelError for a number that is not finite."""
        done = 0
        for name, shape in self.shapes.items():
            known = self.state.get(name)
            pieces = _zeros(shape) if known is None else _pieces(name, known, origin=self.origins[part_of(name)])
            for values in pieces:
                yield values
                done += values.size
                report("write", done, self.parameters)


def shapes_of(sizes: NetworkSizes) -> dict[str, tuple[int, ...]]:
    """List the weights of a network and their shapes, in the order in which they are written."""
    with without_numbers():
        return {name: tuple(tensor.shape) for name, tensor in Chex(sizes).state_dict().items()}


def origin_of(manifest: Manifest) -> str:
    """Return where a part came from, if it came from the training of a whole model."""
    return f"{manifest.name} {manifest.version}, trained on {manifest.trained_on}"


def part_of(name: str) -> str:
    """Return which of PARTS a weight belongs to."""
    return next(part for part in PARTS if name.startswith(f"{part}."))


def assemble(contents: Contents, *, place: str, rest: Rest | None, generator_heads: int | None) -> Network:
    """Assemble a network.

    place: the name of the source among the origins; generator_heads: heads of GPT-2, if --gpt2-heads gives it
    Raises ModelError that names the key, what was expected and what was found.
    """
    check_behavior(contents)
    state = published.rename(contents.state, linear_prefix=is_prefix_linear(contents))
    try:
        sizes = _sizes(contents, state, rest=rest, generator_heads=generator_heads)
    except ValueError as error:
        raise ModelError(f"the sizes of its weights do not fit together: {error}") from error
    shapes = shapes_of(sizes)
    _check(contents, shapes)
    if contents.kind == "ChEX":
        check_sizes(contents, sizes)
    if rest is not None:
        _check_rest(rest, shapes, taken=state)
        state = {**rest.state, **state}
    origins = {part: f"{UNTRAINED}, zeros" for part in PARTS}
    if rest is not None:
        origins = {part: rest.manifest.origins.get(part, origin_of(rest.manifest)) for part in PARTS}
    origins |= dict.fromkeys(_PARTS_OF[contents.kind], place)
    return Network(sizes=sizes, shapes=shapes, state=state, origins=origins)


def _sizes(
    contents: Contents, state: Mapping[str, Tensor], *, rest: Rest | None, generator_heads: int | None
) -> NetworkSizes:
    base = rest.manifest.sizes if rest is not None else PUBLISHED_SIZES
    if contents.kind == "CheXzero":
        return published.with_encoders(base, state)
    width = published.generator_width_of(state)
    heads = generator_heads_of(contents, width=width, option=generator_heads)
    if contents.kind == "GPT-2":
        return published.with_language_model(base, state, heads=heads)
    return published.sizes_of(
        state,
        heads=_whole(contents, "n_head"),
        generator_heads=heads,
        max_length=max_length_of(contents),
        beta=beta_of(contents),
        prefix_shared=is_prefix_shared(contents),
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
                f"expected {list(shape)}; choose another --rest, or leave it out for zeros"
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


def _zeros(shape: tuple[int, ...]) -> Iterator[FloatArray]:
    count = math.prod(shape)
    for start in range(0, count, _PIECE):
        yield np.zeros(min(_PIECE, count - start), dtype=np.float32)
