"""A published checkpoint of the recorded weights, and the command that imports it and exports its graphs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.paths import REPOSITORY
from tests.support import official
from tests.support.official import HEADS, RUN, STEP

_SAID: Final = "said.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """How the command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def published(root: Path) -> Path:
    """Write a published model folder, unpacked; returns the folder."""
    checkpoint = official.checkpoint(official.state())
    official.save(root / RUN / "checkpoints" / f"checkpoint_{STEP:09d}.pth", checkpoint)
    return root / RUN.split("/")[0]


def import_command(source: Path, model: Path, *more: str) -> list[str]:
    """Give the command that imports a published folder and exports its graphs."""
    return [sys.executable, "-m", "models.checkpoint", str(source), str(model), "--gpt2-heads", str(HEADS), *more]


def import_recorded(folder: Path) -> None:
    """Import the recorded weights into `folder/model`, and keep what the command said."""
    done = subprocess.run(
        import_command(published(folder), folder / "model"), cwd=REPOSITORY, capture_output=True, text=True
    )
    said = Said(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)
    (folder / _SAID).write_text(json.dumps(asdict(said)), encoding="utf-8")


def said_of(model: Path) -> Said:
    """Give what the command said that made an imported model."""
    return Said(**json.loads((model.parent / _SAID).read_text(encoding="utf-8")))
