"""Weights of 4 or 8 bits with a scale for each 32 inputs, multiplied by ONNX Runtime's `MatMulNBits`.

It multiplies whole numbers: the rows are rounded to 8 bits, with a scale for as many inputs, at every call. Other than
oneDNN's products of 8 bits these do not overflow on a processor with AVX2 alone.

Each product, or two with nothing but an activation between them, has a session of its own, for ONNX Runtime computes
all of a graph at every call. A call takes as long as one of an operation of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import onnxruntime
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor
from torch.nn import functional

from models.network.products import GELU, Activation

Bits = Literal[4, 8]

_GROUP: Final = 32
_PART: Final = 256
"""Outputs whose weights are rounded at once: the largest matrix has 2 GB."""
_WHOLE_ROWS: Final = 4
"""The "accuracy level" at which rows are rounded to 8 bits."""
_OPERATORS: Final = 20
"""The version of ONNX's operators that has Gelu."""
_MOST_THREADS: Final = 4
"""Of a product: each session has threads of its own, and a hundred sessions would have thousands on a large machine."""


def grouped(weight: Tensor, *, bits: Bits) -> tuple[Tensor, Tensor, Tensor]:
    """Round a weight [outputs, inputs], each group of inputs between its least and its greatest number.

    Returns the whole numbers [outputs, group, byte], the scales [outputs, group], and the whole numbers that stand for
    zero [outputs, byte]. A byte holds two numbers of 4 bits.
    """
    outputs, inputs = weight.shape
    groups, most = -(-inputs // _GROUP), 2**bits - 1
    packed = torch.empty((outputs, groups, _GROUP * bits // 8), dtype=torch.uint8)
    scales = torch.empty((outputs, groups))
    zeros = torch.empty((outputs, -(-groups * bits // 8)), dtype=torch.uint8)
    for first in range(0, outputs, _PART):
        part = slice(first, first + _PART)
        numbers = functional.pad(weight[part], (0, groups * _GROUP - inputs)).reshape(-1, groups, _GROUP)
        least, greatest = numbers.amin(dim=2).clamp_max_(0), numbers.amax(dim=2).clamp_min_(0)
        scale = (greatest - least).div_(most).clamp_min_(torch.finfo(torch.float32).tiny)
        zero = (-least / scale).round_()
        whole = (numbers / scale.unsqueeze(2)).add_(zero.unsqueeze(2)).round_().clamp_(0, most)
        packed[part], scales[part], zeros[part] = _bytes(whole, bits), scale, _bytes(zero, bits)
    return packed, scales, zeros


@dataclass(frozen=True, slots=True, eq=False)
class GroupedLayer:
    """A linear layer whose weight was rounded; weight: whole numbers, scales and zeros, as `grouped` returns them."""

    weight: tuple[Tensor, ...]
    bias: Tensor | None
    inputs: int


def grouped_product(*layers: GroupedLayer, activation: Activation = "none") -> Callable[[Tensor], Tensor]:
    """Return the product with one layer after another; the activation stands between two. Copies their tensors.

    Raises RuntimeError where ONNX Runtime cannot multiply so.
    """
    session = _session(_model(layers, activation))

    def multiply(rows: Tensor) -> Tensor:
        with _library_errors():
            outputs: Tensor = torch.from_numpy(session.run(None, {"rows": rows.numpy()})[0])
        return outputs

    return multiply


def _bytes(whole: Tensor, bits: Bits) -> Tensor:
    """Put numbers [..., number] into bytes; two of 4 bits in each, the first in the lower half."""
    if bits == 8:
        return whole.to(torch.uint8)
    pairs = functional.pad(whole, (0, whole.shape[-1] % 2)).to(torch.uint8)
    return pairs[..., ::2] | pairs[..., 1::2] << 4


def _model(layers: Sequence[GroupedLayer], activation: Activation) -> ModelProto:
    """Return a graph of the layers."""
    nodes, tensors, value = list[NodeProto](), list[TensorProto](), "rows"
    for number, layer in enumerate(layers):
        if number and activation != "none":
            nodes.append(helper.make_node("Gelu", [value], [f"active {number}"], approximate=GELU[activation]))
            value = f"active {number}"
        weight = dict(zip(("packed", "scales", "zeros"), layer.weight, strict=True))
        known = weight if layer.bias is None else {**weight, "bias": layer.bias.detach()}
        tensors += [numpy_helper.from_array(tensor.numpy(), f"{name} {number}") for name, tensor in known.items()]
        bias = "" if layer.bias is None else f"bias {number}"
        nodes.append(_product([value, *(f"{name} {number}" for name in weight), "", bias], f"product {number}", layer))
        value = f"product {number}"
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["row", layers[0].inputs])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["row", len(layers[-1].weight[0])])],
        tensors,
    )
    imports = [helper.make_opsetid("", _OPERATORS), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _product(inputs: Sequence[str], output: str, layer: GroupedLayer) -> NodeProto:
    """Return the product with one layer; inputs: rows, weight, scales, zeros, order of the groups, bias; "" is none."""
    packed = layer.weight[0]
    return helper.make_node(
        "MatMulNBits",
        inputs,
        [output],
        domain="com.microsoft",
        K=layer.inputs,
        N=len(packed),
        bits=8 * packed.shape[2] // _GROUP,
        block_size=_GROUP,
        accuracy_level=_WHOLE_ROWS,
    )


def _session(model: ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = min(torch.get_num_threads(), _MOST_THREADS)
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False
    # Its threads sleep between two products: PyTorch needs the cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with _library_errors():
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session._model_bytes = None  # it would keep the weights a second time, for other providers to try
    return session


@contextmanager
def _library_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the library's errors have no public base
        raise RuntimeError(f"ONNX Runtime does not multiply weights of few bits ({type(error).__name__})") from error
