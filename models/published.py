"""Names and layouts of the published ChEX weights, and ours (SPEC.md 12).

Only names differ, with two exceptions: GPT-2 keeps its matrices input by output, and its output embedding twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
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

_CLIP_HEAD_WIDTH = 64
_LANGUAGE = "txt_decoder.language_model."
_TIED = f"{_LANGUAGE}lm_head.weight"
_TOKENS = f"{_LANGUAGE}transformer.wte.weight"

# A dropout module between the two linear layers of an MLP counts as one, so the second is 3, or 2 without dropout.
_SECOND = r"layers\.[23]\."
_CLIP_LAYER = (
    (r"transformer\.resblocks\.", "layers."),
    (r"attn\.in_proj_", "attention.packed."),
    (r"attn\.out_proj\.", "attention.out."),
    (r"mlp\.c_fc\.", "expand."),
    (r"mlp\.c_proj\.", "contract."),
    (r"ln_1\.", "norm_attention."),
    (r"ln_2\.", "norm_mlp."),
)
_DECODER_LAYER = (
    (r"norm_sa\.", "norm_self."),
    (r"sa_block\.sa\.in_proj_", "self_attention.packed."),
    (r"sa_block\.sa\.out_proj\.", "self_attention.out."),
    (r"ls_sa\.gamma", "scale_self"),
    (r"norm_mha\.", "norm_cross."),
    (r"norm_encoder\.", "norm_memory."),
    (r"mha_block\.mha\.in_proj_", "cross_attention.packed."),
    (r"mha_block\.mha\.out_proj\.", "cross_attention.out."),
    (r"ls_mha\.gamma", "scale_cross"),
    (r"norm_ff\.", "norm_mlp."),
    (r"ff_block\.layers\.0\.", "mlp.expand."),
    (rf"ff_block\.{_SECOND}", "mlp.contract."),
    (r"ls_ff\.gamma", "scale_mlp"),
)
# One row per part: the published prefix, ours, and what is renamed below it.
_PARTS = (
    (
        "img_encoder.backbone.",
        "image_encoder.",
        (
            *_CLIP_LAYER,
            (r"class_embedding", "class_token"),
            (r"positional_embedding", "positions"),
            (r"conv1\.", "stem."),
            (r"ln_pre\.", "norm_before."),
            (r"ln_post\.", "norm_after."),
            (r"proj$", "projection"),
        ),
    ),
    (
        "txt_encoder.",
        "prompt_encoder.",
        (
            *_CLIP_LAYER,
            (r"token_embedding\.", "tokens."),
            (r"positional_embedding", "positions"),
            (r"ln_final\.", "norm_after."),
            (r"text_projection", "projection"),
        ),
    ),
    (
        "detector.",
        "detector.",
        (
            (r"decoder\.decoder_layers\.", "layers."),
            *_DECODER_LAYER,
            (r"multiregion_tokens", "box_tokens"),
            (r"multiregion_weight_mlp\.layers\.0\.", "score.expand."),
            (rf"multiregion_weight_mlp\.{_SECOND}", "score.contract."),
            (r"bbox_predictor\.0\.", "norm_box."),
            (r"bbox_predictor\.1\.layers\.0\.", "box.expand."),
            (rf"bbox_predictor\.1\.{_SECOND}", "box.contract."),
            (r"patch_projector\.0\.", "norm_patch."),
            (r"patch_projector\.1\.layers\.0\.", "patch."),
            (r"out_projector\.0\.", "norm_region."),
            (r"out_projector\.1\.layers\.0\.", "region.expand."),
            (rf"out_projector\.1\.{_SECOND}", "region.contract."),
        ),
    ),
    (
        "post_decoder.",
        "post_decoder.",
        ((r"post_decoder_layers\.", "layers."), *_DECODER_LAYER, (r"ln_gate\.", "norm_gate.")),
    ),
    (
        "txt_decoder.",
        "generator.",
        (
            (r"prefix_proj\.layers\.0\.", "prefix.expand."),
            (rf"prefix_proj\.{_SECOND}", "prefix.contract."),
            (r"language_model\.transformer\.", ""),
            (r"wte\.", "tokens."),
            (r"wpe\.", "positions."),
            (r"ln_f\.", "norm_after."),
            (r"h\.(?=\d)", "layers."),
            (r"attn\.c_attn\.", "packed."),
            (r"attn\.c_proj\.", "out."),
            (r"mlp\.c_fc\.", "expand."),
            (r"mlp\.c_proj\.", "contract."),
            (r"ln_1\.", "norm_attention."),
            (r"ln_2\.", "norm_mlp."),
        ),
    ),
)


def rename(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn a published state dict into ours.

    Raises ModelError for a key of no known part, or where input and output embedding differ.
    """
    state = {key.removeprefix("_orig_mod."): tensor for key, tensor in state.items()}
    if _TIED in state and _TOKENS in state and not torch.equal(state[_TIED], state[_TOKENS]):
        raise ModelError(f"{_TIED} differs from {_TOKENS}; this version knows tied embeddings only")
    renamed = {}
    for key, tensor in state.items():
        if key == _TIED or re.search(r"\.attn\.(masked_)?bias$", key):  # the latter: buffers of old libraries
            continue
        turned = key.startswith(_LANGUAGE) and re.search(r"\.c_(attn|proj|fc)\.weight$", key)
        renamed[our_name(key)] = tensor.T.contiguous() if turned else tensor
    return renamed


