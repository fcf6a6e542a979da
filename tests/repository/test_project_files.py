"""The files that a forge and its visitors read: each can be parsed, and says what the program says of itself."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from node import FAULTS_URL, __version__
from node.errors import please_report
from tests.paths import REPOSITORY
from tests.repository.test_references import markdown

FORGE = REPOSITORY / ".github"
FORMS = sorted(path for path in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
ANSWERABLE = {"checkboxes", "dropdown", "input", "textarea"}

Parsed = dict[Any, Any]


def parsed(path: str | Path) -> Parsed:
    content = yaml.safe_load((REPOSITORY / path).read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


class SiteLoader(yaml.SafeLoader):
    """Reads mkdocs.yml, which names a function of a library; it is left alone here."""


SiteLoader.add_multi_constructor("tag:yaml.org,2002:python/object/apply:", lambda *_: None)


def leaves(entries: object) -> Iterator[str]:
    """Give every document that a navigation leads to."""
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, list):
        for entry in entries:
            yield from leaves(entry)
    elif isinstance(entries, dict):
        yield from leaves(list(entries.values()))


def steps(job: Parsed) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = parsed("CITATION.cff")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (paper,) = citation["references"]

    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert (citation["version"], citation["license"]) == (__version__, project["license"])
    assert {"type", "title", "authors", "year"} <= paper.keys()
    assert [author["family-names"] for author in paper["authors"]] == ["Müller", "Kaissis", "Rueckert"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_can_be_shown_and_warns_of_patient_data(form: Path) -> None:
    content = parsed(form)
    asked = [element for element in content["body"] if element["type"] != "markdown"]
    names = [element["id"] for element in asked]

    assert {"name", "description", "body"} <= content.keys()
    assert {element["type"] for element in asked} <= ANSWERABLE
    assert all(element["attributes"]["label"] for element in asked)
    assert len(names) == len(set(names))
    assert "No patient data" in content["body"][0]["attributes"]["value"]
    assert any(
        "patient" in option["label"] and option["required"]
        for element in asked
        if element["type"] == "checkboxes"
        for option in element["attributes"]["options"]
    )


def test_both_issue_forms_and_the_pull_request_are_there() -> None:
    assert [form.stem for form in FORMS] == ["fault", "question"]
    assert "No patient data" in (FORGE / "pull_request_template.md").read_text(encoding="utf-8")


def test_ci_runs_the_command_of_home_on_every_python() -> None:
    test = parsed(".github/workflows/ci.yml")["jobs"]["test"]
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")

    assert ".ci/run" in steps(test)
    assert (REPOSITORY / ".ci" / "run").stat().st_mode & 0o111
    assert test["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert 'requires-python = ">=3.11,<3.14"' in project


def test_ci_builds_the_wheel_and_every_image() -> None:
    jobs = parsed(".github/workflows/ci.yml")["jobs"]
    options = " ".join(image["options"] for image in jobs["image"]["strategy"]["matrix"]["include"])
    dockerfile = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")

    assert any("pip wheel" in step for step in steps(jobs["wheel"]))
    assert any(step.startswith("docker build") for step in steps(jobs["image"]))
    assert [target for target in re.findall(r"--target (\w+)", options) if f" AS {target}\n" not in dockerfile] == []
    assert {"cpu", "gpu"} == set(re.findall(r"--target (\w+)", options))
    assert all((REPOSITORY / file).is_file() for file in re.findall(r"--file (\S+)", options))


def test_the_hooks_before_a_commit_are_what_make_runs() -> None:
    hooks = [hook for repository in parsed(".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8").replace("$(VENV)", ".venv")
    commands = {line.strip().removeprefix("nice -n 19 ") for line in makefile.splitlines() if line.startswith("\t")}

    assert {hook["id"] for hook in hooks} == {"ruff", "ruff-format", "mypy"}
    assert [hook["entry"] for hook in hooks if hook["entry"] not in commands] == []
    assert {hook["language"] for hook in hooks} == {"system"}


def test_the_site_has_every_document_once() -> None:
    written = {name for name in markdown() if not name.startswith((".github/", "node/"))}
    named = list(leaves(yaml.load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"), SiteLoader)["nav"]))

    assert sorted(named) == sorted(written)


def test_where_faults_are_reported_is_said_in_one_place() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    texts = [path for name in listed.split("\0") if (path := REPOSITORY / name).is_file()]

    assert not {"url", "repository", "repository-code"} & parsed("CITATION.cff").keys()
    assert "urls" not in project
    assert "contact_links" not in parsed(FORGE / "ISSUE_TEMPLATE" / "config.yml")
    assert "FAULTS_URL" in (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
    if FAULTS_URL:
        assert [path for path in texts if FAULTS_URL.encode() in path.read_bytes()] == [REPOSITORY / "node/__init__.py"]


@pytest.mark.parametrize(("url", "asked"), [("", "please report it"), ("https://f.example", "it at https://f.example")])
def test_an_error_text_says_where_to_report_if_that_is_known(url: str, asked: str) -> None:
    assert please_report(url).endswith(asked)


def test_the_security_page_names_no_address_that_may_not_exist() -> None:
    page = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")

    assert "@" not in page
    assert "Report a vulnerability" in page
    assert "Never send patient data" in page


@pytest.mark.parametrize(
    ("here", "installed"), [((), ".[cpu]"), (("installed-cpu",), ".[cpu]"), (("installed-cpu-test",), ".[cpu,test]")]
)
def test_the_demo_installs_no_packages_of_the_tests(tmp_path: Path, here: tuple[str, ...], installed: str) -> None:
    for name in here:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))  # older than what it was made of
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "EXTRAS"))}

    done = subprocess.run(
        ["make", "--dry-run", "demo", f"VENV={tmp_path}"], cwd=REPOSITORY, env=plain, capture_output=True, text=True
    )

    assert set(re.findall(r"--editable '([^']*)'", done.stdout)) == {installed}, done.stderr
