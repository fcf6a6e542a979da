"""Products of rows with the weights of a linear layer, in the form that this machine multiplies fastest.

A row's product must not depend on the rows beside it, or a sentence would depend on what else is generated. A library
may choose another kernel for few rows (oneDNN for one row of 4096 numbers, MKL for one to three), whose sums differ in
the last bit; MKL with several threads also where the rows are no multiple of some number. So it is measured, for each
shape of weights, which numbers of rows give the same bits, and other numbers are padded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

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
_PART: Final = 256
"""Outputs whose weights are rounded at once: the largest matrix has 2 GB."""
GELU: Final = {"gelu": "none", "gelu_tanh": "tanh"}
"""How each activation computes GELU, in the words of PyTorch, oneDNN and ONNX."""
_POINTWISE: Final = {"none": ("none", ""), **{name: ("gelu", approximate) for name, approximate in GELU.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The form of the weights, and why it was chosen."""

    form: Form
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """The numbers of rows that give a row the same product to the bit: from `least` on, all multiples of `multiple`."""

    least: int = 1
    multiple: int = 1

    def of(self, rows: int) -> int:
        """Return how many rows to multiply instead of these."""
        return max(self.least, -(-rows // self.multiple) * self.multiple)


Shape = tuple[int, int]
"""Outputs and inputs of a weight."""

_PROBED_ROWS: Final = (*range(1, 10), 12, 13, 15, 16, 17, 20, 24, 29, 32, 33, 64, 128)
_PADDINGS: Final = (
    *(Padding(least=least) for least in (1, 2, 4, 8)),
    *(Padding(least=rows, multiple=rows) for rows in (2, 4, 8, 16, 32)),
)


class Products:
    """Makes the products of one network, whose bits do not depend on the number of rows.

    paddings: by the shape of the weights
    """

    def __init__(self, form: Form, *, release: Callable[[Tensor], None] = lambda _weight: None) -> None:
        """Take release: is called with each weight that its product does not use any more."""
        self._form = form
        self._release = release
        self._paddings: dict[Shape, Padding] = {}

    @property
    def keep_weights(self) -> bool:
        """Whether a product uses the weight that it was made of, not a copy in another form."""
        return self._form == "eager"

    def release(self, weight: Tensor) -> None:
        """Give back the memory of a weight that was used once, unless its product goes on to use it."""
        if not self.keep_weights:
            self._release(weight)

    def linear(self, linear: nn.Linear, *, activation: Activation = "none") -> Product:
        """Return the product with a layer."""
        return self.product(linear.weight, linear.bias, activation=activation)

    def product(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        activation: Activation = "none",
        join: Callable[[Tensor], Tensor] | None = None,
    ) -> Product:
        """Return the product with a weight, see `product`.

        weight: [outputs, inputs], or parts [..., inputs] that `join` puts together
        """
        whole = weight if join is None else join(weight)
        multiply = product(whole, bias, form=self._form, activation=activation)
        if join is not None or not self.keep_weights:
            self._release(weight)
        outputs, inputs = whole.shape
        if (outputs, inputs) not in self._paddings:
            self._paddings[outputs, inputs] = padding_of(multiply, inputs)
        return steady(multiply, self._paddings[outputs, inputs])


def padding_of(multiply: Product, inputs: int) -> Padding:
    """Measure which numbers of rows give a row the same product, to the bit, at every place.

    Where none do, rows are padded to the largest multiple that is tried; then a sentence may depend on its company
    where two tokens are almost equally likely.
    """
    row = torch.randn(1, inputs, generator=torch.Generator().manual_seed(inputs))
    most = multiply(row.repeat(_PROBED_ROWS[-1], 1))
    expected = most[:1]
    same = {rows: bool((multiply(row.repeat(rows, 1)) == expected).all()) for rows in _PROBED_ROWS[:-1]}
    same[_PROBED_ROWS[-1]] = bool((most == expected).all())
    for padding in _PADDINGS:
        if all(same[rows] for rows in _PROBED_ROWS if padding.of(rows) == rows):
            return padding
    return _PADDINGS[-1]


def steady(multiply: Product, padding: Padding) -> Product:
    """Return a product of rows that are padded with zeros."""

    def multiplied(rows: Tensor) -> Tensor:
        count = len(rows)
        if (needed := padding.of(count)) == count or not count:
            return multiply(rows)
        padded = rows.new_zeros((needed, rows.shape[1]))
        padded[:count] = rows
        return multiply(padded)[:count]

    return multiplied if padding != Padding() else multiply


def faster_form(linear: nn.Linear) -> Choice:
    """Measure both forms of a layer, in turns, and choose the one that takes less time for few and many rows."""
    if not torch._C._has_mkldnn:
        return Choice(form="eager", reason="this build of PyTorch has no oneDNN")
    try:
        packed = product(linear.weight, linear.bias, form="prepacked")
    except (AttributeError, RuntimeError) as error:
        line = str(error).partition("\n")[0]
        return Choice(form="eager", reason=f"oneDNN cannot reorder the weights: {line}")
    eager = product(linear.weight, linear.bias, form="eager")
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
    after = _activation(activation)
    if form == "eager":
        return lambda rows: after(functional.linear(rows, weight, bias))
    if form == "int8":
        return _int8_product(*_int8_weight(weight), bias=bias, after=after)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    multiply, (attribute, algorithm) = torch.ops.mkldnn._linear_pointwise, _POINTWISE[activation]

    def multiplied(rows: Tensor) -> Tensor:
        outputs: Tensor = multiply(rows, packed, bias, attribute, [], algorithm)
        return outputs

    return multiplied


def _int8_weight(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a weight as packed 8-bit integers, the scale of each output, and what takes back the shift of the rows."""
    scales = torch.empty((len(weight), 1))
    totals = torch.empty(len(weight))
    whole_weight = torch.empty(weight.shape, dtype=torch.int8)
    room = torch.empty((min(_PART, len(weight)), weight.shape[1]))
    for first in range(0, len(weight), _PART):
        part = slice(first, first + _PART)
        scales[part] = _scales(weight[part])
        whole = torch.div(weight[part], scales[part], out=room[: len(weight[part])]).round_()
        whole_weight[part] = whole
        totals[part] = whole.sum(dim=1)  # below 2**24, so exact in float32; a sum of 8-bit integers takes longer
    # Without the shape of the rows, the packed weights are those of the matrix turned.
    packed = torch.ops.onednn.qlinear_prepack(whole_weight, [1, weight.shape[1]])
    flat = scales.flatten()
    # As a zero point oneDNN would subtract the shift at every call; as a bias it takes less time.
    return packed, flat, -_MIDDLE * flat * totals


def _int8_product(packed: Tensor, scales: Tensor, unshift: Tensor, *, bias: Tensor | None, after: Product) -> Product:
    """Return a product of 8-bit integers.

    Each output has a scale of its own, and each row has its own at every call. A scale for all rows together would be
    faster to find, but then a sentence would depend on its neighbors.
    """
    multiply, zeros = torch.ops.onednn.qlinear_pointwise, _zeros(len(scales))

    def multiplied(rows: Tensor) -> Tensor:
        row_scales = _scale_of(rows.abs().amax(dim=1, keepdim=True))
        # Not `addcdiv`, which takes twice as long as these two where an operand has one number for a row.
        whole = rows.div(row_scales).add_(_MIDDLE + 0.5).to(torch.uint8)  # which truncates, so a half is added first
        sums = multiply(whole, 1.0, 0, packed, scales, zeros, unshift, 1.0, 0, torch.float32, "none", [], "")
        return after(_with(bias, sums.mul_(row_scales)))

    return multiplied


def _with(bias: Tensor | None, outputs: Tensor) -> Tensor:
    """Add a bias in place."""
    return outputs if bias is None else outputs.add_(bias)


@cache
def _zeros(count: int) -> Tensor:
    """Return the zero points of weights with so many outputs; all weights share them."""
    return torch.zeros(count, dtype=torch.int64)


def _scales(weight: Tensor) -> Tensor:
    """Return for each output of a weight [outputs, inputs] what 1 of the 8-bit numbers stands for: [outputs, 1]."""
    # For weights seven times as fast as the maximum of the absolute values, and without a copy; few rows gain nothing.
    return _scale_of(torch.maximum(weight.amax(dim=1, keepdim=True), -weight.amin(dim=1, keepdim=True)))


def _scale_of(greatest: Tensor) -> Tensor:
    """Return what 1 of the 8-bit numbers stands for, from the greatest absolute value, which is overwritten."""
    return greatest.clamp_min_(torch.finfo(greatest.dtype).tiny).div_(_MOST)


def _activation(name: Activation) -> Product:
    if name == "none":
        return lambda rows: rows
    return partial(functional.gelu, approximate=GELU[name])


def _seconds(products: Sequence[Product], rows: Tensor) -> list[float]:
    """Return the median processor seconds of each product with one thread; they run in turns.

    While a model is opened its files are hashed beside this, and several threads then often wait for each other. The
    processor time of one thread does not count what it waits.
    """
    taken: list[list[float]] = [[] for _ in products]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(_ROUNDS):
            for multiply, seconds in zip(products, taken, strict=True):
                began = time.thread_time()
                multiply(rows)
                seconds.append(time.thread_time() - began)
    finally:
        torch.set_num_threads(threads)
    return [median(seconds) for seconds in taken]
