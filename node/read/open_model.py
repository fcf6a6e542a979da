"""Opens a model as the settings say: what reading and asking need, in a worker and on its pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.config import Settings
from node.prompt_set import PromptSet
from node.read.model import RadiographReader, open_reader


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """An open model and the prompts for it."""

    reader: RadiographReader
    prompts: PromptSet


def open_configured(
    settings: Settings,
    prompts: PromptSet,
    *,
    on_written: Callable[[int, float], None] = lambda _tokens, _seconds: None,
) -> RadiographReader:
    """Open the model of the settings, on the runtime and with the rules that they name; otherwise as `open_reader`."""
    return open_reader(
        settings.model.directory,
        prompts=prompts,
        engine=settings.model.engine,
        reader=settings.model.reader,
        threads=settings.model.threads,
        engines=settings.storage.directory / "engines",
        precision=settings.model.precision,
        trusted=settings.model.trusted,
        checked=settings.report.sentences == "checked",
        unmeasured_ratio=settings.report.unmeasured_ratio,
        on_written=on_written,
    )
