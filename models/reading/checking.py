"""Decides which sentences may leave: those that say what was decided, as a reader of sentences by rule finds.

A sentence with a fault is generated once more, moved further toward the decision. If that fails too, it is withheld
with its reason, and a finding that is reported gets a sentence made by rule. What nobody measured is neither asserted
nor denied nor called normal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final, Literal

import numpy as np

from language.check import Claim, Fault, assertions, called_normal, contradictions, faults
from language.clauses import clauses_of
from language.labels import DEVICES, NO_FINDING, RuleLabeler
from language.normal import names_in
from language.sentences import by_rule
from language.statements import sides_in
from models import boxes as unit_boxes
from models.decisions import Decisions
from models.reading.answers import By, FloatArray, ReaderPrompt, Withheld
from models.reading.decision import State

Side = Literal["left", "right", "both"]
SideOf = Callable[[float, float], Literal["left", "right"] | None]
"""Says on which side of the patient a box lies, by its center and width in the square; None across the middle."""

NOT_MEASURED: Final = "not_measured"
"""Says that a finding is there or not without a measured threshold, or though it is left out, or calls a region normal
without all of them, or says "Normal" or "Abnormal" of the film."""
CONTRADICTS: Final = "contradicts"
SIDE_UNKNOWN: Final = "side_unknown"
WRONG_ZONE: Final = "wrong_zone"

_LIES_IN: Final = 0.1
"""A box lies in a region if at least this share of it does."""


def is_reported(prompt: ReaderPrompt, state: State) -> bool:
    """Whether outputs report a prompt: it is a pathology, and not absent."""
    return prompt.kind == "pathology" and state != "absent"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decided:
    """What was decided about one film, which its sentences are compared with.

    states, measured: by index of a judged prompt; measured: whether its threshold is trusted
    boxes: [n, 4] of each prompt, those that are shown
    side_of: None if the film does not say which side is which
    """

    prompts: Sequence[ReaderPrompt]
    states: Mapping[int, State]
    measured: Mapping[int, bool]
    boxes: Sequence[FloatArray]
    side_of: SideOf | None

    def is_reported(self, index: int) -> bool:
        """Whether a prompt is a pathology that outputs report."""
        return index in self.states and is_reported(self.prompts[index], self.states[index])

    def fault(self, index: int, text: str) -> str | None:
        """Return why a sentence may not stand for a prompt; None if it may."""
        prompt = self.prompts[index]
        if prompt.kind == "no_finding" or not self._may_be_said(index):
            return NOT_MEASURED
        if found := faults(text, self._claim(index)):
            return found[0].value
        if contradictions(text, {self.prompts[place].key: state for place, state in self.states.items()}):
            return CONTRADICTS
        if self._denies_unmeasured(text):
            return NOT_MEASURED
        if fault := self._fault_of_boxes(index, text):
            return fault.value
        return self._fault_of_side(index, text) or (WRONG_ZONE if self._names_other_zone(index, text.lower()) else None)

    def _denies_unmeasured(self, text: str) -> bool:
        """Say whether a sentence denies, beside others, a finding that nothing may be said of."""
        places = (place for place, is_measured in self.measured.items() if not is_measured)
        unmeasured = [self.prompts[place].key for place in places if self.prompts[place].kind != "no_finding"]
        return bool(contradictions(text, dict.fromkeys(unmeasured, "present")))

    def denies(self, index: int, text: str) -> bool:
        """Say whether a sentence denies a finding that is reported."""
        return Fault.DENIED in faults(text, self._claim(index))

    def sentence_by_rule(self, index: int) -> str | None:
        """Make a sentence for a finding that is reported; None for every other prompt."""
        if not self.is_reported(index):
            return None
        return by_rule(
            name=self.prompts[index].phrases[0],
            state=self.states[index],
            side=self.side(index),
            zone=self._zone(index),
        )

    def side(self, index: int) -> Side | None:
        """Return the side of a finding's boxes; None if the film does not say, or a box crosses the middle."""
        if self.side_of is None or not len(self.boxes[index]):
            return None
        sides = {self.side_of(float(x), float(width)) for x, _, width, _ in self.boxes[index]}
        if None in sides:
            return None
        return "both" if len(sides) == 2 else sides.pop()

    def _fault_of_side(self, index: int, text: str) -> str | None:
        """Compare the sides that a sentence names with the centers of boxes that lie across the middle of the film."""
        named = sides_in(text.lower())
        if not named or self.prompts[index].kind != "pathology" or self.side(index) is not None:
            return None
        if self.side_of is None:
            return SIDE_UNKNOWN
        centers = {self.side_of(float(x), 0.0) for x, _, _, _ in self.boxes[index]}
        return None if named <= centers else Fault.WRONG_SIDE.value

    def _names_other_zone(self, index: int, text: str) -> bool:
        """Say whether a sentence on a reported finding names a zone of the lung in which none of its boxes lies.

        Of a zone with several boxes each must hold one. The tip of a device has no box of its own, so its zone is not
        compared.
        """
        if not self.is_reported(index) or self.prompts[index].key == DEVICES:
            return False
        regions = {
            place: prompt.phrases[0].lower()
            for place, prompt in enumerate(self.prompts)
            if prompt.key.endswith("_zone")
        }
        for clause in clauses_of(text):
            sides = [{side} for side in sides_in(clause.text)] or [{"left", "right"}]
            for zone, of in product(names_in(clause.text, "zones"), sides):
                asked = [
                    place
                    for place, phrase in regions.items()
                    if zone in names_in(phrase, "zones") and of & sides_in(phrase)
                ]
                if asked and not any(self._fills(index, place) for place in asked):
                    return True
        return False

    def _fills(self, index: int, region: int) -> bool:
        """Say whether a box of a finding lies in each box of a region."""
        return all(
            any(_share_inside(box, zone[np.newaxis]) >= _LIES_IN for box in self.boxes[index])
            for zone in self.boxes[region]
        )

    def _fault_of_boxes(self, index: int, text: str) -> Fault | None:
        """Compare what a sentence says beside its claim with the boxes of the findings that it names."""
        places = {prompt.phrases[0]: place for place, prompt in enumerate(self.prompts) if prompt.kind == "region"}
        if any(self._holds_finding(places[name]) for name in called_normal(text, places)):
            return Fault.NORMAL_WITH_FINDING
        keys = {self.prompts[place].key: place for place in self.states if self.is_reported(place)}
        for statement in assertions(text):
            place = keys.get(statement.key)
            if place is None:
                continue
            if self.prompts[index].kind == "region" and not self._lies_in(place, index):
                return Fault.ASSERTED
            if place != index and not statement.sides <= self._reached(place):
                return Fault.WRONG_SIDE
        return None

    def _reached(self, index: int) -> frozenset[str]:
        """Return the sides that the boxes of a finding reach; both if the film does not say which is which."""
        both = frozenset(("left", "right"))
        if self.side_of is None:
            return both
        sides = {self.side_of(float(x), float(width)) for x, _, width, _ in self.boxes[index]}
        return both if None in sides else frozenset(side for side in sides if side is not None)

    def _may_be_said(self, index: int) -> bool:
        """Whether a finding may be asserted or denied, or a region called normal."""
        return all(self.measured.values()) if self.prompts[index].kind == "region" else self.measured[index]

    def _claim(self, index: int) -> Claim:
        prompt = self.prompts[index]
        if prompt.kind == "region":
            words = prompt.phrases[0].lower().split()
            return Claim(
                finding=None,
                state="absent",
                side="left" if "left" in words else "right" if "right" in words else None,
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
        return any(_share_inside(box, self.boxes[region]) >= _LIES_IN for box in self.boxes[index])

    def _zone(self, index: int) -> str | None:
        """Return the lung zone that holds most of a finding with one box: upper, mid or lower; else None."""
        if len(self.boxes[index]) != 1:
            return None
        shares = {
            place: _share_inside(self.boxes[index][0], self.boxes[place])
            for place, prompt in enumerate(self.prompts)
            if prompt.key.endswith("_lung_zone")
        }
        best = max(shares, key=shares.__getitem__, default=None)
        if best is None or shares[best] < 0.5:
            return None
        return next((zone for zone in ("upper", "mid", "lower") if f"_{zone}_" in self.prompts[best].key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The sentences that may leave, by index of their prompt; by_rule: those that a rule made; generated: at first."""

    texts: dict[int, str]
    generated: Mapping[int, str]
    by_rule: frozenset[int] = frozenset()
    withheld: tuple[Withheld, ...] = ()


def settle(decided: Decided, texts: Mapping[int, str], again: Callable[[list[int]], list[str]]) -> Settled:
    """Choose what may be said for each prompt.

    texts: as generated, by index of the prompt
    again: generates sentences for some prompts once more, moved further toward what was decided
    """
    wrong = {index: why for index, text in texts.items() if (why := decided.fault(index, text))}
    tried = [index for index, why in wrong.items() if index in decided.states and why != NOT_MEASURED]
    second = dict(zip(tried, again(tried) if tried else (), strict=True))
    said: dict[int, str] = {}
    made_by_rule: set[int] = set()
    withheld: list[Withheld] = []
    for index, text in texts.items():
        if index not in wrong:
            said[index] = text
            continue
        if text:
            withheld.append(Withheld(text=text, key=decided.prompts[index].key, reason=wrong[index]))
        if (better := second.get(index)) and decided.fault(index, better) is None:
            said[index] = better
        elif made := decided.sentence_by_rule(index):
            said[index] = made
            made_by_rule.add(index)
    return Settled(texts=said, generated=texts, by_rule=frozenset(made_by_rule), withheld=tuple(withheld))


def _share_inside(box: FloatArray, regions: FloatArray) -> float:
    """Return the greatest share of a box [4] that lies in one of some regions [n, 4]."""
    inner, outer = unit_boxes.to_corners(box), unit_boxes.to_corners(regions)
    sides = np.minimum(inner[2:], outer[:, 2:]) - np.maximum(inner[:2], outer[:, :2])
    common = sides.clip(0, None).prod(axis=-1)
    return float(common.max(initial=0.0) / max(float(box[2] * box[3]), 1e-12))


def answer_in_words(text: str, *, prompt: str | None, state: State | None, measured: bool) -> tuple[str, By]:
    """Choose the sentence of an answer to other words than those of a prompt set, or about a box.

    prompt: None for a box alone; state: None for a region
    measured: whether thresholds that nobody measured are trusted
    Returns an empty sentence where nothing may be said: without a trusted threshold nothing is denied, a finding that a
    prompt names is asserted by rule only, and no region is called normal.
    """
    key = None if prompt is None else _class_in(prompt)
    claim = Claim(finding=key, state=state or "absent", side=None, region=None, region_has_finding=True)
    found = set(faults(text, claim))
    if state is None or state == "absent":
        may_deny = measured and key is not None and not found
        return (text, "network") if may_deny else ("", "network")
    if not found & (_ANY_FAULT if key is None else found) and (measured or prompt is None):
        return text, "network"
    if prompt is None:
        return "", "network"
    return by_rule(name=prompt.strip().rstrip("."), state=state, side=None, zone=None), "rule"


def left_out_in(prompt: str | None, decisions: Decisions) -> str | None:
    """Return the one finding that a prompt names in any words, if the model leaves it out."""
    key = None if prompt is None else _class_in(prompt)
    return key if key is not None and decisions.leaves_out(key) else None


def _class_in(prompt: str) -> str | None:
    """Return the one class of CheXpert that a prompt names; None if it names none or several."""
    marks = _labeler().label(prompt)
    found = [key for key, mark in marks.items() if mark == "positive" and key != NO_FINDING]
    return found[0] if len(found) == 1 else None


@cache
def _labeler() -> RuleLabeler:
    return RuleLabeler()


_ANY_FAULT: Final = frozenset((Fault.EARLIER_FILM, Fault.UNREADABLE, Fault.SAYS_NOTHING))
