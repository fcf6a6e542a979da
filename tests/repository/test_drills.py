"""The drills: every part has something to run, and every test of a drill is of a part that there is."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from tests.drills import __main__ as drills
from tests.drills.parts import PARTS, PYTHON, Part
from tests.paths import TESTS

MARKED = {
    part
    for path in TESTS.rglob("*.py")
    for part in re.findall(r"mark\.drill\(part=\"([\w-]+)\"\)", path.read_text(encoding="utf-8"))
}


def test_every_part_has_a_program_or_tests() -> None:
    programs = {name for name, part in PARTS.items() if part.command}

    assert programs | MARKED == set(PARTS)
    commands = [part.command for part in PARTS.values() if part.command and part.command[0] == PYTHON]
    assert [command for command in commands if find_spec(command[2]) is None] == []


def test_a_part_passes_by_its_exit_code_and_by_its_last_line(capfd: pytest.CaptureFixture[str]) -> None:
    def outcome_of(program: str) -> tuple[object, object]:
        outcome = drills.run("some", Part(1, "a program", (PYTHON, "-c", program)))
        return outcome["passed"], outcome["figures"]

    assert outcome_of("print('begun'); print('{\"passed\": true, \"lost\": 0}')") == (True, {"passed": True, "lost": 0})
    assert outcome_of("print('{\"passed\": false}')") == (False, {"passed": False})
    assert outcome_of("print('5 passed, 1 failed in 2.1s'); raise SystemExit(1)") == (False, {"passed": 5, "failed": 1})
    assert "begun" in capfd.readouterr().out
