"""CheXzero and GPT-2 files hold a part of the network: the rest comes from elsewhere, and the card says from where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from models.checkpoint import published
from models.checkpoint.__main__ import main
from models.checkpoint.assembly import assemble
from models.checkpoint.contents import recognize
from models.checkpoint.files import verify
from models.checkpoint.weights import load_network, load_weights
from models.manifest import PUBLISHED_SIZES, WEIGHTS, read_manifest
from models.random_weights import shapes_of
from tests.support import official
from tests.support.official import HEADS, State

GPT2_CONFIG = {"model_type": "gpt2", "n_head": HEADS, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}


@pytest.fixture(scope="module")
def state() -> State:
    return official.state()


@pytest.fixture(scope="module")
def chexzero(tmp_path_factory: pytest.TempPathFactory, state: State) -> Path:
    return official.save(tmp_path_factory.mktemp("chexzero") / "best_64.pt", official.chexzero(state))


@pytest.fixture
def rest(untrained_weights: Path) -> Path:
    """By its sizes a place for the recorded parts."""
    return untrained_weights


@pytest.fixture
def gpt2(tmp_path: Path, state: State) -> Path:
    """A folder as Hugging Face has it."""
    folder = tmp_path / "gpt2"
    official.save(folder / "pytorch_model.bin", official.gpt2(state))
    (folder / "config.json").write_text(json.dumps(GPT2_CONFIG))
    return folder


def test_chexzero_and_then_gpt2_are_put_into_a_network(
    chexzero: Path, gpt2: Path, tmp_path: Path, state: State, rest: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    assert main([str(chexzero), str(first), "--no-export", "--rest", str(rest)]) == 0
    assert main([str(gpt2), str(second), "--no-export", "--rest", str(first)]) == 0

    manifest = read_manifest(second)
    verify(second, manifest)
    load_network(second)
    theirs, untouched = published.rename(state), load_weights(rest / WEIGHTS)
    for name, tensor in load_weights(second / WEIGHTS).items():
        untrained = name.startswith(("detector.", "post_decoder.", "generator.prefix."))
        assert torch.equal(tensor, (untouched if untrained else theirs)[name]), name
    assert manifest.origins["image_encoder"] == "best_64.pt"
    assert manifest.origins["generator"] == "gpt2/pytorch_model.bin"
    assert "random weights" in manifest.origins["detector"]
    assert manifest.gray == read_manifest(rest).gray
    assert manifest.decisions == read_manifest(rest).decisions
    assert (manifest.sizes.generator.positions, manifest.sizes.generator.heads) == (256, HEADS)
    card = (second / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "Not a trained model: detector, post_decoder, generator.prefix have learned nothing" in card
    assert "never any clinical use" in manifest.intended_use


def test_gpt2_is_read_in_every_form(gpt2: Path, tmp_path: Path, state: State, rest: Path) -> None:
    bare = official.gpt2(state, below="txt_decoder.language_model.transformer.")
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    torch.save(bare | {"h.0.attn.bias": torch.ones(1)}, old / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    new.mkdir()
    save_file({key: tensor.contiguous() for key, tensor in bare.items()}, str(new / "model.safetensors"))

    hashes = set()
    for number, source in enumerate((gpt2, gpt2 / "pytorch_model.bin", old, new, new / "model.safetensors")):
        model = tmp_path / f"model{number}"
        assert main([str(source), str(model), "--no-export", "--rest", str(rest), "--gpt2-heads", str(HEADS)]) == 0
        hashes.add(read_manifest(model).files[WEIGHTS])

    assert len(hashes) == 1


def test_what_lacks_is_drawn_at_random_at_the_published_sizes(chexzero: Path, state: State) -> None:
    contents = recognize(dict(official.chexzero(state)), path=chexzero)

    network = assemble(contents, place="best_64.pt", rest=None, generator_heads=None, seed=5)

    assert network.sizes.generator == PUBLISHED_SIZES.generator
    assert network.sizes.post_decoder == PUBLISHED_SIZES.post_decoder
    assert (network.sizes.dim, network.sizes.image_encoder.width) == (64, 128)
    assert network.shapes == shapes_of(network.sizes)
    assert network.origins["prompt_encoder"] == "best_64.pt"
    assert network.origins["generator.prefix"] == "random weights, seed 5"
    first = next(network.numbers())
    assert torch.equal(torch.from_numpy(first), state["img_encoder.backbone.class_embedding"])


def test_a_rest_that_does_not_fit_is_refused_with_the_key(
    gpt2: Path, tmp_path: Path, state: State, capsys: pytest.CaptureFixture[str], rest: Path
) -> None:
    shallow = {key: value for key, value in official.gpt2(state).items() if ".h.1." not in key}
    (gpt2 / "pytorch_model.bin").unlink()
    official.save(gpt2 / "pytorch_model.bin", shallow)

    assert main([str(gpt2), str(tmp_path / "model"), "--rest", str(rest)]) == 2

    assert "does not fit: txt_decoder.prefix_proj.layers.3.weight is [1280, 128], expected [640, 128]" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "model").exists()


def test_a_part_with_a_missing_or_unknown_key_is_refused(
    tmp_path: Path, state: State, capsys: pytest.CaptureFixture[str], rest: Path
) -> None:
    clip = official.chexzero(state)
    del clip["visual.ln_post.bias"]

    assert main([str(official.save(tmp_path / "a.pt", clip)), str(tmp_path / "model"), "--rest", str(rest)]) == 2
    assert "img_encoder.backbone.ln_post.bias is missing; expected the" in capsys.readouterr().err

    model = official.gpt2(state) | {"score.weight": torch.ones(2)}
    source = official.save(tmp_path / "b.bin", model)
    assert main([str(source), str(tmp_path / "model"), "--rest", str(rest), "--gpt2-heads", "4"]) == 2
    assert "score.weight" in capsys.readouterr().err


def test_a_gpt2_that_computes_otherwise_is_refused(gpt2: Path, capsys: pytest.CaptureFixture[str], rest: Path) -> None:
    (gpt2 / "config.json").write_text(json.dumps(GPT2_CONFIG | {"activation_function": "relu"}))

    assert main([str(gpt2), str(gpt2.parent / "model"), "--rest", str(rest)]) == 2

    assert "config.json: activation_function is 'relu', expected 'gelu_new'" in capsys.readouterr().err


def test_a_whole_network_takes_no_rest(
    tmp_path: Path, state: State, capsys: pytest.CaptureFixture[str], rest: Path
) -> None:
    source = official.save(tmp_path / "whole.pth", official.checkpoint(state))

    assert main([str(source), str(tmp_path / "model"), "--rest", str(rest), "--gpt2-heads", "4"]) == 2

    assert "leave --rest out" in capsys.readouterr().err
