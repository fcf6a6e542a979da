"""Maps the names and layouts of the published ChEX weights to ours (spec §12).

Only names differ, with two exceptions: GPT-2 stores its matrices as input by output, and its output embedding twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

from torch import Tensor

from models.errors import ModelError
from models.manifest import (
    DetectorSizes,
    GeneratorSizes,
    ImageEncoderSizes,
    NetworkSizes,
    PostDecoderSizes,
    PromptEncoderSizes,
)

Shapes = Mapping[str, tuple[int, ...]]
_Pairs = tuple[tuple[str, str], ...]

_CLIP_HEAD_WIDTH = 64
_IMAGE, _PROMPT = "img_encoder.backbone.", "txt_encoder."
_LANGUAGE = "txt_decoder.language_model."
_TRANSFORMER = "language_model.transformer."
_TIED = f"{_LANGUAGE}lm_head.weight"
_TOKENS = f"{_LANGUAGE}transformer.wte.weight"
# Entries of CLIP's state dict that our network does not have.
_CLIP_SCALARS = {"logit_scale", "input_resolution", "context_length", "vocab_size"}

# Beginnings of names: published, ours.
_CLIP_LAYER: _Pairs = (
    ("attn.in_proj_", "attention.packed."),
    ("attn.out_proj.", "attention.out."),
    ("mlp.c_fc.", "expand."),
    ("mlp.c_proj.", "contract."),
    ("ln_1.", "norm_attention."),
    ("ln_2.", "norm_mlp."),
)
_DECODER_LAYER: _Pairs = (
    ("norm_sa.", "norm_self."),
    ("sa_block.sa.in_proj_", "self_attention.packed."),
    ("sa_block.sa.out_proj.", "self_attention.out."),
    ("ls_sa.gamma", "scale_self"),
    ("norm_mha.", "norm_cross."),
    ("norm_encoder.", "norm_memory."),
    ("mha_block.mha.in_proj_", "cross_attention.packed."),
    ("mha_block.mha.out_proj.", "cross_attention.out."),
    ("ls_mha.gamma", "scale_cross"),
    ("norm_ff.", "norm_mlp."),
    ("ff_block.layers.0.", "mlp.expand."),
    ("ff_block.layers.3.", "mlp.contract."),
    ("ls_ff.gamma", "scale_mlp"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartNames:
    """The names in one part of the network: their beginning, and how they continue inside and outside its layers."""

    theirs: str
    ours: str
    layers: str
    in_layer: _Pairs
    others: _Pairs


_PARTS = (
    _PartNames(
        theirs=_IMAGE,
        ours="image_encoder.",
        layers="transformer.resblocks.",
        in_layer=_CLIP_LAYER,
        others=(
            ("class_embedding", "class_token"),
            ("positional_embedding", "positions"),
            ("conv1.", "stem."),
            ("ln_pre.", "norm_before."),
            ("ln_post.", "norm_after."),
            ("proj", "projection"),
        ),
    ),
    _PartNames(
        theirs=_PROMPT,
        ours="prompt_encoder.",
        layers="transformer.resblocks.",
        in_layer=_CLIP_LAYER,
        others=(
            ("token_embedding.", "tokens."),
            ("positional_embedding", "positions"),
            ("ln_final.", "norm_after."),
            ("text_projection", "projection"),
        ),
    ),
    _PartNames(
        theirs="detector.",
        ours="detector.",
        layers="decoder.decoder_layers.",
        in_layer=_DECODER_LAYER,
        others=(
            ("multiregion_tokens", "box_tokens"),
            ("multiregion_weight_mlp.layers.0.", "score.expand."),
            ("multiregion_weight_mlp.layers.3.", "score.contract."),
            ("bbox_predictor.0.", "norm_box."),
            ("bbox_predictor.1.layers.0.", "box.expand."),
            ("bbox_predictor.1.layers.3.", "box.contract."),
            ("patch_projector.0.", "norm_patch."),
            ("patch_projector.1.layers.0.", "patch."),
            ("out_projector.0.", "norm_region."),
            ("out_projector.1.layers.0.", "region.expand."),
            ("out_projector.1.layers.3.", "region.contract."),
        ),
    ),
    _PartNames(
        theirs="post_decoder.",
        ours="post_decoder.",
        layers="post_decoder_layers.",
        in_layer=_DECODER_LAYER,
        others=(("ln_gate.", "norm_gate."), ("gate", "gate")),
    ),
    _PartNames(
        theirs="txt_decoder.",
        ours="generator.",
        layers=f"{_TRANSFORMER}h.",
        in_layer=(
            ("attn.c_attn.", "packed."),
            ("attn.c_proj.", "out."),
            ("mlp.c_fc.", "expand."),
            ("mlp.c_proj.", "contract."),
            ("ln_1.", "norm_attention."),
            ("ln_2.", "norm_mlp."),
        ),
        others=(
            ("prefix_proj.layers.0.", "prefix.expand."),
            ("prefix_proj.layers.3.", "prefix.contract."),
            ("prefix_proj.layers.0.", "prefix."),
            (f"{_TRANSFORMER}wte.", "tokens."),
            (f"{_TRANSFORMER}wpe.", "positions."),
            (f"{_TRANSFORMER}ln_f.", "norm_after."),
        ),
    ),
)


def from_chexzero(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a CheXzero file, a plain CLIP state dict, to the names they have in ChEX (spec §12)."""
    return {
        _IMAGE + key.removeprefix("visual.") if key.startswith("visual.") else _PROMPT + key: tensor
        for key, tensor in state.items()
        if key not in _CLIP_SCALARS
    }


