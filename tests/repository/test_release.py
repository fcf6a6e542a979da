"""`make release-check` names each thing that a release lacks, and nothing where all is there."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from deploy import release
from tests.drills.parts import PARTS

GRAPH = b"a graph"
COMPLETE = {
    "models/program.py": '__version__ = "2.3.4"\nFAULTS_URL = "https://forge.example/node"\n',
    "CITATION.cff": "cff-version: 1.2.0\nversion: 2.3.4\ndate-released: 2031-05-04\n",
    "Dockerfile": "ARG VERSION=2.3.4\n",
    "helm/Chart.yaml": "apiVersion: v2\nversion: 2.3.4\nappVersion: 2.3.4\n",
    "docs/integrate/conformance.md": "| ChEX Node | 2.3.4 | ChEX Node project |\n",
    "CHANGELOG.md": "# Notes\n\n## 2.3.4 (2031-05-04)\n\n### What it does\n\n### What it needs\n\n### Known limits\n\n"
    "## 2.3.3 (2030-01-01)\n",
    "deploy/image/digests.env": f"# by make digests\nBASE_IMAGE=python:3.11@sha256:{'ab' * 32}\n",
    **dict.fromkeys(release.PACKAGES, f"numpy==1.0 --hash=sha256:{'cd' * 32}\n"),
    "models/weights/phantom/onnx/find.onnx": GRAPH.decode(),
    "models/weights/phantom/weights.safetensors": GRAPH.decode(),
    release.PROOF: json.dumps(
        {
            "passed": True,
            "graphs": {"onnx/find.onnx": hashlib.sha256(GRAPH).hexdigest()},
            "weights_sha256": hashlib.sha256(GRAPH).hexdigest(),
        }
    ),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small repository that lacks nothing, all of it committed."""
    for name, content in COMPLETE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    drilled(tmp_path, git(tmp_path, "rev-parse", "HEAD").strip())
    return tmp_path


def drilled(project: Path, commit_id: str, **changes: object) -> None:
    """Let every part of the drills have passed on a commit, but for changes of the part `chaos`."""
    last: dict[str, dict[str, object]] = {part: {"commit": commit_id, "passed": True} for part in PARTS}
    last["chaos"] |= changes
    (project / release.DRILLS).parent.mkdir(parents=True, exist_ok=True)
    (project / release.DRILLS).write_text(json.dumps(last), encoding="utf-8")
    commit(project)


def git(folder: Path, *arguments: str) -> str:
    settings = ("user.name=a", "user.email=a@example.org", "commit.gpgsign=false", "tag.gpgsign=false")
    options = [part for setting in settings for part in ("-c", setting)]
    done = subprocess.run(["git", *options, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All")


def test_a_complete_project_may_be_tagged(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = release.main(["--project", str(project)])

    said = capsys.readouterr().out
    assert status == 0, said
    assert said.endswith("git tag --sign v2.3.4\n")
    assert "make test" in said


@pytest.mark.parametrize(
    ("place", "before", "after", "expected"),
    [
        ("models/program.py", "2.3.4", "2.3.4.dev1", "models/program.py: 2.3.4.dev1 is no version of a release"),
        ("models/program.py", "https://forge.example/node", "", "models/program.py: the public page where faults are"),
        ("CITATION.cff", "version: 2.3.4", "version: 2.3.3", "CITATION.cff: the version 2.3.4; it has 2.3.3"),
        ("Dockerfile", "2.3.4", "2.3.3", "Dockerfile: the version 2.3.4; it has 2.3.3"),
        ("helm/Chart.yaml", "\nversion: 2.3.4", "\nversion: 2", "helm/Chart.yaml: the version 2.3.4; it has 2"),
        ("helm/Chart.yaml", "appVersion: 2.3.4", "", "helm/Chart.yaml: the version 2.3.4; it has none"),
        ("docs/integrate/conformance.md", "2.3.4", "2", "docs/integrate/conformance.md: the version 2.3.4; it has 2"),
        ("CHANGELOG.md", "## 2.3.4", "## 2.3.5", "CHANGELOG.md: a first section ## 2.3.4; it begins with 2.3.5"),
        ("CHANGELOG.md", "### Known limits\n", "", "CHANGELOG.md: the part ### Known limits of 2.3.4"),
        ("CHANGELOG.md", "2031-05-04", "unreleased", "CHANGELOG.md: the day of the release, as CITATION.cff has it"),
        ("CITATION.cff", "2031-05-04", "soon", "CITATION.cff: the day of the release, date-released"),
        ("deploy/image/digests.env", "@sha256:", ":", "deploy/image/digests.env: a digest of BASE_IMAGE"),
        ("deploy/image/digests.env", "BASE_IMAGE", "#", "deploy/image/digests.env: the digests of the images"),
        ("deploy/image/gpu.txt", "--hash", "", "deploy/image/gpu.txt: hashes of the packages"),
        (release.PROOF, "true", "false", f"{release.PROOF}: a proof that passed"),
        ("models/weights/phantom/onnx/find.onnx", "a", "b", f"{release.PROOF}: a proof for the onnx/find.onnx"),
        ("models/weights/phantom/weights.safetensors", "a", "b", "a proof for the weights.safetensors"),
    ],
)
def test_each_thing_that_is_missing_is_named(
    project: Path, place: str, before: str, after: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / place
    path.write_text(path.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")
    commit(project)

    status = release.main(["--project", str(project)])

    assert status == 1
    assert any(line.startswith("missing: ") and expected in line for line in capsys.readouterr().out.splitlines())


def test_changed_files_a_tag_that_is_taken_and_missing_proof_and_digests_are_named(project: Path) -> None:
    (project / "new.txt").touch()
    git(project, "tag", "v2.3.4")
    assert list(release.unsaved(project)) == [
        "a commit of 1 changed files: git status names them",
        "a version of its own: the tag v2.3.4 is there already",
    ]

    for place in (release.PROOF, release.DIGESTS, *release.PACKAGES):
        (project / place).unlink()

    lacking = [line.partition(":")[0] for line in release.missing(project)]
    assert lacking == [release.DIGESTS, *release.PACKAGES, release.PROOF]


def test_drills_that_failed_or_ran_on_an_older_program_do_not_count(project: Path) -> None:
    before = git(project, "rev-parse", "HEAD").strip()
    assert list(release.undrilled(project)) == []
    drilled(project, before, passed=False)
    assert list(release.undrilled(project)) == [
        f"{release.DRILLS}: a run of the part chaos that passed; make drills ONLY=chaos"
    ]
    with (project / "models/program.py").open("a", encoding="utf-8") as file:
        file.write("CHANGED = True\n")
    commit(project)
    drilled(project, before)

    lacking = list(release.undrilled(project))

    assert [line for line in lacking if "on this program" not in line] == []
    assert len(lacking) == len(PARTS)
    drilled(project, git(project, "rev-parse", "HEAD").strip(), commit=before)
    assert [line.partition(" on ")[0] for line in release.undrilled(project)] == [
        f"{release.DRILLS}: a run of the part chaos"
    ]
