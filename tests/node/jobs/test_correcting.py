"""Corrections of what is being removed, damaged or unknown to the database: each gets a plain reason, and no 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from models.documents import encode
from node.commands.corrections import export
from node.config import Settings
from node.dicom import header_reading
from node.jobs import answered_film
from node.metrics import Metrics
from node.read import prompts
from node.store import files
from node.store.received import Instance
from node.store.rounds import RoundMark
from node.store.spool import Spool
from node.web import application
from node.web.look_files import Looks
from node.web.parts import WebParts
from tests.support import films, samples
from tests.support.service import settings_for
from tests.support.web_access import as_user

PRESENT = samples.several().findings[0].prompt
PROMPTS = prompts.load("chexpert14")
REJECTION: dict[str, object] = {"kind": "reject", "prompt": PRESENT, "id": "a" * 32}


@dataclass(frozen=True, kw_only=True)
class Read:
    """The application on the spool of a film that was read; no database is there."""

    client: TestClient
    settings: Settings
    spool: Spool
    film: Instance

    @property
    def path(self) -> str:
        return f"/api/v1/films/{self.film.sop_instance_uid}/corrections"

    def correct(self) -> tuple[int, str]:
        answer = self.client.post(self.path, json=REJECTION)
        assert answer.headers["content-type"] == "application/problem+json"
        return answer.status_code, answer.json()["detail"]

    def stored(self) -> int:
        return len(self.spool.documents(self.film.study_uid, "corrections"))


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    settings: Settings = settings_for(tmp_path / "node", archive_port=104)
    spool = Spool(settings.storage.directory)
    film = films.keep(spool, films.thumbnail()).instance
    answer = replace(samples.several(), source=film.sop_instance_uid)
    spool.keep_reading(film.study_uid, "1", {**encode(answer), "file": film.path.name})
    looks = Looks(tmp_path / "looks")
    looks.close()
    built = application.build(
        WebParts(settings=settings, spool=spool, metrics=Metrics(), prompts=lambda: PROMPTS, looks=looks)
    )
    client = TestClient(as_user(built), raise_server_exceptions=False)
    yield Read(client=client, settings=settings, spool=spool, film=film)


def remove(read: Read) -> None:
    """Remove the study as retention does."""
    mark = RoundMark(number=1, created_at=datetime.now(UTC), files=(read.film.path.name,), outputs=())
    read.spool.mark_round(read.film.study_uid, mark)
    assert read.spool.remove_study(read.film.study_uid)


def test_a_study_that_is_removed_meanwhile_is_not_corrected(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    known = answered_film.read_film

    def removed_after(spool: Spool, instance: Instance) -> answered_film.AnsweredFilm:
        film = known(spool, instance)
        remove(read)
        return film

    monkeypatch.setattr(answered_film, "read_film", removed_after)

    assert read.correct() == (409, "the study of this film is being removed")
    assert read.stored() == 0


@pytest.mark.parametrize("gone", ["received", "readings"])
def test_a_study_that_goes_while_it_is_read_is_not_corrected(
    read: Read, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    step = "read_header" if gone == "received" else "decode"
    place = header_reading if gone == "received" else answered_film
    known = getattr(place, step)

    def removed_before(*arguments: object, **named: object) -> object:
        remove(read)
        return known(*arguments, **named)

    monkeypatch.setattr(place, step, removed_before)

    status, detail = read.correct()

    assert (status, "removed" in detail) == (409, True)


def test_a_film_that_was_removed_is_not_corrected(read: Read) -> None:
    remove(read)

    assert read.correct() == (404, "this node has no such film")
    assert read.client.get(read.path).status_code == 404


def test_a_film_whose_file_is_lost_is_not_corrected(read: Read) -> None:
    read.film.path.unlink()

    assert read.correct() == (404, "this node has no such film")


@pytest.mark.parametrize("damaged", ["film", "answer"])
def test_a_damaged_film_is_not_corrected(read: Read, damaged: str) -> None:
    if damaged == "film":
        read.film.path.write_bytes(b"lost")
    else:
        (reading,) = (read.film.path.parent.parent / "readings").glob("*.json")
        reading.write_bytes(files.to_json({"file": read.film.path.name}))

    status, detail = read.correct()

    assert (status, "damaged" in detail) == (409, True)
    assert read.stored() == 0


def test_a_corrected_film_that_is_damaged_later_is_shown(read: Read) -> None:
    read.correct()
    read.film.path.write_bytes(b"lost")

    answer = read.client.get(f"/api/v1/studies/{read.film.study_uid}")

    assert answer.status_code == 200
    findings = {finding["prompt"]: finding for finding in answer.json()["films"][0]["film"]["findings"]}
    assert findings[PRESENT]["reader"]["what"] == "rejected"


def test_a_film_of_another_prompt_set_is_corrected(read: Read) -> None:
    unknown = {finding.prompt for finding in samples.several().findings} - {known.key for known in PROMPTS.prompts}
    assert unknown

    for prompt in unknown:
        read.client.post(read.path, json={"kind": "reject", "prompt": prompt})

    film = read.client.get(f"/api/v1/studies/{read.film.study_uid}").json()["films"][0]["film"]
    states = {finding["prompt"]: finding["state"] for finding in film["findings"]}
    assert {states[prompt] for prompt in unknown} == {"absent"}


def test_corrections_of_another_prompt_set_are_exported(read: Read, tmp_path: Path) -> None:
    known = {prompt.key for prompt in PROMPTS.prompts}
    unknown = next(finding for finding in samples.several().findings if finding.prompt not in known)
    assert unknown.boxes
    read.client.post(read.path, json={"kind": "accept", "prompt": unknown.prompt})

    assert export(read.settings, tmp_path / "corrected.jsonl") == 1

    (line,) = (tmp_path / "corrected.jsonl").read_text(encoding="utf-8").splitlines()
    (said,) = json.loads(line)["truth"]["said"]
    assert said["findings"] == [unknown.prompt]
    assert unknown.code.meaning.lower() in said["text"].lower()


def test_an_accepted_finding_without_a_box_is_exported_as_there_but_nowhere(read: Read, tmp_path: Path) -> None:
    several = samples.several()
    nowhere, drawn = (replace(finding, boxes=()) for finding in several.findings[:2])
    answer = replace(several, source=read.film.sop_instance_uid, findings=(nowhere, drawn, *several.findings[2:]))
    read.spool.keep_reading(read.film.study_uid, "2", {**encode(answer), "file": read.film.path.name})
    read.client.post(read.path, json={"kind": "accept", "prompt": nowhere.prompt})
    read.client.post(read.path, json={"kind": "add", "prompt": drawn.prompt, "box": [100, 100, 500, 500]})

    assert export(read.settings, tmp_path / "corrected.jsonl") == 1

    truth = json.loads((tmp_path / "corrected.jsonl").read_text(encoding="utf-8"))["truth"]
    assert truth["present"] == {nowhere.prompt: True, drawn.prompt: True}
    assert (list(truth["boxes"]), truth["located"]) == ([drawn.prompt], [drawn.prompt])


@pytest.mark.parametrize(("number", "are_one"), [("UNKNOWN", False), ("", False), ("P-1", True)])
def test_films_of_one_patient_stay_together_in_an_export(
    read: Read, tmp_path: Path, number: str, are_one: bool
) -> None:
    for study in ("1.2.1", "1.2.2"):
        kept = films.keep(read.spool, films.thumbnail({"StudyInstanceUID": study, "PatientID": number})).instance
        answer = replace(samples.several(), source=kept.sop_instance_uid)
        read.spool.keep_reading(study, "1", {**encode(answer), "file": kept.path.name})
        read.client.post(f"/api/v1/studies/{study}/films/{kept.sop_instance_uid}/corrections", json=REJECTION)

    assert export(read.settings, tmp_path / "corrected.jsonl") == 2

    lines = [json.loads(line) for line in (tmp_path / "corrected.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len({line["patient"] for line in lines}) == (1 if are_one else 2)


def test_an_export_that_fails_leaves_nothing_and_can_be_repeated(read: Read, tmp_path: Path) -> None:
    read.client.post(read.path, json=REJECTION)
    out = tmp_path / "corrected.jsonl"
    stored = next((tmp_path / "node" / "studies").rglob("corrections/*.json"))
    damaged = stored.with_name(f"{'f' * 32}.json")
    damaged.write_bytes(files.to_json({"film": "no correction"}))

    with pytest.raises(ValueError, match="no Correction; it lacks"):
        export(read.settings, out)
    assert not [path for path in tmp_path.iterdir() if "corrected" in path.name or files.TEMPORARY in path.name]
    damaged.unlink()

    assert export(read.settings, out) == 1
    assert len(list((tmp_path / "corrected.films").iterdir())) == 1


def test_without_a_database_a_correction_is_stored_and_says_so(read: Read) -> None:
    first, second = read.correct(), read.correct()

    assert first == second
    assert first[0] == 503
    assert first[1].startswith("the correction is stored, but the database does not answer")
    assert read.stored() == 1
