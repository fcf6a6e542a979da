"""Documents and code say the same: every setting, metric, log event, reason, code and message stands in both.

The documents for the person who runs the node are README.md and the folders operate, integrate and model of docs/.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import runpy
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from node import log
from node.config import Settings
from node.domain import Reason
from node.read import prompts
from node.settings.destinations import TYPES
from node.store import database
from tests.paths import REPOSITORY
from tests.support.exported import whole_registry
from tests.support.service import run_command

DOCS = REPOSITORY / "docs"
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
COMMANDS = (DOCS / "operate" / "commands.md").read_text(encoding="utf-8")
LONGEST_LINE = 120
UPGRADE = (DOCS / "operate" / "upgrade.md").read_text(encoding="utf-8")
DOCUMENTS = {
    path: path.read_text(encoding="utf-8")
    for path in (
        REPOSITORY / "README.md",
        REPOSITORY / "CONTRIBUTING.md",
        DOCS / "README.md",
        *(path for folder in ("operate", "integrate", "model") for path in sorted((DOCS / folder).glob("*.md"))),
    )
}
RENAMED = UPGRADE.partition("## Renamed log events\n")[2].partition("\n## ")[0]


def code_spans(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def without_fences(text: str) -> str:
    """Leave out the blocks of code between fences."""
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)


CODE_SPANS = {span for text in DOCUMENTS.values() for span in code_spans(text.replace(RENAMED, ""))}


def setting_names(kind: type, where: str = "") -> list[str]:
    names = []
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        forms = (
            [known.settings for known in TYPES.own.values()] if "form" in field.metadata else flat(hints[field.name])
        )
        tables = [hint for hint in forms if dataclasses.is_dataclass(hint)]
        names += [name for table in tables for name in setting_names(table, f"{where}{field.name}.")]
        if not tables:
            names.append(where + field.name)
    return names


def flat(hint: object) -> Iterator[type]:
    """Every class that a type hint names."""
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for inner in typing.get_args(hint):
        yield from flat(inner)


def metric_names() -> set[str]:
    families = [family for family in whole_registry().collect() if family.name.startswith("cxr_")]
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}


def messages() -> set[str]:
    """The first cells of the tables of troubleshooting that list messages; `...` stands for a value."""
    text = DOCUMENTS[DOCS / "operate" / "troubleshooting.md"]
    tables = re.findall(r"^\| message[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", text, re.MULTILINE)
    return {row.split("`")[1] for table in tables for row in table.splitlines()}


def texts_in_code() -> list[str]:
    """Every text that the program holds, with a NUL for each value that is put in."""
    found = []
    folders = ("node", "models", "export", "language")
    for path in (path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_documents_and_code_name_the_same_settings() -> None:
    names = set(setting_names(Settings))
    tables = {name.split(".")[0] for name in names}
    mentioned = {span for span in CODE_SPANS if re.fullmatch(rf"({'|'.join(tables)})(\.\w+)+", span)}

    assert mentioned - set(log.EVENTS) - {"report.json", "report.txt"} == names


def test_every_setting_stands_in_the_table_of_settings() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", DOCUMENTS[DOCS / "operate" / "settings.md"], re.MULTILINE)
    listed = [span for row in rows for span in code_spans(row)]

    assert sorted(listed) == sorted(set(setting_names(Settings)))


def test_documents_and_code_name_the_same_metrics() -> None:
    assert {span for span in CODE_SPANS if span.startswith("cxr_")} == metric_names()


def test_documents_and_code_name_the_same_log_events() -> None:
    roots = {event.split(".")[0] for event in log.EVENTS} - {"study", "film"}
    mentioned = {span for span in CODE_SPANS if re.fullmatch(rf"({'|'.join(roots)}|study|film)\.[a-z_]+", span)}

    others = {*setting_names(Settings), database.LEDGER, database.EXECUTOR}
    assert mentioned - others == set(log.EVENTS)


def test_every_renamed_log_event_has_one_of_its_two_names_today() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| `([a-z_.]+)` \|", RENAMED, re.MULTILINE)

    assert rows
    assert [row for row in rows if len(set(row) & set(log.EVENTS)) != 1] == []


def test_the_tables_of_monitoring_have_all_metrics_and_events() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", DOCUMENTS[DOCS / "operate" / "monitoring.md"], re.MULTILINE)
    listed = {span for row in rows for span in code_spans(row)}

    assert metric_names() | set(log.EVENTS) <= listed


def test_every_reason_is_documented() -> None:
    assert {str(reason) for reason in Reason} <= code_spans(DOCUMENTS[DOCS / "integrate" / "dicom.md"])


def test_every_code_of_our_own_is_documented() -> None:
    own = {
        code.value
        for prompt in prompts.load("chexpert14").prompts
        for code in (prompt.finding, prompt.site)
        if code is not None and code.scheme == "99CHEX"
    }

    assert own
    assert own <= code_spans(DOCUMENTS[DOCS / "integrate" / "dicom.md"])


def test_troubleshooting_quotes_what_the_program_says() -> None:
    said, quoted = texts_in_code(), messages()
    patterns = {message: ".*".join(re.escape(part) for part in message.split("...")) for message in quoted}

    assert len(quoted) > 40
    unknown = [
        message
        for message, pattern in patterns.items()
        if not any(re.search(pattern, text, re.DOTALL) for text in said)
    ]
    assert unknown == []


@pytest.mark.parametrize(
    "module",
    [
        "node",
        "deploy.backup",
        "export.build",
        "export.parity",
        "models.checkpoint",
        "models.evaluate",
        "models.lab.evaluation.card",
        "models.join",
        "models.prepare",
        "models.random_weights",
    ],
)
def test_every_module_that_the_page_of_commands_runs_can_be_run(module: str) -> None:
    assert f"python -m {module}" in COMMANDS

    done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=REPOSITORY, capture_output=True, text=True)

    assert done.returncode == 0
    assert "usage" in done.stdout


def test_every_command_of_the_node_is_on_their_page() -> None:
    done = run_command("--help")
    offered = set(re.findall(r"^    (\w+)(?:  |$)", done.stdout, re.MULTILINE))

    assert offered == set(re.findall(r"python -m node (\w+)", COMMANDS))
    assert {name for text in DOCUMENTS.values() for name in re.findall(r"python -m node (\w+)", text)} == offered


def test_the_page_names_every_command_of_the_models() -> None:
    subcommands = runpy.run_path(str(REPOSITORY / "deploy" / "wheel" / "chex_node" / "commands.py"))["MODELS"]
    named = set(re.findall(r"python -m ([\w.]+)", COMMANDS)) - {"node", "deploy.backup"}

    assert named | {"models.lab.demonstration"} == {module for module, _text in subcommands.values()}
    assert "chex-models demonstration" in COMMANDS


def test_the_page_of_make_names_every_target_that_a_person_runs() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    page = (DOCS / "develop" / "make.md").read_text(encoding="utf-8")
    targets = {target for row in re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE) for target in row.split()}
    rows = re.findall(r"^\| `make ([\w-]+)` \|", page, re.MULTILINE)

    assert set(rows) == targets - {"collect", "lint", "run-tests", "system-packages", "types", "viewers"}
    assert len(rows) == len(set(rows))


def test_lines_of_prose_are_short() -> None:
    """Rows of tables and lines of code cannot be broken. A model's card is written by a program."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    documents = [name for name in listed.stdout.split() if Path(name).name != "MODEL_CARD.md"]
    long = [
        f"{name}: {line}"
        for name in documents
        for line in without_fences((REPOSITORY / name).read_text(encoding="utf-8")).splitlines()
        if len(line) > LONGEST_LINE and not line.startswith(("|", "    "))
    ]

    assert documents
    assert long == []


def test_every_file_that_a_document_names_exists() -> None:
    """Links into docs/develop, and the headings that links name, are the matter of `test_references.py`."""
    missing = []
    for path, text in DOCUMENTS.items():
        linked = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)}
        linked = {link for link in linked if link and not link.startswith("https://") and "develop/" not in link}
        named = {
            span
            for span in code_spans(text)
            if re.fullmatch(r"(node|models|export|language|deploy|tests|helm|docs)/[\w./]*", span)
        }
        missing += [f"{path.name}: {link}" for link in linked if not (path.parent / link).exists()]
        missing += [f"{path.name}: {name}" for name in named if not (REPOSITORY / name).exists()]

    assert missing == []
