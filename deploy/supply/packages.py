"""The Python packages of the images, with the hashes of all their files, as uv finds them in the package index."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from deploy.supply import NotLookedUp, one_line


def hashed(project: Path, extra: str, *, torch_index: str = "") -> str:
    """List the packages that a folder's pyproject.toml and one of its extras need, at the versions of constraints.txt.

    One file serves every Python and platform of the project. uv asks PyPI, or the index that UV_DEFAULT_INDEX names.
    torch_index: another index, for PyTorch; as in a build, the newest version of both counts
    Raises NotLookedUp.
    """
    return _compiled(project, "pyproject.toml", "--extra", extra, torch_index=torch_index)


def hashed_backend(project: Path) -> str:
    """List what builds the project, in the same form. Raises NotLookedUp."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    return _compiled(project, "-", standard_input="\n".join(about["build-system"]["requires"]))


def _compiled(project: Path, *source: str, standard_input: str = "", torch_index: str = "") -> str:
    command = [sys.executable, "-m", "uv", "pip", "compile", *source, "--constraint", "constraints.txt"]
    command += ["--universal", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    if torch_index:
        command += ["--extra-index-url", torch_index, "--index-strategy", "unsafe-best-match"]
    done = subprocess.run(command, cwd=project, input=standard_input, capture_output=True, text=True)
    if done.returncode != 0 or "--hash=" not in done.stdout:
        raise NotLookedUp(f"the package index did not give the packages ({one_line(done.stderr) or 'no package'})")
    return done.stdout
