"""Who may import whom, what is never called, where errors are caught: the rules of the house that no linter knows.

The rules stand in `tests/repository/architecture.py`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.paths import REPOSITORY
from tests.repository.architecture import (
    ABOVE_THE_READER,
    BEFORE_THE_LABORATORY,
    BOUNDARIES,
    CODE,
    CONTRACT,
    DOCUMENTS,
    FOLDERS,
    FORBIDDEN_CALLS,
    HIGHEST_BELOW_THEM,
    HOMES,
    LABORATORY,
    LAYERS,
    PROGRAM,
)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax."""
    return tuple(ast.walk(parsed(path)))


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (REPOSITORY / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def module_of(path: Path) -> str:
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def committed_files() -> list[Path]:
    """Every file that is or would be committed, so nothing that a command made."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
    if names.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in names.stdout.split("\0") if name and (path := REPOSITORY / name).is_file()]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions; of `from node import log` the file that `log` is."""
    for statement in nodes(path):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.name
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, f"{name_of(path)}: relative imports hide who imports whom"
            for alias in statement.names:
                inner = f"{statement.module}.{alias.name}"
                yield inner if is_ours(inner) else str(statement.module)


def is_ours(module: str) -> bool:
    place = REPOSITORY.joinpath(*module.split("."))
    return module.split(".")[0] in CODE and (place.with_suffix(".py").exists() or place.is_dir())


def is_allowed(path: Path, homes: tuple[str, ...]) -> bool:
    return any(name_of(path) == home or (home.endswith("/") and name_of(path).startswith(home)) for home in homes)


def place_of(module: str) -> str:
    """What stands for a module of `node` in LAYERS: itself, or its folder; "" for `node`, which imports nothing."""
    return module.removeprefix("node").removeprefix(".").partition(".")[0]


def layer_of(place: str) -> int | None:
    """The layer of a place; None for `node` itself, which holds the version."""
    if not place:
        return None
    for number, names in enumerate(LAYERS):
        if place in names:
            return number
    raise AssertionError(f"{place} has no place in LAYERS of tests/repository/architecture.py")


def test_the_node_imports_downwards_only() -> None:
    wrong = []
    for path in python_files("node"):
        place = place_of(module_of(path))
        own = layer_of(place)
        for module in {found for found in imports(path) if found.startswith("node.")}:
            theirs = layer_of(place_of(module)) if is_ours(module) else None
            if theirs is not None and (own is None or theirs <= own) and place_of(module) != place:
                wrong.append(f"{name_of(path)} imports {module}")

    assert wrong == []


def test_folders_import_each_other_only_where_the_map_says_so() -> None:
    wrong = [
        f"{name_of(path)} imports {found}"
        for folder, allowed in FOLDERS.items()
        for path in python_files(folder)
        for found in imports(path)
        if (other := found.split(".")[0]) in {*CODE, "tests"} - {folder}
        and found not in (PROGRAM, CONTRACT, DOCUMENTS)
        and not is_allowed(path, allowed.get(other, ()))
    ]

    assert wrong == []


def test_only_its_commands_import_the_laboratory() -> None:
    wrong = [
        f"{name_of(path)} imports {found}"
        for path in python_files(*CODE)
        for found in imports(path)
        if f"{found}.".startswith(tuple(f"{module}." for module in LABORATORY))
        and not is_allowed(path, BEFORE_THE_LABORATORY)
    ]

    assert wrong == []


def test_the_laboratory_stands_above_what_reads_films() -> None:
    highest = layer_of(HIGHEST_BELOW_THEM)
    assert highest is not None
    wrong = [
        f"{name_of(path)} imports {found}"
        for path in python_files("models")
        if is_allowed(path, ABOVE_THE_READER)
        for found in imports(path)
        if found.startswith("node.") and (layer_of(place_of(found)) or 0) < highest
    ]

    assert wrong == []


def test_each_outside_library_has_one_home() -> None:
    of_language = {found.split(".")[0] for path in python_files("language") for found in imports(path)}
    wrong = [
        f"{name_of(path)} imports {found}"
        for path in python_files(*CODE)
        for found in imports(path)
        if (library := found.split(".")[0]) in HOMES and not is_allowed(path, HOMES[library])
    ]

    assert wrong == []
    assert of_language - {"language", "models"} <= sys.stdlib_module_names


def test_of_the_executor_only_documented_parts_are_used() -> None:
    wrong = [
        f"{name_of(path)} line {node.lineno}: {ast.unparse(node)}"
        for path in python_files("node")
        if "dbos" in {found.split(".")[0] for found in imports(path)}
        for node in nodes(path)
        if (isinstance(node, ast.ImportFrom) and is_private_part_of_dbos(node))
        or (isinstance(node, ast.Attribute) and node.attr.startswith("_") and ast.unparse(node.value) != "self")
    ]

    assert wrong == []


def is_private_part_of_dbos(statement: ast.ImportFrom) -> bool:
    """Whether a file takes more of DBOS than its package offers."""
    module = str(statement.module)
    names = [alias.name for alias in statement.names]
    return module.startswith("dbos.") or (module == "dbos" and any(name.startswith("_") for name in names))


def test_no_import_goes_in_a_circle_not_even_one_inside_a_function() -> None:
    graph = {module_of(path): {*filter(is_ours, imports(path))} - {module_of(path)} for path in python_files(*CODE)}
    while leaves := {module for module, needs in graph.items() if not needs & (graph.keys() - {module})}:
        graph = {module: needs for module, needs in graph.items() if module not in leaves}

    assert graph == {}


def test_the_node_starts_without_torch() -> None:
    program = "import sys; sys.modules.update(torch=None, onnxruntime=None, tensorrt=None); import node.service.app"

    outcome = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)

    assert outcome.returncode == 0, outcome.stderr


