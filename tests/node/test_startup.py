"""What starts fast stays fast: help and version come without the large libraries.

Modules are counted, not seconds: an import that slips in fails here on a slow machine and on a fast one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from models.program import __version__
from node import __main__ as program
from tests.paths import REPOSITORY
from tests.support.service import run_command

# Each of these takes from a fifth of a second to two seconds.
LARGE = set("dbos highdicom matplotlib onnx onnxruntime pydicom pynetdicom scipy sklearn sqlalchemy torch".split())


def runnable() -> list[str]:
    """Every module of the product that a person runs."""
    names = ["deploy.backup"]
    folders = ("node", "models", "export", "language")
    for path in sorted(path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")):
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8"):
            place = path.relative_to(REPOSITORY).with_suffix("")
            names.append(".".join(part for part in place.parts if part != "__main__"))
    return names


def python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter that begins now."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


CALLS = """
import json, runpy, sys
module, *calls = sys.argv[1:]
for call in calls:
    sys.argv = [module, *call.split()]
    try:
        runpy.run_module(module, run_name='__main__', alter_sys=True)
    except SystemExit as end:
        assert not end.code, end.code
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def said_and_imported(module: str, *calls: str) -> tuple[str, set[str]]:
    """Run a module with each of some arguments, to its SystemExit with 0; what it printed, and what it imported."""
    done = python(CALLS, module, *calls)
    assert done.returncode == 0, done.stderr
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


def test_the_version_is_had_without_the_node_and_status_without_the_libraries_of_films_and_work() -> None:
    version = "import sys; from models.program import __version__; print(__version__, 'node' in sys.modules)"
    status = "import json, sys; from node.commands import operate; print(json.dumps(list(sys.modules)))"

    assert python(version).stdout == f"{__version__} False\n"
    assert set(json.loads(python(status).stdout)) & LARGE == {"sqlalchemy"}


@pytest.mark.drill(part="packaging")
@pytest.mark.parametrize("module", runnable())
def test_help_and_version_need_no_large_library(module: str) -> None:
    said, imported = said_and_imported(module, "--version", "--help")

    assert said.startswith(f"python -m {module} (ChEX Node) {__version__}\nusage: python -m {module} ")
    assert LARGE & imported == set()


@pytest.mark.drill(part="packaging")
def test_help_of_each_command_of_the_node_needs_no_large_library() -> None:
    names = re.findall(r"^    (\w+)  ", run_command("--help").stdout, re.MULTILINE)
    assert {"serve", "read", "status"} <= set(names)

    said, imported = said_and_imported("node", *(f"{name} --help" for name in names))

    assert [f"usage: python -m node {name} " in said for name in names] == [True] * len(names)
    assert LARGE & imported == set()


@pytest.mark.parametrize("command", [["read", "film", "--out", "folder"], ["ask", "film"]])
def test_films_are_of_people_unless_the_caller_says_otherwise(command: list[str]) -> None:
    options = program._parser().parse_args([*command, "--model", "model"])

    assert (options.population, options.uncalibrated, options.sentences) == ("real", "review", "checked")
