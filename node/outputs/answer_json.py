"""The answer to a question as JSON values, the same from the command, the pages and the interface for programs."""

from __future__ import annotations

from node.domain import FindingState, JsonObject
from node.outputs import wording
from node.read.model import FilmAnswer


def answer_to_json(answer: FilmAnswer) -> JsonObject:
    """Return an entry of `questions` in the result of `node ask` (design §8).

    What the model leaves out has no number, as in every output: neither a score, nor one of the box asked about.
    """
    question, is_assessed = answer.question, answer.state is not FindingState.LEFT_OUT
    content: JsonObject = {
        "prompt": question.prompt,
        "box": None if question.box is None else list(question.box.edges),
        "sentence": answer.sentence,
        "score": answer.score,
        "state": answer.state,
        "positive": answer.positive,
        "reason": wording.reason_of(answer.contradiction, answer.state),
        "boxes": [
            {"box": list(scored.box.edges), "score": scored.score if is_assessed else None} for scored in answer.boxes
        ],
        "notes": list(answer.notes),
    }
    if answer.never_learned:
        content["error"] = "never_learned"
        content["words"] = list(answer.never_learned)
        content["message"] = f"this model never learned: {', '.join(answer.never_learned)}"
    return content
