"""Corrections: each makes a round with a new report, and what is gone, damaged or unknown has a plain reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from pydicom.dataset import Dataset
from starlette.testclient import TestClient

from models.contract import Box
from models.documents import encode
from node.commands.corrections import export
from node.config import Settings
from node.dicom import header_reading
from node.domain import Delivery
from node.jobs import answered_film, gathering
from node.metrics import Metrics
from node.outputs import wording
from node.read import prompts
from node.store import files
from node.store.correction import Correction, CorrectionKind
from node.store.received import Instance
from node.store.rounds import RoundMark
from node.store.spool import Spool
from node.web import application
from node.web.dependencies import WebParts
from node.web.look_files import Looks
from tests.node.jobs.test_rounds import STUDY, Bench, film, predecessor
from tests.node.test_metrics import samples as metric_samples
from tests.support import films, samples, validators
from tests.support.service import settings_for
from tests.support.web_access import as_user

KEY = "atelectasis"  # present on every film of the scripted reader
START = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
FILM = film("first")


def correct(
    bench: Bench,
    number: int,
    kind: CorrectionKind,
    *,
    prompt: str = "",
    box: Box | None = None,
    text: str = "",
    withdraws: str = "",
    by: str = "anna",
    is_released: bool = True,
) -> str:
    """Store a correction; is_released: whether it may leave."""
    made = Correction(
        id=f"{number:032x}",
        study_uid=str(STUDY),
        film=str(FILM.SOPInstanceUID),
        kind=kind,
        at=START + timedelta(seconds=number),
        by=by,
        source="page",
        prompt=prompt,
        box=box,
        text=text,
        withdraws=withdraws,
    )
    bench.spool.keep_document(made.study_uid, "corrections", made.id, encode(made))
    if is_released:
        gathering.release(bench.spool, made.study_uid, gathering.waiting(bench.spool, made.study_uid))
    return made.id


def rounds(tmp_path: Path) -> tuple[Bench, list[Delivery]]:
    bench = Bench(tmp_path)
    bench.receive(FILM)
    return bench, bench.round()


def report_of(bench: Bench, deliveries: list[Delivery]) -> Dataset:
    (report,) = bench.objects(deliveries, "sr")
    return report


def persons(report: Dataset) -> list[str]:
    return [str(item.value) for item in report.iterall() if item.keyword == "PersonName"]


def texts(report: Dataset) -> list[str]:
    return [str(item.value) for item in report.iterall() if item.keyword == "TextValue"]


def observations(report: Dataset) -> list[tuple[str, list[str]]]:
    """When each item was observed that says so (PS3.3 C.17.3), with the persons below it."""
    return [
        (str(item.ObservationDateTime), persons(item)) for item in all_items(report) if "ObservationDateTime" in item
    ]


def all_items(item: Dataset) -> Iterator[Dataset]:
    yield item
    for child in item.get("ContentSequence", ()):
        yield from all_items(child)


def meanings(report: Dataset) -> set[str]:
    return {str(item.value) for item in report.iterall() if item.keyword == "CodeMeaning"}


def test_a_correction_makes_a_new_version_of_report_and_overlay(tmp_path: Path) -> None:
    bench, first = rounds(tmp_path)
    correct(bench, 1, CorrectionKind.REJECT, prompt=KEY)
    assert bench.spool.has_unread(str(STUDY))

    second = bench.round()
    old, new = report_of(bench, first), report_of(bench, second)

    assert bench.reader.count == 1  # the film is not read again
    assert sorted(delivery.kind for delivery in second) == ["gsps", "sr"]
    assert predecessor(new) == old.SOPInstanceUID
    assert "Rejected by a reader" in meanings(new) - meanings(old)
    assert persons(new) == ["anna^"]
    assert (new.VerificationFlag, new.CompletionFlag) == ("UNVERIFIED", "COMPLETE")
    assert validators.dciodvfy(new) == []
    assert not bench.spool.has_unread(str(STUDY))


def test_every_form_says_who_corrected_an_item_and_when(tmp_path: Path) -> None:
    bench = Bench(tmp_path, outputs=("sr", "sr3d", "text"), zone="Europe/Berlin")
    bench.receive(FILM)
    first = bench.round()
    correct(bench, 1, CorrectionKind.ACCEPT, prompt=KEY)
    correct(bench, 2, CorrectionKind.REWORD, prompt=KEY, text="A small band.", by="bert")
    correct(bench, 3, CorrectionKind.REJECT, prompt="edema", by="")
    second = bench.round()

    before = [report for kind in ("sr", "sr3d", "text") for report in bench.objects(first, kind)]
    measured, forms, text = (bench.objects(second, kind)[0] for kind in ("sr", "sr3d", "text"))

    anna, bert, nobody = "20261123080001-0400", "20261123080002-0400", "20261123080003-0400"
    in_groups = 2 * [(anna, ["bert^", "anna^"]), (bert, ["bert^"])]  # the finding has two boxes
    assert [observations(report) for report in before] == [[]] * len(before)
    assert observations(measured) == observations(forms) == [*in_groups, (nobody, ["Reader^"])]
    assert observations(text) == [(anna, ["anna^"]), (bert, ["bert^"]), (nobody, ["Reader^"])]
    assert texts(measured).count("A small band. (written by a reader)") == 2
    assert "Atelectasis: A small band. (written by a reader)" in texts(text)
    assert "Rejected by a reader" in meanings(measured)
    for report in (measured, forms, text):
        assert validators.dciodvfy(report) + validators.dsrdump(report) == []


def test_a_correction_taken_back_restores_what_the_report_said(tmp_path: Path) -> None:
    bench, first = rounds(tmp_path)
    rejection = correct(bench, 1, CorrectionKind.REJECT, prompt=KEY)
    second = bench.round()
    correct(bench, 2, CorrectionKind.WITHDRAW, withdraws=rejection)

    third = bench.round()
    reports = [report_of(bench, deliveries) for deliveries in (first, second, third)]

    assert len({report.SOPInstanceUID for report in reports}) == 3
    assert predecessor(reports[2]) == reports[1].SOPInstanceUID
    assert texts(reports[2]) != texts(reports[0])
    restored = [words.replace("\r\n".join(["", *wording.version(3)]), "") for words in texts(reports[2])]
    assert restored == texts(reports[0])


PRESENT = samples.several().findings[0].prompt
PROMPTS = prompts.load("chexpert14")
REJECTION: dict[str, object] = {"kind": "reject", "prompt": PRESENT, "id": "a" * 32}


@dataclass(frozen=True, kw_only=True)
class Read:
    """The application on the spool of a film that was read; no database is there."""

    client: TestClient
    settings: Settings
    spool: Spool
    metrics: Metrics
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
    looks, metrics = Looks(tmp_path / "looks"), Metrics()
    looks.close()
    built = application.build(
        WebParts(in_force=lambda: settings, spool=spool, metrics=metrics, prompts=lambda: PROMPTS, looks=looks)
    )
    client = TestClient(as_user(built), raise_server_exceptions=False)
    yield Read(client=client, settings=settings, spool=spool, metrics=metrics, film=film)


def remove(read: Read) -> None:
    """Remove the study as retention does."""
    mark = RoundMark(number=1, created_at=datetime.now(UTC), files=(read.film.path.name,), outputs=())
    read.spool.mark_round(read.film.study_uid, mark)
    assert read.spool.remove_study(read.film.study_uid)


@pytest.mark.parametrize(
    ("place", "step", "is_after"),
    [(header_reading, "read_header", False), (answered_film, "answer_in", False), (answered_film, "read_film", True)],
)
def test_a_study_that_is_removed_meanwhile_is_not_corrected(
    read: Read, monkeypatch: pytest.MonkeyPatch, place: ModuleType, step: str, is_after: bool
) -> None:
    known = getattr(place, step)

    def removed_meanwhile(*arguments: object, **named: object) -> object:
        if is_after:
            found = known(*arguments, **named)
            remove(read)
            return found
        remove(read)
        return known(*arguments, **named)

    monkeypatch.setattr(place, step, removed_meanwhile)

    status, detail = read.correct()

    assert (status, "removed" in detail, read.stored()) == (409, True, 0)


def lose_reading(read: Read) -> None:
    (reading,) = (read.film.path.parent.parent / "readings").glob("*.json")
    reading.write_bytes(files.to_json({"file": read.film.path.name}))


@pytest.mark.parametrize(
    ("lose", "status", "said"),
    [
        (remove, 404, "this node has no such film"),
        (lambda read: read.film.path.unlink(), 404, "this node has no such film"),
        (lambda read: read.film.path.write_bytes(b"lost"), 409, "send it again"),
        (lose_reading, 409, "have its study read again"),
    ],
    ids=["removed", "lost", "damaged", "damaged reading"],
)
def test_a_film_that_is_gone_or_damaged_is_not_corrected(
    read: Read, lose: Callable[[Read], object], status: int, said: str
) -> None:
    lose(read)

    answered, detail = read.correct()

    assert (answered, said in detail, read.stored()) == (status, True, 0)


def test_a_corrected_film_that_is_damaged_later_is_shown(read: Read) -> None:
    read.correct()
    read.film.path.write_bytes(b"lost")

    answer = read.client.get(f"/api/v1/studies/{read.film.study_uid}")

    assert answer.status_code == 200
    findings = {finding["prompt"]: finding for finding in answer.json()["films"][0]["film"]["findings"]}
    assert findings[PRESENT]["reader"]["what"] == "rejected"


def test_a_film_of_another_prompt_set_is_corrected_and_exported(read: Read, tmp_path: Path) -> None:
    known = {prompt.key for prompt in PROMPTS.prompts}
    (unknown,) = [finding for finding in samples.several().findings if finding.prompt not in known]

    read.client.post(read.path, json={"kind": "reject", "prompt": unknown.prompt})
    film = read.client.get(f"/api/v1/studies/{read.film.study_uid}").json()["films"][0]["film"]
    read.client.post(read.path, json={"kind": "accept", "prompt": unknown.prompt})

    assert {finding["prompt"]: finding["state"] for finding in film["findings"]}[unknown.prompt] == "absent"
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
    finish = f"/api/v1/studies/{read.film.study_uid}/finish"
    assert read.client.post(finish).json() == {"corrections": 0, "changes": 0}, "nothing is queued"

    first, second = read.correct(), read.correct()

    assert first == second
    assert first[0] == 503
    assert first[1].startswith("the correction is stored, but the database does not answer")
    assert read.stored() == 1
    read.client.post(read.path, json={"kind": "withdraw", "withdraws": REJECTION["id"]})
    counted = metric_samples(read.metrics.registry, "cxr_corrections_total")
    assert {labels: count for labels, count in counted.items() if count} == {
        ("reject", PRESENT): 1.0, ("withdraw", PRESENT): 1.0
    }  # fmt: skip
