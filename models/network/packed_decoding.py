"""Greedy decoding for a CPU, with the weights of `sentence_generator` in the form that oneDNN multiplies fastest.

Weights are reordered once, when the writer is made, if that is faster on this machine. Keys and values are written in
place into one tensor. Equal features are decoded once, and a sentence that has ended takes no further part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.network.attention import Mlp
from models.network.sentence_generator import GeneratorLayer, SentenceGenerator
from models.reading.tokenizers import SENTENCE_END

Form = Literal["prepacked", "eager", "int8"]
Product = Callable[[Tensor], Tensor]
"""Multiplies rows [S, inputs] by the weights of a linear layer: [S, outputs]."""
Activation = Literal["none", "gelu", "gelu_tanh"]

_ROUNDS: Final = 7
_LEAST_RATIO: Final = 0.9
"""Below 1, so that a small model, which both forms serve alike, has the same form after every start."""
_MEASURED_ROWS: Final = (1, 8, 29)
"""A question, some findings, and a whole prompt set."""
_MOST: Final = 127
_MIDDLE: Final = 128
"""8-bit weights lie in -127..127; rows are shifted by 128, for oneDNN multiplies unsigned by signed numbers."""
_PART: Final = 4096
"""Outputs whose weights are rounded at once: the largest matrix has 2 GB."""
_POINTWISE: Final = {"none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The form of the weights, and why it was chosen."""

    form: Form
    reason: str


class PackedWriter:
    """Generates sentences on the CPU, with a copy of the weights in the chosen form.

    Everything but form "int8" is float32. There, linear layers multiply 8-bit integers; all else is float32.

    May be called by several threads, each with sentences of its own.

    choice: which form the weights have
    """

    @torch.no_grad()
    def __init__(self, generator: SentenceGenerator, *, max_length: int, choice: Choice | None = None) -> None:
        """Copy the weights; choice: the faster form on this machine if None.

        Raises ValueError where the network has no such positions.
        """
        if not 1 <= max_length <= generator.sizes.positions:
            raise ValueError(f"max_length is {max_length}; it must lie in 1..{generator.sizes.positions}")
        layers = [layer for layer in generator.layers if isinstance(layer, GeneratorLayer)]
        self.choice = choice or faster_form(layers[0].expand)
        self._sizes = generator.sizes
        self._max_length = max_length
        self._tokens = generator.tokens
        self._positions = generator.positions.weight
        self._norm_after = generator.norm_after
        self._prefix = _prefix(generator.prefix, self.choice.form)
        self._layers = [_Layer(layer, self.choice.form) for layer in layers]
        self._vocabulary = product(generator.tokens.weight, None, form=self.choice.form)

    @torch.no_grad()
    def write(self, features: Tensor, *, after_token: Callable[[], None] = lambda: None) -> Tensor:
        """Return the ids that `SentenceGenerator.write` returns for features [S, dim]; after_token: as there."""
        distinct, sentence_of = _distinct(features)
        ids = torch.full((len(distinct), self._max_length), SENTENCE_END, dtype=torch.int64)
        room = self._sizes.prefix_length + self._max_length
        rows = _Unfinished(self.prefix_key_values(features[distinct]), room=room)
        current = ids[:, 0]
        written = 1
        while written < self._max_length and len(current):
            if written > 1:
                after_token()
            current = self._next(current, rows, place=written - 1)
            ids[rows.sentences, written] = current
            current = rows.keep(current)
            written += 1
        return ids[sentence_of, :written]

    def _next(self, current: Tensor, rows: _Unfinished, *, place: int) -> Tensor:
        """Return the token after `current` [S], which is at this place, for the sentences that have not ended."""
        hidden = self._tokens(current) + self._positions[place]
        end = self._sizes.prefix_length + place
        for layer, cache in zip(self._layers, rows.cache, strict=True):
            hidden = layer.forward(hidden, cache[:, : len(current)], end=end)
        return self._tokens.likeliest(self._vocabulary(self._norm_after(hidden)))

    def prefix_key_values(self, features: Tensor) -> Tensor:
        """Turn features [S, dim] into prefixes, as `SentenceGenerator.prefix_key_values`."""
        sizes = self._sizes
        head_width = sizes.width // sizes.heads
        nested = self._prefix(features).view(-1, sizes.prefix_length, sizes.layers, 2, sizes.heads, head_width)
        return nested.permute(2, 3, 0, 4, 1, 5)


