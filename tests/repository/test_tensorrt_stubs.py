"""What `typings/tensorrt.pyi` says of TensorRT is so: its names and parameters are those of the real bindings.

The bindings (tensorrt-cu13-bindings) load three libraries that need a GPU's machine. Stand-ins with their few symbols
let them be imported, and looked at, anywhere with a C compiler; nothing of TensorRT runs.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

import pytest

from tests.paths import REPOSITORY
from tests.support.peers import missing, require

STUB = REPOSITORY / "typings" / "tensorrt.pyi"
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
SYMBOLS = """
createInferBuilder_INTERNAL createInferRefitter_INTERNAL createInferRuntime_INTERNAL createNvOnnxParser_INTERNAL
createNvOnnxParserRefitter_INTERNAL getBuilderPluginRegistry getNvOnnxParserVersion getPluginRegistry
initLibNvInferPlugins
""".split()
DESCRIBE = """
import json, sys
import tensorrt_bindings as trt
def described(owner, name):
    member = getattr(owner, name, None)
    if member is None:
        return None
    return "property" if isinstance(member, property) else member.__doc__ or "member"
found = {}
for path, names in json.loads(sys.argv[1]).items():
    owner = trt
    for part in filter(None, path.split(".")):
        owner = getattr(owner, part, None)
    found[path] = None if owner is None else {name: described(owner, name) for name in names}
print(json.dumps({"version": trt.__version__, "found": found}))
"""


def declared(body: list[ast.stmt], path: str = "") -> dict[str, dict[str, list[str] | None]]:
    """The members of every class of the stub, by the class's path: parameters of a method, None for anything else."""
    classes: dict[str, dict[str, list[str] | None]] = {path: {}}
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            classes |= declared(statement.body, f"{path}.{statement.name}".lstrip("."))
        elif isinstance(statement, ast.FunctionDef):
            is_property = any(ast.unparse(each) == "property" for each in statement.decorator_list)
            classes[path][statement.name] = None if is_property else [each.arg for each in statement.args.args]
        elif isinstance(statement, ast.Assign):
            classes[path][ast.unparse(statement.targets[0])] = None
    return classes


def parameters(signatures: str, name: str) -> list[list[str]]:
    """The parameters of every overload that pybind11 writes into a function's text."""
    return [re.findall(r"(?:^|, )(\w+): ", each) for each in re.findall(rf"\b{name}\((self: .*)\)", signatures)]


@pytest.fixture(scope="module")
def bindings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str | None] | None]:
    """What the real bindings have of every class that the stub names."""
    compiler = require("gcc")
    if find_spec("tensorrt_bindings") is None:
        missing("needs tensorrt-cu13-bindings (extra test)")
    folder = tmp_path_factory.mktemp("libraries")
    source = folder / "symbols.c"
    source.write_text("".join(f"void *{symbol}(void) {{ return 0; }}\n" for symbol in SYMBOLS))
    for library in LIBRARIES:
        name = f"lib{library}.so.11"
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), str(source)]
        subprocess.run(command, check=True)
    asked = json.dumps({path: list(members) for path, members in declared(ast.parse(STUB.read_text()).body).items()})
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE, asked],
        env=os.environ | {"LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["version"] == version("tensorrt-cu13-bindings")
    found: dict[str, dict[str, str | None] | None] = answer["found"]
    return found


def test_every_name_of_the_stub_is_in_the_bindings(bindings: dict[str, dict[str, str | None] | None]) -> None:
    stub = declared(ast.parse(STUB.read_text()).body)

    missing = [path for path, members in bindings.items() if members is None]
    missing += [f"{path}.{name}" for path, found in bindings.items() if found for name in found if found[name] is None]
    assert len(stub) > 15
    assert missing == []


def test_every_stub_method_has_the_parameters_of_the_bindings(
    bindings: dict[str, dict[str, str | None] | None],
) -> None:
    wrong = {}
    for path, members in declared(ast.parse(STUB.read_text()).body).items():
        for name, stated in members.items():
            text = (bindings[path] or {})[name] or ""
            if stated is not None and stated not in (real := parameters(text, name)):
                wrong[f"{path}.{name}"] = (stated, real)

    assert wrong == {}


def test_the_stub_knows_no_flag_that_tensorrt_11_removed() -> None:
    flags = declared(ast.parse(STUB.read_text()).body)["BuilderFlag"]

    assert not set(flags) & {"FP16", "INT8", "BF16", "FP8", "INT4", "FP4", "OBEY_PRECISION_CONSTRAINTS"}
