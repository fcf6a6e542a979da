"""Read texts about a film back, and find what they say that the film's answer does not; and films to speak about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from language.labels import class_rules, named_rule
from language.normal import normal_statements
from language.statements import Stance, statements_of
from models.contract import Box, FindingState, PromptKind, Side
from node.domain import Evidence, Film, Finding, FindingBox, GroundedSentence, derive_uid
from node.outputs import wording
from node.prompt_set import Prompt
from node.read import prompts
from tests.support import samples

PROMPTS = prompts.load("chexpert14")
PATHOLOGIES = [prompt for prompt in PROMPTS.prompts if prompt.kind is PromptKind.PATHOLOGY]
REGIONS = [prompt for prompt in PROMPTS.prompts if prompt.kind is PromptKind.REGION]
RULES = {
    prompt.key: named_rule((*prompt.phrases, prompt.finding.meaning), class_rules()[prompt.key])
    for prompt in PATHOLOGIES
    if prompt.finding is not None
}
_NEVER_SAID = re.compile(r"\b(absent|normal|no|clear|healthy|unremarkable|excluded|without)\b", re.IGNORECASE)
_STATED = (Stance.AFFIRMED, Stance.POSSIBLE)
_CAUTIONS = tuple(wording.CAUTIONS.values())


def misread(text: str, film: Film) -> list[str]:
    """Return what a person could take from a text that is not what the film's answer says."""
    for caution in _CAUTIONS:
        text = text.replace(caution, "")
    return [*_misread(text, film)]


def _misread(text: str, film: Film) -> Iterator[str]:
    findings = {finding.prompt: finding for finding in film.findings}
    if found := _NEVER_SAID.search(text):
        yield f"says {found[0]!r}: {text}"
    for sentence in re.split(r"(?<=[.;]) ", text):
        if normal_statements(sentence):
            yield f"calls something normal: {sentence}"
        for statement in statements_of(sentence, RULES):
            finding = findings[statement.key]
            if not finding.state.is_reported:
                if statement.stance is not Stance.UNCLEAR:  # "is not reported" neither asserts nor denies
                    yield f"{statement.stance.value}, though not reported: {sentence}"
            elif statement.stance not in _STATED:
                yield f"{statement.stance.value}, though {finding.state}: {sentence}"
            elif statement.sides - _sides(finding):
                yield f"on {sorted(statement.sides)}, though on {finding.side}: {sentence}"


def _sides(finding: Finding) -> set[str]:
    if finding.side is Side.BILATERAL:
        return {"left", "right"}
    return set() if finding.side is None else {finding.side.value}


@st.composite
def findings(draw: st.DrawFn, prompt: Prompt) -> Finding:
    """Draw what a network could say about one prompt: any state, sides and zones."""
    assert prompt.finding is not None
    state = draw(st.sampled_from(FindingState))
    boxes = () if not state.is_reported else tuple(draw(st.lists(_boxes(prompt), max_size=3)))
    sides = {box.side for box in boxes}
    return Finding(
        prompt=prompt.key,
        code=prompt.finding,
        site=prompt.site,
        side=Side.BILATERAL if len(sides) > 1 else next(iter(sides), None),
        probability=draw(st.floats(0, 1)),
        state=state,
        boxes=boxes,
        sentence=None,
        evidence=boxes[0].evidence if boxes else None,
        contradiction=draw(st.sampled_from((None, "other_side"))) if state is FindingState.INDETERMINATE else None,
    )


@st.composite
def _boxes(draw: st.DrawFn, prompt: Prompt) -> FindingBox:
    region = draw(st.sampled_from((None, *REGIONS)))
    left, top = draw(st.integers(0, 900)), draw(st.integers(0, 900))
    side = draw(st.sampled_from((Side.RIGHT, Side.LEFT))) if prompt.paired else None
    if region is not None and side is not None and region.side not in (None, side):
        region = None
    extent = draw(st.floats(0, 1))
    return FindingBox(
        box=Box(left=left, top=top, right=left + 100, bottom=top + 100),
        score=0.7,
        tracking_uid=derive_uid(prompt.key, str(left), str(top), str(side)),
        side=side,
        evidence=Evidence(zone=None, extent=0.0)
        if region is None
        else Evidence(zone=region.key, extent=extent, site=region.site, side=region.side),
    )


@st.composite
def films(draw: st.DrawFn) -> Film:
    """Draw the answer to a film that was asked for all findings of the prompt set, with sentences for some regions."""
    said = draw(st.lists(st.tuples(st.sampled_from(REGIONS), st.sampled_from(_SENTENCES)), max_size=3))
    return replace(
        samples.film(findings=tuple(draw(findings(prompt)) for prompt in PATHOLOGIES)),
        sentences=tuple(GroundedSentence(text=text, prompt=region.key, score=0.5, boxes=()) for region, text in said),
    )


_SENTENCES = (
    "The lung is clear.",
    "There is no pleural effusion.",
    "Patchy consolidation is present in the lower zone.",
    "The heart is enlarged.",
    "No acute abnormality.",
    "There may be a small pneumothorax.",
)
"""What a network may have written for a region, right or wrong."""
