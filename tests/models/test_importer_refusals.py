"""What the importer refuses, each with one line: the file, the key, what was expected and what was found."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.test_importer import INNER, run
from tests.models.test_importer import archive as archive  # its fixtures: a published model, and where to write
from tests.models.test_importer import folder as folder
from tests.models.test_importer import model as model
from tests.models.test_importer import state as state
from tests.support import official
from tests.support.official import Content, State

pytestmark = pytest.mark.drill(part="runtimes")

Damage = Callable[[Content, State], object]


@pytest.fixture
def refused(
    tmp_path: Path, model: Path, state: State, capsys: pytest.CaptureFixture[str]
) -> Callable[[Damage | Path], str]:
    """Try what cannot be imported; gives the one line that says why, and sees that nothing is left behind."""

    def refuse(wrong: Damage | Path) -> str:
        if not isinstance(wrong, Path):
            damage, weights = wrong, dict(state)
            content = official.checkpoint(weights)
            damage(content, weights)
            wrong = official.save(tmp_path / "wrong.pth", content)
        before = sorted(tmp_path.rglob("*"))

        assert run(wrong, model) == 2

        assert sorted(tmp_path.rglob("*")) == before
        captured = capsys.readouterr()
        assert captured.out == ""
        line = captured.err.strip().splitlines()[-1]
        assert line.startswith("error: ")
        assert wrong.name in line
        return line

    return refuse


# Of these, some tell sizes and some do not; one has a part of its own below, and one is turned around.
@pytest.mark.parametrize(
    "key",
    [
        "img_encoder.backbone.conv1.weight",
        "txt_encoder.token_embedding.weight",
        "detector.multiregion_tokens",
        "post_decoder.gate",
        "txt_decoder.language_model.transformer.h.1.mlp.c_fc.weight",
        "txt_decoder.prefix_proj.layers.3.weight",
    ],
)
def test_a_missing_key_is_named(refused: Callable[[Damage | Path], str], key: str) -> None:
    assert f"{key} is missing" in refused(lambda _, weights: weights.pop(key))


@pytest.mark.parametrize(
    "key",
    [
        "img_encoder.backbone.conv1.weight",
        "detector.multiregion_tokens",
        "txt_decoder.language_model.transformer.h.0.attn.c_attn.weight",
        "txt_decoder.prefix_proj.layers.3.weight",
    ],
)
def test_a_wrong_shape_is_named_with_what_was_expected(refused: Callable[[Damage | Path], str], key: str) -> None:
    right: list[int] = []

    def lengthen(_: Content, weights: State) -> None:
        right.extend(weights[key].shape)
        weights[key] = torch.cat([weights[key], weights[key]], dim=-1)

    said = refused(lengthen)

    assert key in said
    assert f"{[*right[:-1], 2 * right[-1]]}, expected {right}" in said


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("module.img_encoder.backbone.conv1.weight", "img_encoder.backbone., txt_encoder., detector., "),
        ("detector.extra.weight", "detector.multiregion_tokens, detector.multiregion_weight_mlp."),
        ("detector.decoder.decoder_layers.0.extra", "detector.decoder.decoder_layers.0.norm_sa., "),
    ],
)
def test_an_unknown_key_is_named_with_what_was_expected(
    refused: Callable[[Damage | Path], str], key: str, expected: str
) -> None:
    said = refused(lambda _, weights: weights.update({key: torch.ones(2)}))

    assert f"wrong.pth: {key} is " in said
    assert f"expected a key that begins with {expected}" in said


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("post_decoder.gate", torch.tensor([float("nan")]), "holds nan, expected finite numbers"),
        ("post_decoder.gate", torch.tensor([float("-inf")]), "holds -inf, expected finite numbers"),
        ("post_decoder.gate", torch.tensor([1]), "holds torch.int64, expected floating-point numbers"),
        ("post_decoder.gate", "1", "is a str, expected a dense tensor"),
        ("post_decoder.gate", torch.ones(1).to_sparse(), "is a sparse_coo tensor, expected a dense tensor"),
        ("post_decoder.gate", torch.ones(1, device="meta"), "is a tensor without numbers, expected a dense tensor"),
        ("detector.multiregion_tokens", torch.tensor(1.0), "has the shape [], expected a tensor of 1 axes or more"),
    ],
)
def test_what_is_no_weight_is_refused(
    refused: Callable[[Damage | Path], str], key: str, value: Tensor, complaint: str
) -> None:
    assert f"wrong.pth: {key} {complaint}" in refused(lambda _, weights: weights.update({key: value}))


def changed(key: str, value: object) -> Damage:
    """Set a key, with dots, of the configuration."""

    def change(content: Content, _: State) -> None:
        table = content["config_dict"]
        *path, last = key.split(".")
        for name in path:
            assert isinstance(table, dict)
            table = table[name]
        assert isinstance(table, dict)
        table[last] = value

    return change


@pytest.mark.parametrize("beta", [float("nan"), float("inf"), pytest.param(10**400, id="huge"), 0, -2.0, "2", True])
def test_an_exponent_that_is_no_number_above_0_is_refused(
    refused: Callable[[Damage | Path], str], beta: object
) -> None:
    said = refused(changed("detector.soft_roi_beta", beta))

    assert f"wrong.pth: config_dict: detector.soft_roi_beta is {beta!r}, expected a finite number above 0" in said


def test_another_architecture_is_refused_with_its_key(refused: Callable[[Damage | Path], str]) -> None:
    assert "act is 'relu', expected 'gelu'" in refused(changed("act", "relu"))
    assert "detector.clip_pos is True, expected False" in refused(changed("detector.clip_pos", True))
    assert "generation_kwargs.num_beams is 4, expected 1" in refused(
        changed("txt_decoder.generation_kwargs.num_beams", 4)
    )
    assert "generation_kwargs.top_k is unknown" in refused(changed("txt_decoder.generation_kwargs.top_k", 5))
    assert "n_projection_layers is 3, expected 1 or 2" in refused(changed("txt_decoder.n_projection_layers", 3))
    assert "prefix_length_factor is 3, but txt_decoder.prefix_proj says 5" in refused(
        changed("txt_decoder.prefix_length_factor", 3)
    )
    assert "d_model is 128, but detector.multiregion_tokens says 64" in refused(changed("d_model", 128))
    assert "n_post_decoder_layers is 3, but" in refused(changed("n_post_decoder_layers", 3))
    assert "n_head is None, expected a whole number" in refused(changed("n_head", None))
    assert "dim (64) must be a multiple of heads (5)" in refused(changed("n_head", 5))


def test_a_file_that_is_no_checkpoint_is_refused(refused: Callable[[Damage | Path], str], tmp_path: Path) -> None:
    assert "config_dict is missing, expected a dictionary" in refused(lambda content, _: content.pop("config_dict"))
    assert "holds optimizer; expected state_dict (ChEX)" in refused(
        official.save(tmp_path / "other.pth", {"optimizer": 1})
    )
    assert "holds a list, expected a dictionary" in refused(official.save(tmp_path / "list.pth", [torch.ones(2)]))


class Planted:
    """Something that runs a command when it is loaded by a program that trusts it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.trace),)


