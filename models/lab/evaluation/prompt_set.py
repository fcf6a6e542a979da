"""The prompts of a report, read from a prompt set of the node: a TOML file with `[[prompts]]`.

The file is given by its path and not imported, because this package does not depend on the node; still the model is
evaluated with the prompts that the node uses, or with a site's own set. The codes in the file are ignored.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from models.contract import PromptKind, ReaderPrompt
from models.errors import ModelError

DEFAULT = Path(__file__).parents[3] / "node" / "read" / "prompt_sets" / "chexpert14.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The prompts for every film, and the hash of their file."""

    name: str
    sha256: str
    prompts: tuple[ReaderPrompt, ...]


class _Prompt(TypedDict):
    key: str
    kind: str
    phrases: list[str]
    negatives: NotRequired[list[str]]


def read_questions(path: Path) -> Questions:
    """Read a prompt set. Raises ModelError if the file is not a prompt set."""
    try:
        content = path.read_bytes()
        tables = cast("list[_Prompt]", tomllib.loads(content.decode())["prompts"])
        prompts = tuple(
            ReaderPrompt(
                key=table["key"],
                kind=PromptKind(table["kind"]),
                phrases=tuple(table["phrases"]),
                negatives=tuple(table.get("negatives", ())),
            )
            for table in tables
        )
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); name a prompt set with --prompts") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is not a prompt set ({error}); see node/read/prompt_sets") from error
    if not prompts:
        raise ModelError(f"{path} asks nothing; add prompts")
    return Questions(name=path.stem, sha256=hashlib.sha256(content).hexdigest(), prompts=prompts)
