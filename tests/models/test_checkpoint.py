"""Weights on disk: what is written is read, and what does not fit is refused with a line that helps."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.checkpoint import published
from models.checkpoint.files import REQUIRED, file_sha256, verify
from models.checkpoint.weights import load_network, load_stored, load_weights, release_pages, save_weights
from models.errors import ModelError
from models.manifest import PUBLISHED_SIZES, WEIGHTS, Manifest, read_manifest, write_manifest
from models.network.chex import Chex
from models.reading.tokenizers import VOCABULARIES
from tests.models.test_chex import SIZES
from tests.paths import REPOSITORY
from tests.support.processes import mapped_kib

LAYOUT = REPOSITORY.parent / "shared" / "chex" / "state_dict_layout.json"


@pytest.fixture
def network() -> Chex:
    torch.manual_seed(3)
    return Chex(SIZES).eval()


@pytest.fixture
def directory(tmp_path: Path, network: Chex) -> Path:
    save_weights(tmp_path / WEIGHTS, network.state_dict())
    (tmp_path / "vocab").mkdir()
    for name in REQUIRED:
        if name != WEIGHTS:
            (tmp_path / name).write_text("there to be hashed")
    write_manifest(tmp_path, manifest(tmp_path))
    return tmp_path


def test_whoever_may_read_a_new_file_may_read_weights(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    save_weights(tmp_path / WEIGHTS, {"weight": torch.zeros(1)})

    assert (tmp_path / WEIGHTS).stat().st_mode == (tmp_path / "file").stat().st_mode


def manifest(directory: Path) -> Manifest:
    """That of the shipped model, but for the sizes and the files."""
    shipped = read_manifest(VOCABULARIES.parent)
    return dataclasses.replace(
        shipped,
        sizes=SIZES,
        views=None,
        input=dataclasses.replace(shipped.input, size=SIZES.image_encoder.image_size),
        files={name: file_sha256(directory / name) for name in REQUIRED},
    )


def test_weights_come_back_as_they_were(directory: Path, network: Chex) -> None:
    loaded = load_network(directory)

    assert not loaded.training
    for key, tensor in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor), key


def test_embeddings_in_half_precision_are_loaded_as_float32(directory: Path, network: Chex) -> None:
    state = network.state_dict()
    halved = {"prompt_encoder.tokens.weight", "generator.tokens.weight"}
    whole = (directory / WEIGHTS).stat().st_size

    save_weights(directory / WEIGHTS, state, half=halved)

    loaded = load_weights(directory / WEIGHTS)
    assert (directory / WEIGHTS).stat().st_size < 0.6 * whole
    assert {tensor.dtype for tensor in loaded.values()} == {torch.float32}
    for key, tensor in state.items():
        torch.testing.assert_close(
            loaded[key], tensor, rtol=1e-3 if key in halved else 0, atol=1e-4 if key in halved else 0
        )


def test_pages_of_a_used_weight_are_given_back_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_weights(path, {"large": torch.randn(2048, 2048), "small": torch.ones(3)})
    weights = load_stored(path)
    expected = weights["large"].clone()
    used = mapped_kib(path, counted="Rss")

    release_pages(weights["large"])

    assert used >= 16_384 - 64
    assert mapped_kib(path, counted="Rss") <= 64  # the pages at its ends, which it shares with its neighbors
    assert torch.equal(weights["large"], expected)


def test_a_changed_file_is_named(directory: Path) -> None:
    good = manifest(directory)
    verify(directory, good)
    content = bytearray((directory / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (directory / WEIGHTS).write_bytes(content)

    with pytest.raises(ModelError, match=rf"{WEIGHTS} is not the file that the manifest names"):
        verify(directory, good)


def test_an_absent_file_is_named(directory: Path) -> None:
    claims = dataclasses.replace(manifest(directory), files={**manifest(directory).files, "onnx/find.onnx": "0" * 64})

    with pytest.raises(ModelError, match=r"onnx/find\.onnx cannot be read"):
        verify(directory, claims)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_manifest_that_lacks_a_needed_hash_is_refused(directory: Path, name: str) -> None:
    files = {listed: sha256 for listed, sha256 in manifest(directory).files.items() if listed != name}

    with pytest.raises(ModelError, match=f"no hash of {name}"):
        verify(directory, dataclasses.replace(manifest(directory), files=files))


@pytest.mark.parametrize("name", ["/etc/hostname", "../outside", "vocab/../../outside", "C:\\outside", "..\\outside"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(directory: Path, name: str) -> None:
    files = {**manifest(directory).files, name: "0" * 64}

    with pytest.raises(ModelError, match="outside the model directory"):
        verify(directory, dataclasses.replace(manifest(directory), files=files))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (os.mkfifo, "is not a regular file"),
        (Path.mkdir, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a link"),
        (lambda path: path.symlink_to(path.parent / WEIGHTS), "is a link"),
    ],
)
def test_a_manifest_that_names_no_plain_file_is_refused_unopened(
    directory: Path, make: Callable[[Path], None], complaint: str
) -> None:
    files = {**manifest(directory).files, "other": "0" * 64}
    (directory / WEIGHTS).write_bytes(b"damaged, but not looked at")
    make(directory / "other")

    with pytest.raises(ModelError, match=complaint):
        verify(directory, dataclasses.replace(manifest(directory), files=files))


def test_a_link_on_the_way_to_a_file_is_refused(directory: Path, tmp_path: Path) -> None:
    shutil.move(directory / "vocab", tmp_path / "elsewhere")
    (directory / "vocab").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ModelError, match="vocab is a link"):
        verify(directory, manifest(directory))


def without(state: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if name != key}


def test_weights_that_do_not_fit_are_refused(directory: Path, network: Chex) -> None:
    state = network.state_dict()
    gate = "post_decoder.gate"

    save_weights(directory / WEIGHTS, without(state, gate))
    with pytest.raises(ModelError, match=rf"lacks 1 weights, first {gate}"):
        load_network(directory)

    save_weights(directory / WEIGHTS, {**state, "extra": torch.zeros(1)})
    with pytest.raises(ModelError, match="has unknown 1 weights, first extra"):
        load_network(directory)

    save_weights(directory / WEIGHTS, {**state, gate: torch.zeros(2)})
    with pytest.raises(ModelError, match=rf"{gate} is \[2\], the sizes of the manifest ask for \[1\]"):
        load_network(directory)


@pytest.mark.parametrize("content", [None, b"", b"not weights at all"])
def test_damaged_weights_are_refused(directory: Path, content: bytes | None) -> None:
    (directory / WEIGHTS).unlink()
    if content is not None:
        (directory / WEIGHTS).write_bytes(content)

    with pytest.raises(ModelError, match="restore the model directory"):
        load_network(directory)


def test_full_size_has_the_published_parameter_counts() -> None:
    with torch.device("meta"):
        network = Chex(PUBLISHED_SIZES)

    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in network.named_children()}

    # spec §13
    assert counts == {
        "image_encoder": 87_849_216,
        "prompt_encoder": 63_428_096,
        "detector": 28_134_405,
        "post_decoder": 12_620_801,
        "generator": 354_823_168 + 504_612_864,
    }
    assert sum(counts.values()) == 1_051_468_550


@pytest.mark.skipif(not LAYOUT.exists(), reason=f"{LAYOUT.name} is not beside the repository")
def test_every_published_weight_has_its_place_and_size() -> None:
    layout = json.loads(LAYOUT.read_text(encoding="utf-8"))
    with torch.device("meta"):
        wanted = Chex(PUBLISHED_SIZES).state_dict()
        theirs = {key: torch.empty(shape) for key, (shape, _) in layout.items()}
    tied = "txt_decoder.language_model.lm_head.weight"

    renamed = published.rename(without(theirs, tied))

    assert {key: tensor.shape for key, tensor in renamed.items()} == {k: t.shape for k, t in wanted.items()}
    assert published.sizes_of(renamed, heads=8, generator_heads=16, max_length=128) == PUBLISHED_SIZES


def test_old_buffers_and_compiler_prefixes_are_ignored() -> None:
    layer = "txt_decoder.language_model.transformer.h.0.attn."
    state = {
        "_orig_mod.post_decoder.gate": torch.ones(1),
        f"{layer}bias": torch.ones(1),
        f"{layer}masked_bias": torch.ones(1),
    }

    assert published.rename(state) == {"post_decoder.gate": torch.ones(1)}


def test_untied_embeddings_are_refused() -> None:
    language = "txt_decoder.language_model."

    with pytest.raises(ModelError, match="tied"):
        published.rename(
            {f"{language}lm_head.weight": torch.ones(2), f"{language}transformer.wte.weight": torch.zeros(2)}
        )
