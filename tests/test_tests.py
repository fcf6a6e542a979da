"""Rules that all tests keep: each expects something, short names, and quick files that start nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests import heavy

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("test_*.py"))
LONGEST_NAME = 60

# What starts servers and processes, and the fixtures that export graphs or start a PostgreSQL.
STARTS = re.compile(
    r"^import subprocess$"
    r"|^from tests(\.(forked|listening|mllp|orthanc|peers|postgres|prometheus|service|serving))? import .*"
    r"\b(Forked|InformationSystem|Node|Orthanc|Popen|Postgres|Prometheus|Service|listening|run_command|serving)\b"
    r"|^from tests\.browsed import"
    r"|\b(ReceivingArchive|OrderListener)\("
    r"|\b(phantom_model|half_model|imported_model|imported_half_model|postgres|postgres_server): ",
    re.MULTILINE,
)


@cache
def own_tests(path: Path) -> tuple[ast.FunctionDef, ...]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return tuple(function for function in functions if function.name.startswith("test_"))


def expectations(test: ast.FunctionDef) -> Iterator[ast.AST]:
    """Find what can fail a test by its own judgment: assert, raises, expect of a page, assert_close and the like."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            yield node
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func).split(".")[-1]
            if called in ("raises", "fail", "expect") or called.startswith("assert_"):
                yield node


def test_every_test_says_what_it_expects() -> None:
    assert [
        f"{path.name}: {test.name}" for path in FILES for test in own_tests(path) if not any(expectations(test))
    ] == []


def test_every_name_is_short_enough_to_be_read() -> None:
    assert [test.name for path in FILES for test in own_tests(path) if len(test.name) > LONGEST_NAME] == []


def test_every_heavy_file_exists_and_is_named_once() -> None:
    assert sorted(heavy.HEAVY) == sorted(set(heavy.HEAVY))
    assert [name for name in heavy.HEAVY if not (FOLDER / f"test_{name}.py").is_file()] == []


def test_a_quick_file_starts_no_server_and_no_process() -> None:
    # test_architecture.py asks git for file names and starts one interpreter; nobody should go without its rules.
    excepted = {Path(__file__).name, "test_architecture.py"}
    quick = [path for path in FILES if not heavy.is_heavy(path) and path.name not in excepted]

    assert {path.name: found[0] for path in quick if (found := STARTS.search(path.read_text(encoding="utf-8")))} == {}
