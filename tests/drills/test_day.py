"""The short form of `make day`, and proof that its verdict sees an alert too many, too few, or that does not end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from models.progress import quiet
from tests.deploy.test_alerts import promtool
from tests.drills.day import hospital
from tests.drills.day.alerts import Due, Firing, firings, judge
from tests.drills.day.course import Plan
from tests.support.prometheus import SHIPPED, Pace, at_pace

pytestmark = pytest.mark.drill(part="day")

PACE = Pace(scale=48.0, began=1_000_000.0, first_hour=6.0)
STOPPED, LATE = Due("CxrDestinationStopped", 10.0, 20.0), Due("CxrAnswersLate", 20.0, 30.0)


def test_an_hour_loses_nothing(tmp_path: Path) -> None:
    """Alerts are left to `make day`: an hour lasts 15 seconds here, and other tests may take most of them.

    That a stopped destination raises its alert is tried in `tests/node/test_metrics_live.py`.
    """
    plan = Plan(
        scale=240.0,
        seed=6,
        first_hour=9.75,
        hours=0.7,
        share=0.35,
        outages=((9.9, 10.3),),
        conflict=None,
        strangers=None,
        refusal=None,
        compared=(9.75, 10.3),
        over=0.15,
        most_growth=0.5,
        room=64,
        resolved_seconds=0.0,
    )

    figures = hospital.run(plan, tmp_path, say=quiet)

    assert figures["kept"], str(figures)


@pytest.mark.parametrize(
    ("began", "missing", "unexpected"),
    [
        ([12.0], 0, 0),
        ([], 1, 0),
        ([9.0], 1, 1),
        ([12.0, 15.0], 0, 1),
    ],
    ids=["once", "never", "too early", "again"],
)
def test_each_alert_that_is_due_fires_once(began: list[float], missing: int, unexpected: int) -> None:
    fired = judge(
        [Firing("CxrNotReady", "service=node", at, at + 1.0) for at in began], [Due("CxrNotReady", 10.0, 20.0)]
    )

    assert (len(fired.missing), len(fired.unexpected)) == (missing, unexpected)
    assert fired.passed is (missing == unexpected == 0)


def test_an_alert_that_becomes_active_anew_has_fired_again() -> None:
    labels = {"alertname": "CxrConflict", "service": "node"}
    state = {**labels, "__name__": "ALERTS", "alertstate": "firing"}
    times = (1.0, 2.0, 4.0, 8.0, 9.0)  # a sample is missing at 3

    found = firings(
        [(state, [(at, 1.0) for at in times])],
        [({**labels, "__name__": "ALERTS_FOR_STATE"}, [(at, 1.0 if at < 5 else 7.0) for at in times])],
    )

    assert [(fired.alert, fired.began, fired.ended) for fired in found] == [
        ("CxrConflict", 1.0, 4.0),
        ("CxrConflict", 8.0, 9.0),
    ]


def test_every_duration_of_the_rules_is_scaled(tmp_path: Path) -> None:
    for name in ("recording.yml", "alerts.yml"):
        shipped = (SHIPPED / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(at_pace(shipped, PACE), encoding="utf-8")
        shipped_rules, scaled_rules = (rules_of(text) for text in (shipped, at_pace(shipped, PACE)))
        for before, after in zip(shipped_rules, scaled_rules, strict=True):
            for part in ("expr", "for"):
                # Windows, offsets and waiting times, but not the names of recorded series, which end in `_15m`.
                assert not re.search(r"(\[|offset |:|^)\d+[smhd]\b", after.get(part, "")), after
            windows = re.findall(r"[\[:]\d+[smhd]\b|offset ", before["expr"])
            assert len(re.findall(r"\d+ms", after["expr"])) == len(windows)
            assert ("hour()" in before["expr"]) == ("hour(vector(" in after["expr"])
    checked = promtool("check", "rules", "recording.yml", "alerts.yml", folder=tmp_path)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    scaled = {rule["alert"]: rule for rule in rules_of((tmp_path / "alerts.yml").read_text(encoding="utf-8"))}
    assert "[63000000ms:1800000ms]" in scaled["CxrDrift"]["expr"]
    assert scaled["CxrNodeDown"]["for"] == "8000ms", "four scrapes at least"
    assert scaled["CxrStudiesStuck"]["expr"].endswith("> 18.75")
    assert scaled["CxrCommitmentOverdue"]["expr"].endswith("> 450.0")
    assert "offset 75000ms" in scaled["CxrDamaged"]["expr"]


def rules_of(text: str) -> list[dict[str, str]]:
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
