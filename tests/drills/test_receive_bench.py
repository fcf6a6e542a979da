"""`tests.drills.receive_bench` compares the node with dcmtk and Orthanc, and says where the time of a film goes."""

from __future__ import annotations

import json

import pytest

from tests.drills import receive_bench
from tests.drills.receive_steps import REST, STEPS

pytestmark = pytest.mark.drill(part="bench")


def test_a_short_run_has_every_ratio_and_every_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(receive_bench, "SIZES", {"small": ((137, 137), 2)})
    monkeypatch.setattr(receive_bench, "LIMITS", {"small_orthanc": 1e6})

    assert receive_bench.main(["--films", "1", "--rounds", "1"]) == 1

    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["passed"] is False
    assert found["ratios"].keys() == {
        f"{size}_{peer}" for size in receive_bench.SIZES for peer in ("storescp", "orthanc")
    }
    assert all(ratio > 0 for ratio in found["ratios"].values())
    assert found["small"]["node"]["objects"] == 2 * receive_bench.SENDERS
    steps = found["steps"]
    assert steps.keys() == {*(name for name, _, _ in STEPS), REST, "all"}
    assert sum(step["share"] for name, step in steps.items() if name != "all") == pytest.approx(1.0, abs=0.01)
    assert all(step["milliseconds"] > 0 for step in steps.values())
