"""Runnable: list every text that a page, a report, a message or a command shows, with its place. For reading aloud.

    python -m tests.drills.shown_texts [FOLDER_OR_FILE ...]

Of Python files these are the texts of two words and more, but for docstrings; `{}` stands for a value. Of templates it
is what stands between tags, and in attributes that are shown or read aloud; of scripts every text with a blank. Texts
that stand in several places come once, with the first.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

from tests.paths import REPOSITORY

WHERE: Final = ("node", "language", "models", "export", "helm/templates")
SPOKEN: Final = ("aria-label", "alt", "placeholder", "title", "value")
"""Attributes whose text a browser shows, or a screen reader says."""
_TEMPLATE: Final = re.compile(r"\{%.*?%\}|\{#.*?#\}", re.DOTALL)
_VALUE: Final = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_SCRIPT_TEXT: Final = re.compile(r"\"((?:[^\"\\\n]|\\.)*)\"|`([^`]*)`")
_LANGUAGES: Final = (".py", ".html", ".js", ".txt")


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Return the texts of a file, each with its line."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _of_python(content)
    elif path.suffix == ".html":
        yield from _of_template(content)
    elif path.suffix == ".js":
        for found in _SCRIPT_TEXT.finditer(content):
            yield content.count("\n", 0, found.start()) + 1, re.sub(r"\$\{[^}]*\}", "{}", found[1] or found[2] or "")
    else:
        yield from ((number, line) for number, line in enumerate(content.splitlines(), 1) if "{{" not in line)


def _of_python(content: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(content)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | alone:
            yield node.lineno, node.value


class _Page(HTMLParser):
    """Collects what a template shows; `texts`: each with its line."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[int, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [(self.getpos()[0], value) for name, value in attrs if name in SPOKEN and value]

    def handle_data(self, data: str) -> None:
        self.texts.append((self.getpos()[0], data))


def _of_template(content: str) -> Iterator[tuple[int, str]]:
    page = _Page()
    lines_kept = _TEMPLATE.sub(lambda found: "\n" * found[0].count("\n"), content)
    page.feed(_VALUE.sub("{}", lines_kept))
    yield from page.texts


def is_shown(text: str) -> bool:
    """Say whether a text is more than a key or a format: it has two words."""
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= 2 and " " in text.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.drills.shown_texts", description=__doc__.partition("\n")[0])
    parser.add_argument("places", nargs="*", type=Path, default=[REPOSITORY / name for name in WHERE])
    known: set[str] = set()
    for place in parser.parse_args().places:
        files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.suffix in _LANGUAGES)
        for path in files:
            for line, text in texts_of(path):
                words = " ".join(text.split())
                if is_shown(words) and words not in known:
                    known.add(words)
                    sys.stdout.write(f"{path.resolve().relative_to(REPOSITORY)}:{line}: {words}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
