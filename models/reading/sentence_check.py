"""Decides which sentences may leave: those that agree with the decisions, by the rules of `language`.

A sentence with a fault is withheld with its reason. That of a finding that is reported is generated once more, moved
further toward the decision; if that fails too, a template makes one. No sentence is on an absent finding, and no
sentence calls anything normal or denies it, unless a site lets denials of what is below a measured threshold leave,
marked. Of what is reported a sentence may say how large or severe it is. Before a sentence about what is to be reviewed
stands that state; its words stay as they were generated. What it asserts without a measured threshold marks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Final

import numpy as np

from language.check import (
    Claim,
    Fault,
    assertions,
    called_normal,
    contradictions,
    denied_alone,
    faults,
    never_said,
)
from language.clauses import clauses_of
from language.cues import cues
from language.labels import DEVICES, NO_FINDING, RuleLabeler
from language.legible import speaks_of_an_earlier_film
from language.normal import names_in
from language.sentences import by_rule, not_seen, of_words, stated
from language.statements import sides_in
from models import boxes as unit_boxes
from models.contract import (
    By,
    FindingState,
    Laterality,
    PromptKind,
    ReaderPrompt,
    Side,
    SideOf,
    WithheldSentence,
    ZoneOf,
)
from models.decisions import Decisions
from models.engines import FloatArray
from models.reading.cardiothoracic import measure_chest

NOT_MEASURED: Final = "not_measured"
"""Mentions a finding that is left out, or "Normal" or "Abnormal" of the film, or of a region what is no
reported finding, while not every threshold was measured."""
CONTRADICTS: Final = "contradicts"
SIDE_UNKNOWN: Final = "side_unknown"
WRONG_ZONE: Final = "wrong_zone"

COMPANIONS: Final[Mapping[str, str]] = dict.fromkeys(("edema", "consolidation", "pneumonia"), "lung_opacity")
"""Findings that a finding implies, by keys: each of these is an opacity of the lung (Irvin et al., AAAI 2019)."""
_HEART: Final = "cardiomegaly"
_WIDE: Final = 0.5
"""Beside a cardiothoracic ratio below it no sentence calls the heart enlarged."""
_LIES_IN: Final = 0.1
"""A box lies in a region if at least this share of it does."""
_COVERS: Final = 1 / 3
"""Share of a zone that a finding's box must cover before a sentence on the region may assert the finding."""


