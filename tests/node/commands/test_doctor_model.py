"""What `doctor` says of a model: which engine answers, why another does not, and which file is not what it was."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from models.contract import StageDifference
from models.engines import EngineUnavailable
from models.engines.engine_files import DriverProof, EngineFiles
from node.check_result import Check, CheckState, run_check
from node.commands.doctor import NOWHERE, check_model
from node.config import ModelSettings, Settings
from tests.models.test_engine_files import FakeCompiler
from tests.node.read.test_fallback import without_gpu
from tests.support.damage import flip
from tests.support.service import settings_for


@pytest.fixture
def model(phantom_model: Path, tmp_path: Path) -> Path:
    """A copy of the shipped model that a test may damage."""
    return Path(shutil.copytree(phantom_model, tmp_path / "model", copy_function=shutil.copyfile))


def with_model(folder: Path, model: Path, *, engine: str = "onnx", prompts: str = "chexpert14") -> Settings:
    settings = settings_for(folder / "node", archive_port=104)
    return replace(settings, model=ModelSettings(directory=model, engine=engine, prompts=prompts))


def checked(settings: Settings) -> list[Check]:
    return list(run_check("model", lambda: check_model(settings)))


def states(checks: Iterable[Check]) -> list[CheckState]:
    return [check.state for check in checks]


@without_gpu
def test_a_fallback_is_a_note_with_its_reason_and_builds_nothing(tmp_path: Path, phantom_model: Path) -> None:
    checks = checked(with_model(tmp_path, phantom_model, engine="tensorrt"))

    assert states(checks) == [CheckState.OK, *[CheckState.NOTE] * 5, CheckState.OK, CheckState.NOTE]
    assert "runtime onnx answers" in checks[0].message and "chexpert14" in checks[0].message
    assert "onnx runs instead of tensorrt" in checks[1].message and "--target tensorrt" in checks[1].message
    assert "onnx runs instead of onnx-cuda" in checks[2].message
    assert "onnx runs instead of torch-cuda" in checks[3].message
    assert checks[4].message == (
        "never reported, because nobody showed that this model recognizes them well enough: "
        "atelectasis, fracture, pneumonia, support devices"
    )
    assert "python -m models.calibrate" in checks[5].message
    assert "of the tolerance" in checks[6].message
    assert (checks[7].name, checks[7].message) == ("model GPU", "PyTorch finds none")
    assert not (tmp_path / "node").exists()


def test_each_mistake_in_a_manifest_is_a_fault(tmp_path: Path, model: Path) -> None:
    manifest = model / "manifest.toml"
    manifest.write_text("color = 1\n" + manifest.read_text().replace("layers = 2", "layers = 0", 1))

    checks = checked(with_model(tmp_path, model))

    assert states(checks) == [CheckState.FAULT, CheckState.FAULT]
    assert sorted(check.message.removeprefix(f"{manifest}: ").split()[0].rstrip(":") for check in checks) == [
        "color", "sizes.prompt_encoder.layers"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("onnx/find.onnx", "run python -m export.build"), ("weights.safetensors", "weights.safetensors")],
)
def test_a_file_that_changed_is_a_fault_that_names_it(tmp_path: Path, model: Path, name: str, remedy: str) -> None:
    flip(model / name, (model / name).stat().st_size // 2)

    checks = checked(with_model(tmp_path, model))

    assert states(checks) == [CheckState.FAULT]
    assert remedy in checks[0].message


def test_a_missing_file_and_an_unknown_prompt_set_are_faults(tmp_path: Path, model: Path) -> None:
    unknown = checked(with_model(tmp_path, model, prompts="nothing"))
    (model / "parity.json").unlink()
    missing = checked(with_model(tmp_path, model))

    assert states(unknown) == states(missing) == [CheckState.FAULT]
    assert "chexpert14" in unknown[0].message
    assert "parity.json" in missing[0].message


def test_an_engine_that_is_not_built_yet_is_not_built_by_a_look(tmp_path: Path) -> None:
    graph, compiler = tmp_path / "find.float16.onnx", FakeCompiler()
    graph.write_bytes(b"a graph")

    with pytest.raises(EngineUnavailable) as unavailable:
        EngineFiles(NOWHERE).open(graph, compiler)

    assert unavailable.value.reason == "not_built"
    assert compiler.built == []


def test_every_engine_file_is_told_with_its_proofs(tmp_path: Path, phantom_model: Path) -> None:
    settings = with_model(tmp_path, phantom_model, engine="tensorrt")
    files, compiler = EngineFiles(settings.storage.directory / "engines"), FakeCompiler()
    for stage, found in (("describe", None), ("encode_image", 1e-2), ("find", 1e-3)):
        graph = tmp_path / f"{stage}.float16.onnx"
        graph.write_text(stage)
        files.open(graph, compiler)
        if found is not None:
            proof = {stage: StageDifference(max_abs=found, tolerance=2e-3)}
            files.keep_proof(graph, compiler, DriverProof(driver="580.95.05", stages=proof))

    told = [check for check in checked(settings) if check.name == "model engine file"]

    assert [(check.state, check.message) for check in told] == [
        (state, f"{stage}.float16.onnx for NVIDIA H100 80GB HBM3, TensorRT 11.4.0.106: {proof}")
        for state, stage, proof in (
            (CheckState.NOTE, "describe", "not proven on any driver yet"),
            (CheckState.NOTE, "encode_image", "driver 580.95.05: NOT PROVEN, 500% of the tolerance"),
            (CheckState.OK, "find", "driver 580.95.05: proven, 50% of the tolerance"),
        )
    ]
