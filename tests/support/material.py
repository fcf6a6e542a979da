"""Material beside the repository that some tests need: real films, recordings and lists that are not ours to spread.

A clone without it skips these tests, and says in one line which files they wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

MATERIAL = REPOSITORY.parent / "shared"
_MISSING = re.compile(r"needs \.\./shared/(\S+) beside the repository")


def material(name: str) -> Path:
    """Return a file or folder of the material; a test without it is skipped."""
    path = MATERIAL / name
    if not path.exists():
        pytest.skip(f"needs ../shared/{name} beside the repository")
    return path


def summary_of(reasons: Iterable[str]) -> str:
    """Say in one line what the reasons of skipped tests are missing; empty when that is nothing."""
    names = ["/".join(found[1].split("/")[:2]) for reason in reasons if (found := _MISSING.search(reason))]
    if not names:
        return ""
    return f"{len(names)} tests were skipped for want of material in ../shared: {', '.join(sorted(set(names)))}"
