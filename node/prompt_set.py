"""The questions that a film is read with, and the codes of their answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from models.contract import PromptKind, ReaderPrompt, Side
from node.domain import Code

LUNG: Final = "39607008"
PLEURA: Final = "3120008"
HILUM: Final = "46750007"
LUNG_ZONES: Final = ("281392002", "281393007", "281394001", "86598002")
"""Upper, middle and lower zone of lung, and its apex. All these are SNOMED CT codes of sites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt(ReaderPrompt):
    """A question for the network, and the codes of its answer.

    names: other names by which a person may ask for it; the network never sees them
    finding: the code of a pathology; None for every other kind
    site, side: the location of a region, or the organ of a pathology
    paired: the site exists on both sides, so a box may tell the side
    """

    finding: Code | None = None
    site: Code | None = None
    side: Side | None = None
    paired: bool = False
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is PromptKind.PATHOLOGY and self.finding is None:
            raise ValueError(f"prompt {self.key}: a pathology needs a finding code")
        ReaderPrompt.__post_init__(self)

    @property
    def name(self) -> str:
        """The meaning of its finding's code, which is the one name of the finding; of every other kind its phrase."""
        return self.phrases[0] if self.finding is None else self.finding.meaning

    @property
    def is_of_lungs(self) -> bool:
        """Whether its site is lung or pleura, or a part of the lung."""
        return self.site is not None and self.site.value in (LUNG, PLEURA, HILUM, *LUNG_ZONES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """The prompts for reading a film; keys are unique."""

    name: str
    version: str
    sha256: str
    prompts: tuple[Prompt, ...]

    def __post_init__(self) -> None:
        keys = [prompt.key for prompt in self.prompts]
        if doubled := sorted({key for key in keys if keys.count(key) > 1}):
            raise ValueError(f"prompts: several have the key {', '.join(doubled)}; give each its own")

    def __getitem__(self, key: str) -> Prompt:
        return next(prompt for prompt in self.prompts if prompt.key == key)

    @property
    def title(self) -> str:
        """The name and version, as outputs and log lines have them."""
        return f"{self.name} {self.version}"


class PromptsInUse:
    """The prompt set in use. A reload of the settings replaces it while other threads read: take `current` once."""

    def __init__(self, prompts: PromptSet) -> None:
        self.current = prompts
