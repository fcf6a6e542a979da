"""`python -m models.checkpoint` goes on to the graphs, so that the next command reads a film."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from models.checkpoint.files import verify
from models.engines.proof import PROOF, STAGES, check_proof
from models.manifest import read_manifest
from tests.support.imported import import_command, published, said_of
from tests.support.official import STEP
from tests.support.peers import wait_until
from tests.support.service import INTERRUPTIBLE, run_command

pytestmark = pytest.mark.drill(part="runtimes")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published model folder, unpacked."""
    return published(tmp_path_factory.mktemp("published"))


def is_exporting(importer: int) -> bool:
    """Whether a process has started the exporter."""
    children = Path(f"/proc/{importer}/task/{importer}/children").read_text().split()
    return any(b"export.build" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)


def test_an_import_ends_with_proven_graphs_and_says_nothing_else(imported_model: Path) -> None:
    said = said_of(imported_model)

    assert said.returncode == 0, said.stderr
    first, last = said.stdout.splitlines()
    assert first.startswith(f"{imported_model}: chex_test step-{STEP}, ")
    assert last.startswith(f"{imported_model}: graphs exported and proven; ")
    # Of the libraries that export there is no line: each of these is ours, and tells progress, a stage or a difference.
    stage = rf"({'|'.join(STAGES)})(\.\w+)?: (exported, |largest difference )"
    ours = re.compile(rf"taking chex_test/|\w+: \d+ %$|{stage}|{re.escape(str(imported_model))}: ")
    assert [line for line in said.stderr.splitlines() if not ours.match(line)] == []
    assert {line.partition(":")[0] for line in said.stderr.splitlines() if ": exported, " in line} == set(STAGES)
    check_proof(imported_model, read_manifest(imported_model))


def test_the_next_command_after_an_import_reads_a_film(imported_model: Path, tmp_path: Path, chest_film: Path) -> None:
    read = run_command("read", chest_film, "--model", imported_model, "--out", tmp_path / "out", "--json")

    assert read.returncode == 0, read.stderr
    (study,) = json.loads(read.stdout)["studies"]
    assert study["model"]["engine"] == "onnx"
    assert [film["status"] for film in study["films"]] == ["read"]


def test_a_failed_export_keeps_the_import_and_names_the_remedy(source: Path, tmp_path: Path, repository: Path) -> None:
    model, absent = tmp_path / "model", tmp_path / "absent"
    absent.mkdir()
    (absent / "onnxscript.py").write_text("raise ModuleNotFoundError('not installed', name='onnxscript')\n")
    environment = {**os.environ, "PYTHONPATH": str(absent)}

    done = subprocess.run(
        import_command(source, model, "--json"), cwd=repository, env=environment, capture_output=True, text=True
    )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "onnxscript is missing; run pip install -c constraints.txt '.[cpu]'",
        f"export failed: {model} is imported and lacks only its graphs; run python -m export.build --model {model}",
    ]
    assert json.loads(done.stdout)["exported"] is False
    verify(model, read_manifest(model))
    assert not (model / PROOF).exists()


def test_a_stopped_export_keeps_the_import_and_leaves_no_process(
    source: Path, tmp_path: Path, repository: Path
) -> None:
    model = tmp_path / "model"
    with subprocess.Popen(
        [*INTERRUPTIBLE, *import_command(source, model)],
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: is_exporting(process.pid), what="the exporter", limit_seconds=120.0)

        process.send_signal(signal.SIGINT)
        # The exporter holds these pipes too: they end when both processes have.
        said, error = process.communicate(timeout=60)

    assert process.returncode == 130
    assert said.startswith(f"{model}: chex_test step-{STEP}, ")
    assert error.splitlines()[-1] == (
        f"export stopped: {model} is imported and lacks only its graphs; run python -m export.build --model {model}"
    )
    verify(model, read_manifest(model))
