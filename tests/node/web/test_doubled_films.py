"""A film that came into two studies with one UID: each address names one of them, and pages and answers say so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from models.documents import encode
from node.commands.corrections import export
from node.commands.explain import study as explained
from node.commands.explain.study import explain_uid
from node.commands.operate import render, status
from node.domain import ObjectReference
from node.errors import InputError
from node.outputs.asked_question import Origin
from node.store.received import Instance
from node.store.spool import Spool
from node.store.worklist import ReviewRow
from node.web import replies, review_queue
from tests.support import films, samples
from tests.support.finished import Finished

WRONG, RIGHT = "1.2.1", "1.2.2"
UID = str(films.thumbnail().SOPInstanceUID)
QUESTION = {"questions": [{"prompt": "Edema"}]}
REJECTION: dict[str, object] = {"kind": "reject", "prompt": samples.several().findings[0].prompt}
MAN: dict[str, object] = {"PatientID": "4711", "PatientName": "Mann^Max", "PatientBirthDate": "19500101"}
WOMAN: dict[str, object] = {"PatientID": "4712", "PatientName": "Frau^Eva", "PatientBirthDate": "19900101"}

ROUTES: tuple[tuple[str, str, object, int], ...] = (
    ("GET", "picture", None, 200),
    ("GET", "questions", None, 200),
    ("POST", "questions", QUESTION, 201),
    ("POST", "replies", {"text": "List the findings"}, 200),
    ("GET", "corrections", None, 200),
    ("POST", "corrections", REJECTION, 503),  # stored, but no database is there
)


def path_of(study: str | None, what: str) -> str:
    return f"/api/v1/{f'studies/{study}/' if study else ''}films/{UID}/{what}"


def taken(changes: dict[str, object], *, study: str) -> Dataset:
    return films.thumbnail({**changes, "StudyInstanceUID": study})


def keep(spool: Spool, film: Dataset) -> Instance:
    """Keep a film with an answer."""
    kept = films.keep(spool, film).instance
    answer = replace(samples.several(), source=kept.sop_instance_uid)
    spool.keep_reading(kept.study_uid, "1", {**encode(answer), "file": kept.path.name})
    return kept


@pytest.fixture
def doubled(tmp_path: Path) -> Finished:
    """What a node left that has read one UID in two studies, darker in the second; no database is there."""
    finished = Finished(tmp_path / "node")
    keep(finished.spool, taken(MAN, study=WRONG))
    keep(finished.spool, taken({**WOMAN, "RescaleSlope": "1", "WindowWidth": "9000"}, study=RIGHT))
    return finished


def test_a_uid_alone_is_no_address_and_with_its_study_it_is(doubled: Finished) -> None:
    client = doubled.client()
    for method, what, body, expected in ROUTES:
        refused, unknown, *answered = (
            client.request(method, path_of(study, what), json=body) for study in (None, "1.2.3", WRONG, RIGHT)
        )

        detail = refused.json()["detail"]
        assert (refused.status_code, WRONG in detail, RIGHT in detail) == (409, True, True)
        assert "/api/v1/studies/{study}/films/{uid}/" in detail
        assert [answer.status_code for answer in (unknown, *answered)] == [404, expected, expected], (method, what)
        assert what != "picture" or answered[0].content != answered[1].content


def test_what_is_said_of_a_film_stays_in_the_study_that_was_named(doubled: Finished, tmp_path: Path) -> None:
    client, out = doubled.client(), tmp_path / "corrected.jsonl"
    client.post(path_of(RIGHT, "questions"), json=QUESTION)
    client.post(path_of(RIGHT, "corrections"), json=REJECTION)
    kept = {
        study: [len(doubled.spool.documents(study, kind)) for kind in ("questions", "corrections")]
        for study in (WRONG, RIGHT)
    }
    client.post(path_of(WRONG, "corrections"), json={**REJECTION, "kind": "accept"})

    exported = export(doubled.settings, out)

    assert kept == {WRONG: [0, 0], RIGHT: [1, 1]}
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert (exported, len({line["file"] for line in lines})) == (2, 2)
    reference = ObjectReference(sop_class_uid="1.2", sop_instance_uid="1.3", series_instance_uid="1.4")
    origin = Origin(reference=reference, number=1, instance_number=1, is_report=False, tracking=("", ""))
    assert origin.question_id(RIGHT) != origin.question_id(WRONG), "of a workstation"


def test_an_earlier_film_is_named_with_its_study_where_its_uid_is_doubled(
    doubled: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "obstacle_of", lambda *_model: None)  # the scripted reader compares nothing
    later = keep(doubled.spool, films.as_another(taken(MAN, study="1.2.4"), "later"))
    path = f"/api/v1/studies/1.2.4/films/{later.sop_instance_uid}/replies"
    words = {"text": "what changed?", "earlier": UID}

    refused, other = (
        doubled.client().post(path, json={**words, **study}) for study in ({}, {"earlier_study": "1.2.9"})
    )

    assert (refused.status_code, RIGHT in refused.json()["detail"], other.status_code) == (409, True, 404)


@pytest.mark.parametrize(("changes", "is_other"), [({}, True), (MAN, False), (dict.fromkeys(WOMAN), False)])
def test_a_page_and_the_interface_name_the_other_study(
    doubled: Finished, changes: dict[str, object], is_other: bool
) -> None:
    if changes:
        films.keep(doubled.spool, taken(changes, study=RIGHT))

    page = doubled.client().get(f"/studies/{WRONG}").text
    (film,) = doubled.client().get(f"/api/v1/studies/{RIGHT}").json()["films"]

    assert f'<a href="/studies/{RIGHT}?film={UID}">{RIGHT}</a>' in page
    assert ("of another patient" in page) is is_other
    assert film["also_in"] == [{"study": WRONG, "differs": is_other}]
    assert "/api/v1/films/" not in page
    assert path_of(WRONG, "").rstrip("/") in page


def test_the_film_to_review_after_one_is_found_in_its_study(doubled: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    client = doubled.client()
    row = ReviewRow(study_uid=WRONG, film=UID, reason="uncertain", is_stat=False, urgency=1, received_at=1.0)
    rows = [row, replace(row, study_uid=RIGHT)]
    monkeypatch.setattr(review_queue, "to_review", lambda _storage: rows)

    places = [
        client.get(f"/review/next?study={study}&film={UID}", follow_redirects=False).headers["Location"]
        for study in (WRONG, RIGHT)
    ]

    assert places == [f"/studies/{study}?film={UID}" for study in (RIGHT, WRONG)]
    assert "/api/v1/films/" not in client.get("/review").text
    monkeypatch.setattr(review_queue, "to_review", lambda _storage: rows[:1])
    pages_of = [client.get(f"/studies/{study}?film={UID}").text for study in (WRONG, RIGHT)]
    assert ["Next film to review" in page for page in pages_of] == [False, True]


def test_commands_name_both_studies(doubled: Finished) -> None:
    with pytest.raises(InputError, match=rf"2 studies .* explain {WRONG} or {RIGHT}"):
        explain_uid(UID, doubled.settings)

    told = explained.render(explain_uid(WRONG, doubled.settings), doubled.settings, Path("node.toml"))
    state = status(doubled.settings)

    assert f"ALSO IN study {RIGHT}" in told
    assert "do: an object of this study has the UID of one in" in told
    assert state["doubled"] == {UID: [WRONG, RIGHT]}
    assert f"{UID}: {WRONG}, {RIGHT}" in render(state, zone=doubled.settings.site.zone)
