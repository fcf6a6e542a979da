"""Products of rows with the weights of a linear layer, in the order of weights that oneDNN multiplies fastest.

A row's product must not depend on the rows beside it, or a sentence would depend on what else is generated. In float32
oneDNN has another kernel for one row; on a processor with AVX-512 its sums of 4096 numbers differ in the last bit. From
two rows on all numbers of rows give the same bits, by its instructions for AVX2 and AVX-512, with 1 to 64 threads. So
one row is multiplied as two. Sums of whole numbers are exact with any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Form = Literal["float32", "int8"]
Product = Callable[[Tensor], Tensor]
"""Multiplies rows [S, inputs] by the weights of a linear layer: [S, outputs]."""
Activation = Literal["none", "gelu", "gelu_tanh"]

LEAST_ROWS: Final = 2
_MOST: Final = 127
_MIDDLE: Final = 128
"""8-bit weights lie in -127..127; rows are shifted by 128, for oneDNN multiplies unsigned by signed numbers."""
_PART: Final = 256
"""Outputs whose weights are rounded at once: the largest matrix has 2 GB."""
_UNDIVIDED: Final = 2**14
_VECTORS: Final = 64
"""Of more than so many numbers PyTorch gives each thread a share. The last of a share, where they fill no vectors, are
computed by other instructions, whose last bit may differ; so which these are must not depend on the number of rows."""
_GELU: Final = {"gelu": "none", "gelu_tanh": "tanh"}
"""How each activation computes GELU, in the words of PyTorch and oneDNN."""


class Products:
    """Makes the products of one network. release: is called with each weight that its product does not use any more."""

    def __init__(self, form: Form, *, release: Callable[[Tensor], None]) -> None:
        self._form, self.release = form, release

    def linear(self, linear: nn.Linear, *, activation: Activation = "none") -> Product:
        """Return the product with a layer."""
        return self.product(linear.weight, linear.bias, activation=activation)

    def product(
        self, weight: Tensor, bias: Tensor | None, *, activation: Activation = "none", parts: Tensor | None = None
    ) -> Product:
        """Return the product with a weight, see `product`; parts: what the weight was put together from."""
        made = product(weight, bias, form=self._form, activation=activation)
        self.release(weight if parts is None else parts)
        return made


def int8_fault() -> str:
    """Return why this machine cannot compute in int8; empty if it can.

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
    """Return the product with a weight [outputs, inputs], then the bias and the activation. Copies the weight.

    Raises RuntimeError where PyTorch or its oneDNN cannot compute it.
    """
    if form == "int8":
        return _int8_product(*_int8_weight(weight), bias, activation)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    return with_least_rows(_float32_product(packed, bias, activation=activation))


def _float32_product(packed: Tensor, bias: Tensor | None, *, activation: Activation) -> Product:
    multiply = torch.ops.mkldnn._linear_pointwise
    attribute, algorithm = ("none", "") if activation == "none" else ("gelu", _GELU[activation])

    def multiplied(rows: Tensor) -> Tensor:
        outputs: Tensor = multiply(rows, packed, bias, attribute, [], algorithm)
        return outputs

    return multiplied


def with_least_rows(multiply: Product) -> Product:
    """Return a product that multiplies fewer rows than `LEAST_ROWS` as so many; those that are added are zeros."""

    def multiplied(rows: Tensor) -> Tensor:
        if not 0 < (count := len(rows)) < LEAST_ROWS:
            return multiply(rows)
        enough = rows.new_zeros((LEAST_ROWS, rows.shape[1]))
        enough[:count] = rows
        return multiply(enough)[:count]

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


def _int8_product(packed: Tensor, scales: Tensor, unshift: Tensor, bias: Tensor | None, after: Activation) -> Product:
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
        outputs: Tensor = sums.mul_(row_scales) if bias is None else sums.mul_(row_scales).add_(bias)
        return outputs if after == "none" else _activated(outputs, _GELU[after])

    return multiplied


def _activated(rows: Tensor, approximate: str) -> Tensor:
    """Return GELU of rows [S, outputs], each with the bits that it has alone."""
    width = rows.shape[1]
    count = _UNDIVIDED // width if width % _VECTORS == 0 else 1
    return torch.cat([functional.gelu(part, approximate=approximate) for part in torch.split(rows, max(count, 1))])


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
