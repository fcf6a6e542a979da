"""Float16 graphs for a strongly typed runtime: a float32 graph with its casts written out, inputs and outputs float32.

Precision is a property of the graph, for TensorRT 11 takes types as it finds them. Float16 are attention and linear
layers, which take the time. Float32 stay layer norms, softmax, what layers add up from branch to branch, and all that
boxes and scores are made of: the detector's heads and what stands between its layers, soft boxes above all, whose
weights are scaled by 1e12 on their way. The prompt encoder has no float16 graph: it runs once for a prompt set, all
films are asked with its vectors, and float16 in its attention moved numbers of up to 2.7 by 0.14 (random weights, every
operator rounded). An image encoder whose stem are convolutions stays float32 as a whole: rounded after every operator,
that of chex-phantom 3 moved features of up to 16.5 by 0.29, 3.5 times what is allowed, and still 1.5 times with its
stem alone in float32. The stem of the published network is one patch embedding, and its encoder is float16. The post
decoder's attention to the film is float32, too: with its sums in float16 it moved features of chex-phantom 3 by 0.019
where 0.018 is allowed, and 0.005 without.

The pass is our own because the well-known converters failed on these graphs. onnxruntime.transformers 1.31 wrote nodes
before their inputs; onnxconverter-common 1.16 cast between two float32 nodes to float16 and back, and left a Max of two
types. Here a tensor is cast at most once into each precision, and never after a cast.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper, shape_inference

from export.to_onnx import load_graph
from models.engines.proof import FLOAT16_STAGES, graph_path
from models.errors import ModelError

_LARGEST = float(np.finfo(np.float16).max)
FLOAT32, FLOAT16 = int(TensorProto.FLOAT), int(TensorProto.FLOAT16)

_FLOAT32_OPERATORS = frozenset(
    "LayerNormalization Softmax Exp Pow Div Max Clip ReduceMax ReduceMean ReduceSum Range ConstantOfShape".split()
)
_FLOAT32_SCOPES = ("network.detector.box", "network.detector.score")
_FLOAT32_ATTENTION = re.compile(r"network\.post_decoder\.layers\.\d+\.cross_attention(\..*)?")
_ENCODER = "network.image_encoder"
_CONVOLUTIONS = f"{_ENCODER}.stem."
"""The scope of each convolution of a stem that has several; a patch embedding is one, directly in `stem`."""
# Nodes directly in one of these modules, not in a module inside it. The empty name is the exported function.
_FLOAT32_BETWEEN = re.compile(r"|network\.detector|.*\.layers\.\d+")
# These operators only move numbers: they keep the precision of their inputs.
_MOVES = frozenset(
    "Concat Expand Gather GatherND Identity Reshape Shape Slice Split Squeeze Transpose Trilu Unsqueeze Where".split()
)


def write_float16(directory: Path) -> Iterator[str]:
    """Write the float16 graphs beside the exported ones, and yield the name of each when it is there.

    TensorRT builds its engines from them on the machine that runs them (`models.engines.tensorrt_engine`).
    """
    for stage in FLOAT16_STAGES:
        model = to_float16(load_graph(graph_path(directory, stage)))
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, graph_path(directory, stage, "float16"))
        yield stage


def to_float16(model: ModelProto) -> ModelProto:
    """Give the float16 form of a float32 graph; names of inputs and outputs stay.

    Raises ModelError for a graph with graphs inside, and for a weight that float16 cannot hold.
    """
    typed = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    has_convolutions = any(_scope(node).startswith(_CONVOLUTIONS) for node in model.graph.node)
    casts = _Casts(typed.graph, kept=(*_FLOAT32_SCOPES, *([_ENCODER] if has_convolutions else [])))
    for node in model.graph.node:
        casts.take(node)
    casts.finish(model.graph.output)
    graph = helper.make_graph(
        casts.nodes, model.graph.name, model.graph.input, model.graph.output, casts.initializers()
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


class _Casts:
    """The nodes of the new graph in order, and the precisions in which each tensor is available.

    kept: the scopes that stay float32
    """

    def __init__(self, graph: GraphProto, *, kept: tuple[str, ...]) -> None:
        self._kept = kept
        values = [*graph.value_info, *graph.input, *graph.output]
        types = {value.name: value.type.tensor_type.elem_type for value in values}
        self._weights = {weight.name: weight for weight in graph.initializer}
        self._floats = {name for name, kind in types.items() if kind == FLOAT32}
        self._floats |= {name for name, weight in self._weights.items() if weight.data_type == FLOAT32}
        self._precisions = {value.name: FLOAT32 for value in graph.input if value.name in self._floats}
        self._names: dict[tuple[str, int], str] = {}
        self.nodes: list[NodeProto] = []

    def take(self, node: NodeProto) -> None:
        """Add a node with its precision, behind the casts that it needs."""
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise ModelError(f"{node.op_type} {node.name} contains a graph, which cannot be converted to float16")
        precision = self._precision(node)
        taken = NodeProto()
        taken.CopyFrom(node)
        # Metadata contains the path of the network's source, and would make the hash of a graph depend on it.
        del taken.metadata_props[:]
        taken.doc_string = ""
        taken.input[:] = [self._in(name, precision) for name in node.input]
        self.nodes.append(taken)
        self._precisions |= {name: precision for name in node.output if name in self._floats}

    def finish(self, outputs: Iterable[ValueInfoProto]) -> None:
        """Convert every output of the graph to float32 under its own name."""
        for name in [output.name for output in outputs]:
            if self._precisions.get(name) != FLOAT16:
                continue
            inner = f"{name}_float16"
            for node in self.nodes:
                for names in (node.input, node.output):
                    names[:] = [inner if each == name else each for each in names]
            self.nodes.append(_cast(inner, name, FLOAT32))

    def initializers(self) -> list[TensorProto]:
        """The used weights, each in the precisions in which it is used."""
        used = {name for node in self.nodes for name in node.input}
        kept = [weight for name, weight in self._weights.items() if name in used]
        halves = [
            _half(self._weights[name], new)
            for (name, precision), new in self._names.items()
            if name in self._weights and precision == FLOAT16
        ]
        return kept + halves

    def _precision(self, node: NodeProto) -> int:
        given = {self._precisions[name] for name in node.input if name in self._precisions}
        if node.op_type in _MOVES and given:
            return FLOAT16 if given == {FLOAT16} else FLOAT32
        if node.op_type in _FLOAT32_OPERATORS or node.op_type == "Cast":
            return FLOAT32
        scope = _scope(node)
        patterns = (_FLOAT32_BETWEEN, _FLOAT32_ATTENTION)
        is_kept = scope.startswith(self._kept) or any(pattern.fullmatch(scope) for pattern in patterns)
        return FLOAT32 if is_kept else FLOAT16

    def _in(self, name: str, precision: int) -> str:
        """Name a tensor in a precision; cast it there, once, where it is not in it."""
        if name not in self._floats or self._precisions.get(name, FLOAT32) == precision:
            return name
        key = (name, precision)
        if key not in self._names:
            self._names[key] = f"{name}_{'float16' if precision == FLOAT16 else 'float32'}"
            if name not in self._weights:
                self.nodes.append(_cast(name, self._names[key], precision))
        return self._names[key]


def _scope(node: NodeProto) -> str:
    """Return the innermost module that a node was traced in; "" if the node does not say."""
    scopes = next((entry.value for entry in node.metadata_props if entry.key == "pkg.torch.onnx.name_scopes"), "[]")
    return str([*[""], *ast.literal_eval(scopes)[:-1]][-1])


def _cast(name: str, new: str, precision: int) -> NodeProto:
    return helper.make_node("Cast", [name], [new], name=f"cast_{new}", to=precision)


def _half(weight: TensorProto, name: str) -> TensorProto:
    """Round a weight. A scalar beyond float16 stands for the infinity of a mask and is saturated."""
    values = numpy_helper.to_array(weight)
    if np.isfinite(values).all() and np.abs(values).max(initial=0) > _LARGEST:
        if values.size > 1:
            raise ModelError(
                f"weight {weight.name} holds a number that float16 cannot represent; use another engine than tensorrt"
            )
        values = np.clip(values, -_LARGEST, _LARGEST)
    return numpy_helper.from_array(values.astype(np.float16), name)
