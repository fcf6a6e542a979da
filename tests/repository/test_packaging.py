"""The wheel: what it holds, and that its commands work in an empty folder beside foreign packages of the same names.

It is installed into an environment of its own, which sees the libraries of the tests' environment through a .pth file.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from models.program import __version__
from tests.paths import REPOSITORY
from tests.repository.test_architecture import PRODUCT

pytestmark = pytest.mark.drill(part="packaging")

ENTRY = "deploy/wheel/chex_node"
SUBCOMMANDS = "card checkpoint evaluate export golden join parity phantoms placing train".split()
"""Of chex-models."""


class Installed(NamedTuple):
    """An installed program: its wheel, its environment, an empty folder to work in."""

    wheel: Path
    environment: Path
    folder: Path

    def site_packages(self) -> Path:
        (place,) = self.environment.glob("lib/python*/site-packages")
        return place

    def run(self, command: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.environment / "bin" / command, *map(str, arguments)],
            cwd=self.folder,
            env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
            timeout=250,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel, built without a network and installed without its libraries."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "environment", with_pip=False)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    offline = ("--no-deps", "--no-index")
    _call(*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", folder, REPOSITORY)
    (wheel,) = folder.glob("*.whl")
    _call(*pip, "--python", folder / "environment", "install", *offline, "--no-compile", wheel)
    program = Installed(wheel, folder / "environment", tmp_path_factory.mktemp("empty"))
    libraries = program.site_packages() / "libraries.pth"
    libraries.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return program


def _call(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_wheel_has_one_import_name_and_all_files(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = set(archive.namelist())

    # Every file that is or would be committed, so nothing that a command made.
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    committed = {name for name in listed.stdout.split("\0") if name and (REPOSITORY / name).is_file()}
    program = {f"chex_node/program/{name}" for name in committed if name.split("/")[0] in PRODUCT}
    entry = {name.removeprefix("deploy/wheel/") for name in committed if name.startswith(f"{ENTRY}/")}
    assert {name.split("/")[0] for name in names} == {"chex_node", f"chex_node-{__version__}.dist-info"}
    assert {name for name in names if name.startswith("chex_node/")} == program | entry
    assert [name for name in PRODUCT if (installed.site_packages() / name).exists()] == []


def test_commands_and_subcommands_name_themselves_as_a_person_runs_them(installed: Installed) -> None:
    node, models = installed.run("chex-node", "--help"), installed.run("chex-models", "--help")

    for command in ("chex-node", "chex-models"):
        assert installed.run(command, "--version").stdout == f"{command} (ChEX Node) {__version__}\n"
    assert node.stdout.startswith("usage: chex-node ")
    assert all(f"    {name} " in node.stdout for name in ("serve", "check", "read", "ask", "demo", "doctor"))
    assert models.stdout.startswith("usage: chex-models ")
    assert set(SUBCOMMANDS) <= set(models.stdout.split())
    for name in SUBCOMMANDS:
        done = installed.run("chex-models", name, "--help")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"usage: chex-models {name} ")
        assert "python -m" not in done.stdout


def test_the_demo_without_a_model_says_how_to_get_one(installed: Installed) -> None:
    refused = installed.run("chex-node", "demo")
    shipped = Path(refused.stderr.strip().partition("such as a copy of ")[2])
    shutil.copytree(shipped, installed.folder / "models" / "weights" / "phantom")
    not_exported = installed.run("chex-node", "demo")

    assert (refused.returncode, refused.stdout) == (2, "")
    assert shipped == installed.site_packages() / "chex_node" / "program" / "models" / "weights" / "phantom"
    assert not_exported.returncode == 2
    assert "run chex-models export --model models/weights/phantom" in not_exported.stderr


def test_a_film_is_read_beside_packages_of_the_same_names(
    installed: Installed, phantom_model: Path, chest_film: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    for place in (foreign, installed.folder, installed.site_packages()):
        for name in PRODUCT:
            (place / name).mkdir(parents=True, exist_ok=True)
            (place / name / "__init__.py").write_text("raise SystemExit('a foreign package')\n", encoding="utf-8")

    read = installed.run(
        "chex-node", "read", chest_film, "--model", phantom_model, "--out", "out", "--json", PYTHONPATH=str(foreign)
    )
    exported = installed.run("chex-models", "export", "--model", phantom_model, "--json", PYTHONPATH=str(foreign))

    assert read.returncode == 0, read.stderr
    (study,) = json.loads(read.stdout)["studies"]
    assert len(study["films"][0]["findings"]) == 13
    assert (installed.folder / "out" / study["study"] / "sr.dcm").is_file()
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stdout)["passed"] is True
