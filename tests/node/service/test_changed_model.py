"""A node that opened its model from what was kept ends as at the start if the model's files are others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from models.manifest import WEIGHTS
from node.config import ModelSettings
from tests.support.service import Service, run_command, settings_for


def test_a_node_with_other_weights_ends_and_says_why(phantom_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(phantom_model, tmp_path / "model"))
    settings = settings_for(tmp_path / "storage", archive_port=9, model=ModelSettings(directory=model))
    with Service(settings, scripted=False) as service:
        pass
    weights = model / WEIGHTS
    status, content = weights.stat(), bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))

    ended = run_command("serve", service.settings_path)

    assert list((tmp_path / "storage" / "opened").iterdir())
    assert ended.returncode == 2
    assert "is not the file that the manifest names" in ended.stderr