def test_pickled_code_is_refused_and_named_and_never_runs(
    refused: Callable[[Damage | Path], str], tmp_path: Path
) -> None:
    trace = tmp_path / "it ran"
    bare = tmp_path / "bare.pth"
    bare.write_bytes(pickle.dumps({"state_dict": Planted(trace)}, protocol=4))

    said = refused(lambda content, _: content.update(results=Planted(trace)))

    assert f"holds pickled code, {os.mkdir.__module__}.mkdir, and was refused" in said
    assert f"holds pickled code, {os.mkdir.__module__}.mkdir, and was refused" in refused(bare)
    assert not trace.exists()


def test_a_damaged_zip_is_refused(refused: Callable[[Damage | Path], str], archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    damaged = tmp_path / "damaged.zip"

    damaged.write_bytes(whole[: len(whole) // 2])
    assert "damaged.zip is damaged" in refused(damaged)

    middle = len(whole) // 2
    damaged.write_bytes(
        whole[:middle] + bytes(byte ^ 255 for byte in whole[middle : middle + 64]) + whole[middle + 64 :]
    )
    assert "damaged.zip is damaged" in refused(damaged)


def test_a_damaged_pth_is_refused(refused: Callable[[Damage | Path], str], folder: Path, tmp_path: Path) -> None:
    whole = (folder.parent / INNER).read_bytes()
    damaged = tmp_path / "damaged.pth"

    damaged.write_bytes(whole[: len(whole) // 2])
    assert "damaged.pth is damaged" in refused(damaged)

    # One bit of one weight, which PyTorch itself does not notice.
    middle = len(whole) // 2
    damaged.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    assert "damaged.pth is damaged" in refused(damaged)

    damaged.write_bytes(b"")
    assert "damaged.pth is damaged" in refused(damaged)


@pytest.mark.parametrize("name", ["page.zip", "weights.pth", "model.safetensors"])
def test_a_text_file_is_called_a_text_file(refused: Callable[[Damage | Path], str], tmp_path: Path, name: str) -> None:
    """A web page in place of the weights; its 4096th byte is the first one of a letter of two."""
    (page := tmp_path / name).write_text(f"<!DOCTYPE html>{'x' * 4080}éé", encoding="utf-8")

    assert f"{name} is a text file and holds no weights" in refused(page)
