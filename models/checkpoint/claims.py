"""Compares a checkpoint's configuration with what this network computes and with the shapes of the weights.

A missing key is accepted, because older versions of the published program had other keys. A key that is present must
match.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from operator import attrgetter

from models.checkpoint.contents import Contents
from models.errors import ModelError
from models.manifest import PUBLISHED_SIZES, NetworkSizes

_LANGUAGE_MODEL = "txt_decoder.language_model_url"
_PUBLISHED_LANGUAGE_MODEL = "healx/gpt-2-pubmed-medium"
_GENERATION = "txt_decoder.generation_kwargs"
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
    "txt_decoder.n_projection_layers": 2,
    "txt_decoder.shared_projection": False,
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
    "txt_decoder.prefix_length_factor": ("generator.prefix_length", "txt_decoder.prefix_proj.layers.3.bias"),
}


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


def heads(contents: Contents) -> int:
    """Return the number of heads of detector and post decoder, which no shape shows (spec §12)."""
    return _whole(contents, "n_head")


def beta(contents: Contents) -> float:
    """Return the exponent of the soft boxes."""
    found = next(_values(contents.config, "detector.soft_roi_beta"), None)
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found <= sys.float_info.max:
        return float(found)
    raise ModelError(f"{contents.config_place}: detector.soft_roi_beta is {found!r}, expected a finite number above 0")


def max_length(contents: Contents) -> int:
    """Return the tokens of a sentence, the leading BOS included; the generation settings come first (spec §7.3)."""
    is_there = next((key for key in _LENGTH if any(_values(contents.config, key))), _LENGTH[-1])
    return _whole(contents, is_there)


def generator_heads(contents: Contents, *, width: int, option: int | None) -> int:
    """Return the heads of GPT-2: by its name, by its own configuration, or from the command line; never those of ChEX.

    width: of GPT-2; the name alone does not suffice, because small networks for tests use it too
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
