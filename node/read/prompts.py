"""Prompt sets: the questions for the network, and the codes with which its answers are reported.

A set is one TOML file: a `version`, and `[[prompts]]` tables in the order of the questions. Every output contains the
hash of the file's bytes, so that readings with different questions can be distinguished. Codes are written as
`[value, scheme, meaning]`.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from models.contract import PromptKind, Side
from models.documents import Misfit, Rule, from_table
from node.domain import Code
from node.errors import ConfigError
from node.prompt_set import Prompt, PromptSet
from node.settings.rules import NotBlank, Several

_FOLDER = Path(__file__).parent / "prompt_sets"


def _of_code(most: int) -> Rule:
    """Raise unless a text fits into SH (16 characters) or LO (64), PS3.5 6.2."""

    def complaint(text: str) -> str | None:
        good = len(text) <= most and "\\" not in text
        return None if good else f"{text!r} is longer than {most} characters or holds a backslash"

    return Rule(complaint)


def _key(text: str) -> str | None:
    return None if text.isidentifier() and text == text.lower() else f"{text!r} must be a snake_case word"


_Short = Annotated[NotBlank, _of_code(16)]
_Code = tuple[_Short, _Short, Annotated[NotBlank, _of_code(64)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptTable:
    key: Annotated[str, Rule(_key)]
    kind: PromptKind
    phrases: Several[NotBlank]
    names: tuple[NotBlank, ...] = ()
    negatives: tuple[NotBlank, ...] = ()
    finding: _Code | None = None
    site: _Code | None = None
    side: Side | None = None
    paired: bool = False

    def __post_init__(self) -> None:
        self.prompt()

    def prompt(self) -> Prompt:
        """Return the prompt. Raises ValueError if its fields do not go together."""
        return Prompt(
            key=self.key,
            kind=self.kind,
            phrases=self.phrases,
            names=self.names,
            negatives=self.negatives,
            finding=_code(self.finding),
            site=_code(self.site),
            side=self.side,
            paired=self.paired,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptFile:
    version: NotBlank
    prompts: Several[_PromptTable]


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
        file = from_table(_PromptFile, document)
        return PromptSet(
            name=path.stem,
            version=file.version,
            sha256=hashlib.sha256(content).hexdigest(),
            prompts=tuple(table.prompt() for table in file.prompts),
        )
    except OSError as error:
        raise ConfigError([f"{path}: the prompt set cannot be read ({error.strerror})"]) from error
    except Misfit as misfit:
        raise ConfigError([f"{path}: {_named(mistake, document)}" for mistake in misfit.mistakes]) from misfit
    except ValueError as error:  # not UTF-8, not TOML, or a key that two prompts have
        raise ConfigError([f"{path}: {error}"]) from error


def built_in() -> tuple[str, ...]:
    """Return the names of the prompt sets that come with the program."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def _code(parts: _Code | None) -> Code | None:
    return None if parts is None else Code(value=parts[0], scheme=parts[1], meaning=parts[2])


def _named(mistake: str, document: dict[str, Any]) -> str:
    """Return a mistake with the key of its prompt, if it has one, in place of the prompt's number."""
    place = re.match(r"prompts\[(\d+)\]\.?(?:prompt \w+: )?", mistake)
    if place is None:
        return mistake
    table = document["prompts"][int(place[1]) - 1]
    key = table.get("key") if isinstance(table, dict) else None
    return f"prompt {key or f'number {place[1]}'}: {mistake[place.end() :]}"
