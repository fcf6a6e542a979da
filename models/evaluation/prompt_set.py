"""The questions of a report, out of a prompt set of the node: a TOML file with `[[prompts]]`.

A path and no import: this folder knows nothing of the node, yet a model is evaluated by the very questions that the
node asks, also by those of a site's own set. Codes in the file are the node's business and passed over.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict, cast, get_args

from models.answers import Kind, ReaderPrompt
from models.errors import ModelError

DEFAULT = Path(__file__).parents[2] / "node" / "prompt_sets" / "chexpert14.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked of every film, and the hash of the file that says so."""

    name: str
    sha256: str
    prompts: tuple[ReaderPrompt, ...]


class _Prompt(TypedDict):
    key: str
    kind: Kind
    phrases: list[str]
    negatives: NotRequired[list[str]]


def read_questions(path: Path) -> Questions:
    """Read a prompt set. Raises ModelError where the file is no prompt set."""
    try:
        content = path.read_bytes()
        tables = cast("list[_Prompt]", tomllib.loads(content.decode())["prompts"])
        prompts = tuple(
            ReaderPrompt(
                key=one["key"],
                kind=one["kind"],
                phrases=tuple(one["phrases"]),
                negatives=tuple(one.get("negatives", ())),
            )
            for one in tables
        )
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); name a prompt set with --prompts") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is no prompt set ({error}); see node/prompt_sets") from error
    if not prompts or any(prompt.kind not in get_args(Kind) for prompt in prompts):
        raise ModelError(f"{path}: every prompt must be of a kind among {', '.join(get_args(Kind))}")
    return Questions(name=path.stem, sha256=hashlib.sha256(content).hexdigest(), prompts=prompts)
