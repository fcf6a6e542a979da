"""The questions that a film is read with, and the codes of their answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from node.domain import Code, Side


class PromptKind(StrEnum):
    """The purpose of a prompt: only a pathology can become a finding."""

    PATHOLOGY = "pathology"
    NO_FINDING = "no_finding"
    REGION = "region"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question for the network, and the codes of its answer.

    phrases: synonyms whose embeddings are averaged (spec §3)
    names: other names by which a person may ask for it; the network never sees them
    negatives: phrases of the opposite, for pathologies (spec §8)
    finding: the code of a pathology; None for every other kind
    site, side: the location of a region, or the organ of a pathology
    paired: the site exists on both sides, so a box may tell the side
    """

    key: str
    kind: PromptKind
    phrases: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    finding: Code | None = None
    site: Code | None = None
    side: Side | None = None
    paired: bool = False
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.phrases or not all(phrase.strip() for phrase in self.phrases):
            raise ValueError(f"prompt {self.key}: a prompt needs at least one phrase")
        if self.kind is PromptKind.PATHOLOGY and self.finding is None:
            raise ValueError(f"prompt {self.key}: a pathology needs a finding code")
        if self.kind is not PromptKind.REGION and not self.negatives:
            raise ValueError(f"prompt {self.key}: a {self.kind} prompt needs a negative phrase")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """The prompts for reading a film; keys are unique."""

    name: str
    version: str
    sha256: str
    prompts: tuple[Prompt, ...]

    def __post_init__(self) -> None:
        keys = [prompt.key for prompt in self.prompts]
        if len(set(keys)) != len(keys):
            raise ValueError(f"prompt set {self.name}: every key must be unique")

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
