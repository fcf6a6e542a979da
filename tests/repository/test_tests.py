"""Rules that all tests keep: each expects something, and has a short name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.paths import TESTS

FILES = sorted(TESTS.rglob("test_*.py"))
LONGEST_NAME = 60


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
