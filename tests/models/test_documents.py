"""JSON values become values of the program, or are refused without repeating them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime

import pytest

from models.contract import Box
from models.documents import Misfit, decode, encode, from_table
from node.domain import Code, Film, Note, OutputObject, ReaderMark, Reason
from node.store.rounds import RoundMark

OUTPUT = OutputObject(
    kind="sr", study_uid="1.2", sop_class_uid="1.3", sop_instance_uid="1.4", series_instance_uid="1.5", part=2
)
MARK = RoundMark(
    number=3,
    created_at=datetime(2026, 11, 27, 11, 0, 0, 5, tzinfo=UTC),
    files=("a", "b"),
    outputs=(OUTPUT,),
    parked={"b": "damaged"},
    parts=(("1",), ("2",)),
)
EARLIER = {key: value for key, value in encode(MARK).items() if key != "corrections"}


def test_what_was_encoded_is_decoded_to_the_same_value() -> None:
    assert decode(RoundMark, json.loads(json.dumps(encode(MARK)))) == MARK
    assert decode(RoundMark, {**encode(MARK), "unknown": 1}) == MARK, "an unknown key is passed over"


def test_a_date_of_toml_is_no_text() -> None:
    with pytest.raises(Misfit, match="value: must be a text in quotes"):
        from_table(Code, {"value": date(2026, 11, 28), "scheme": "SCT", "meaning": "Heart"})


@pytest.mark.parametrize(
    ("kind", "value", "complaint"),
    [
        (Code, {"value": "DOE^JANE", "scheme": 7, "meaning": "DOE^JANE"}, "no Code"),
        (Code, ["DOE^JANE", "SCT", "heart"], "no Code"),
        (Reason, "DOE^JANE", "no Reason"),
        (tuple[OutputObject, ...], [{**encode(OUTPUT), "number": "DOE^JANE"}], "no "),
        (ReaderMark, {"what": "accepted", "by": "anna", "at": "DOE^JANE"}, "no "),
        (tuple[Note, ...], "DOE^JANE", "no "),
        (Film, "DOE^JANE", "no Film"),
        (Box, {"left": 3, "top": 0, "right": 3, "bottom": 1}, "no Box"),
        # Every field must be there despite its default.
        (RoundMark, EARLIER, "no RoundMark; it lacks corrections"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_repeated(kind: type[object], value: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        decode(kind, value)

    assert "JANE" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
