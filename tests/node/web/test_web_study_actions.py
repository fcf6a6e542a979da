"""What a person does with a study: correct it, delete it after what waits was named, and have it read again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from pydicom.dataset import Dataset
from structlog.testing import capture_logs

from models.contract import Box
from models.lab.training.films import find_films, read_films
from models.lab.training.runfile import FilmSource
from node.commands.corrections import export
from node.config import Settings
from node.domain import DeliveryState
from node.errors import InputError
from node.jobs import answered_film, correcting
from node.store.correction import CorrectionKind
from node.store.spool import Spool
from tests.node.jobs.test_rounds import predecessor
from tests.support import films, peers
from tests.support.archived import ArchivedNode, StartNode
from tests.support.finished import Finished

Content = dict[str, object]

NAME = "Qzvxwkjp"
PRESENT, ABSENT = "atelectasis", "cardiomegaly"  # what the scripted reader says of them


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """A film that a running node has read, and whose objects its archive has."""

    node: ArchivedNode
    film: Dataset

    @property
    def uid(self) -> str:
        return str(self.film.StudyInstanceUID)

    def ask(self, what: str, body: Content | None = None) -> tuple[int, Content]:
        path = f"/api/v1/studies/{self.uid}/films/{self.film.SOPInstanceUID}/{what}"
        return self.node.service.ask("GET" if body is None else "POST", path, body)

    def sent(self, modality: str = "") -> list[Dataset]:
        return self.node.objects(self.uid, modality)

    def wait_for_sent(self, count: int) -> None:
        self.node.archive.wait_until(lambda: len(self.sent()) == count)

    def told(self) -> dict[str, Any]:
        """What the interface says of the study."""
        return cast(dict[str, Any], self.node.service.request("GET", f"/api/v1/studies/{self.uid}").json())

    def wait_for_delivered(self) -> None:
        expected = ("finished", "all")
        peers.wait_until(
            lambda: tuple(self.told()["line"][name] for name in ("state", "delivered")) == expected, what="all is sent"
        )

    def finding(self, key: str) -> dict[str, Any]:
        (film,) = self.told()["films"]
        return next(finding for finding in film["film"]["findings"] if finding["prompt"] == key)


def shown(settings: Settings) -> Settings:
    return replace(settings, http=replace(settings.http, show_patient=True))


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> ArchivedNode:
    """A node on which everybody on this machine sees patients."""
    return start_node(change=shown)


@pytest.fixture
def reviewed(node: ArchivedNode, request: pytest.FixtureRequest) -> Reviewed:
    name = request.node.name
    film = films.as_another(films.thumbnail({"PatientName": f"{NAME}^Jane", "PatientID": name[:60]}), name, study=name)
    node.service.read(film)
    made = Reviewed(node=node, film=film)
    made.wait_for_sent(2)
    made.wait_for_delivered()
    return made


def test_a_correction_arrives_once_as_a_new_version(reviewed: Reviewed) -> None:
    rejection: Content = {"kind": "reject", "prompt": PRESENT, "id": "a" * 32}

    status, answer = reviewed.ask("corrections", rejection)
    assert (status, answer["id"], answer["prompt"]) == (202, "a" * 32, PRESENT)
    assert reviewed.finding(PRESENT)["reader"]["what"] == "rejected"  # before any round
    reviewed.wait_for_sent(4)
    assert reviewed.ask("corrections", rejection)[0] == 202  # as after a lost answer
    finished = reviewed.node.service.logged
    peers.wait_until(
        lambda: [line["study"] for line in finished("study.finished")].count(reviewed.uid) >= 2, what="the round's end"
    )

    old, new = reviewed.sent("SR")
    assert (predecessor(new), len(reviewed.sent())) == (old.SOPInstanceUID, 4)
    _, listed = reviewed.ask("corrections")
    assert [made["kind"] for made in cast(list[Content], listed["corrections"])] == ["reject"]
    assert f'cxr_corrections_total{{kind="reject",prompt="{PRESENT}"}} 1.0' in reviewed.node.service.metrics()


def test_what_cannot_be_corrected_changes_nothing_and_what_was_missed_is_drawn_where_the_reader_saw_it(
    reviewed: Reviewed,
) -> None:
    uncorrectable: tuple[tuple[Content, int, str], ...] = (
        ({"kind": "accept", "prompt": ABSENT}, 409, "drawing its box"),
        ({"kind": "add", "prompt": ABSENT}, 422, "and nothing else"),
        ({"kind": "add", "prompt": ABSENT, "box": [0, 0, 1e5, 9]}, 409, "leaves the film"),
        ({"kind": "add", "prompt": ABSENT, "box": [9, 0, 9, 9]}, 422, "must not be empty"),
        ({"kind": "shout", "prompt": ABSENT}, 422, "kind"),
    )
    for body, status, words in uncorrectable:
        answered, answer = reviewed.ask("corrections", body)
        assert (answered, words in str(answer["detail"])) == (status, True), body
    assert reviewed.ask("corrections")[1] == {"corrections": []}

    box = [2.0, 3.0, 20.0, 30.0]
    assert reviewed.ask("corrections", {"kind": "add", "prompt": ABSENT, "box": box})[0] == 202
    added = reviewed.finding(ABSENT)
    assert (added["state"], [found["box"] for found in added["boxes"]]) == ("present", [box])
    reviewed.wait_for_sent(4)


def test_the_last_correction_lets_all_leave_and_is_audited_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, film, are_last = Finished(tmp_path / "node"), films.thumbnail(), list[bool]()
    films.keep(node.spool, film)
    monkeypatch.setattr(answered_film, "read_film", lambda *_: None)
    monkeypatch.setattr(correcting, "correct", lambda *_, is_last, **__: are_last.append(is_last))
    study, uid = str(film.StudyInstanceUID), str(film.SOPInstanceUID)
    client, rejection = node.client(user="anna"), {"kind": "reject", "prompt": PRESENT}

    with capture_logs() as lines:
        for body in (rejection, {**rejection, "finish": True}):
            assert client.post(f"/api/v1/films/{uid}/corrections", json=body).status_code == 202

    assert client.post("/api/v1/films/1.2.3/corrections", json=rejection).status_code == 404
    made, seen = ("correction.made", "anna", study, uid), ("corrections.finished", "anna", study, None)
    assert are_last == [False, True]
    audited = [(line["event"], line["user"], line["study"], line.get("sop_instance_uid")) for line in lines]
    assert audited == [made, made, seen]


def test_what_a_reader_writes_is_stored_as_it_is_seen_with_who_wrote_it_and_where(tmp_path: Path) -> None:
    finished, film = Finished(tmp_path / "node"), films.thumbnail()
    finished.read(film)
    path, expected = f"/api/v1/films/{film.SOPInstanceUID}/corrections", []
    for number, source in enumerate(("page", "api"), 1):
        body = {"kind": "reword", "prompt": PRESENT, "text": " Discuss\u202e\u2028this. ", "id": f"{number:032x}"}
        answer = finished.client(user="anna").post(path, json=body, headers={"X-Requested-From": source})
        assert answer.status_code == 503, "it is stored, but no database is there"
        said = (CorrectionKind.REWORD, PRESENT, "Discuss this.", "anna")
        expected.append((f"{number:032x}", str(film.SOPInstanceUID), *said, source))
    made = finished.spool.corrections(str(film.StudyInstanceUID))
    assert [(each.id, each.film, each.kind, each.prompt, each.text, each.by, each.source) for each in made] == expected


def test_corrections_are_exported_for_training(tmp_path: Path) -> None:
    finished, out = Finished(tmp_path / "node"), tmp_path / "corrected.jsonl"
    corrected = films.thumbnail({"PatientName": "Zyx^Secret", "PatientID": "ID-4711"})
    finished.read(corrected)
    finished.correct(corrected, CorrectionKind.REJECT, prompt=PRESENT)
    finished.correct(corrected, CorrectionKind.ADD, prompt=ABSENT, box=Box(left=2, top=3, right=20, bottom=30))
    assert export(finished.settings, out) == 1

    side = min(corrected.Columns, corrected.Rows)
    left, top = (corrected.Columns - side) // 2, (corrected.Rows - side) // 2
    in_square = [(11 - left) / side, (16.5 - top) / side, 18 / side, 27 / side]  # its middle and size, in 0..1
    (film,) = read_films(out, find_films(FilmSource(file=str(out))), side=64)
    assert film.line["present"] == {PRESENT: False, ABSENT: True}
    assert [list(boxes) for boxes in film.line["boxes"].values()] == [[pytest.approx(in_square, abs=1e-6)]]
    secrets = ("Zyx", "4711", str(corrected.SOPInstanceUID))
    assert [secret for secret in secrets if secret in out.read_text(encoding="utf-8")] == []
    with pytest.raises(InputError):
        export(finished.settings, out)


def test_a_study_is_read_again_and_deleted_without_a_trace(reviewed: Reviewed) -> None:
    node, uid = reviewed.node, reviewed.uid
    service, path = node.service, f"/api/v1/studies/{reviewed.uid}"

    def named() -> list[str]:
        """The files of the databases in which the patient stands."""
        number = str(reviewed.film.PatientID).encode()
        return [path.name for path in node.directory.glob("*.sqlite*") if number in path.read_bytes()]

    assert service.request("POST", f"{path}/read", {"reason": "Mrs. Miller asked"}).status_code == 422
    assert service.request("POST", f"{path}/read", {"reason": "other_model"}).status_code == 204
    peers.wait_until(lambda: len(Spool(node.directory).rounds(uid)) == 3, what="the mark, and another round")
    assert service.logged("study.reread")[-1]["reason"] == "other_model"
    reviewed.wait_for_delivered()

    assert named()
    refused, deleted = (
        service.request("POST", f"{path}/delete", {"reason": "test", "films": count, "undelivered": 0})
        for count in (2, 1)
    )
    assert (refused.status_code, deleted.status_code) == (409, 204)
    assert "by now: 1, deliveries that are not done: 0" in refused.json()["detail"]
    assert Spool(node.directory).instances(uid) == ()
    assert service.request("GET", f"/api/v1/studies?q={uid}").json()["total"] == 0
    assert named() == []
    said = [(line["outcome"], line["reason"], line["study"]) for line in service.logged("study.deleted")]
    assert said == [(outcome, "test", uid) for outcome in ("refused", "done")]


def test_what_waits_is_named_and_counted_before_it_is_deleted(tmp_path: Path) -> None:
    finished, film = Finished(tmp_path / "node"), films.thumbnail()
    uid = str(film.StudyInstanceUID)
    for delivery in finished.read(film):
        finished.ledger.set_delivery(delivery, DeliveryState.WAITING, attempts=1, reason="no connection")
    pages = finished.client()
    asked = pages.get(f"/studies/{uid}/manage").text
    assert "<b>Not delivered yet:</b> 2 to archive" in asked and 'data-films="1" data-undelivered="2"' in asked

    def deleted(undelivered: int) -> int:
        body = {"reason": "wrong_patient", "films": 1, "undelivered": undelivered}
        return pages.post(f"/api/v1/studies/{uid}/delete", json=body).status_code

    with capture_logs() as lines:
        assert [deleted(0), deleted(2)] == [409, 204]
    assert [line["outcome"] for line in lines if line["event"] == "study.deleted"] == ["refused", "done"]
    assert finished.spool.instances(uid) == ()
    page = pages.get("/").text
    assert "films removed" in page and "2 abandoned" in page
    assert finished.ledger.open_deliveries() == []


def test_an_earlier_film_names_its_own_patient_and_sides_to_who_sees_patients(tmp_path: Path) -> None:
    dated = dict.fromkeys(("AcquisitionDate", "AcquisitionTime", "AcquisitionDateTime", "ContentDate", "ContentTime"))
    one = {**dated, "PatientID": "4711", "IssuerOfPatientID": None, "StudyTime": "0930", "PatientOrientation": "R\\F"}
    earlier = {"PatientName": f"{NAME}^Jane", "PatientBirthDate": "19610203", "StudyDate": "20260101"}
    later = {"PatientName": "Qzlater^Name", "PatientBirthDate": None, "StudyDate": "20260301"}
    finished = Finished(tmp_path / "node", change=shown)
    first, second = (
        films.as_another(films.thumbnail({**one, **its}), name, study=name)
        for name, its in (("first", earlier), ("second", later))
    )
    finished.read(first)
    finished.read(second)

    path = f"/studies/{second.StudyInstanceUID}"
    named, unnamed = (
        finished.client().get(path, headers=headers).text for headers in ({}, {"X-Forwarded-For": "10.0.0.9"})
    )

    assert f"Earlier film, 2026-01-01 09:30: {NAME}, Jane, born 1961-02-03." in named
    assert f'href="/studies/{first.StudyInstanceUID}?film={first.SOPInstanceUID}"' in named
    assert "Left edge of the earlier film: </span>L<" in named and "Right edge of the earlier film: </span>R<" in named
    assert not any(word in unnamed for word in (NAME, "Qzlater", "Earlier film,", str(first.StudyInstanceUID)))