def from_gpt2(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a Hugging Face GPT-2 file, with or without head, to their names in ChEX."""
    is_bare = "wte.weight" in state
    return {f"{_LANGUAGE}{'transformer.' if is_bare else ''}{key}": tensor for key, tensor in state.items()}


def clean(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove duplicates and buffers, so that every weight of the network is there under one name.

    Raises ModelError if input and output embedding differ.
    """
    # A dropout module between the two linear layers of an MLP counts as one, so the second is 3, or 2 without dropout.
    state = {
        re.sub(r"\.layers\.2\.", ".layers.3.", key.removeprefix("_orig_mod.")): tensor for key, tensor in state.items()
    }
    if _TIED in state and _TOKENS in state and not _are_same(state[_TIED], state[_TOKENS]):
        raise ModelError(f"{_TIED} differs from {_TOKENS}, expected the same; this version knows tied embeddings only")
    # The second group are buffers of old library versions.
    return {
        key: tensor
        for key, tensor in state.items()
        if not (key == _TIED or (key.startswith(_LANGUAGE) and re.search(r"\.attn\.(masked_)?bias$", key)))
    }


def _are_same(first: Tensor, other: Tensor) -> bool:
    """Return whether all numbers are equal; NaN equals NaN."""
    return first.shape == other.shape and bool(((first == other) | (first.isnan() & other.isnan())).all())


def rename(state: Mapping[str, Tensor], *, linear_prefix: bool = False) -> dict[str, Tensor]:
    """Turn a published state dict into ours; tensors are shared, not copied.

    linear_prefix: the generator's prefix is made by one linear layer, whose key is that of the first of two
    Raises ModelError for a key that ChEX does not have, or if input and output embedding differ.
    """
    renamed = {our_name(key): tensor.T if is_turned(key) else tensor for key, tensor in clean(state).items()}
    if not linear_prefix:
        return renamed
    return {name.replace("generator.prefix.expand.", "generator.prefix."): own for name, own in renamed.items()}


def our_name(key: str) -> str:
    """Return our name of a published key. Raises ModelError for a key that ChEX does not have."""
    for part in _PARTS:
        if key.startswith(part.theirs):
            name = key.removeprefix(part.theirs)
            return part.ours + _exchange(name, part, layers=(part.layers, "layers."), ours=True)
    raise _unknown(key, *(part.theirs for part in _PARTS))


def their_name(name: str) -> str:
    """Give the published name of one of our weights."""
    part = next(part for part in _PARTS if name.startswith(part.ours))
    return part.theirs + _exchange(name.removeprefix(part.ours), part, layers=("layers.", part.layers), ours=False)


def their_shapes(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Turn names and shapes of our weights into the published ones, the tied output embedding left out."""
    named = {their_name(name): shape for name, shape in shapes.items()}
    return {key: shape[::-1] if is_turned(key) else shape for key, shape in named.items()}


def is_turned(key: str) -> bool:
    """Return whether a published matrix is stored as input by output, as in the Conv1D layers of GPT-2."""
    return key.startswith(_LANGUAGE) and re.search(r"\.c_(attn|proj|fc)\.weight$", key) is not None


def _exchange(name: str, part: _PartNames, *, layers: tuple[str, str], ours: bool) -> str:
    """Replace the beginning of a name below its part; `layers` are those of the old and of the new name."""
    before, rest, pairs = "", name, part.others
    if name.startswith(layers[0]):
        number, _, rest = name.removeprefix(layers[0]).partition(".")
        before, pairs = f"{layers[1]}{number}.", part.in_layer
    sides = pairs if ours else tuple(pair[::-1] for pair in pairs)
    for old, new in sides:
        if rest.startswith(old):
            return before + new + rest.removeprefix(old)
    above = (part.theirs if ours else part.ours) + name.removesuffix(rest)
    raise _unknown(above + rest, *(above + old for old, _ in sides))


def _unknown(key: str, *beginnings: str) -> ModelError:
    return ModelError(f"{key} is unknown, expected a key that begins with {', '.join(beginnings)}")


def sizes_of(
    state: Mapping[str, Tensor],
    *,
    heads: int,
    generator_heads: int,
    max_length: int,
    beta: float = 2.0,
    prefix_shared: bool = False,
) -> NetworkSizes:
    """Derive the sizes of a renamed state dict from its shapes.

    heads: of detector and post decoder; generator_heads: of GPT-2. Shapes determine neither (spec §12).
    prefix_shared: all layers of GPT-2 have the same prefix; by shape it may also be a prefix of another length
    Raises ModelError with the weight of an unknown size, ValueError for sizes that do not fit together.
    """
    dim = dim_of(state)
    return NetworkSizes(
        image_encoder=_image_encoder(state, dim=dim),
        prompt_encoder=_prompt_encoder(state, dim=dim),
        detector=DetectorSizes(
            dim=dim,
            heads=heads,
            layers=_layers(state, "detector"),
            boxes_per_prompt=_size(state, "detector.box_tokens"),
            feedforward=_size(state, "detector.region.expand.bias"),
            beta=beta,
        ),
        post_decoder=PostDecoderSizes(layers=_layers(state, "post_decoder")),
        generator=_generator(state, heads=generator_heads, max_length=max_length, prefix_shared=prefix_shared),
    )


def with_encoders(sizes: NetworkSizes, state: Mapping[str, Tensor]) -> NetworkSizes:
    """Put the two encoders of a renamed CheXzero file in. Raises as `sizes_of`."""
    dim = dim_of(state)
    return replace(sizes, image_encoder=_image_encoder(state, dim=dim), prompt_encoder=_prompt_encoder(state, dim=dim))


def with_language_model(sizes: NetworkSizes, state: Mapping[str, Tensor], *, heads: int) -> NetworkSizes:
    """Put a renamed GPT-2 in; its prefix and its sentence length are kept. Raises as `sizes_of`."""
    language = _language_model(state)
    length = min(sizes.generator.max_length, language["positions"])
    return replace(sizes, generator=replace(sizes.generator, heads=heads, max_length=length, **language))


def dim_of(state: Mapping[str, Tensor]) -> int:
    """Return the length of the features that are passed between the parts. Raises as `sizes_of`."""
    return _size(state, "image_encoder.projection", axis=1)


def generator_width_of(state: Mapping[str, Tensor]) -> int:
    """Return the width of GPT-2. Raises as `sizes_of`."""
    return _size(state, "generator.norm_after.weight")


def _image_encoder(state: Mapping[str, Tensor], *, dim: int) -> ImageEncoderSizes:
    part = "image_encoder"
    width, patch = _size(state, f"{part}.norm_before.weight"), _size(state, f"{part}.stem.weight", axis=2)
    return ImageEncoderSizes(
        patch_size=patch,
        image_size=patch * math.isqrt(_size(state, f"{part}.positions") - 1),
        width=width,
        layers=_layers(state, part),
        heads=width // _CLIP_HEAD_WIDTH,
        output=dim,
    )


def _prompt_encoder(state: Mapping[str, Tensor], *, dim: int) -> PromptEncoderSizes:
    part = "prompt_encoder"
    width = _size(state, f"{part}.norm_after.weight")
    return PromptEncoderSizes(
        vocabulary=_size(state, f"{part}.tokens.weight"),
        context=_size(state, f"{part}.positions"),
        width=width,
        layers=_layers(state, part),
        heads=width // _CLIP_HEAD_WIDTH,
        output=dim,
    )


def _generator(state: Mapping[str, Tensor], *, heads: int, max_length: int, prefix_shared: bool) -> GeneratorSizes:
    prefix = "generator.prefix"
    language = _language_model(state)
    is_linear = f"{prefix}.weight" in state
    rows = _size(state, f"{prefix}.bias" if is_linear else f"{prefix}.contract.bias")
    per_position = 2 * language["width"] * (1 if prefix_shared else language["layers"])
    return GeneratorSizes(
        **language,
        heads=heads,
        prefix_length=max(rows // per_position, 1),
        prefix_hidden=0 if is_linear else _size(state, f"{prefix}.expand.bias"),
        prefix_shared=prefix_shared,
        max_length=max_length,
    )


class _LanguageModel(TypedDict):
    vocabulary: int
    positions: int
    width: int
    layers: int
    own_tokens: tuple[int, ...]


def _language_model(state: Mapping[str, Tensor]) -> _LanguageModel:
    """Return the sizes of GPT-2, by the names of the fields."""
    return {
        "own_tokens": (),
        "vocabulary": _size(state, "generator.tokens.weight"),
        "positions": _size(state, "generator.positions.weight"),
        "width": generator_width_of(state),
        "layers": _layers(state, "generator"),
    }


def _size(state: Mapping[str, Tensor], name: str, *, axis: int = 0) -> int:
    """Return the length of a weight along an axis. Raises ModelError if it is missing, or has no such axis."""
    if name in state and axis < state[name].ndim:
        return state[name].shape[axis]
    found = f"has the shape {list(state[name].shape)}" if name in state else "is missing"
    raise ModelError(f"{their_name(name)} {found}, expected a tensor of {axis + 1} axes or more")


def _layers(state: Mapping[str, Tensor], part: str) -> int:
    """Return the number of layers, up to the last one that has a weight."""
    numbers = (name.split(".")[2] for name in state if name.startswith(f"{part}.layers."))
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)
