"""One ONNX graph per stage function, for any number of films, prompts and boxes, and prompts of any length.

Traced with several of each: a size of one would be burnt in.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import torch
from onnx import ModelProto, TensorProto
from onnx.external_data_helper import uses_external_data
from torch import Tensor, nn
from torch.export import Dim

from models.engines.proof import graph_path, weights_path
from models.errors import ModelError
from models.network.chex import Chex

OPSET = 18
_FILMS, _PROMPTS, _BOXES, _TOKENS = 2, 5, 4, 7
_FILM, _PROMPT, _PHRASE, _BOX = Dim("film"), Dim("prompt"), Dim("phrase"), Dim("box")

Axes = dict[int, Dim]


class _Stage(nn.Module):
    """One function of the network, as the module that the exporter asks for."""

    def __init__(self, network: Chex, function: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.network = network
        self._function = function

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Call the function."""
        return self._function(*inputs)


def export_graphs(network: Chex, directory: Path) -> Iterator[str]:
    """Write the graph of every stage into a model directory, and yield the name of each when it is there.

    The network computes no gradients any more: without them this takes 8 % less time.
    """
    network.eval().requires_grad_(False)
    graph_path(directory, "").parent.mkdir(exist_ok=True)
    for stage, outputs, inputs in _stages(network):
        _export(_Stage(network, getattr(network, stage)), inputs, outputs, graph_path(directory, stage))
        yield stage


def _stages(network: Chex) -> list[tuple[str, tuple[str, ...], dict[str, tuple[Tensor, Axes]]]]:
    """Name each stage's outputs, and give each input by name: a tensor to trace with, and its free axes."""
    sizes = network.sizes
    side, dim, cells = sizes.image_encoder.image_size, sizes.detector.dim, sizes.image_encoder.grid**2
    token = Dim("token", max=sizes.prompt_encoder.context)
    tokens = torch.zeros(_PROMPTS, _TOKENS, dtype=torch.int64)
    film = {
        "patches": (torch.randn(_FILMS, cells, dim), {0: _FILM}),
        "positions": (torch.randn(_FILMS, cells, dim), {0: _FILM}),
        "cls": (torch.randn(_FILMS, dim), {0: _FILM}),
    }
    asked = {
        "boxes": (torch.rand(_FILMS, _BOXES, 4), {0: _FILM, 1: _BOX}),
        "prompts": (torch.randn(_FILMS, _BOXES, dim), {0: _FILM, 1: _BOX}),
        "prompted": (torch.ones(_FILMS, _BOXES), {0: _FILM, 1: _BOX}),
    }
    prompts = {"prompts": (torch.randn(_FILMS, _PROMPTS, dim), {0: _FILM, 1: _PROMPT})}
    views = [] if network.view_head is None else [("view", ("outputs",), {"patches": film["patches"]})]
    return [
        (
            "encode_image",
            ("features", "patch_positions", "film"),
            {"pixels": (torch.rand(_FILMS, side, side), {0: _FILM})},
        ),
        ("encode_prompts", ("vectors",), {"tokens": (tokens, {0: _PHRASE, 1: token})}),
        ("find", ("boxes", "scores", "aggregated_scores", "features"), film | prompts),
        ("describe", ("features",), film | asked),
        *views,
    ]


def _export(stage: nn.Module, inputs: dict[str, tuple[Tensor, Axes]], outputs: tuple[str, ...], path: Path) -> None:
    """Write a graph, and its weights into a file beside it, `<name>.data`, which ONNX Runtime maps into memory."""
    # A node may have mapped the file that is there, so it must not be changed in place.
    weights_path(path).unlink(missing_ok=True)
    with _quiet():
        torch.onnx.export(
            stage,
            tuple(tensor for tensor, _ in inputs.values()),
            str(path),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=(tuple(axes for _, axes in inputs.values()),),
            external_data=True,
            verbose=False,
        )


def load_graph(path: Path) -> ModelProto:
    """Read a graph that contains its weights, or that this module wrote.

    `onnx.load` reads no weights from a file that has several names, as copies by hard links have.
    Raises ModelError if the file of the weights is missing or too short.
    """
    model = onnx.load(path, load_external_data=False)
    outside = [weight for weight in model.graph.initializer if uses_external_data(weight)]
    try:
        content = weights_path(path).read_bytes() if outside else b""
    except OSError as error:
        raise ModelError(f"{weights_path(path)} cannot be read ({error.strerror}); export the graphs again") from error
    for weight in outside:
        place = {entry.key: entry.value for entry in weight.external_data}
        first, size = int(place.get("offset", 0)), int(place["length"])
        weight.raw_data = content[first : first + size]
        if len(weight.raw_data) != size:
            raise ModelError(f"{weights_path(path)} is too short; export the graphs again")
        weight.data_location = TensorProto.DEFAULT
        del weight.external_data[:]
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own lines and warnings away; what it raises still comes through."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
