"""The words of `ask` for the person at the terminal: each state, each place, and what was not asked."""

from __future__ import annotations

import pytest

from node.commands.ask import in_words
from node.domain import Json, JsonObject

QUESTION: JsonObject = {
    "prompt": "Edema",
    "box": None,
    "sentence": "There is edema.",
    "by": "network",
    "said": '"There is edema."',
    "score": 0.523,
    "state": "present",
    "positive": True,
    "reason": None,
    "boxes": [{"box": [10.2, 20.6, 300.0, 400.0], "score": 0.61}],
    "notes": [],
}


def said(**changes: Json) -> list[str]:
    document: JsonObject = {"film": "a.dcm", "questions": [{**QUESTION, **changes}]}
    film, *lines, use = in_words(document).splitlines()
    assert (film, use) == ("a.dcm", "For research use; not for diagnosis.")
    return [line for line in lines if line]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "Edema: present, AI probability 52 %"),
        ({"state": "indeterminate"}, "Edema: possible, please review, AI probability 52 %"),
        ({"state": "uncalibrated"}, "Edema: possible, please review, AI probability 52 %"),
        ({"state": "absent"}, "Edema: not reported (below threshold, may have been missed), AI probability 52 %"),
        ({"state": "left_out", "score": None}, "Edema: not evaluated by this model"),
        ({"prompt": "abdomen", "state": None}, "abdomen: score 0.52"),
        (
            {"state": None, "score": None, "message": "this model never learned: zebra"},
            "Edema: this model never learned",
        ),
        ({"prompt": None, "box": [1, 2, 3, 4], "state": None, "score": None}, "the box 1, 2, 3, 4"),
        ({"box": [1, 2, 3, 4]}, "Edema in the box 1, 2, 3, 4: present"),
    ],
)
def test_a_state_is_told_in_the_words_of_the_outputs(changes: JsonObject, expected: str) -> None:
    assert said(**changes)[0].startswith(expected)


def test_sentence_reason_places_and_notes_follow() -> None:
    lines = said(reason="The network also calls the whole film normal.", notes=["rotated"], state="indeterminate")

    assert lines[1:] == [
        '    "There is edema."',
        "    The network also calls the whole film normal.",
        "    at 10, 21, 300, 400, score 0.61",
        "    The picture looks rotated.",
    ]
