"""What a model directory or an environment lacks is said before a port opens and before torch is imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from models.engines import ENGINES, GPU_ENGINES, WHEELS
from models.engines.opening import open_engine
from models.engines.proof import check_files
from models.errors import ModelError
from node import config
from node.config import ModelSettings
from tests.paths import REPOSITORY
from tests.support import films, peers
from tests.support.service import Service, on_database, settings_for

RUNTIMES = pytest.mark.drill(part="runtimes")


MISSING = {
    "manifest.toml": "name a model directory",
    "weights.safetensors": "restore the model directory",
    "vocab/gpt2_vocab.bpe": "restore the model directory",
    "onnx/find.onnx": "run python -m export.build --model",
    "onnx/find.onnx.data": "run python -m export.build --model",
    "parity.json": "run python -m export.build --model",
}


@pytest.fixture
def model(phantom_model: Path, tmp_path: Path) -> Path:
    """A copy of the shipped model that a test may damage."""
    return Path(shutil.copytree(phantom_model, tmp_path / "model", copy_function=shutil.copyfile))


def written(folder: Path, model: Path) -> Path:
    """The settings file of a node with this model."""
    settings = settings_for(folder / "node", archive_port=104, model=ModelSettings(directory=model))
    path = folder / "node.toml"
    path.write_text(config.render(settings), encoding="utf-8")
    return path


@pytest.mark.parametrize("command", ["check", pytest.param("serve", marks=RUNTIMES)])
@pytest.mark.parametrize("name", MISSING)
def test_a_missing_model_file_is_named_with_its_remedy_at_once(
    tmp_path: Path, model: Path, name: str, command: str
) -> None:
    (model / name).unlink()
    program = "import sys; sys.modules.update(torch=None, onnxruntime=None); from node.__main__ import main; "

    done = subprocess.run(
        [sys.executable, "-c", f"{program} sys.exit(main([{command!r}, {str(written(tmp_path, model))!r}]))"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert Path(name).stem in line and MISSING[name] in line and str(model) in line
    assert done.stdout == "", "nothing listens"
    assert not (tmp_path / "node").exists()


def test_each_engine_asks_for_what_it_needs(model: Path) -> None:
    for graph in model.glob("onnx/*"):
        graph.unlink()

    check_files(model, engine="torch")
    for engine in ("onnx", "tensorrt"):  # ONNX Runtime runs where TensorRT does not
        with pytest.raises(ModelError, match="no exported float32 graph"):
            check_files(model, engine=engine)


def test_a_process_that_does_not_read_needs_no_model(tmp_path: Path) -> None:
    model = ModelSettings(directory=tmp_path / "nowhere")
    settings = settings_for(tmp_path / "node", archive_port=104, model=model)
    away = on_database(settings, f"postgresql://node@{peers.LOOPBACK}:1/chex")

    with Service(away, scripted=False, only="listener") as listener:
        assert peers.send(films.thumbnail(), port=listener.dicom_port) == 0


MENDED_BY = r"run pip uninstall -y onnxruntime onnxruntime-gpu && pip install -c constraints\.txt '\.\[gpu\]'"


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path where pip has noted both packages."""
    folder = tmp_path / "site"
    for name in WHEELS:
        noted = folder / f"{name.replace('-', '_')}-1.31.1.dist-info" / "METADATA"
        noted.parent.mkdir(parents=True)
        noted.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.31.1\n", encoding="ascii")
    monkeypatch.syspath_prepend(folder)
    return folder


@RUNTIMES
@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("engine", [*ENGINES, *GPU_ENGINES])
def test_no_runtime_is_opened_with_both(phantom_model: Path, engine: str) -> None:
    with pytest.raises(ModelError, match=MENDED_BY):
        check_files(phantom_model, engine=engine)
    with pytest.raises(ModelError, match=MENDED_BY):
        open_engine(phantom_model, engine=engine)


@RUNTIMES
@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_node_does_not_start_with_both(tmp_path: Path, both: Path, phantom_model: Path, command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "node", command, str(written(tmp_path, phantom_model))],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(both)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "onnxruntime and onnxruntime-gpu are both installed" in line and "pip uninstall" in line
    assert "service.listening" not in done.stdout and not (tmp_path / "node").exists()
