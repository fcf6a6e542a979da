"""Corrections: they wait for their reader to finish and leave together, whatever happens meanwhile, as a new report.

What is gone, damaged or unknown has a plain reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydicom.dataset import Dataset

from models.documents import encode
from node.commands.corrections import export
from node.commands.operate import render, status
from node.config import Settings
from node.dicom import header_reading
from node.domain import Delivery, Film
from node.jobs import answered_film, gathering
from node.outputs import wording
from node.read import prompts
from node.rounds.round_plan import known_to
from node.store import files
from node.store.correction import Correction, CorrectionKind
from node.store.received import Instance
from node.store.rounds import RoundMark
from node.store.study_facts import load
from tests.node.jobs.test_question_answerer import remove
from tests.node.jobs.test_rounds import STUDY, Bench, film, predecessor
from tests.node.outputs.test_rejection import highdicom_note
from tests.node.test_metrics import samples as metric_samples
from tests.support import films, samples, validators
from tests.support.damage import cut
from tests.support.finished import Finished
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, read_and_stop

KEY = "atelectasis"  # present on every film of the scripted reader
START = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
FILM = film("first")


def correct(bench: Bench, number: int, kind: CorrectionKind, *, is_released: bool = True, **said: object) -> str:
    """Store a correction; is_released: whether it may leave."""
    facts: dict[str, Any] = {"by": "anna", "source": "page", **said}
    made = Correction(
        id=f"{number:032x}",
        study_uid=STUDY,
        film=str(FILM.SOPInstanceUID),
        kind=kind,
        at=START + timedelta(seconds=number),
        **facts,
    )
    bench.spool.keep_document(STUDY, "corrections", made.id, encode(made))
    if is_released:
        release(bench)
    return made.id


def release(bench: Bench) -> gathering.Waiting:
    found = gathering.waiting(bench.spool, STUDY)
    gathering.release(bench.spool, STUDY, found)
    return found


def rounds(tmp_path: Path) -> tuple[Bench, list[Delivery]]:
    bench = Bench(tmp_path)
    bench.receive(FILM)
    return bench, bench.round()


def report_of(bench: Bench, deliveries: list[Delivery]) -> Dataset:
    (report,) = bench.objects(deliveries, "sr")
    return report


def values(report: Dataset, keyword: str) -> list[str]:
    return [str(item.value) for item in report.iterall() if item.keyword == keyword]


def observations(item: Dataset) -> Iterator[tuple[str, list[str]]]:
    """When each item was observed that says so (PS3.3 C.17.3), with the persons below it."""
    if "ObservationDateTime" in item:
        yield str(item.ObservationDateTime), values(item, "PersonName")
    for child in item.get("ContentSequence", ()):
        yield from observations(child)


def meanings(report: Dataset) -> set[str]:
    return set(values(report, "CodeMeaning"))


def test_a_correction_makes_a_new_version_of_report_and_overlay_and_taken_back_restores_it(tmp_path: Path) -> None:
    bench, first = rounds(tmp_path)
    rejection = correct(bench, 1, CorrectionKind.REJECT, prompt=KEY)
    assert bench.spool.has_unread(STUDY)

    second = bench.round()
    assert not bench.spool.has_unread(STUDY)
    correct(bench, 2, CorrectionKind.WITHDRAW, withdraws=rejection)
    third = bench.round()
    old, new, last = (report_of(bench, deliveries) for deliveries in (first, second, third))

    assert bench.reader.count == 1  # the film is not read again
    assert sorted(delivery.kind for delivery in second) == ["gsps", "sr"]
    assert [predecessor(new), predecessor(last)] == [old.SOPInstanceUID, new.SOPInstanceUID]
    assert "Rejected by a reader" in meanings(new) - meanings(old)
    assert values(new, "PersonName") == ["anna^"]
    assert (new.VerificationFlag, new.CompletionFlag) == ("UNVERIFIED", "COMPLETE")
    assert validators.dciodvfy(new) == []
    said = [values(report, "TextValue") for report in (old, last)]
    assert said[1] != said[0]
    assert [words.replace("\r\n".join(["", *wording.version(3)]), "") for words in said[1]] == said[0]


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
    assert [[*observations(report)] for report in before] == [[]] * len(before)
    assert [*observations(measured)] == [*observations(forms)] == [*in_groups, (nobody, ["Reader^"])]
    assert [*observations(text)] == [(anna, ["anna^"]), (bert, ["bert^"]), (nobody, ["Reader^"])]
    assert values(measured, "TextValue").count("A small band. (written by a reader)") == 2
    assert "Atelectasis: A small band. (written by a reader)" in values(text, "TextValue")
    assert "Rejected by a reader" in meanings(measured)
    for report in (measured, forms, text):
        assert validators.dciodvfy(report) + validators.dsrdump(report) == []


PRESENT = samples.several().findings[0].prompt
PROMPTS = prompts.load("chexpert14")
REJECTION: dict[str, object] = {"kind": "reject", "prompt": PRESENT, "id": "a" * 32}


class Read(Finished):
    """A film that was read; nobody has made the database of the work that is queued."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, prompts=lambda: PROMPTS)
        self.film = films.keep(self.spool, films.thumbnail()).instance
        self.path = f"/api/v1/films/{self.film.sop_instance_uid}/corrections"
        self.pages = self.client()
        self.answer(self.film, samples.several())

    def answer(self, film: Instance, answer: Film) -> None:
        """Store what a film was answered."""
        answer = replace(answer, source=film.sop_instance_uid)
        self.spool.keep_reading(film.study_uid, "1", {**encode(answer), "file": film.path.name})

    def reject(self) -> tuple[int, str]:
        answer = self.pages.post(self.path, json=REJECTION)
        assert answer.headers["content-type"] == "application/problem+json"
        return answer.status_code, answer.json()["detail"]

    def stored(self) -> int:
        return len(self.spool.documents(self.film.study_uid, "corrections"))

    def exported(self, out: Path, *, films: int) -> list[Any]:
        """Export so many corrected films; what it says of each."""
        assert export(self.settings, out) == films
        return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    return Read(tmp_path / "node")


