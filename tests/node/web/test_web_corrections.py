"""A correction over the interface for programs: a new version at the archive, exactly once, and lines for training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from pydicom.dataset import Dataset
from structlog.testing import capture_logs

from models.contract import Box
from models.lab.training.films import find_films, read_films
from models.lab.training.runfile import FilmSource
from node.commands.corrections import export
from node.errors import InputError
from node.jobs import answered_film, correcting
from node.store.correction import CorrectionKind
from tests.node.jobs.test_rounds import predecessor
from tests.support import films, peers
from tests.support.archived import ArchivedNode, StartNode
from tests.support.finished import Finished

Content = dict[str, object]

PRESENT, ABSENT = "atelectasis", "cardiomegaly"  # what the scripted reader says of them


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """A film that a running node has read, and whose objects its archive has."""

    node: ArchivedNode
    film: Dataset

    def ask(self, method: str, path: str, body: Content | None = None) -> tuple[int, Content]:
        return self.node.service.ask(method, path, body)

    @property
    def path(self) -> str:
        return f"/api/v1/films/{self.film.SOPInstanceUID}/corrections"

    def sent(self, modality: str = "") -> list[Dataset]:
        return self.node.objects(self.film.StudyInstanceUID, modality)

    def wait_for_sent(self, count: int) -> None:
        self.node.archive.wait_until(lambda: len(self.sent()) == count)

    def finding(self, key: str) -> Content:
        _, study = self.ask("GET", f"/api/v1/studies/{self.film.StudyInstanceUID}")
        (film,) = cast(list[dict[str, Content]], study["films"])
        findings = cast(list[Content], film["film"]["findings"])
        return next(finding for finding in findings if finding["prompt"] == key)


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> ArchivedNode:
    return start_node()


@pytest.fixture
def reviewed(node: ArchivedNode, request: pytest.FixtureRequest) -> Reviewed:
    name = request.node.name
    film = films.as_another(films.thumbnail({"PatientName": "Zyx^Secret", "PatientID": "ID-4711"}), name, study=name)
    node.service.read(film)
    made = Reviewed(node=node, film=film)
    made.wait_for_sent(2)
    return made


def test_a_correction_arrives_once_as_a_new_version(reviewed: Reviewed) -> None:
    rejection: Content = {"kind": "reject", "prompt": PRESENT, "id": "a" * 32}

    status, answer = reviewed.ask("POST", reviewed.path, rejection)
    assert (status, answer["id"], answer["prompt"]) == (202, "a" * 32, PRESENT)
    assert cast(Content, reviewed.finding(PRESENT)["reader"])["what"] == "rejected"  # before any round
    reviewed.wait_for_sent(4)
    assert reviewed.ask("POST", reviewed.path, rejection)[0] == 202  # as after a lost answer
    study, finished = reviewed.film.StudyInstanceUID, reviewed.node.service.logged
    peers.wait_until(
        lambda: [line["study"] for line in finished("study.finished")].count(study) >= 2, what="the round is finished"
    )

    old, new = reviewed.sent("SR")
    assert predecessor(new) == old.SOPInstanceUID
    assert len(reviewed.sent()) == 4
    _, listed = reviewed.ask("GET", reviewed.path)
    assert [made["kind"] for made in cast(list[Content], listed["corrections"])] == ["reject"]
    assert f'cxr_corrections_total{{kind="reject",prompt="{PRESENT}"}} 1.0' in reviewed.node.service.metrics()


def test_a_missed_finding_is_drawn_where_the_reader_saw_it(reviewed: Reviewed) -> None:
    box = [2.0, 3.0, 20.0, 30.0]

    assert reviewed.ask("POST", reviewed.path, {"kind": "add", "prompt": ABSENT, "box": box})[0] == 202

    added = reviewed.finding(ABSENT)
    assert added["state"] == "present"
    assert [found["box"] for found in cast(list[Content], added["boxes"])] == [box]
    reviewed.wait_for_sent(4)


UNCORRECTABLE: tuple[tuple[dict[str, object], int, str], ...] = (
    ({"kind": "accept", "prompt": ABSENT}, 409, "drawing its box"),
    ({"kind": "add", "prompt": ABSENT}, 422, "and nothing else"),
    ({"kind": "add", "prompt": ABSENT, "box": [0, 0, 1e5, 9]}, 409, "leaves the film"),
    ({"kind": "add", "prompt": ABSENT, "box": [9, 0, 9, 9]}, 422, "must not be empty"),
    ({"kind": "shout", "prompt": ABSENT}, 422, "kind"),
)


def test_what_cannot_be_corrected_changes_nothing(reviewed: Reviewed) -> None:
    for body, status, words in UNCORRECTABLE:
        answered, answer = reviewed.ask("POST", reviewed.path, body)

        assert answered == status, body
        assert words in str(answer["detail"])
    assert reviewed.ask("POST", "/api/v1/films/1.2.3/corrections", {"kind": "reject", "prompt": PRESENT})[0] == 404
    assert reviewed.ask("GET", reviewed.path)[1] == {"corrections": []}


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

    made, seen = ("correction.made", "anna", study, uid), ("corrections.finished", "anna", study, None)
    assert are_last == [False, True]
    audited = [(line["event"], line["user"], line["study"], line.get("sop_instance_uid")) for line in lines]
    assert audited == [made, made, seen]


def test_what_a_reader_writes_is_stored_as_it_is_seen_with_who_wrote_it_and_where(tmp_path: Path) -> None:
    finished, film = Finished(tmp_path / "node"), films.thumbnail()
    finished.read(film)
    for number, source in enumerate(("page", "api"), 1):
        path = f"/api/v1/films/{film.SOPInstanceUID}/corrections"
        body = {"kind": "reword", "prompt": PRESENT, "text": " Discuss\u202e\u2028this. ", "id": f"{number:032x}"}
        answer = finished.client(user="anna").post(path, json=body, headers={"X-Requested-From": source})
        assert answer.status_code == 503, "it is stored, but no database is there"
    made = finished.spool.corrections(str(film.StudyInstanceUID))
    assert [(each.id, each.film, each.kind, each.prompt, each.text, each.by, each.source) for each in made] == [
        (f"{number:032x}", str(film.SOPInstanceUID), CorrectionKind.REWORD, PRESENT, "Discuss this.", "anna", source)
        for number, source in enumerate(("page", "api"), 1)
    ]


def test_corrections_are_exported_for_training(tmp_path: Path) -> None:
    finished, out = Finished(tmp_path / "node"), tmp_path / "corrected.jsonl"
    corrected = films.thumbnail({"PatientName": "Zyx^Secret", "PatientID": "ID-4711"})
    finished.read(corrected)
    finished.correct(corrected, CorrectionKind.REJECT, prompt=PRESENT)
    finished.correct(corrected, CorrectionKind.ADD, prompt=ABSENT, box=Box(left=2, top=3, right=20, bottom=30))
    assert export(finished.settings, out) == 1

    (film,) = read_films(out, find_films(FilmSource(file=str(out))), side=64)
    assert film.line["present"] == {PRESENT: False, ABSENT: True}
    assert [list(boxes) for boxes in film.line["boxes"].values()] == [[pytest.approx(_unit(corrected), abs=1e-6)]]
    secrets = ("Zyx", "4711", str(corrected.SOPInstanceUID))
    assert [secret for secret in secrets if secret in out.read_text(encoding="utf-8")] == []
    with pytest.raises(InputError):
        export(finished.settings, out)


def _unit(film: Dataset) -> list[float]:
    """The box 2, 3, 20, 30 in 0..1 of the film's central square."""
    columns, rows = film.Columns, film.Rows
    side = min(columns, rows)
    left, top = (columns - side) // 2, (rows - side) // 2
    return [(11 - left) / side, (16.5 - top) / side, 18 / side, 27 / side]
