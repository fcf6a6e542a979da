"""Checks whether TensorRT supports a graph, by a list, `tensorrt_operators.toml`, because its parser needs a GPU.

The list names operators, opsets and types of numbers. What is not on the list is treated as unsupported.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, TensorProto, defs, shape_inference

from models.errors import ModelError

LIST = Path(__file__).with_name("tensorrt_operators.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """The supported operators. types: of the numbers of each operator; constant_inputs, most_outputs: limits."""

    least_opset: int
    most_opset: int
    types: Mapping[str, frozenset[str]]
    constant_inputs: Mapping[str, int]
    most_outputs: Mapping[str, int]


def read_operators(path: Path = LIST) -> Operators:
    """Read the list."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    return Operators(
        least_opset=found["least_opset"],
        most_opset=found["most_opset"],
        types={name: frozenset(group["types"]) for group in found["group"] for name in group["operators"].split()},
        constant_inputs=found["constant_inputs"],
        most_outputs=found["most_outputs"],
    )


def check_operators(model: ModelProto, *, name: str, operators: Operators) -> None:
    """Raise ModelError that names the graph and every unsupported operator."""
    complaints = list(dict.fromkeys(_complaints(model, operators)))
    if complaints:
        raise ModelError(f"TensorRT does not support the graph {name}: {'; '.join(complaints)}; see export/{LIST.name}")


def _complaints(model: ModelProto, operators: Operators) -> Iterator[str]:
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opset = opsets.get("", 0)
    if not operators.least_opset <= opset <= operators.most_opset:
        yield f"opset {opset}, of {operators.least_opset} to {operators.most_opset}"
        return
    kinds = _kinds(model)
    constants = {weight.name for weight in model.graph.initializer}
    constants |= {node.output[0] for node in model.graph.node if node.op_type == "Constant"}
    for node in model.graph.node:
        if node.domain or node.op_type not in operators.types:
            yield f"operator {'.'.join(filter(None, (node.domain, node.op_type)))} is not supported"
            continue
        for kind in sorted(_used(node, kinds, opset) - operators.types[node.op_type]):
            yield f"operator {node.op_type} is not supported on {kind}"
        place = operators.constant_inputs.get(node.op_type, len(node.input))
        if any(given and given not in constants for given in node.input[place : place + 1]):
            yield f"operator {node.op_type} needs its input {place} to be a constant"
        if len(node.output) > operators.most_outputs.get(node.op_type, len(node.output)):
            yield f"operator {node.op_type} is not supported with {len(node.output)} outputs"


def _kinds(model: ModelProto) -> dict[str, str]:
    """Return the type of every tensor in a graph, in the list's words."""
    graph = shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    numbers = {
        value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)
    }
    numbers |= {weight.name: weight.data_type for weight in graph.initializer}
    return {name: _kind(number) for name, number in numbers.items()}


def _kind(number: int) -> str:
    if number == TensorProto.FLOAT:
        return "float32"
    return str(TensorProto.DataType.Name(number)).lower()


def _used(node: NodeProto, kinds: Mapping[str, str], opset: int) -> set[str]:
    """Say which types an operator works on: those of its type variable T, or of all its variables where it has no T.

    The others are those of shapes, indices and conditions, which ONNX fixes or the list does not speak of.
    """
    schema = defs.get_schema(node.op_type, opset)
    formal = [*zip(schema.inputs, node.input, strict=False), *zip(schema.outputs, node.output, strict=False)]
    for side, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        if side and side[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
            formal += [(side[-1], name) for name in names[len(side) :]]
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    wanted = {"T"} if "T" in variables else variables
    return {kinds[name] for parameter, name in formal if parameter.type_str in wanted and name in kinds}