@pytest.mark.parametrize(
    ("place", "step", "is_after"),
    [(header_reading, "read_header", False), (answered_film, "answer_in", False), (answered_film, "read_film", True)],
)
def test_a_study_that_is_removed_meanwhile_is_not_corrected(
    read: Read, monkeypatch: pytest.MonkeyPatch, place: ModuleType, step: str, is_after: bool
) -> None:
    known = getattr(place, step)

    def removed_meanwhile(*arguments: object, **named: object) -> object:
        found = known(*arguments, **named) if is_after else None
        remove(read.spool, read.film)
        return found if is_after else known(*arguments, **named)

    monkeypatch.setattr(place, step, removed_meanwhile)

    status, detail = read.reject()

    assert (status, "removed" in detail, read.stored()) == (409, True, 0)


def lose_reading(read: Read) -> None:
    (reading,) = (read.film.path.parent.parent / "readings").glob("*.json")
    reading.write_bytes(files.to_json({"file": read.film.path.name}))


@pytest.mark.parametrize(
    ("lose", "status", "said"),
    [
        (lambda read: remove(read.spool, read.film), 404, "this node has no such film"),
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

    answered, detail = read.reject()

    assert (answered, said in detail, read.stored()) == (status, True, 0)


def test_a_film_of_another_prompt_set_is_corrected_and_exported(read: Read, tmp_path: Path) -> None:
    known = {prompt.key for prompt in PROMPTS.prompts}
    (unknown,) = [finding for finding in samples.several().findings if finding.prompt not in known]

    read.pages.post(read.path, json={"kind": "reject", "prompt": unknown.prompt})
    film = read.pages.get(f"/api/v1/studies/{read.film.study_uid}").json()["films"][0]["film"]
    read.pages.post(read.path, json={"kind": "accept", "prompt": unknown.prompt})

    assert {finding["prompt"]: finding["state"] for finding in film["findings"]}[unknown.prompt] == "absent"
    [exported] = read.exported(tmp_path / "corrected.jsonl", films=1)
    (said,) = exported["truth"]["said"]
    assert said["findings"] == [unknown.prompt]
    assert unknown.code.meaning.lower() in said["text"].lower()


def test_an_accepted_finding_without_a_box_is_exported_as_there_but_nowhere(read: Read, tmp_path: Path) -> None:
    several = samples.several()
    nowhere, drawn = (replace(finding, boxes=()) for finding in several.findings[:2])
    read.answer(read.film, replace(several, findings=(nowhere, drawn, *several.findings[2:])))
    read.pages.post(read.path, json={"kind": "accept", "prompt": nowhere.prompt})
    read.pages.post(read.path, json={"kind": "add", "prompt": drawn.prompt, "box": [100, 100, 500, 500]})

    [exported] = read.exported(tmp_path / "corrected.jsonl", films=1)

    truth = exported["truth"]
    assert truth["present"] == {nowhere.prompt: True, drawn.prompt: True}
    assert (list(truth["boxes"]), truth["located"]) == ([drawn.prompt], [drawn.prompt])


@pytest.mark.parametrize(("number", "are_one"), [("UNKNOWN", False), ("", False), ("P-1", True)])
def test_films_of_one_patient_stay_together_in_an_export(
    read: Read, tmp_path: Path, number: str, are_one: bool
) -> None:
    for study in ("1.2.1", "1.2.2"):
        kept = films.keep(read.spool, films.thumbnail({"StudyInstanceUID": study, "PatientID": number})).instance
        read.answer(kept, samples.several())
        read.pages.post(f"/api/v1/studies/{study}/films/{kept.sop_instance_uid}/corrections", json=REJECTION)

    patients = {line["patient"] for line in read.exported(tmp_path / "corrected.jsonl", films=2)}

    assert len(patients) == (1 if are_one else 2)


def test_an_export_that_fails_leaves_nothing_and_can_be_repeated(read: Read, tmp_path: Path) -> None:
    read.pages.post(read.path, json=REJECTION)
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


def test_without_a_database_a_correction_is_stored_and_says_so_and_is_shown_though_its_film_is_damaged(
    read: Read,
) -> None:
    finish = f"/api/v1/studies/{read.film.study_uid}/finish"
    assert read.pages.post(finish).json() == {"corrections": 0, "changes": 0}, "nothing is queued"

    first, second = read.reject(), read.reject()

    assert first == second
    assert first[0] == 503
    assert first[1].startswith("the correction is stored, but the database does not answer")
    assert read.stored() == 1
    film = read.film.path.read_bytes()
    read.film.path.write_bytes(b"lost")
    seen = read.pages.get(f"/api/v1/studies/{read.film.study_uid}").json()["films"][0]["film"]["findings"]
    assert {finding["prompt"]: finding.get("reader") for finding in seen}[PRESENT]["what"] == "rejected"

    read.film.path.write_bytes(film)
    read.pages.post(read.path, json={"kind": "withdraw", "withdraws": REJECTION["id"]})
    counted = metric_samples(read.bench.metrics.registry, "cxr_corrections_total")
    assert {labels: count for labels, count in counted.items() if count} == {
        ("reject", PRESENT): 1.0, ("withdraw", PRESENT): 1.0
    }  # fmt: skip


def rejected(bench: Bench, number: int = 1) -> str:
    """Store a correction that waits."""
    return correct(bench, number, CorrectionKind.REJECT, prompt=KEY, is_released=False)


def kinds(deliveries: list[Delivery]) -> list[str]:
    return sorted(delivery.kind for delivery in deliveries)


def test_a_correction_that_waits_makes_no_round_goes_with_no_other_film_and_stays(tmp_path: Path) -> None:
    bench, first = rounds(tmp_path)
    made = rejected(bench)

    assert bench.steps.plan(STUDY) is None
    assert bench.spool.has_unread(STUDY), "retention would remove it"
    assert not bench.spool.remove_study(STUDY)
    found = gathering.waiting(bench.spool, STUDY)
    assert ([item.id for item in found.corrections], found.changes) == ([made], 1)
    assert found.leave_at(60.0) == START.replace(minute=1, second=1)
    queued = list[tuple[str, str, float]]()
    for known in ((), (made,), ("f" * 32,)):
        gathering.wait_again(bench.spool, STUDY, lambda *said: queued.append(said), quiet_seconds=9.0, queued=known)
    assert [(correction, seconds <= 9.0) for _, correction, seconds in queued] == [(made, True)] * 2

    bench.receive(film("late"))
    assert all("Rejected by a reader" not in meanings(each) for each in bench.objects(bench.round(), "sr"))
    assert bench.steps.plan(STUDY) is None
    release(bench)
    corrected = [each for each in bench.objects(bench.round(), "sr") if "Rejected by a reader" in meanings(each)]
    assert [predecessor(report) for report in corrected] == [report_of(bench, first).SOPInstanceUID]


def test_corrections_make_one_version_and_what_is_taken_back_in_time_none(tmp_path: Path) -> None:
    bench, first = rounds(tmp_path)
    correct(bench, 2, CorrectionKind.WITHDRAW, withdraws=rejected(bench), is_released=False)
    assert release(bench).changes == 0
    assert bench.round() == []
    assert not bench.spool.has_unread(STUDY)

    made = rejected(bench, 3)
    correct(bench, 4, CorrectionKind.WITHDRAW, withdraws=made, is_released=False)
    accepted = correct(bench, 8, CorrectionKind.ACCEPT, prompt=KEY, is_released=False)

    assert release(bench).changes == 1
    second = bench.round()

    assert kinds(second) == ["gsps", "sr"]
    assert predecessor(report_of(bench, second)) == report_of(bench, first).SOPInstanceUID
    assert "Rejected by a reader" not in meanings(report_of(bench, second))
    assert bench.steps.plan(STUDY) is None

    correct(bench, 9, CorrectionKind.WITHDRAW, withdraws=accepted, is_released=False)
    assert release(bench).changes == 1, "the report says it"


def test_a_correction_during_a_round_waits_for_the_next(tmp_path: Path) -> None:
    bench, _ = rounds(tmp_path)
    rejected(bench)
    release(bench)
    plan = bench.steps.plan(STUDY)
    assert plan is not None
    outcomes = [str(bench.steps.read(STUDY, file)) for file in plan.files]
    late = correct(bench, 2, CorrectionKind.ACCEPT, prompt="edema", is_released=False)
    written = bench.steps.write(plan)
    assert written is not None

    assert bench.steps.finish(plan, outcomes, written) is False
    assert late not in plan.corrections
    release(bench)
    following = bench.steps.plan(STUDY)
    assert following is not None and late in following.corrections


def test_the_last_correction_alone_releases_them_all_and_one_in_an_unknown_form_parks_its_study(tmp_path: Path) -> None:
    bench, _ = rounds(tmp_path)
    first, last = rejected(bench), correct(bench, 2, CorrectionKind.ACCEPT, prompt="edema", is_released=False)

    assert not bench.steps.gather(STUDY, first)
    assert gathering.waiting(bench.spool, STUDY).changes == 2
    assert bench.steps.gather(STUDY, last)
    assert bench.steps.gather(STUDY, last), "as after a crash in the step"
    assert not gathering.waiting(bench.spool, STUDY).corrections
    assert kinds(bench.round()) == ["gsps", "sr"]
    assert not bench.steps.gather(STUDY, last)

    queued = list[tuple[str, str, float]]()
    bench.spool.keep_document(STUDY, "corrections", "f" * 32, {"film": "no correction"})
    gathering.wait_again(bench.spool, STUDY, lambda *said: queued.append(said), quiet_seconds=60.0)
    assert queued == [(STUDY, "", 0.0)]
    assert not bench.steps.gather(STUDY, "")
    assert [(work.study, work.stage) for work in bench.ledger.parked()] == [(STUDY, "gather")]


def test_corrections_of_a_lost_release_wait_again_unless_they_have_left_or_are_damaged(tmp_path: Path) -> None:
    bench, _ = rounds(tmp_path)
    made, study = rejected(bench), tmp_path / "studies" / STUDY
    release(bench)
    (path,) = (study / "released").iterdir()
    path.write_bytes(b"damaged")

    assert [item.id for item in gathering.waiting(bench.spool, STUDY).corrections] == [made]
    release(bench)
    assert kinds(bench.round()) == ["gsps", "sr"]

    for path in (study / "released").iterdir():
        path.unlink()
    assert not gathering.waiting(bench.spool, STUDY).corrections
    assert not bench.spool.has_unread(STUDY)

    damaged = correct(bench, 2, CorrectionKind.ACCEPT, prompt="edema")
    cut(study / "corrections" / f"{damaged}.json")
    assert bench.steps.plan(STUDY) is None


def click(service: Service, said: dict[str, object]) -> str:
    """Correct the film; the id of the correction."""
    status, answer = service.ask("POST", f"/api/v1/films/{FILM.SOPInstanceUID}/corrections", said)
    assert status == 202
    return str(answer["id"])


@pytest.mark.drill(part="kills")
def test_finish_sends_the_report_at_once(settings: Settings, archive: ReceivingArchive) -> None:
    finish = f"/api/v1/studies/{STUDY}/finish"
    read_and_stop(settings, FILM)
    settings = replace(settings, corrections=replace(settings.corrections, quiet_seconds=600.0))
    with Service(settings) as service:
        rejection = click(service, {"kind": "reject", "prompt": KEY})
        click(service, {"kind": "add", "prompt": "cardiomegaly", "box": [2.0, 3.0, 20.0, 30.0]})
        waiting = render(status(settings), zone=ZoneInfo("UTC"))
        assert service.ask("POST", finish) == (202, {"corrections": 2, "changes": 2})
        archive.wait_for_kept(4)
        service.wait_for("study.finished")
        assert service.ask("POST", finish) == (202, {"corrections": 0, "changes": 0})
        click(service, {"kind": "withdraw", "withdraws": rejection, "finish": True})
        archive.wait_for_kept(6)
        service.wait_for("study.finished", count=2)
        assert status(settings)["corrections"] == {}
        assert service.stop() == 0

    assert f"of {STUDY}: 2, of which 2 would change the report" in waiting
    assert Counter(kept.dataset.Modality for kept in archive.kept) == {"SR": 3, "PR": 3}
    reports = [kept.dataset for kept in archive.kept if kept.dataset.Modality == "SR"]
    assert [predecessor(report) for report in reports[1:]] == [report.SOPInstanceUID for report in reports[:-1]]


COMES: dict[str, Callable[[Bench], object]] = {
    "a film": lambda bench: bench.receive(film("late")),
    "a rejection note": lambda bench: bench.receive(highdicom_note(FILM)),
    "a correction": lambda bench: correct(bench, 1, CorrectionKind.REJECT, prompt=KEY),
}


@pytest.mark.parametrize("comes", COMES.values(), ids=COMES)
def test_what_comes_after_the_plan_has_a_round_of_its_own(tmp_path: Path, comes: Callable[[Bench], object]) -> None:
    bench, calm = Bench(tmp_path / "busy"), Bench(tmp_path / "calm")
    for each in (bench, calm):
        each.receive(FILM)
    plan = bench.steps.plan(STUDY)
    assert plan is not None
    outcomes = [str(bench.steps.read(STUDY, file)) for file in plan.files]
    comes(bench)

    written = bench.steps.write(plan)

    assert written is not None
    assert [output.kind for output in written.mark.outputs] == [delivery.kind for delivery in calm.round()]
    assert bench.steps.finish(plan, outcomes, written)


def test_a_round_knows_only_what_was_planned_for_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.receive(FILM)
    plan = bench.steps.plan(STUDY)
    assert plan is not None
    before = known_to(plan, load(bench.spool, STUDY))
    for comes in COMES.values():
        comes(bench)
    bench.spool.mark_round(STUDY, RoundMark(number=plan.number, created_at=plan.created_at, files=(), outputs=()))

    after = known_to(plan, load(bench.spool, STUDY))

    assert (after.rounds, after.notes, after.corrections) == (before.rounds, before.notes, before.corrections)
    assert len(after.instances) == len(before.instances) + 2
