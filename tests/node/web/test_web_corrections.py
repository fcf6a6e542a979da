"""A correction over the interface for programs: a new version at the archive, exactly once, and lines for training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from pydicom.dataset import Dataset

from models.lab.training.films import find_films, read_films
from models.lab.training.runfile import FilmSource
from tests.node.jobs.test_rounds import predecessor
from tests.support import films, peers
from tests.support.archived import archived_node
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, run_command

Content = dict[str, object]

PRESENT, ABSENT = "atelectasis", "cardiomegaly"  # what the scripted reader says of them


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """A running node that has read one film, and its archive."""

    service: Service
    archive: ReceivingArchive
    film: Dataset

    def ask(self, method: str, path: str, body: Content | None = None) -> tuple[int, Content]:
        return self.service.ask(method, path, body)

    @property
    def path(self) -> str:
        return f"/api/v1/films/{self.film.SOPInstanceUID}/corrections"

    def reports(self) -> list[Dataset]:
        return [kept.dataset for kept in self.archive.kept if kept.dataset.Modality == "SR"]

    def finding(self, key: str) -> Content:
        _, study = self.ask("GET", f"/api/v1/studies/{self.film.StudyInstanceUID}")
        (film,) = cast(list[dict[str, Content]], study["films"])
        findings = cast(list[Content], film["film"]["findings"])
        return next(finding for finding in findings if finding["prompt"] == key)


@pytest.fixture
def reviewed(tmp_path: Path) -> Iterator[Reviewed]:
    film = films.thumbnail({"PatientName": "Zyx^Secret", "PatientID": "ID-4711"})
    with archived_node(tmp_path) as node:
        node.service.read(film)
        node.archive.wait_for_kept(2)
        yield Reviewed(service=node.service, archive=node.archive, film=film)


def test_a_correction_arrives_once_as_a_new_version(reviewed: Reviewed) -> None:
    rejection: Content = {"kind": "reject", "prompt": PRESENT, "id": "a" * 32}

    status, answer = reviewed.ask("POST", reviewed.path, rejection)
    assert (status, answer["id"], answer["prompt"]) == (202, "a" * 32, PRESENT)
    assert cast(Content, reviewed.finding(PRESENT)["reader"])["what"] == "rejected"  # before any round
    reviewed.archive.wait_for_kept(4)
    assert reviewed.ask("POST", reviewed.path, rejection)[0] == 202  # as after a lost answer
    peers.wait_until(lambda: len(reviewed.service.logged("study.finished")) >= 2, what="the round is finished")

    old, new = reviewed.reports()
    assert predecessor(new) == old.SOPInstanceUID
    assert len(reviewed.archive.kept) == 4
    _, listed = reviewed.ask("GET", reviewed.path)
    assert [made["kind"] for made in cast(list[Content], listed["corrections"])] == ["reject"]
    assert f'cxr_corrections_total{{kind="reject",prompt="{PRESENT}"}} 1.0' in reviewed.service.metrics()


def test_a_missed_finding_is_drawn_where_the_reader_saw_it(reviewed: Reviewed) -> None:
    box = [2.0, 3.0, 20.0, 30.0]

    assert reviewed.ask("POST", reviewed.path, {"kind": "add", "prompt": ABSENT, "box": box})[0] == 202

    added = reviewed.finding(ABSENT)
    assert added["state"] == "present"
    assert [found["box"] for found in cast(list[Content], added["boxes"])] == [box]
    reviewed.archive.wait_for_kept(4)


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


@pytest.mark.drill(part="objects")
def test_corrections_are_exported_for_training(reviewed: Reviewed, tmp_path: Path) -> None:
    reviewed.ask("POST", reviewed.path, {"kind": "reject", "prompt": PRESENT})
    reviewed.ask("POST", reviewed.path, {"kind": "add", "prompt": ABSENT, "box": [2, 3, 20, 30]})
    reviewed.archive.wait_for_kept(4)
    out = tmp_path / "corrected.jsonl"

    answer = run_command("corrections", reviewed.service.settings_path, "--export", out)

    assert (answer.returncode, answer.stdout) == (0, f"{out}: 1 corrected film\n")
    (film,) = read_films(out, find_films(FilmSource(file=str(out))), side=64)
    assert film.line["present"] == {PRESENT: False, ABSENT: True}
    assert [list(boxes) for boxes in film.line["boxes"].values()] == [[pytest.approx(_unit(reviewed.film), abs=1e-6)]]
    assert all(secret not in out.read_text(encoding="utf-8") for secret in ("Zyx", "4711", reviewed.film.PatientID))
    assert str(reviewed.film.SOPInstanceUID) not in out.read_text(encoding="utf-8")
    assert run_command("corrections", reviewed.service.settings_path, "--export", out).returncode == 2


def _unit(film: Dataset) -> list[float]:
    """The box 2, 3, 20, 30 in 0..1 of the film's central square."""
    columns, rows = film.Columns, film.Rows
    side = min(columns, rows)
    left, top = (columns - side) // 2, (rows - side) // 2
    return [(11 - left) / side, (16.5 - top) / side, 18 / side, 27 / side]
