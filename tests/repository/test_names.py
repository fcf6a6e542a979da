"""What the program's names may not do: mean nothing."""

from __future__ import annotations

import ast

from tests.repository.architecture import PRODUCT
from tests.repository.test_architecture import name_of, nodes, python_files


def test_no_variable_is_named_one() -> None:
    wrong = [
        f"{name_of(path)}:{name.lineno}"
        for path in python_files(*PRODUCT, "deploy", "tests")
        for name in nodes(path)
        if (isinstance(name, ast.Name) and name.id == "one") or (isinstance(name, ast.arg) and name.arg == "one")
    ]

    assert wrong == []
