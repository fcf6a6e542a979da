"""Who may import whom: the rules of the house that ruff does not know.

A new file of `node/` gets its place in `LAYERS`, or the test fails.
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

PRODUCT = ("node", "models", "export", "language")
CODE = (*PRODUCT, "examples")
"""What is held to these rules; examples are installed as packages of their own."""

# Files and folders of `node/`: a file imports only what stands in a line below its own, and files of its own folder.
# An import inside a function counts as any other.
LAYERS = (
    {"__main__"},
    {"commands"},
    {"service"},
    {"web"},
    {"health"},
    {"jobs"},
    {"pipeline"},
    {"rounds"},
    {"audit", "receive"},
    {"answers", "deliver", "orders"},
    {"outputs"},
    {"metrics", "read"},
    {"net"},
    {"store"},
    {"threads"},
    {"config", "log"},
    {"settings"},
    {"dicom", "hl7", "output_kinds", "prompt_set"},
    {"character_sets", "check_result", "csv_table", "domain", "plugins"},
    {"cardiothoracic_ratio", "errors"},
)

# The words that a network, the node and the rules that read sentences share. All may import them: whoever speaks of a
# finding's state or side means the same. In turn that file imports no library, and of ours number checks alone.
CONTRACT = "models.contract"
# The version, and what a person types to run a part of the program; it imports nothing, and all may import it.
PROGRAM = "models.program"

# Reads every document, of both, to a value of its type.
DOCUMENTS = "models.documents"

# What reads films of a site as the node reads them: it stands above `node.read` and `node.answers`, not below the node
# as what is served of `models` does.
ABOVE_THE_READER = ("models/lab/", "models/site_films.py", "models/calibrate.py", "models/evaluate.py")
HIGHEST_BELOW_THEM = "answers"

# Which of our folders a folder may import, and the files that alone may.
FOLDERS: dict[str, dict[str, tuple[str, ...]]] = {
    # node/__main__.py shows progress as models do.
    "node": {
        "models": ("node/read/model.py", "node/read/manifest.py", "node/__main__.py"),
        "language": ("node/",),
    },
    # What is served of `models` imports nothing of the node.
    "models": {"language": ("models/",), "node": ABOVE_THE_READER},
    "export": {"models": ("export/",), "language": ("export/",)},
    "language": {},
    # As a package of somebody else: nothing of ours imports it.
    "examples": {"node": ("examples/",)},
}

# What a node needs to read films never imports these; the files below alone do.
LABORATORY = ("models.lab", "models.site_films", "models.calibrate", "models.evaluate")
_BEFORE = ("calibrate", "evaluate", "golden", "phantoms", "prepare", "site_films", "train")
BEFORE_THE_LABORATORY = ("models/lab/", *(f"models/{name}.py" for name in _BEFORE))

# The one home of each outside library: a file, or a folder with its slash.
HOMES = {
    "annotated_types": ("node/settings/rules.py",),
    "argon2": ("node/web/passwords.py",),
    "authlib": ("node/web/single_sign_on.py",),
    "cryptography": ("node/net/tls.py",),
    "ensemble_boxes": ("models/lab/datasets/vindr.py",),
    "dbos": ("node/jobs/executor.py", "node/jobs/workflows.py"),
    "dicomanonymizer": ("node/commands/export/deidentified.py",),
    "fastapi": ("node/web/",),
    "fhir": ("node/outputs/fhir.py",),
    "h11": ("node/net/http_connections.py",),
    "highdicom": ("node/outputs/", "examples/output_kind/", "examples/send_and_read_back/"),
    "hl7apy": ("node/outputs/oru.py",),
    "httpx2": (
        "node/deliver/web_request.py",
        "node/health/alerts.py",
        "node/jobs/processes.py",
        "node/web/single_sign_on.py",
    ),
    "itsdangerous": ("node/web/sign_in.py",),
    "jinja2": ("models/checkpoint/card.py", "node/web/"),
    "joserfc": ("node/web/single_sign_on.py",),
    "matplotlib": ("models/lab/evaluation/pictures.py", "models/lab/evaluation/plots.py"),
    "nltk": ("models/lab/evaluation/published/text_metrics.py",),
    "onnx": ("export/", "examples/reader_onnx/"),
    "onnxruntime": (
        "models/engines/onnx_engine.py",
        "models/engines/onnx_cuda_engine.py",
        "export/",
        "examples/reader_onnx/",
    ),
    "onnxscript": ("export/",),
    "prometheus_client": ("node/metrics.py",),
    "python_multipart": ("node/web/",),
    "pynetdicom": (
        "node/receive/",
        "node/deliver/connections.py",
        "node/deliver/dicom.py",
        "node/net/pynetdicom_adapter.py",
        "examples/send_and_read_back/",
    ),
    "pycocotools": ("models/lab/evaluation/detection.py",),
    "pydantic": ("models/documents.py", "node/web/"),
    "pydantic_core": ("models/documents.py",),
    "pysbd": ("models/lab/datasets/reports.py",),
    "rich": ("models/progress.py",),
    "rouge_score": ("models/lab/evaluation/published/text_metrics.py",),
    "sacrebleu": ("models/lab/evaluation/published/text_metrics.py",),
    "scipy": ("models/lab/losses/detection.py",),
    "sklearn": ("models/lab/evaluation/",),
    "sqlalchemy": (
        "node/jobs/lost_workflows.py",
        *(
            f"node/store/{name}.py"
            for name in ("database", "ledger", "ledger_queries", "statistics", "tables", "worklist")
        ),
    ),
    "sqlite3": ("node/store/database.py",),
    "starlette": ("node/service/http.py", "node/net/http_connections.py", "node/web/"),
    "structlog": ("node/log.py",),
    "tensorrt": ("models/engines/tensorrt_engine.py",),
    "tomli_w": ("node/config.py", "models/manifest.py"),
    "torch": ("models/", "export/"),
    "transformers": ("models/lab/evaluation/published/chexbert.py", "models/lab/evaluation/published/text_metrics.py"),
    "typing_extensions": ("models/lab/film_lines.py", "models/lab/training/labels.py"),
    "uvicorn": ("node/net/http_connections.py", "node/web/access.py"),
}


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
    raise AssertionError(f"{place} has no place in LAYERS of tests/repository/test_architecture.py")


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


def test_only_its_commands_import_the_laboratory_which_stands_above_what_reads_films() -> None:
    highest = layer_of(HIGHEST_BELOW_THEM)
    assert highest is not None
    wrong = [
        f"{name_of(path)} imports {found}"
        for path in python_files(*CODE)
        for found in imports(path)
        if f"{found}.".startswith(tuple(f"{module}." for module in LABORATORY))
        and not is_allowed(path, BEFORE_THE_LABORATORY)
    ]
    wrong += [
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


@pytest.mark.parametrize(
    ("modules", "lacking"),
    [
        ("node.service.app", "torch=None, onnxruntime=None, tensorrt=None"),
        (f"{CONTRACT}, node.domain, language.check", "torch=None, numpy=None"),
    ],
)
def test_node_and_contract_start_without_the_libraries_of_networks(modules: str, lacking: str) -> None:
    program = f"import sys; sys.modules.update({lacking}); import {modules}"

    outcome = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)

    assert outcome.returncode == 0, outcome.stderr
