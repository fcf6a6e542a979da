"""The file by which a node takes another model: made here as `models.evaluate --against` writes it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from models.contract import COMPARISON, LEAST_COMPARED, ComparedModel, ModelComparison
from node.domain import ModelIdentity
from node.prompt_set import PromptSet


def compared(model: ModelIdentity, prompts: PromptSet) -> ComparedModel:
    """One side of a comparison."""
    return ComparedModel(
        model=f"{model.name} {model.version}",
        weights_sha256=model.weights_sha256,
        manifest_sha256=model.manifest_sha256,
        prompts=prompts.title,
        prompts_sha256=prompts.sha256,
    )


def write(directory: Path, *, old: ComparedModel, new: ComparedModel, **changes: object) -> None:
    """Write a comparison by which a node takes the new model, but for these changes."""
    good = ModelComparison(
        old=old,
        new=new,
        data="films.csv",
        films=LEAST_COMPARED,
        changed=1,
        measured=3,
        unmeasured=(),
        findings=(),
        at="2026-11-02T10:00:00+00:00",
        by="ada",
    )
    directory.mkdir(exist_ok=True)
    made = replace(good, **changes)  # type: ignore[arg-type]  # fields by name
    (directory / COMPARISON).write_text(json.dumps(asdict(made)), encoding="utf-8")
