"""What the default install brings along, by the metadata of its packages: nothing under the GPL or AGPL.

Of a licence expression one alternative must do, and every part of it. A package without one is judged by its
classifiers and the first line of its free text; one that says nothing at all fails.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata

import pytest
from boolean import AND, OR, Expression, ParseError
from license_expression import ExpressionError, get_spdx_licensing
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.paths import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# LGPL is fine where a package is used as it is and can be exchanged. Each with the reason why it is here.
LESSER = {
    "psycopg": "the database driver of dbos, imported unchanged; SQLite is in use",
    "psycopg-binary": "its C part and libpq, loaded as shared libraries",
}

COPYLEFT = re.compile(r"\b(A?GPL|Affero|GNU General Public)", re.IGNORECASE)
LESSER_COPYLEFT = re.compile(r"LGPL|Lesser General Public|Library General Public", re.IGNORECASE)


@cache
def installed() -> dict[str, metadata.PackageMetadata]:
    """Metadata of every package that the project and its extra `cpu` need, on this machine."""
    found: dict[str, metadata.PackageMetadata] = {}
    open_needs = [Requirement(line) for line in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cpu"])]
    seen: set[str] = set()
    while open_needs:
        need = open_needs.pop()
        if str(need) not in seen:
            seen.add(str(need))
            found[canonicalize_name(need.name)] = metadata.metadata(need.name)
            open_needs += needs_of(need)
    return found


def needs_of(package: Requirement) -> Iterator[Requirement]:
    """What a package needs here, with the extras that it is asked for."""
    for line in metadata.requires(package.name) or ():
        need = Requirement(line)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (*package.extras, "")):
            yield need


def licence_of(about: metadata.PackageMetadata) -> str:
    """A package's licence in one line: the expression, or what classifiers and free text say."""
    if "License-Expression" in about:
        return str(about["License-Expression"])
    classifiers = [
        classifier.split(" :: ")[-1]
        for classifier in about.get_all("Classifier", [])
        if classifier.startswith("License ::")
    ]
    free_text = "".join(about.get_all("License", [])).strip().partition("\n")[0][:200]
    return "; ".join(licence for licence in (*classifiers, free_text) if licence)


def is_copyleft(licence: str) -> bool:
    """Whether a licence leaves no choice but the GPL or AGPL."""
    try:
        tree = get_spdx_licensing().parse(licence, validate=True)
    except (ExpressionError, ParseError):  # free text
        return bool(COPYLEFT.search(licence))
    return asks_for_copyleft(tree)


def asks_for_copyleft(tree: Expression) -> bool:
    if isinstance(tree, OR):
        return all(asks_for_copyleft(part) for part in tree.args)
    if isinstance(tree, AND):
        return any(asks_for_copyleft(part) for part in tree.args)
    return bool(COPYLEFT.search(str(tree)))


def test_the_default_install_is_free_and_not_copyleft() -> None:
    licences = {name: licence_of(about) for name, about in installed().items()}

    assert {"torch", "onnxruntime", "pydicom", "dbos", "numpy"} <= licences.keys()
    assert [name for name, licence in licences.items() if not licence] == []
    assert {name: licence for name, licence in licences.items() if is_copyleft(licence)} == {}
    assert {name for name, licence in licences.items() if LESSER_COPYLEFT.search(licence)} == LESSER.keys()
    # NVIDIA's libraries come only with the extras gpu and test.
    assert {name: licence for name, licence in licences.items() if "proprietary" in licence.lower()} == {}
    assert "proprietary" in licence_of(metadata.metadata("tensorrt-cu13-bindings")).lower(), "so the word is the one"


@pytest.mark.parametrize(
    ("licence", "forbidden"),
    [
        ("MIT", False),
        ("LGPL-3.0-only", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("Apache-2.0 OR GPL-2.0-only", False),
        ("MIT AND (GPL-3.0-or-later OR BSD-3-Clause)", False),
        ("BSD License; 3-Clause BSD", False),
        ("GPL-3.0-or-later", True),
        ("MIT AND AGPL-3.0-only", True),
        ("GNU General Public License v3 (GPLv3)", True),
        ("GPLv2", True),
        ("GNU Affero General Public License v3", True),
    ],
)
def test_licences_are_told_apart(licence: str, forbidden: bool) -> None:
    assert is_copyleft(licence) is forbidden
