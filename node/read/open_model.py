"""An open model with the prompts for it: what reading and asking need, in a worker and on its pages."""

from __future__ import annotations

from dataclasses import dataclass

from node.prompt_set import PromptSet
from node.read.model import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """An open model and the prompts for it."""

    reader: Reader
    prompts: PromptSet
