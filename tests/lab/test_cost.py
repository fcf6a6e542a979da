"""The size of a model directory and the processor time of a film, each with a limit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from models.lab.evaluation.cost import MOST_MIB, MOST_SECONDS, Cost, main, size_of
from models.manifest import MANIFEST, read_manifest
from models.reading.tokenizers import VOCABULARIES

pytestmark = pytest.mark.drill(part="laboratory")

MODEL = VOCABULARIES.parent


def test_the_shipped_model_is_within_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(MODEL), "--engine", "torch", "--films", "3"]) == 0

    size, network, report = capsys.readouterr().out.splitlines()
    assert 1 < float(size.split()[1]) < MOST_MIB
    seconds = [float(line.partition(": ")[2].split()[0]) for line in (network, report)]
    assert 0 < seconds[0] < MOST_SECONDS
    assert seconds[0] < seconds[1], "a report needs the network, and more"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"mib": 40.1}, "the size of the files exceeds 40 MiB"), ({"network_seconds": 0.151}, "exceeds 0.15 CPU-seconds")],
)
def test_what_exceeds_a_limit_is_named(change: dict[str, float], complaint: str) -> None:
    cost = Cost(mib=MOST_MIB, network_seconds=MOST_SECONDS, report_seconds=9.0)

    assert cost.excess() == []
    assert [complaint in text for text in replace(cost, **change).excess()] == [True]


def test_graphs_are_no_part_of_the_published_size(tmp_path: Path) -> None:
    model = Path(shutil.copytree(MODEL, tmp_path / "model", ignore=shutil.ignore_patterns("onnx")))
    before = size_of(model)
    (model / "onnx").mkdir()
    (model / "onnx" / "find.onnx").write_bytes(b"0" * 1000)

    assert size_of(model) == before
    assert before > sum((model / name).stat().st_size for name in read_manifest(model).files)
    with (model / MANIFEST).open("a") as file:
        file.write("# one more line\n")
    assert size_of(model) == before + len("# one more line\n")
