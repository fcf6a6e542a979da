"""The network's findings on one film for a set of prompts, with their decisions, before sentences are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from models.contract import Contradiction, FindingState, Laterality, PromptKind, ReaderPrompt, SideOf, ZoneOf
from models.engines import FloatArray, Patches, Regions
from models.reading.phrasebook import PromptVectors
from models.reading.sentence_check import Decided, is_reported


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Look:
    """A film encoded once, for any number of questions."""

    patches: Patches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecidedFilm:
    """Answers by index of the prompt; probabilities, states, measured: of the judged prompts only.

    visible: the boxes and scores of each prompt that are shown
    side_of: None if the film does not name its sides; zone_of, measured: see `sentence_check.Decided`
    contradictions: those of reported findings; lateralities: see `sentence_check.Decided`
    deniable: the findings whose denial may leave, marked; has_ratio: see `sentence_check.Decided`
    """

    prompts: tuple[ReaderPrompt, ...]
    vectors: PromptVectors
    regions: Regions
    visible: Sequence[tuple[FloatArray, FloatArray]]
    probabilities: Mapping[int, float]
    states: Mapping[int, FindingState]
    measured: Mapping[int, bool]
    side_of: SideOf | None
    zone_of: ZoneOf | None = None
    contradictions: Mapping[int, Contradiction] = field(default_factory=dict)
    lateralities: Mapping[int, Laterality] = field(default_factory=dict)
    deniable: frozenset[int] = frozenset()
    has_ratio: bool = False

    @property
    def features(self) -> FloatArray:
        """[prompt, dim]."""
        features: FloatArray = self.regions.features[0]
        return features

    @property
    def reported(self) -> tuple[int, ...]:
        """The findings that outputs report."""
        return tuple(index for index, state in self.states.items() if is_reported(self.prompts[index], state))

    def doubting(self, contradictions: Mapping[int, Contradiction]) -> DecidedFilm:
        """Add contradictions; a present finding with one becomes indeterminate."""
        together = {**contradictions, **self.contradictions}
        states: dict[int, FindingState] = {
            index: FindingState.INDETERMINATE if state is FindingState.PRESENT and index in together else state
            for index, state in self.states.items()
        }
        return replace(self, states=states, contradictions=together)

    def decided(self) -> Decided:
        """Return the decisions that sentences are compared with."""
        return Decided(
            prompts=self.prompts,
            states=self.states,
            measured=self.measured,
            boxes=[boxes for boxes, _ in self.visible],
            regions={
                prompt.key: boxes[scores.argmax()]
                for prompt, (boxes, scores) in zip(self.prompts, self.visible, strict=True)
                if prompt.kind is PromptKind.REGION
            },
            side_of=self.side_of,
            zone_of=self.zone_of,
            lateralities=self.lateralities,
            has_ratio=self.has_ratio,
        )
