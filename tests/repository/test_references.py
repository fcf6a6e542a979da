"""What the repository's text points at exists: links, documents, cited sections, files named in the documentation.

A citation is a document's name and a section, such as `design §8`; `docs/develop/README.md` explains it.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.paths import REPOSITORY
from tests.repository.test_architecture import committed_files, name_of

# What a citation calls a document, and where the document is.
CITED: Final = {
    "spec": "docs/develop/chex-specification.md",
    "design": "docs/develop/design.md",
    "interoperability": "docs/develop/interoperability.md",
    "durable-engine": "docs/develop/durable-engine.md",
}

# Documents that a command writes, or that a test makes up: they are named, and are not in the repository.
MADE = {
    "FILE.md": "what a person calls the outcome in a usage line of `models.lab.evaluation.card`",
    "FAILURES.md": "named in the module docstring of `models.lab.evaluation.card`, which writes it",
    "dist/licences.md": "written by `make sbom`",
    "gpu-proof/gpu-proof.md": "written by `make gpu-proof`",
    "evaluation.md": "written by `models.evaluate`",
    "notes.md": "made up by tests/lab/test_card.py",
}

_URL = re.compile(r"[a-z]+://\S+")
_VARIABLE = re.compile(r"\$[({]\w+[)}]/|\S*\*/")  # a folder that a Makefile or a shell names by a variable, or many
_DOCUMENT = re.compile(r"[\w./-]*[\w-]\.md\b")
_LINK = re.compile(r"\]\(([^()\s]+)\)|(?:href|src)=\"([^\"]+)\"")
_HEADING = re.compile(r"^(#+) +(.+?) *#*$")
_NUMBER = r"\d+(?:\.\d+)*"
_CITATION = re.compile(rf"(\S+)\s+§({_NUMBER}(?:(?:, | and | to )§?{_NUMBER}(?![\w%]))*)")
_LABEL = re.compile(r"\b(?:DEP|BUG)-\d+\b")
_CODE_FILE = re.compile(r"(?<![\w./-])(?:node|models|export|language|deploy|tests|docs|helm)/[\w./-]*")
_SUFFIXES = (".py", ".toml", ".md", ".yml", ".yaml", ".lua", ".json", ".service", ".c", "/")


class Citation(NamedTuple):
    """A section of a document that a file cites."""

    file: str
    document: str
    section: str


@cache
def texts() -> dict[str, str]:
    """The content of every committed text file by its name; large ones hold data and no prose."""
    contents = {}
    for path in committed_files():
        if path.stat().st_size < 300_000 and path.suffix not in (".json", ".jpg", ".png"):
            try:
                contents[name_of(path)] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
    return contents


def markdown() -> dict[str, str]:
    return {name: content for name, content in texts().items() if name.endswith(".md")}


def without_fences(content: str) -> str:
    return re.sub(r"^```.*?^```", "", content, flags=re.MULTILINE | re.DOTALL)


def anchors(content: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    found: dict[str, int] = {}
    for line in without_fences(content).splitlines():
        if heading := _HEADING.match(line):
            words = re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-")
            found[words] = found.get(words, -1) + 1
    return {words if not again else f"{words}-{again}" for words, last in found.items() for again in range(last + 1)}


def sections(content: str) -> set[str]:
    """The numbers of the headings of a document, and of the numbered items below each of them."""
    found, current = set(), ""
    for line in without_fences(content).splitlines():
        if heading := re.match(rf"#+ ({_NUMBER})\.? ", line):
            current = heading[1]
            found.add(current)
        elif item := re.match(r"(\d+)\. ", line):
            found.add(f"{current}.{item[1]}" if current else item[1])
    return found


def citations() -> Iterator[Citation]:
    for name, content in texts().items():
        if name == name_of(Path(__file__)):
            continue
        for found in _CITATION.finditer(re.sub(r"\n\s*#? *", " ", content)):
            document = re.sub(r"^\W+", "", found[1])
            for section in re.findall(_NUMBER, found[2]):
                yield Citation(name, document, section)


def exists(document: str, *, named_in: str) -> bool:
    """Whether a document is in the repository: from its root, from beside the file, or, for a bare name, anywhere."""
    document = document.removeprefix("/opt/chex-node/")  # where deploy/systemd installs the repository
    beside = os.path.normpath(os.path.join(os.path.dirname(named_in), document))
    bare = {Path(name).name for name in markdown()} if "/" not in document else set()
    return document in markdown() or beside in markdown() or document in bare


def test_every_link_in_a_document_leads_somewhere() -> None:
    broken = []
    for name, content in markdown().items():
        for found in _LINK.finditer(without_fences(content)):
            target = found[1] or found[2]
            if re.match(r"[a-z]+:", target):
                continue
            place, _, anchor = target.partition("#")
            path = REPOSITORY / os.path.dirname(name) / place if place else REPOSITORY / name
            is_there = path.exists() and not os.path.relpath(path.resolve(), REPOSITORY).startswith("..")
            if not is_there or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
                broken.append(f"{name}: {target}")

    assert broken == []


def test_every_runbook_anchor_of_an_alert_exists() -> None:
    broken = [
        found[0]
        for content in texts().values()
        for found in re.finditer(r"runbook: (\S+\.md)#(\S+)", content)
        if not (REPOSITORY / found[1]).exists()
        or found[2] not in anchors((REPOSITORY / found[1]).read_text(encoding="utf-8"))
    ]

    assert broken == []


def test_every_document_that_a_file_names_is_in_the_repository() -> None:
    missing = {
        f"{name}: {document}"
        for name, content in texts().items()
        if name != name_of(Path(__file__))
        for document in _DOCUMENT.findall(_VARIABLE.sub("", _URL.sub("", content)))
        if document not in MADE and not exists(document, named_in=name)
    }

    assert sorted(missing) == []


def test_every_cited_section_exists() -> None:
    known = {document: sections((REPOSITORY / place).read_text(encoding="utf-8")) for document, place in CITED.items()}
    cited = list(citations())

    assert len(cited) > 150
    assert sorted(citation for citation in cited if citation.section not in known.get(citation.document, ())) == []


def test_every_section_sign_follows_the_name_of_a_document() -> None:
    signs = sum(
        content.count("§") for name, content in texts().items() if name.endswith((".py", ".toml")) and "§" in content
    )
    own = (REPOSITORY / name_of(Path(__file__))).read_text(encoding="utf-8").count("§")
    starts = sum(
        len(re.findall(rf"\b(?:{'|'.join(CITED)})\s+(?:#\s+)?§\d", content))
        for name, content in texts().items()
        if name.endswith((".py", ".toml")) and name != name_of(Path(__file__))
    )

    assert starts == signs - own


def test_every_cited_deviation_is_in_the_specification() -> None:
    known = set(_LABEL.findall((REPOSITORY / CITED["spec"]).read_text(encoding="utf-8")))
    cited = {(name, label) for name, content in texts().items() for label in _LABEL.findall(content)}

    assert sorted((name, label) for name, label in cited if label not in known) == []


def test_every_file_that_a_document_names_exists() -> None:
    missing = {
        f"{name}: {place}"
        for name, content in markdown().items()
        for found in _CODE_FILE.findall(_URL.sub("", content))
        if (place := found.rstrip(".-")).endswith(_SUFFIXES) and not (REPOSITORY / place).exists()
    }

    assert sorted(missing) == []
