"""README and code say the same: every setting, metric, log event, reason and own code stands in both."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from node import log, prompts
from node.config import Settings
from node.domain import Reason
from tests.exported import whole_registry
from tests.service import run_command

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CODE_SPANS = set(re.findall(r"`([^`\n]+)`", README))


def setting_names(kind: type, where: str = "") -> list[str]:
    names = []
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        tables = [one for one in flat(hints[field.name]) if dataclasses.is_dataclass(one)]
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
    return {family.name + ("_total" if family.type == "counter" else "") for family in whole_registry().collect()}


def test_every_setting_is_in_the_readme_and_every_one_there_exists() -> None:
    names = set(setting_names(Settings))
    tables = {name.split(".")[0] for name in names}
    mentioned = {span for span in CODE_SPANS if re.fullmatch(rf"({'|'.join(tables)})(\.\w+)+", span)}

    assert mentioned - set(log.EVENTS) == names


def test_every_metric_is_in_the_readme_and_every_one_there_exists() -> None:
    assert {span for span in CODE_SPANS if span.startswith("cxr_")} == metric_names()


def test_every_log_event_is_in_the_readme_and_every_one_there_exists() -> None:
    roots = {event.split(".")[0] for event in log.EVENTS} - {"study", "film"}
    mentioned = {span for span in CODE_SPANS if re.fullmatch(rf"({'|'.join(roots)}|study|film)\.[a-z_]+", span)}

    settings = set(setting_names(Settings))
    assert mentioned - settings == set(log.EVENTS)


def test_every_reason_is_in_the_readme() -> None:
    assert {str(reason) for reason in Reason} <= CODE_SPANS


def test_every_code_of_our_own_is_in_the_readme() -> None:
    own = {
        code.value
        for prompt in prompts.load("chexpert14").prompts
        for code in (prompt.finding, prompt.site)
        if code is not None and code.scheme == "99CHEX"
    }

    assert own
    assert own <= CODE_SPANS


@pytest.mark.parametrize(
    "module",
    [
        "node",
        "deploy.backup",
        "export.build",
        "export.parity",
        "models.checkpoint",
        "models.evaluate",
        "models.evaluation.card",
        "models.random_weights",
    ],
)
def test_every_module_that_the_readme_runs_can_be_run(module: str) -> None:
    assert f"python -m {module} " in README

    done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=REPOSITORY, capture_output=True, text=True)

    assert done.returncode == 0
    assert "usage" in done.stdout


def test_every_command_of_the_node_is_in_the_readme() -> None:
    done = run_command("--help")
    offered = set(re.findall(r"^    (\w+)  ", done.stdout, re.MULTILINE))

    assert offered == set(re.findall(r"python -m node (\w+)", README))


def test_every_file_that_the_readme_names_exists() -> None:
    linked = set(re.findall(r"\]\(([^)]+)\)", README))
    named = {span for span in CODE_SPANS if re.fullmatch(r"(node|models|export|deploy|tests)/[\w./]*", span)}

    assert [name for name in sorted(linked | named) if not (REPOSITORY / name).exists()] == []
