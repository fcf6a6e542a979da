"""What this machine is worth, as the reference of its seconds: its products, and its Python.

Products are rows times a weight [4096, 1024], in 10^9 operations a second; Python is pydicom with a nested data set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from statistics import median
from typing import Final

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from pydicom import Dataset, dcmwrite
from pydicom.filereader import read_dataset
from torch.nn import functional

from models.network.products import product
from tests.drills.bench.results import Found
from tests.drills.bench.turns import in_turns

ROWS: Final = (1, 8, 29, 116)
"""A question, some findings, the sentences of a film, and those of four."""
FLOAT32: Final = ("eager", "prepacked", "onnxruntime")
_SHAPE: Final = (4096, 1024)
_LIMIT_SECONDS: Final = 30.0
_ITEMS: Final = 400
_TIMES: Final = 7


class Machine:
    """Multiplies with the same weight in every way that is measured."""

    def __init__(self, threads: int) -> None:
        """Prepare the weight; threads: those of ONNX Runtime. PyTorch has its own setting."""
        weight = torch.randn(_SHAPE, generator=torch.Generator().manual_seed(4))
        forms: dict[str, Callable[[torch.Tensor], object]] = {
            "eager": lambda rows: functional.linear(rows, weight),
            "prepacked": product(weight, None, form="float32"),
            "int8": product(weight, None, form="int8"),
        }
        session = _session(weight.numpy(), threads=threads)
        self._ways = forms | {"onnxruntime": lambda rows: session.run(None, {"rows": rows.numpy()})}

    @torch.inference_mode()
    def rates(self, *, rows: Sequence[int] = ROWS, rounds: int = 7) -> dict[str, dict[str, float]]:
        """Measure: the rates of each way, by the number of rows; medians."""
        return {f"{count} x 1024 x 4096": self._of_rows(count, rounds=rounds) for count in rows}

    def best_float32(self) -> float:
        """Measure the greatest rate of float32 for the rows of one film and of four, in operations a second."""
        return 1e9 * max(rates[way] for rates in self.rates(rows=ROWS[2:], rounds=5).values() for way in FLOAT32)

    def _of_rows(self, count: int, *, rounds: int) -> dict[str, float]:
        given = torch.randn(count, _SHAPE[1])
        runs = {name: partial(multiply, given) for name, multiply in self._ways.items()}
        for run in runs.values():
            run()
        taken = in_turns(runs, rounds=rounds, limit_seconds=_LIMIT_SECONDS)
        operations = 2e-9 * count * _SHAPE[0] * _SHAPE[1]
        return {name: round(operations / median(each[name].seconds for each in taken), 1) for name in runs}


def measure(machine: Machine) -> Found:
    """Measure every way for every number of rows, and Python."""
    python = {"pydicom_core_seconds": round(pydicom_seconds(), 4)}
    return Found(figures={**machine.rates(rounds=15), "python": python})


def pydicom_seconds() -> float:
    """Measure the core seconds in which pydicom writes a data set of 2,001 elements in items, and reads them all."""
    nested = Dataset()
    nested.ContentSequence = [_item(number) for number in range(_ITEMS)]
    taken = list[float]()
    for _ in range(_TIMES):
        began, encoded = time.process_time(), BytesIO()
        dcmwrite(encoded, nested, implicit_vr=False, little_endian=True)
        encoded.seek(0)
        for item in read_dataset(encoded, is_implicit_VR=False, is_little_endian=True).ContentSequence:
            _ = [element.value for element in item]
        taken.append(time.process_time() - began)
    return median(taken)


def _item(number: int) -> Dataset:
    item = Dataset()
    item.ValueType, item.RelationshipType, item.TextValue = "TEXT", "CONTAINS", f"sentence {number}"
    item.ObservationUID, item.NumericValue = f"1.2.{number}", f"{number}"
    return item


def _session(weight: np.ndarray, *, threads: int) -> onnxruntime.InferenceSession:
    """Return ONNX Runtime with a graph of the one product."""
    given = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["count", _SHAPE[1]])
    outputs = helper.make_tensor_value_info("outputs", TensorProto.FLOAT, ["count", _SHAPE[0]])
    weights = numpy_helper.from_array(np.ascontiguousarray(weight.T), "weight")
    node = helper.make_node("MatMul", ["rows", "weight"], ["outputs"])
    model = helper.make_model(
        helper.make_graph([node], "product", [given], [outputs], [weights]), opset_imports=[helper.make_opsetid("", 18)]
    )
    model.ir_version = 10
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # As in the engine: threads that spun after a call would take a core from the product that is measured next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
