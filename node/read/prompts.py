"""Prompt sets: the questions for the network, and the codes with which its answers are reported.

A set is one TOML file: a `version`, and `[[prompts]]` tables in the order of the questions. Every output contains the
hash of the file's bytes, so that readings with different questions can be told apart. Codes are written as
`[value, scheme, meaning]`.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import TypeGuard

from models.contract import PromptKind
from node.domain import Code, Side
from node.errors import ConfigError
from node.prompt_set import Prompt, PromptSet

_FOLDER = Path(__file__).parent / "prompt_sets"
_KEYS = frozenset(("key", "kind", "phrases", "names", "negatives", "finding", "site", "side", "paired"))


def load(name_or_path: str) -> PromptSet:
    """Load a built-in prompt set by its name, or any other by the path of its TOML file.

    Raises ConfigError that lists every mistake.
    """
    is_path = name_or_path.endswith(".toml")
    path = Path(name_or_path) if is_path else _FOLDER / f"{name_or_path}.toml"
    if not is_path and name_or_path not in built_in():
        raise ConfigError([f"no prompt set {name_or_path!r}; there are {', '.join(built_in())}, or give a .toml file"])
    try:
        content = path.read_bytes()
        document = tomllib.loads(content.decode())
    except OSError as error:
        raise ConfigError([f"{path}: the prompt set cannot be read ({error.strerror})"]) from error
    except ValueError as error:  # not UTF-8 or not TOML
        raise ConfigError([f"{path}: {error}"]) from error
    return _parse(document, path=path, sha256=hashlib.sha256(content).hexdigest())


def built_in() -> tuple[str, ...]:
    """Return the names of the prompt sets that come with the program."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def _parse(document: dict[str, object], *, path: Path, sha256: str) -> PromptSet:
    mistakes = [f"unknown key {key!r}" for key in document.keys() - {"version", "prompts"}]
    version, tables = document.get("version"), document.get("prompts")
    if not isinstance(version, str) or not version.strip() or not version.isprintable():
        mistakes.append('version must be a text of printable characters, such as "1.0"')
    prompts: list[Prompt] = []
    if not isinstance(tables, list) or not tables:
        mistakes.append("there must be at least one [[prompts]]")
        tables = []
    for position, table in enumerate(tables, start=1):
        try:
            prompts.append(_prompt(table))
        except ValueError as error:
            key = table.get("key") if isinstance(table, dict) else None
            mistakes.append(f"prompt {key or f'number {position}'}: {error}")
    keys = [prompt.key for prompt in prompts]
    mistakes += [
        f"prompt {key}: the key stands {keys.count(key)} times" for key in sorted(set(keys)) if keys.count(key) > 1
    ]
    if mistakes:
        raise ConfigError([f"{path}: {mistake}" for mistake in mistakes])
    return PromptSet(name=path.stem, version=str(version), sha256=sha256, prompts=tuple(prompts))


def _prompt(table: object) -> Prompt:
    """Parse one table. Raises ValueError for the first mistake in it."""
    if not isinstance(table, dict):
        raise ValueError("must be a table")
    if unknown := sorted(table.keys() - _KEYS):
        raise ValueError(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")
    key, paired = table.get("key"), table.get("paired", False)
    if not isinstance(key, str) or not key.isidentifier() or key != key.lower():
        raise ValueError("key must be a snake_case word")
    if not isinstance(paired, bool):
        raise ValueError("paired must be true or false")
    return Prompt(
        key=key,
        kind=PromptKind(_choice(table, "kind", tuple(PromptKind))),
        phrases=_texts(table, "phrases"),
        names=_texts(table, "names"),
        negatives=_texts(table, "negatives"),
        finding=_code(table, "finding"),
        site=_code(table, "site"),
        side=Side(_choice(table, "side", tuple(Side))) if "side" in table else None,
        paired=paired,
    )


def _choice(table: dict[str, object], key: str, allowed: tuple[str, ...]) -> str:
    value = table.get(key)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{key} must be one of {', '.join(allowed)}")
    return value


def _texts(table: dict[str, object], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not _is_texts(value):
        raise ValueError(f"{key} must be a list of texts, each of printable characters")
    return tuple(value)


def _code(table: dict[str, object], key: str) -> Code | None:
    """Parse a code. Raises ValueError if a part is too long for SH, SH, LO (16, 16, 64 characters; PS3.5 6.2)."""
    if key not in table:
        return None
    value = table[key]
    if not _is_texts(value) or len(value) != 3:
        raise ValueError(f"{key} must be [value, scheme, meaning], of printable characters")
    for part, limit in zip(value, (16, 16, 64), strict=True):
        if len(part) > limit or "\\" in part:
            raise ValueError(f"{key}: {part!r} is longer than {limit} characters or holds a backslash")
    return Code(value=value[0], scheme=value[1], meaning=value[2])


def _is_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(
        isinstance(text, str) and text.strip() and text.isprintable() for text in value
    )