def test_the_contract_needs_neither_torch_nor_numpy() -> None:
    program = f"import sys; sys.modules.update(torch=None, numpy=None); import {CONTRACT}, node.domain, language.check"

    outcome = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)

    assert outcome.returncode == 0, outcome.stderr


def test_nothing_forbidden_is_called() -> None:
    wrong = [
        f"{name_of(path)}:{call.lineno} calls {name}"
        for path in python_files(*CODE)
        for call in nodes(path)
        if isinstance(call, ast.Call)
        and (name := ast.unparse(call.func)) in FORBIDDEN_CALLS
        and not is_allowed(path, FORBIDDEN_CALLS[name])
    ]

    assert wrong == []


def test_only_settings_configure_the_program() -> None:
    wrong = [
        f"{name_of(path)}:{node.lineno} reads the environment"
        for path in python_files(*CODE)
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) == "os.environ"
        and not is_allowed(
            path, ("models/__init__.py", "models/lab/training/loop.py", "node/read/decoder_processes.py")
        )
        # switches off what libraries read there; torchrun numbers processes there; says where the program lies
    ]

    assert wrong == []


def test_times_are_aware() -> None:
    wrong = [
        f"{name_of(path)}:{call.lineno}"
        for path in python_files(*CODE)
        for call in nodes(path)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "datetime.now" and not (call.args or call.keywords)
    ]

    assert wrong == []


def test_input_is_never_checked_by_assert() -> None:
    wrong = [
        f"{name_of(path)}:{statement.lineno}"
        for path in python_files(*CODE)
        for statement in nodes(path)
        if isinstance(statement, ast.Assert)
    ]

    assert wrong == []


def test_every_exception_is_caught_only_at_boundaries_or_cleanup() -> None:
    wrong = [
        f"{name_of(path)}:{handler.lineno}"
        for path in python_files(*CODE)
        for handler in nodes(path)
        if isinstance(handler, ast.ExceptHandler)
        and (handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException"))
        and not is_allowed(path, BOUNDARIES)
        and ast.unparse(handler.body[-1]) != "raise"
    ]

    assert wrong == []
