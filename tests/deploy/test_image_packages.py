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


def program(project: Path, name: str, text: str) -> None:
    """Put a script where a program is looked for first."""
    path = project / "programs" / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


WRITING = 'while [ "$1" != --output-file ]; do shift; done; echo "tiny==1.0 --hash=sha256:aa" >"$2"'


def look_up(project: Path, *, docker: str) -> subprocess.CompletedProcess[str]:
    """Run the script of `make digests` with a docker, and an index that has the package."""
    program(project, "docker", docker)
    program(project, "uv", WRITING)
    path = f"{project / 'programs'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "deploy/image/digests.sh"],
        cwd=project,
        env={"PATH": path, "GRAFANA_TAG": f"12@{DIGEST}"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_digests_are_arguments_that_compose_takes(project: Path) -> None:
    asked = project / "asked"
    known = '[ "$1 $2 $3 $4" = "buildx imagetools inspect --format" ]'
    done = look_up(project, docker=f'{known} && echo "$6" >>{asked} && echo {DIGEST}')

    written = project / "deploy" / "image" / "digests.env"
    assert (done.returncode, done.stdout) == (0, written.read_text(encoding="utf-8")), done.stderr
    assert images_of(resolved("--env-file", str(written))["services"]) == {
        "BASE_IMAGE": f"python:3.11-slim-bookworm@{DIGEST}",
        "DEBIAN_IMAGE": f"debian:bookworm-slim@{DIGEST}",
        "PROMETHEUS_TAG": f"prom/prometheus:v3.5.0@{DIGEST}",
        "ALERTMANAGER_TAG": f"prom/alertmanager:v0.28.1@{DIGEST}",
        "GRAFANA_TAG": f"grafana/grafana:12@{DIGEST}",
    }
    assert asked.read_text(encoding="utf-8").split() == [
        "python:3.11-slim-bookworm",
        "debian:bookworm-slim",
        "prom/prometheus:v3.5.0",
        "prom/alertmanager:v0.28.1",
        "grafana/grafana:12",
    ]
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
    program(project, "uv", WRITING)
    program(project, "pip-audit", pip_audit)
    for name in ("uv", "pip-audit"):
        (project / "programs" / name).rename(project / ".venv" / "bin" / name)
    (project / ".venv" / "installed-cpu-test").touch()

    command = ["make", "--file", str(REPOSITORY / "Makefile"), "audit"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=60)

    assert (done.returncode == 0) == (said is None), done.stderr
    assert said is None or said in done.stderr


def installed(project: Path, environment: Path, python_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of the Dockerfile, with the python3 of a folder."""
    return subprocess.run(
        ["sh", "deploy/image/install.sh", "cpu", str(environment)],
        cwd=project,
        env={"PATH": f"{python_path}:{os.environ['PATH']}", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_image_takes_what_has_a_hash_and_nothing_else(project: Path, tmp_path: Path) -> None:
    recorder = tmp_path / "recorder"
    recorder.mkdir()
    (recorder / "python3").write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    (recorder / "python3").chmod(0o755)

    plain = installed(project, Path("/opt/venv"), recorder).stdout.splitlines()
    (project / "deploy" / "image" / "cpu.txt").touch()
    pinned = installed(project, Path("/opt/venv"), recorder).stdout.splitlines()

    pip = "-m pip --python /opt/venv/bin/python install --no-cache-dir"
    assert plain == [f"{pip} --constraint constraints.txt --editable .[cpu]"]
    libraries, backend, program, checked = pinned
    assert libraries == f"{pip} --require-hashes --constraint constraints.txt --requirement deploy/image/cpu.txt"
    assert backend.startswith(f"{pip} --require-hashes --target ")
    assert backend.endswith(" --requirement deploy/image/build.txt")
    assert program == f"{pip} --no-deps --no-build-isolation --editable ."
    assert checked == "-m pip --python /opt/venv/bin/python check"
