"""Two packages of ONNX Runtime in one environment are refused at the start, with the command that mends it."""

from __future__ import annotations

import os
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
from tests.support.service import settings_for

pytestmark = pytest.mark.drill(part="runtimes")

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


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("engine", [*ENGINES, *GPU_ENGINES])
def test_no_runtime_is_opened_with_both(phantom_model: Path, engine: str) -> None:
    with pytest.raises(ModelError, match=MENDED_BY):
        check_files(phantom_model, engine=engine)
    with pytest.raises(ModelError, match=MENDED_BY):
        open_engine(phantom_model, engine=engine)


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_node_does_not_start_with_both(tmp_path: Path, both: Path, phantom_model: Path, command: str) -> None:
    settings = settings_for(tmp_path / "node", archive_port=104, model=ModelSettings(directory=phantom_model))
    path = tmp_path / "node.toml"
    path.write_text(config.render(settings), encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "node", command, str(path)],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(both)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "onnxruntime and onnxruntime-gpu are both installed" in line and "pip uninstall" in line
    assert "service.listening" not in done.stdout and not (tmp_path / "node").exists()
