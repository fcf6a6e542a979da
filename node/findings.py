"""From what the network said to findings: codes from the prompt set, a side and a tracking UID per box.

Pure. A finding is made from a pathology prompt's key, never from generated text and never from a region prompt.
A side is the prompt's own where its phrase names one, on any film; else it follows from where the box lies, for a
paired site on a film that tells its sides.
"""

from __future__ import annotations

from node.domain import Box, Finding, FindingBox, ModelIdentity, Prompt, PromptKind, PromptSet, Side, derive_uid
from node.framing import Framing
from node.imaging import side_of
from node.inference import PathologyAnswer, Reading


def find(
    reading: Reading, prompts: PromptSet, *, source: str, framing: Framing, model: ModelIdentity, sides_known: bool
) -> tuple[Finding, ...]:
    """Code the answers to the pathology prompts of one film.

    source: its SOP Instance UID
    sides_known: whether the film tells its sides (`imaging.sides_known`)
    Raises ValueError for an answer to any other prompt.
    """
    return tuple(
        _finding(answer, prompts[answer.prompt], source, framing if sides_known else None, model)
        for answer in reading.pathologies
    )


def _finding(
    answer: PathologyAnswer, prompt: Prompt, source: str, framing: Framing | None, model: ModelIdentity
) -> Finding:
    if prompt.kind is not PromptKind.PATHOLOGY or prompt.finding is None:
        raise ValueError(f"prompt {prompt.key} asks for no pathology with a code")
    boxes = tuple(
        FindingBox(
            box=one.box,
            score=one.score,
            tracking_uid=_tracking_uid(source, prompt.key, one.box, model),
            side=prompt.side or (side_of(one.box, framing) if prompt.paired and framing is not None else None),
        )
        for one in answer.boxes
    )
    return Finding(
        prompt=prompt.key,
        code=prompt.finding,
        site=prompt.site,
        side=together([box.side for box in boxes]),
        probability=answer.probability,
        state=answer.state,
        boxes=boxes,
        sentence=answer.sentence,
    )


def together(sides: list[Side | None]) -> Side | None:
    """The side of a finding with several boxes: theirs where they agree, both where both occur, else unknown."""
    known = {side for side in sides if side is not None}
    if not sides or None in sides:
        return None
    return known.pop() if len(known) == 1 else Side.BILATERAL


def _tracking_uid(source: str, key: str, box: Box, model: ModelIdentity) -> str:
    edges = [f"{edge:.3f}" for edge in box.edges]
    return derive_uid("tracking", source, key, *edges, model.name, model.version, model.weights_sha256)
