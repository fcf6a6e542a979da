"""Who was refused, kept for the operator, and the settings that would let him in."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from node import config
from node.net import callers
from node.net.callers import OTHERS, RefusalKey, RefusedCaller, RefusedCallers, printable, read_all
from tests.support import films, peers
from tests.support.service import Service, run_command, settings_for


def refused(reason: str = "caller", *, calling: str = "CR2", called: str = "CHEX") -> RefusedCaller:
    return RefusedCaller(
        at="2026-01-02T03:04:05Z", reason=reason, host="192.0.2.7", calling_aet=calling, called_aet=called, times=1
    )


def test_the_last_ten_are_kept_with_how_often_each_came(tmp_path: Path) -> None:
    callers = RefusedCallers(tmp_path / "refused-callers.json")
    for number in range(12):
        callers.note(RefusalKey("association.refused", "caller", "192.0.2.7", f"CR{number}", "CHEX"), 1)
    callers.note(RefusalKey("association.refused", "caller", "192.0.2.7", "CR5", "CHEX"), 41)
    callers.note(RefusalKey("association.refused", "caller", OTHERS), 1000)
    callers.close()

    kept = RefusedCallers(tmp_path / "refused-callers.json")
    kept.note(RefusalKey("association.refused", "silent", "192.0.2.8"), 1)
    kept.close()

    found = [(caller.calling_aet, caller.times) for caller in read_all(tmp_path)]
    assert found == [("CR3", 1), ("CR4", 1), *((f"CR{number}", 1) for number in range(6, 12)), ("CR5", 42), ("", 1)]


def test_a_disk_that_is_gone_refuses_nobody_twice(tmp_path: Path) -> None:
    callers = RefusedCallers(tmp_path / "gone" / "refused-callers.json")
    callers.note(RefusalKey("association.refused", "caller", "::1"), 1)
    callers.close()

    assert read_all(tmp_path) == []


@pytest.mark.parametrize(
    ("caller", "lines"),
    [
        (refused(), {"listener": {"callers": [{"ae_title": "CR2", "hosts": ["192.0.2.7"]}]}}),
        (refused(calling='A"]\\'), {"listener": {"callers": [{"ae_title": 'A"]\\', "hosts": ["192.0.2.7"]}]}}),
    ],
)
def test_the_lines_that_let_a_caller_in_are_settings(caller: RefusedCaller, lines: dict[str, object]) -> None:
    assert tomllib.loads(callers.settings_for(caller)) == lines


@pytest.mark.parametrize(
    "caller",
    [
        refused("silent", calling="", called=""),
        refused(calling=""),
        refused(calling="A?"),
        refused("called_ae", called="?"),
        refused("called_ae", called="CHEST"),
    ],
)
def test_no_line_is_offered_where_none_would_let_a_caller_in(caller: RefusedCaller) -> None:
    assert callers.settings_for(caller) == ""


def test_a_title_is_shown_without_what_a_terminal_would_obey() -> None:
    assert printable("  A\x1b[2J\r\nB\x9b0123456789abcdef") == "A?[2J??B?0123456"


def test_an_operator_lets_a_refused_caller_in_as_the_lines_say(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=peers.free_port(), callers=("ELSEWHERE",))
    with Service(settings) as node:
        assert peers.send(films.thumbnail(), port=node.dicom_port, calling_ae="NEWROOM") is None
        assert peers.send(films.thumbnail(), port=node.dicom_port, calling_ae="ELSEWHERE", called_ae="CHESS") is None
        line = node.wait_for("association.refused", count=1)
        peers.wait_until(lambda: len(read_all(tmp_path / "node")) == 2, what="the list is written")
        assert (line["reason"], line["calling_aet"], line["called_aet"]) == ("caller", "NEWROOM", "CHEX")

        status = run_command("status", node.settings_path)
        first, second = json.loads(run_command("status", node.settings_path, "--json").stdout)["refused_callers"]

        assert "refused NEWROOM at 127.0.0.1, calling CHEX: caller, once, last at" in status.stdout
        assert (second["calling_aet"], second["called_aet"], second["reason"]) == ("ELSEWHERE", "CHESS", "called_ae")
        assert (second["settings"], second["to_do"], first["to_do"]) == ("", "at ELSEWHERE, call CHEX", "")
        assert f"  {second['to_do']}\n" in status.stdout
        assert "would admit it" in status.stdout.partition("calling CHESS")[0]
        assert "would admit it" not in status.stdout.partition("calling CHESS")[2]
        assert node.wait_for("association.refused", count=2)["message"] == second["to_do"]
        assert node.stop() == 0

    lines = config.render(settings) + "\n" + first["settings"]
    let_in = replace(config.parse(tomllib.loads(lines)), storage=settings.storage)
    with Service(let_in) as node:
        assert peers.send(films.thumbnail(), port=node.dicom_port, calling_ae="NEWROOM") == 0
