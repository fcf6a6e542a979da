"""A node whose model is not the one of the manifest does not start."""

from __future__ import annotations

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
    content = bytearray((model / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (model / WEIGHTS).write_bytes(content)

    ended = run_command("serve", service.settings_path)

    assert ended.returncode == 2
    assert "is not the file that the manifest names" in ended.stderr
