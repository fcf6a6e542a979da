"""Opens the model as `serve` does: files, hashes, graphs with their proof, runtime and prompts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from models.contract import Fallback
from node.checks import Check, note, ok
from node.config import CHEX, GPU_ENGINES, ModelSettings, Settings
from node.prompt_set import PromptSet
from node.read import prompts
from node.read.engines import read_engine_files, read_gpu
from node.read.manifest import not_calibrated, read_film_rule
from node.read.model import RadiographReader, check_files, open_reader

_NAME: Final = "model"
_NOT_BUILT: Final = "not_built"
NOWHERE: Final = Path(os.devnull) / "engines"
"""A folder that cannot be created: a check must not spend minutes to build TensorRT engines on a running node's GPU."""


def check_model(settings: Settings) -> Iterator[Check]:
    """Open the model with the runtime of the settings. Raises ConfigError or InputError that says what is wrong."""
    model = settings.model
    prompt_set = prompts.load(model.prompts)
    if model.reader == CHEX:
        check_files(model.directory, engine=model.engine)
    reader = open_reader(
        model.directory,
        prompts=prompt_set,
        engine=model.engine,
        reader=model.reader,
        threads=model.threads,
        engines=NOWHERE,
        precision=model.precision,
        trusted=model.trusted,
    )
    identity = reader.identity
    yield ok(
        _NAME,
        f"{identity.name} {identity.version} in {model.directory}: {_opened(model)}, runtime {identity.engine} "
        f"answers, prompt set {prompt_set.title} fits",
    )
    for fallback in reader.fallbacks:
        yield note(f"{_NAME} engine", f"{identity.engine} runs instead of {fallback.engine}: {_reason(fallback)}")
    yield from _left_out(model, prompt_set)
    if text := not_calibrated(model.directory, prompt_set, reader=model.reader):
        yield note(f"{_NAME} thresholds", text)
    yield from _parity(reader)
    if model.reader == CHEX and model.engine in GPU_ENGINES:
        yield from _gpu(settings.storage.directory / "engines")


def _reason(fallback: Fallback) -> str:
    if fallback.reason == _NOT_BUILT:
        return (
            "only serve opens its engines, and builds what is missing; the log says in model.opened which one it uses"
        )
    return fallback.message


def _opened(model: ModelSettings) -> str:
    return "its hashes are right" if model.reader == CHEX else f"reader {model.reader} opens it"


def _left_out(model: ModelSettings, prompt_set: PromptSet) -> Iterator[Check]:
    """Name the findings of the prompt set that the model never reports."""
    left_out = read_film_rule(model.directory, reader=model.reader).left_out
    if names := [prompt.key.replace("_", " ") for prompt in prompt_set.prompts if prompt.key in left_out]:
        why = "never reported, because nobody showed that this model recognizes them well enough"
        yield note(f"{_NAME} findings", f"{why}: {', '.join(names)}")


def _parity(reader: RadiographReader) -> Iterator[Check]:
    """Report that the runtime computes what the weights do, which opening the model has verified."""
    if reader.parity:
        share = max(stage.share for stage in reader.parity.values())
        yield ok(f"{_NAME} graphs", f"are proven; they use at most {share:.0%} of the tolerance")


def _gpu(folder: Path) -> Iterator[Check]:
    """Report GPU and driver, and every engine file with its proofs."""
    found = read_gpu()
    if found is None:
        yield note(f"{_NAME} GPU", "PyTorch finds none")
    else:
        yield ok(f"{_NAME} GPU", f"{found[0]}, driver {found[1]}")
    for file in read_engine_files(folder):
        proofs = "; ".join(
            f"driver {driver}: {'proven' if share <= 1 else 'NOT PROVEN'}, {share:.0%} of the tolerance"
            for driver, share in sorted(file.proofs.items())
        )
        line = f"{file.name} for {file.gpu}, TensorRT {file.version}: {proofs or 'not proven on any driver yet'}"
        is_good = bool(file.proofs) and all(share <= 1 for share in file.proofs.values())
        yield (ok if is_good else note)(f"{_NAME} engine file", line)