class _Unfinished:
    """The sentences that have not ended, and their keys and values.

    cache: [layer, key or value, row, head, place, width of a head]
    sentences: the sentence of each row
    """

    def __init__(self, prefixes: Tensor, *, room: int) -> None:
        """Start with prefixes [layer, key or value, S, head, prefix position, width of a head]."""
        *shape, length, width = prefixes.shape
        self.cache = prefixes.new_empty((*shape, room, width))
        self.cache[..., :length, :] = prefixes
        self.sentences = torch.arange(prefixes.shape[2])

    def keep(self, chosen: Tensor) -> Tensor:
        """Drop the rows whose token [row] ends the sentence; the last rows take their places. Returns the others."""
        goes_on = chosen != SENTENCE_END
        count = int(goes_on.sum())
        if count == len(chosen):
            return chosen
        freed = (~goes_on[:count]).nonzero().flatten()
        moved = goes_on[count:].nonzero().flatten() + count
        self.cache[:, :, freed] = self.cache[:, :, moved]
        for held in (self.sentences, chosen):
            held[freed] = held[moved]
        self.sentences = self.sentences[:count]
        return chosen[:count]


class _Layer:
    """A layer of `sentence_generator` for one token of each sentence."""

    def __init__(self, layer: GeneratorLayer, form: Form) -> None:
        self._heads = layer.heads
        self._norm_attention, self._norm_mlp = layer.norm_attention, layer.norm_mlp
        self._packed = _linear(layer.packed, form)
        self._out = _linear(layer.out, form)
        self._expand = _linear(layer.expand, form, activation="gelu_tanh")
        self._contract = _linear(layer.contract, form)

    def forward(self, hidden: Tensor, cache: Tensor, *, end: int) -> Tensor:
        """Map hidden states [S, width], and write their keys and values into the cache at place `end`."""
        width = hidden.shape[-1]
        packed = self._packed(self._norm_attention(hidden)).view(-1, 3, self._heads, width // self._heads)
        cache[:, :, :, end] = packed[:, 1:].transpose(0, 1)
        keys, values = cache[:, :, :, : end + 1]
        mixed = functional.scaled_dot_product_attention(packed[:, 0].unsqueeze(2), keys, values)
        hidden = hidden + self._out(mixed.reshape(-1, width))
        return hidden + self._contract(self._expand(self._norm_mlp(hidden)))


def faster_form(linear: nn.Linear) -> Choice:
    """Measure both forms of a layer, in turns, and choose the one that takes less time for few and many rows."""
    if not torch._C._has_mkldnn:
        return Choice(form="eager", reason="this build of PyTorch has no oneDNN")
    try:
        packed = _linear(linear, "prepacked")
    except (AttributeError, RuntimeError) as error:
        line = str(error).partition("\n")[0]
        return Choice(form="eager", reason=f"oneDNN cannot reorder the weights: {line}")
    eager = _linear(linear, "eager")
    seconds = [_seconds((eager, packed), linear.weight.new_ones(rows, linear.in_features)) for rows in _MEASURED_ROWS]
    ratio = sum(of_eager for of_eager, _ in seconds) / sum(of_packed for _, of_packed in seconds)
    return Choice(
        form="prepacked" if ratio > _LEAST_RATIO else "eager",
        reason=f"prepacked weights are {ratio:.2f} times as fast as eager ones",
    )


def int8_fault() -> str:
    """Say why this machine cannot compute in int8; empty if it can.

    The instructions of older processors overflow where neighboring products are large, which no error tells.
    """
    weight, rows = torch.ones(16, 256), torch.ones(2, 256)
    try:
        outputs = product(weight, None, form="int8")(rows)
    except (AttributeError, RuntimeError) as error:
        return str(error).partition("\n")[0]
    exact = torch.allclose(outputs, functional.linear(rows, weight), rtol=1e-4)
    return "" if exact else "the processor's 8-bit products overflow"


def product(weight: Tensor, bias: Tensor | None, *, form: Form, activation: Activation = "none") -> Product:
    """Return the product with a weight [outputs, inputs], then the bias and the activation."""
    if form == "int8":
        return _int8_product(weight, bias, _activation(activation))
    if form == "eager":
        after = _activation(activation)
        return lambda rows: after(functional.linear(rows, weight, bias))
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    multiply, (attribute, algorithm) = torch.ops.mkldnn._linear_pointwise, _POINTWISE[activation]

    def multiplied(rows: Tensor) -> Tensor:
        outputs: Tensor = multiply(rows, packed, bias, attribute, [], algorithm)
        return outputs

    return multiplied


def _int8_product(weight: Tensor, bias: Tensor | None, after: Product) -> Product:
    """Return a product of 8-bit integers.

    Each output has a scale of its own, and each row has its own at every call. A scale for all rows together would be
    faster to find, but then a sentence would depend on its neighbors.
    """
    scales = _scales(weight)
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    whole_weight = torch.empty(weight.shape, dtype=torch.int8)
    for first in range(0, len(weight), _PART):
        part = slice(first, first + _PART)
        whole_weight[part] = (weight[part] / scales[part]).round_()
    # Without the shape of the rows, the packed weights are those of the matrix turned.
    packed = torch.ops.onednn.qlinear_prepack(whole_weight, [1, weight.shape[1]])
    multiply, flat = torch.ops.onednn.qlinear_pointwise, scales.flatten()
    shift = weight.new_zeros(()) if bias is None else bias

    def multiplied(rows: Tensor) -> Tensor:
        row_scales = _scales(rows)
        whole = (rows / row_scales + _MIDDLE).round().to(torch.uint8)
        sums = multiply(whole, 1.0, _MIDDLE, packed, flat, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        return after(torch.addcmul(shift, sums, row_scales))

    return multiplied


def _scales(rows: Tensor) -> Tensor:
    """Return for each row [S, inputs] what 1 of the 8-bit numbers stands for: [S, 1]."""
    # Seven times as fast as the maximum of the absolute values, and without a copy of the weights.
    greatest = torch.maximum(rows.amax(dim=1, keepdim=True), -rows.amin(dim=1, keepdim=True))
    return greatest.clamp_min(torch.finfo(rows.dtype).tiny) / _MOST


def _linear(linear: nn.Linear, form: Form, *, activation: Activation = "none") -> Product:
    return product(linear.weight, linear.bias, form=form, activation=activation)


def _prefix(mlp: Mlp, form: Form) -> Product:
    expand, contract = _linear(mlp.expand, form, activation="gelu"), _linear(mlp.contract, form)
    return lambda features: contract(expand(features))


def _activation(name: Activation) -> Product:
    if name == "none":
        return lambda rows: rows
    return partial(functional.gelu, approximate="tanh" if name == "gelu_tanh" else "none")


def _seconds(products: Sequence[Product], rows: Tensor) -> list[float]:
    """Return the median seconds of each product; they run in turns, so that other work delays all of them alike."""
    taken: list[list[float]] = [[] for _ in products]
    for _ in range(_ROUNDS):
        for multiply, seconds in zip(products, taken, strict=True):
            began = time.perf_counter()
            multiply(rows)
            seconds.append(time.perf_counter() - began)
    return [median(seconds) for seconds in taken]


def _distinct(features: Tensor) -> tuple[list[int], list[int]]:
    """Return where each distinct feature of [S, dim] occurs first, and for each feature its place among these."""
    first: dict[bytes, int] = {}
    sentence_of = [first.setdefault(row.tobytes(), len(first)) for row in features.numpy()]
    return [sentence_of.index(place) for place in range(len(first))], sentence_of