def our_name(key: str) -> str:
    """Give our name of a published key. Raises ModelError for a key of no known part."""
    for theirs, ours, renames in _PARTS:
        if key.startswith(theirs):
            name = key.removeprefix(theirs)
            for pattern, replacement in renames:
                name = re.sub(rf"(^|(?<=\.)){pattern}", replacement, name)
            return ours + name
    raise ModelError(f"{key} belongs to no part of ChEX; is this a ChEX checkpoint?")


def sizes_of(
    state: Mapping[str, Tensor], *, heads: int, generator_heads: int, max_length: int, beta: float = 2.0
) -> NetworkSizes:
    """Read the sizes of a renamed state dict off its shapes.

    heads: of detector and post decoder; generator_heads: of GPT-2. No shape tells either (SPEC.md 12).
    """
    return NetworkSizes(
        image_encoder=_image_encoder(state),
        prompt_encoder=_prompt_encoder(state),
        detector=_detector(state, heads=heads, beta=beta),
        post_decoder=PostDecoderSizes(layers=_layers(state, "post_decoder")),
        generator=_generator(state, heads=generator_heads, max_length=max_length),
    )


def _image_encoder(state: Mapping[str, Tensor]) -> ImageEncoderSizes:
    width, _, patch, _ = state["image_encoder.stem.weight"].shape
    places = state["image_encoder.positions"].shape[0]
    return ImageEncoderSizes(
        patch_size=patch,
        image_size=patch * math.isqrt(places - 1),
        width=width,
        layers=_layers(state, "image_encoder"),
        heads=width // _CLIP_HEAD_WIDTH,
        output=state["image_encoder.projection"].shape[1],
    )


def _prompt_encoder(state: Mapping[str, Tensor]) -> PromptEncoderSizes:
    vocabulary, width = state["prompt_encoder.tokens.weight"].shape
    return PromptEncoderSizes(
        vocabulary=vocabulary,
        context=state["prompt_encoder.positions"].shape[0],
        width=width,
        layers=_layers(state, "prompt_encoder"),
        heads=width // _CLIP_HEAD_WIDTH,
        output=state["prompt_encoder.projection"].shape[1],
    )


def _detector(state: Mapping[str, Tensor], *, heads: int, beta: float) -> DetectorSizes:
    boxes, dim = state["detector.box_tokens"].shape
    return DetectorSizes(
        dim=dim,
        heads=heads,
        layers=_layers(state, "detector"),
        boxes_per_prompt=boxes,
        feedforward=state["detector.region.expand.weight"].shape[0],
        beta=beta,
    )


def _generator(state: Mapping[str, Tensor], *, heads: int, max_length: int) -> GeneratorSizes:
    vocabulary, width = state["generator.tokens.weight"].shape
    prefix = state["generator.prefix.contract.weight"]
    layers = _layers(state, "generator")
    return GeneratorSizes(
        vocabulary=vocabulary,
        positions=state["generator.positions.weight"].shape[0],
        width=width,
        layers=layers,
        heads=heads,
        prefix_length=prefix.shape[0] // (layers * 2 * width),
        prefix_hidden=prefix.shape[1],
        max_length=max_length,
    )


def _layers(state: Mapping[str, Tensor], part: str) -> int:
    return 1 + max(int(key.split(".")[2]) for key in state if key.startswith(f"{part}.layers."))
