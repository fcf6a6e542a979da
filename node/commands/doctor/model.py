"""Opens the model as `serve` does: files, hashes, graphs with their proof, runtime and prompts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from node.commands.doctor.checks import Check, note, ok
from node.config import Settings
from node.read import prompts
from node.read.model import Fallback, check_files, open_reader, read_parity

_NAME: Final = "model"
_NOT_BUILT: Final = "not_built"
NOWHERE: Final = Path(os.devnull) / "engines"
"""A folder that cannot be created: a check must not spend minutes to build TensorRT engines on a running node's GPU."""


def check_model(settings: Settings) -> Iterator[Check]:
    """Open the model with the runtime of the settings. Raises ConfigError or InputError that says what is wrong."""
    model = settings.model
    prompt_set = prompts.load(model.prompts)
    check_files(model.directory, engine=model.engine)
    reader = open_reader(
        model.directory,
        prompts=prompt_set,
        engine=model.engine,
        threads=model.threads,
        engines=NOWHERE,
        trusted=model.trusted,
    )
    identity = reader.identity
    yield ok(
        _NAME,
        f"{identity.name} {identity.version} in {model.directory}: its hashes are right, runtime {identity.engine} "
        f"answers, prompt set {prompt_set.name} {prompt_set.version} fits",
    )
    for fallback in reader.fallbacks:
        yield note(f"{_NAME} engine", f"{identity.engine} runs instead of {fallback.engine}: {_reason(fallback)}")
    yield from _graphs(model.directory, identity.engine)


def _reason(fallback: Fallback) -> str:
    if fallback.reason == _NOT_BUILT:
        return (
            "only serve opens its engines, and builds what is missing; the log says in model.opened which one it uses"
        )
    return fallback.message


def _graphs(directory: Path, engine: str) -> Iterator[Check]:
    """Report that the graphs compute what the weights do, which opening the model has verified."""
    stages = {} if engine == "torch" else read_parity(directory)
    if stages:
        share = max(proof["max_abs"] / proof["tolerance"] for proof in stages.values())
        yield ok(f"{_NAME} graphs", f"are proven by parity.json; they use at most {share:.0%} of the tolerance")
