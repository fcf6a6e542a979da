"""The alerts in deploy/prometheus: well formed, each raised in time, each with its section in the runbook."""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import yaml

from tests.deploy.expressions import DEPLOY, rules
from tests.paths import REPOSITORY
from tests.support import peers

pytestmark = pytest.mark.drill(part="deployment")

ALERTS = {rule["alert"]: rule for rule in rules("alerts.yml")}
TESTS, DRIFT_TESTS = (
    yaml.safe_load((DEPLOY / "prometheus" / name).read_text(encoding="utf-8"))["tests"]
    for name in ("alerts_test.yml", "drift_test.yml")
)
RUNBOOK = (REPOSITORY / "docs" / "operate" / "runbook.md").read_text(encoding="utf-8")
RULE_FILES = ["recording.yml", "alerts.yml"]
FIRING = 'ALERTS{alertname="%s",alertstate="firing"}'


def promtool(
    *arguments: str, folder: Path = DEPLOY / "prometheus", program: str = "promtool"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run([peers.require(program), *arguments], cwd=folder, capture_output=True, text=True)


def minutes(duration: str) -> int:
    """A duration such as 2h15m, in minutes."""
    hours, rest = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?", duration).groups()  # type: ignore[union-attr]  # all are so
    return 60 * int(hours or 0) + int(rest or 0)


@pytest.mark.parametrize(
    "arguments",
    ["check config prometheus.yml", "test rules alerts_test.yml", "test rules drift_test.yml"],
)
def test_prometheus_accepts_its_settings_and_raises_every_alert_in_time_and_not_before(arguments: str) -> None:
    done = promtool(*arguments.split())

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("shortest", "longest", "scrapes"), [(5, 10, 1), (1, 4, 4)])
def test_scrapes_that_fail_at_times_delay_no_alert(tmp_path: Path, shortest: int, longest: int, scrapes: int) -> None:
    # A scrape that fails makes every series of the node stale at once; a sample that is only missing, `_`, does not.
    waiting = {name for name, rule in ALERTS.items() if shortest <= minutes(rule.get("for", "0m")) <= longest}
    waiting -= {"CxrNodeDown"}  # Prometheus itself writes `up`
    chosen = [copy.deepcopy(test) for test in TESTS if test["name"].split()[0] in waiting]
    interval = f"{60 // scrapes}s"
    for test in chosen:
        test["interval"] = interval
        for series in test["input_series"]:
            series["values"] = " ".join(with_failed_scrapes(series["values"], scrapes=scrapes))
        for check in (check for check in test["promql_expr_test"] if check["exp_samples"]):
            check["eval_time"] = f"{minutes(check['eval_time']) + 1}m"  # that sample may be a lost one
    write_rules(tmp_path, chosen, evaluation_interval=interval)

    done = promtool("test", "rules", "alerts_test.yml", folder=tmp_path)

    assert {test["name"].split()[0] for test in chosen} == waiting
    assert done.returncode == 0, done.stdout + done.stderr


def write_rules(folder: Path, tests: list[object], *, evaluation_interval: str = "1m") -> None:
    """Write the shipped rules into a folder, and the given tests of them as `alerts_test.yml`."""
    for name in RULE_FILES:
        (folder / name).write_bytes((DEPLOY / "prometheus" / name).read_bytes())
    content = {"rule_files": RULE_FILES, "evaluation_interval": evaluation_interval, "tests": tests}
    (folder / "alerts_test.yml").write_text(yaml.safe_dump(content), encoding="utf-8")


def with_failed_scrapes(values: str, *, scrapes: int) -> Iterator[str]:
    """The samples of a minute each in promtool's notation, such as `0x9 1+2x60`, of which each fourth scrape is lost.

    scrapes: of a minute, all with the same value
    """
    number = 0
    for part in values.split():
        first, step, count = re.fullmatch(r"(_|-?[\d.]+)([+-][\d.]+)?(?:x(\d+))?", part).groups()  # type: ignore[union-attr]
        for repeat in range(int(count or 0) + (first != "_" or count is None)):
            sample = first if step is None else f"{float(first) + repeat * float(step):g}"
            for _ in range(scrapes):
                number += 1
                yield "stale" if number % 4 == 0 and first != "_" else sample


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_tested_to_its_stated_time_and_says_how_bad_it_is_and_where_help_stands(alert: str) -> None:
    rule = cast(dict[str, dict[str, str]], ALERTS[alert])
    limit = minutes(rule["annotations"]["detected_within"])
    own = [test for test in (*TESTS, *DRIFT_TESTS) if test["name"].startswith(f"{alert} from ")]
    faults = [minutes(test["name"].removeprefix(f"{alert} from ")) for test in own]
    checks = [check for test in own for check in test["promql_expr_test"]]
    raised = [minutes(check["eval_time"]) for check in checks if check["exp_samples"]]

    assert {check["expr"] for check in checks} == {FIRING % alert}
    assert any(not check["exp_samples"] for check in checks)
    assert raised
    assert all(time <= fault + limit for time, fault in zip(raised, faults, strict=True))

    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"] == f"docs/operate/runbook.md#{alert.lower()}"
    assert rule["annotations"]["runbook_url"] == f"{{{{ $externalLabels.docs }}}}/operate/runbook/#{alert.lower()}"
    section = re.search(rf"^### {alert}\n(.*?)(?=^##|\Z)", RUNBOOK, re.DOTALL | re.MULTILINE)
    assert section is not None
    assert all(part in section[1] for part in ("**Meaning.**", "**First look.**", "**Remedy.**"))


def test_the_sample_for_alertmanager_routes_alerts_that_exist_and_calls_at_night_only_if_critical() -> None:
    sample = yaml.safe_load((DEPLOY / "prometheus" / "alertmanager.yml").read_text(encoding="utf-8"))
    route = sample["route"]
    used = {route["receiver"], *(inner["receiver"] for inner in route["routes"])}
    named = re.findall(r'alertname = "(\w+)"', str(sample["inhibit_rules"]))

    assert {receiver["name"] for receiver in sample["receivers"]} == used
    assert [inner["matchers"] for inner in route["routes"]] == [['severity = "critical"']]
    assert len(named) == 6 and set(named) <= set(ALERTS)
    assert all(set(rule["equal"]) <= {"service", "name", "instance"} for rule in sample["inhibit_rules"])

    checked = promtool("check-config", "alertmanager.yml", program="amtool")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for severity, receiver in (("critical", "night"), ("warning", "day")):
        asked = ("config", "routes", "test", "--config.file=alertmanager.yml", f"severity={severity}")
        done = promtool(*asked, program="amtool")
        assert done.stdout.split() == [receiver], done.stderr


@pytest.mark.parametrize("place", ["prometheus", "compose"])
def test_prometheus_is_told_where_the_documents_are(place: str) -> None:
    settings = yaml.safe_load((DEPLOY / place / "prometheus.yml").read_text(encoding="utf-8"))
    assert settings["global"]["external_labels"]["docs"].startswith("https://")


def test_the_runbook_speaks_of_every_alert_and_no_other() -> None:
    assert set(re.findall(r"\bCxr\w+", RUNBOOK)) == set(ALERTS)
