"""What a person does with a study by hand: delete it, after what waits was named, and have it read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydicom.dataset import Dataset
from structlog.testing import capture_logs

from node.config import Settings
from node.domain import DeliveryState
from node.store.spool import Spool
from tests.support import films, peers
from tests.support.archived import ArchivedNode, StartNode
from tests.support.finished import Finished

NAME = "Qzvxwkjp"


def shown(settings: Settings) -> Settings:
    return replace(settings, http=replace(settings.http, show_patient=True))


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> ArchivedNode:
    """A node on which everybody on this machine sees patients."""
    return start_node(change=shown)


def sent(node: ArchivedNode, name: str) -> Dataset:
    """Read a film, and wait until its results are delivered."""
    film = films.as_another(films.thumbnail({"PatientName": f"{NAME}{name}^Jane"}), name, study=name)
    node.service.read(film)
    path = f"/api/v1/studies?q={film.StudyInstanceUID}"
    peers.wait_until(lambda: '"delivered":"all"' in node.service.request("GET", path).text, what="all is sent")
    return film


def test_a_delivered_study_is_deleted_without_a_trace(node: ArchivedNode) -> None:
    film = sent(node, "delivered")
    uid = str(film.StudyInstanceUID)

    def named() -> list[str]:
        """The files of the databases in which the patient stands."""
        name = f"{NAME}delivered".lower().encode()
        return [path.name for path in node.directory.glob("*.sqlite*") if name in path.read_bytes().lower()]

    assert named()
    path = f"/api/v1/studies/{uid}/delete"
    refused, deleted = (
        node.service.request("POST", path, {"reason": "test", "films": count, "undelivered": 0}) for count in (2, 1)
    )
    assert (refused.status_code, deleted.status_code) == (409, 204)
    assert "by now: 1, deliveries that are not done: 0" in refused.json()["detail"]
    assert Spool(node.directory).instances(uid) == ()
    assert node.service.request("GET", f"/api/v1/studies?q={uid}").json()["total"] == 0
    assert named() == []
    said = [(line["outcome"], line["reason"], line["study"]) for line in node.service.logged("study.deleted")]
    assert said == [(outcome, "test", uid) for outcome in ("refused", "done")]


def test_a_study_is_read_again_by_hand(node: ArchivedNode) -> None:
    uid = str(sent(node, "again").StudyInstanceUID)
    path = f"/api/v1/studies/{uid}/read"
    assert node.service.request("POST", path, {"reason": "other_model"}).status_code == 204
    peers.wait_until(lambda: len(Spool(node.directory).rounds(uid)) == 3, what="the mark, and another round")
    assert node.service.logged("study.reread")[-1]["reason"] == "other_model"
    assert node.service.request("POST", path, {"reason": "Mrs. Miller asked"}).status_code == 422


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
