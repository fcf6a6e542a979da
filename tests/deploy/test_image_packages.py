"""What the images take: digests and hashes that `make digests` looks up, and what pip may install; `make audit`.

Programs that stand in for docker, uv and pip-audit say what their registries and services would.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.test_containers import images_of, resolved
from tests.paths import REPOSITORY

pytestmark = pytest.mark.drill(part="packaging")

PROJECT = """
[build-system]
requires = ["tiny==1.0"]
[project]
name = "mini"
version = "1"
dependencies = ["tiny"]
[project.optional-dependencies]
cpu = []
gpu = []
"""
DIGEST = f"sha256:{64 * 'a'}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with the images of this one and one package, and programs in its folder `programs`."""
    folder = tmp_path / "project"
    shutil.copytree(REPOSITORY / "deploy" / "compose", folder / "deploy" / "compose")
    shutil.copytree(REPOSITORY / "deploy" / "image", folder / "deploy" / "image")
    shutil.copy(REPOSITORY / "deploy" / "compose.yaml", folder / "deploy")
    shutil.copy(REPOSITORY / "Dockerfile", folder)
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (folder / "constraints.txt").write_text("tiny==1.0\n", encoding="utf-8")
    (folder / "programs").mkdir()
    return folder


def program(path: Path, text: str) -> None:
    """Put a script where a program is looked for."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


WRITING = 'while [ "$1" != --output-file ]; do shift; done; echo "tiny==1.0 --hash=sha256:aa" >"$2"'


def run(project: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{project / 'programs'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=project, env={"PATH": path, **environment}, capture_output=True, text=True, timeout=120
    )


def look_up(project: Path, *, docker: str) -> subprocess.CompletedProcess[str]:
    """Run the script of `make digests` with a docker, and an index that has the package."""
    program(project / "programs" / "docker", docker)
    program(project / "programs" / "uv", WRITING)
    return run(project, "sh", "deploy/image/digests.sh", GRAFANA_TAG=f"12@{DIGEST}")


def test_digests_are_arguments_that_compose_takes(project: Path) -> None:
    asked = project / "asked"
    known = '[ "$1 $2 $3 $4" = "buildx imagetools inspect --format" ]'
    done = look_up(project, docker=f'{known} && echo "$6" >>{asked} && echo {DIGEST}')

    written = project / "deploy" / "image" / "digests.env"
    assert (done.returncode, done.stdout) == (0, written.read_text(encoding="utf-8")), done.stderr
    images = {
        "BASE_IMAGE": "python:3.11-slim-bookworm",
        "DEBIAN_IMAGE": "debian:bookworm-slim",
        "PROMETHEUS_TAG": "prom/prometheus:v3.5.0",
        "ALERTMANAGER_TAG": "prom/alertmanager:v0.28.1",
        "GRAFANA_TAG": "grafana/grafana:12",
    }
    assert asked.read_text(encoding="utf-8").split() == [*images.values()]
    taken = images_of(resolved("--env-file", str(written))["services"])
    assert taken == {name: f"{image}@{DIGEST}" for name, image in images.items()}
    names = {"cpu.txt", "gpu.txt", "build.txt", "digests.env", "digests.sh", "install.sh"}
    assert {path.name for path in written.parent.iterdir()} == names


def test_pytorch_and_tensorrt_are_for_the_same_cuda() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))

    assert pins["cuda-toolkit"].partition(".")[0] == "13"
    assert [name for name in pins if name.endswith(("-cu11", "-cu12"))] == []
    assert {pins[name] for name in pins if name.startswith("tensorrt") and "rtx" not in name} == {pins["tensorrt"]}


def test_nothing_is_written_where_a_registry_does_not_answer(project: Path) -> None:
    done = look_up(project, docker='case "$6" in grafana*) echo "no such host" >&2; exit 1;; *) echo sha256:0;; esac')

    assert done.returncode != 0
    assert "no such host" in done.stderr
    assert {path.name for path in (project / "deploy" / "image").iterdir()} == {"digests.sh", "install.sh"}


@pytest.mark.parametrize(
    ("pip_audit", "said"),
    [
        ("echo '{}' >dist/audit.json", None),
        ("echo '{}' >dist/audit.json; exit 1", "dist/audit.json names what is known"),
        ("echo 'ConnectionError' >&2; exit 1", "not run: "),
        ("exit 0", "not run: "),
    ],
)
def test_an_audit_says_that_it_did_not_run(pip_audit: str, said: str | None, project: Path) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    program(project / ".venv" / "bin" / "uv", WRITING)
    program(project / ".venv" / "bin" / "pip-audit", pip_audit)
    (project / ".venv" / "installed-cpu-test").touch()

    done = run(project, "make", "--file", str(REPOSITORY / "Makefile"), "audit")

    assert (done.returncode == 0) == (said is None), done.stderr
    assert said is None or said in done.stderr


def test_the_image_takes_what_has_a_hash_and_nothing_else(project: Path) -> None:
    program(project / "programs" / "python3", 'echo "$@"')

    install = ("sh", "deploy/image/install.sh", "cpu", "/opt/venv")  # the script of the Dockerfile
    plain = run(project, *install).stdout.splitlines()
    (project / "deploy" / "image" / "cpu.txt").touch()
    pinned = run(project, *install).stdout.splitlines()

    pip = "-m pip --python /opt/venv/bin/python install --no-cache-dir"
    assert plain == [f"{pip} --constraint constraints.txt --editable .[cpu]"]
    libraries, backend, node, checked = pinned
    assert libraries == f"{pip} --require-hashes --constraint constraints.txt --requirement deploy/image/cpu.txt"
    assert backend.startswith(f"{pip} --require-hashes --target ")
    assert backend.endswith(" --requirement deploy/image/build.txt")
    assert node == f"{pip} --no-deps --no-build-isolation --editable ."
    assert checked == "-m pip --python /opt/venv/bin/python check"