def is_reported(prompt: ReaderPrompt, state: FindingState | None) -> bool:
    """Whether outputs report a prompt: it is a pathology, and neither absent nor left out."""
    return prompt.kind is PromptKind.PATHOLOGY and state is not None and state.is_reported


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decided:
    """The decisions on one film, for comparison with its sentences.

    states, measured: by index of a judged prompt; measured: whether its threshold is trusted
    boxes: [n, 4] of each prompt, those that are shown
    regions: the best box [4] of each region, by its key
    side_of: None if the film does not name its sides; zone_of: None if no sentence names a zone by rule
    lateralities: rules for findings whose side does not follow from boxes alone
    has_ratio: whether the error of the cardiothoracic ratio was measured, so that the ratio counts
    deniable: findings whose denial may leave, marked; only of what has a measured threshold and is not near it
    """

    prompts: Sequence[ReaderPrompt]
    states: Mapping[int, FindingState]
    measured: Mapping[int, bool]
    boxes: Sequence[FloatArray]
    side_of: SideOf | None
    regions: Mapping[str, FloatArray] = field(default_factory=dict)
    zone_of: ZoneOf | None = None
    lateralities: Mapping[int, Laterality] = field(default_factory=dict)
    has_ratio: bool = False
    deniable: Collection[int] = ()

    def is_reported(self, index: int) -> bool:
        """Whether a prompt is a pathology that outputs report."""
        return index in self.states and is_reported(self.prompts[index], self.states[index])

    def fault(self, index: int, text: str) -> str | None:
        """Return why a sentence may not stand for a prompt; None if it may."""
        prompt = self.prompts[index]
        if prompt.kind is PromptKind.NO_FINDING or self.states.get(index) is FindingState.LEFT_OUT:
            return NOT_MEASURED
        if found := faults(text, self._claim(index)):
            return found[0].value
        if contradictions(text, {self.prompts[place].key: state for place, state in self.states.items()}):
            return CONTRADICTS
        if self._has_narrow_heart() and any(statement.key == _HEART for statement in assertions(text)):
            return CONTRADICTS
        if fault := self._fault_of_boxes(index, text):
            return fault
        if fault_of_place := self._fault_of_side(index, text) or self._fault_of_zone(index, text.lower()):
            return fault_of_place
        if self._is_marked_denial(index, text):
            return None
        if found := never_said(text, names=self._names(index), is_reported=bool(self._asserted(index, text))):
            return found[0].value
        if not all(self.measured.values()) and not self._asserted(index, text) and prompt.kind is PromptKind.REGION:
            return NOT_MEASURED
        return None if prompt.kind is PromptKind.REGION or self.is_reported(index) else Fault.DENIAL.value

    def stated(self, index: int, text: str) -> str:
        """Return a sentence as it may leave: with the state of what it asserts before it, if that is to be reviewed.

        Before a denial stands that the network did not see it.
        """
        if self._is_marked_denial(index, text):
            return not_seen(text)
        asserted = self._asserted(index, text)
        return stated(text, {self.prompts[place].name: self.states[place] for place in asserted})

    def maker(self, index: int, text: str) -> By:
        """Tell whether a generated sentence asserts a finding without a measured threshold."""
        states = {self.states[place] for place in self._asserted(index, text)}
        return "network_uncalibrated" if FindingState.UNCALIBRATED in states else "network"

    def _asserted(self, index: int, text: str) -> list[int]:
        """Return the reported findings that a sentence of a prompt asserts, its own first."""
        keys = {self.prompts[place].key: place for place in self.states if self.is_reported(place)}
        own = [index] if self.is_reported(index) else []
        return own + [keys[statement.key] for statement in assertions(text) if statement.key in keys]

    def _is_marked_denial(self, index: int, text: str) -> bool:
        """Return whether a sentence denies its own finding and, clearly, nothing but findings that may be denied."""
        if index not in self.deniable:
            return False
        companions = {COMPANIONS.get(self.prompts[place].key) for place in self.states if self.is_reported(place)}
        absent = [place for place in self.deniable if self.states[place] is FindingState.ABSENT]
        keys = {self.prompts[place].key for place in absent} - companions
        denied = denied_alone(text)
        return self.prompts[index].key in denied and denied <= keys

    def _has_narrow_heart(self) -> bool:
        """Return whether the heart is measured, and narrower than half the thorax, as people read the ratio."""
        chest = measure_chest({key: unit_boxes.to_box(box) for key, box in self.regions.items()})
        return self.has_ratio and chest is not None and round(chest.ratio, 2) < _WIDE

    def denies(self, index: int, text: str) -> bool:
        """Return whether a sentence denies a finding that is reported."""
        return Fault.DENIED in faults(text, self._claim(index))

    def sentence_by_rule(self, index: int) -> str | None:
        """Make a sentence for a finding that is reported; None for every other prompt."""
        if not self.is_reported(index):
            return None
        return by_rule(
            name=self.prompts[index].name,
            state=self.states[index],
            side=self.side(index),
            zone=self._zone(index),
        )

    def side(self, index: int) -> Side | None:
        """Return the side of a finding; None if it is uncertain, or a box crosses the middle."""
        if self._is_unsided(index) or self.side_of is None or not len(self.boxes[index]):
            return None
        sides = {self.side_of(float(x), float(width)) for x, _, width, _ in self.boxes[index]}
        if None in sides:
            return None
        return Side.BILATERAL if len(sides) == 2 else sides.pop()

    def _fault_of_side(self, index: int, text: str) -> str | None:
        """Compare the sides that a sentence names with the centers of boxes that lie across the middle of the film."""
        named = sides_in(text.lower())
        if named and self.prompts[index].kind is PromptKind.REGION and self.side_of is None:
            return SIDE_UNKNOWN
        if not named or self.prompts[index].kind is not PromptKind.PATHOLOGY or self.side(index) is not None:
            return None
        if self.side_of is None or self._is_unsided(index):
            return SIDE_UNKNOWN
        centers = {self.side_of(float(x), 0.0) for x, _, _, _ in self.boxes[index]}
        return None if named <= centers else Fault.WRONG_SIDE.value

    def _fault_of_zone(self, index: int, text: str) -> str | None:
        """Return the fault of a sentence on a reported finding that names a zone in which none of its boxes lies.

        A zone has a side, so a finding whose side may not be named is in none. Of a zone with several boxes each must
        hold one. Where all outputs name a zone, no sentence names others alone. The tip of a device has no
        box of its own, so its zone is not compared.
        """
        if not self.is_reported(index) or self.prompts[index].key == DEVICES:
            return None
        told, named = names_in(self._zone(index) or "", "zones"), names_in(text, "zones")
        if named and (self._is_unsided(index) or (told and not told & named)):
            return WRONG_ZONE
        is_elsewhere = (not any(self._fills(index, place) for place in zone) for zone in self._zones_in(text))
        return WRONG_ZONE if any(is_elsewhere) else None

    def _fault_of_covered_zone(self, finding: int, region: int, text: str) -> str | None:
        """Return the fault of a region's sentence on a finding of which no box covers the zone that it is about."""
        own = [(region,)] if self._is_zone(region) else []
        zones = (*own, *self._zones_in(text))
        is_elsewhere = (not any(self._covers(finding, place) for place in zone) for zone in zones)
        return WRONG_ZONE if any(is_elsewhere) else None

    def _zones_in(self, text: str) -> Iterator[tuple[int, ...]]:
        """Yield for each zone that a sentence names the prompts that it may be, if there are any."""
        regions = {
            place: prompt.phrases[0].lower() for place, prompt in enumerate(self.prompts) if self._is_zone(place)
        }
        for clause in clauses_of(text):
            sides = [{side} for side in sides_in(clause.text)] or [{Side.LEFT, Side.RIGHT}]
            for zone, of in product(names_in(clause.text, "zones"), sides):
                asked = tuple(
                    place
                    for place, phrase in regions.items()
                    if zone in names_in(phrase, "zones") and of & sides_in(phrase)
                )
                if asked:
                    yield asked

    def _is_zone(self, index: int) -> bool:
        return self.prompts[index].key.endswith("_zone")

    def _covers(self, index: int, region: int) -> bool:
        """Return whether a box of a finding covers enough of a box of a region."""
        zones, boxes = self.boxes[region], self.boxes[index]
        return any(lies_in(zone, boxes, share=_COVERS) for zone in zones)

    def _fills(self, index: int, region: int) -> bool:
        """Return whether a box of a finding lies in each box of a region."""
        return all(any(lies_in(box, zone[np.newaxis]) for box in self.boxes[index]) for zone in self.boxes[region])

    def _fault_of_boxes(self, index: int, text: str) -> str | None:
        """Compare a sentence's other assertions with the boxes of the findings that it names."""
        places = {
            prompt.phrases[0]: place for place, prompt in enumerate(self.prompts) if prompt.kind is PromptKind.REGION
        }
        if any(self._holds_finding(places[name]) for name in called_normal(text, places)):
            return Fault.NORMAL_WITH_FINDING.value
        keys = {self.prompts[place].key: place for place in self.states if self.is_reported(place)}
        for statement in assertions(text):
            place = keys.get(statement.key)
            if place is None:
                continue
            if self.prompts[index].kind is PromptKind.REGION:
                if not self._lies_in(place, index):
                    return Fault.ASSERTED.value
                if self._is_unsided(place) and sides_in(self.prompts[index].phrases[0].lower()):
                    return SIDE_UNKNOWN
                if fault := self._fault_of_covered_zone(place, index, text.lower()):
                    return fault
            if place == index:
                continue
            if not statement.sides <= self._reached(place):
                return Fault.WRONG_SIDE.value
            if fault := self._fault_of_zone(place, text.lower()):
                return fault
        return None

    def _reached(self, index: int) -> frozenset[Side]:
        """Return the sides that the boxes of a finding reach; both if the film does not name its sides."""
        both = frozenset((Side.LEFT, Side.RIGHT))
        if self._is_unsided(index):
            return frozenset()
        if self.side_of is None:
            return both
        sides = {self.side_of(float(x), float(width)) for x, _, width, _ in self.boxes[index]}
        return both if None in sides else frozenset(side for side in sides if side is not None)

    def _is_unsided(self, index: int) -> bool:
        """Return whether a finding has no certain side."""
        return self.lateralities.get(index) == "unknown"

    def _claim(self, index: int) -> Claim:
        prompt = self.prompts[index]
        if prompt.kind is PromptKind.REGION:
            words = prompt.phrases[0].lower().split()
            return Claim(
                finding=None,
                state=FindingState.ABSENT,
                side=next((side for side in (Side.LEFT, Side.RIGHT) if side in words), None),
                region=prompt.phrases[0].lower(),
                region_has_finding=self._holds_finding(index),
            )
        return Claim(
            finding=prompt.key,
            state=self.states[index],
            side=self.side(index),
            region=None,
            region_has_finding=False,
            names=prompt.phrases,
        )

    def _holds_finding(self, region: int) -> bool:
        return any(self.is_reported(index) and self._lies_in(index, region) for index in self.states)

    def _lies_in(self, index: int, region: int) -> bool:
        return any(lies_in(box, self.boxes[region]) for box in self.boxes[index])

    def _names(self, index: int) -> tuple[str, ...]:
        """Return the words that name a prompt's finding; none of a region."""
        return () if self.prompts[index].kind is PromptKind.REGION else self.prompts[index].phrases

    def _zone(self, index: int) -> str | None:
        if self.zone_of is None or self._is_unsided(index) or not len(self.boxes[index]):
            return None
        regions = {key: unit_boxes.to_box(box) for key, box in self.regions.items()}
        return self.zone_of(self.prompts[index].key, [unit_boxes.to_box(box) for box in self.boxes[index]], regions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The sentences that may leave, and their makers, by index of the prompt; generated: the first ones."""

    texts: dict[int, str]
    generated: Mapping[int, str]
    makers: Mapping[int, By] = field(default_factory=dict)
    withheld: tuple[WithheldSentence, ...] = ()

    def by(self, index: int) -> By:
        """Return the maker of a prompt's sentence, network or rule."""
        return self.makers.get(index, "network")


def settle(decided: Decided, texts: Mapping[int, str], again: Callable[[list[int]], list[str]]) -> Settled:
    """Choose the sentence for each prompt.

    texts: as generated, by index of the prompt
    again: generates sentences for some prompts once more, moved further toward the decision
    """
    wrong = {index: why for index, text in texts.items() if (why := decided.fault(index, text))}
    tried = [index for index, why in wrong.items() if decided.is_reported(index) and why != NOT_MEASURED]
    second = dict(zip(tried, again(tried) if tried else (), strict=True))
    said: dict[int, str] = {}
    makers: dict[int, By] = {}
    withheld: list[WithheldSentence] = []
    for index, text in texts.items():
        chosen = text if index not in wrong else second.get(index, "")
        if index in wrong and text:
            withheld.append(WithheldSentence(text=text, prompt=decided.prompts[index].key, reason=wrong[index]))
        if index not in wrong or (chosen and decided.fault(index, chosen) is None):
            said[index], makers[index] = decided.stated(index, chosen), decided.maker(index, chosen)
        elif made := decided.sentence_by_rule(index):
            said[index], makers[index] = made, "rule"
    return Settled(texts=said, generated=texts, makers=makers, withheld=tuple(withheld))


def lies_in(box: FloatArray, regions: FloatArray, *, share: float = _LIES_IN) -> bool:
    """Return whether such a share of a box [4] lies in one of some regions [n, 4]."""
    inner, outer = unit_boxes.to_corners(box), unit_boxes.to_corners(regions)
    sides = np.minimum(inner[2:], outer[:, 2:]) - np.maximum(inner[:2], outer[:, :2])
    common = sides.clip(0, None).prod(axis=-1)
    return bool(common.max(initial=0.0) >= share * max(float(box[2] * box[3]), 1e-12))


def answer_in_words(text: str, *, prompt: str | None, state: FindingState | None) -> tuple[str, By]:
    """Choose the sentence of an answer to other words than those of a prompt set, or about a box.

    prompt: None for a box alone; state: None for a region
    Returns an empty sentence where nothing may be said: what is absent or left out, a region, and a box alone without a
    sentence of the network that may leave. A sentence that names no finding of the prompt, or another one, gives way to
    a rule.
    """
    if state is None or not state.is_reported:
        return "", "network"
    if _may_answer(text, prompt, state):
        return stated(
            text, {prompt or "": state}
        ), "network_uncalibrated" if state is FindingState.UNCALIBRATED else "network"
    if prompt is None:
        return "", "network"
    return _by_rule(prompt, state), "rule"


def _may_answer(text: str, prompt: str | None, state: FindingState) -> bool:
    """Return whether a sentence may answer other words than those of a prompt set, or a box.

    Of a prompt that names no side it may name none either: no box was compared with the middle of the film.
    """
    if never_said(text, is_reported=True):
        return False
    if prompt is None:
        claim = Claim(finding=None, state=state, side=None, region=None, region_has_finding=True)
        return not {*faults(text, claim)} & _ANY_FAULT
    key = class_in(prompt) or _ASKED
    claim = Claim(finding=key, state=state, side=None, region=None, region_has_finding=True, names=(prompt,))
    names_no_other = all(statement.key == key for statement in assertions(text))
    return not faults(text, claim) and names_no_other and sides_in(text.lower()) <= sides_in(prompt.lower())


def _by_rule(prompt: str, state: FindingState) -> str:
    """Make a template sentence about a prompt; it repeats neither forbidden words nor a question."""
    name = " ".join(prompt.split()).rstrip(".")
    is_name = _NAME.fullmatch(name) and not cues().verb.search(name.lower())
    if not is_name or never_said(name) or speaks_of_an_earlier_film(name):
        return of_words(state)
    return by_rule(name=name, state=state, side=None, zone=None)


def left_out_in(prompt: str | None, decisions: Decisions) -> str | None:
    """Return the one finding that a prompt names in any words, if the model leaves it out."""
    key = None if prompt is None else class_in(prompt)
    return key if key is not None and decisions.leaves_out(key) else None


def class_in(prompt: str) -> str | None:
    """Return the one class of CheXpert that a prompt names; None if it names none or several."""
    marks = _labeler().label(prompt)
    found = [key for key, mark in marks.items() if mark == "positive" and key != NO_FINDING]
    return found[0] if len(found) == 1 else None


@cache
def _labeler() -> RuleLabeler:
    return RuleLabeler()


_ASKED: Final = "asked"
"""Placeholder for a prompt's name that is no class of CheXpert."""
_NAME: Final = re.compile(r"\w[\w ,'()/-]*")
_ANY_FAULT: Final = frozenset((Fault.EARLIER_FILM, Fault.UNREADABLE, Fault.SAYS_NOTHING))
