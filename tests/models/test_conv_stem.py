"""The stem of convolutions, and its network as exported graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from export.to_onnx import export_graphs
from models.engines.proof import graph_path
from models.lab.training.runfile import read_run
from models.network.chex import Chex
from models.network.image_encoder import Residual, convolutions
from tests.support.training import write_run


@pytest.mark.parametrize(("patch", "layers"), [(2, 1), (16, 4)])
def test_a_stem_halves_the_picture_until_a_pixel_is_a_patch(patch: int, layers: int) -> None:
    stem = convolutions(32, patch=patch)

    assert stem(torch.rand(3, 1, 64, 64)).shape == (3, 32, 64 // patch, 64 // patch)
    assert sum(isinstance(layer, torch.nn.Conv2d) for layer in stem) == layers


def test_residual_blocks_change_nothing_before_they_learned() -> None:
    torch.manual_seed(0)
    stem = convolutions(32, patch=16, residual=True)
    pixels = torch.randn(2, 1, 64, 64)

    plain = torch.nn.Sequential(*(layer for layer in stem if not isinstance(layer, Residual)))

    assert sum(isinstance(layer, Residual) for layer in stem) == 3
    assert torch.equal(stem(pixels), plain(pixels))
    for layer in stem:
        if isinstance(layer, Residual):
            torch.nn.init.constant_(layer.gain, 0.5)
    assert not torch.allclose(stem(pixels), plain(pixels))


def test_a_stem_keeps_the_picture_in_sight() -> None:
    torch.manual_seed(0)

    patches = convolutions(128, patch=16)(torch.randn(4, 1, 64, 64))

    assert 0.3 < patches.std() < 3


@pytest.mark.drill(part="runtimes")
def test_the_exported_graph_computes_what_the_network_computes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    network = Chex(read_run(write_run(tmp_path / "run.toml", store=tmp_path)).network).eval()
    pixels = torch.randn(3, 64, 64)

    # The first of the graphs; the others know nothing of a stem, and their export takes most of a minute.
    assert next(export_graphs(network, tmp_path)) == "encode_image"
    assert capfd.readouterr() == ("", ""), "the exporter says nothing of its own"

    session = onnxruntime.InferenceSession(graph_path(tmp_path, "encode_image"))
    with torch.no_grad():
        wanted = network.encode_image(pixels)
    for ours, theirs in zip(session.run(None, {"pixels": pixels.numpy()}), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-5)
