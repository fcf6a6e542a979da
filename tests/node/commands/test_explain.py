"""`explain`: of a file every rule with what it saw, of a UID the life of a study or an object; no value of a patient.

A UID is told of beside a running node and after its end; nothing is changed.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from node import config
from node.commands.explain.film import ADVICE, FilmExplanation, explain_file, render
from node.commands.explain.study import explain_uid, next_steps
from node.config import Settings, SiteSettings
from node.domain import Note, OutputObject, Reason, derive_uid
from node.read.routing import Action
from node.store.ledger_queries import StudyRow
from node.store.questions import SentAnswer
from node.store.rounds import RoundMark
from node.store.spool import Spool
from tests.paths import REPOSITORY
from tests.repository.test_no_patient_data import quoting
from tests.support import films, peers
from tests.support.damage import flip_a_pixel
from tests.support.finished import Finished
from tests.support.postgres import Postgres
from tests.support.service import Service, on_database, run_command, settings_for
from tests.support.traces import found_in, marked
from tests.support.workstation import coded

MODEL = REPOSITORY / "models" / "weights" / "phantom"


def of_file(folder: Path, film: Dataset, *, model: Path = MODEL) -> FilmExplanation:
    return explain_file(films.saved(folder, film), model=model)


def test_a_film_that_is_read_passes_every_rule(tmp_path: Path) -> None:
    explanation = of_file(tmp_path, films.rg1())

    assert [outcome.applies for outcome in explanation.rules] == [False] * 9
    assert (explanation.action, explanation.reason, explanation.notes) == (Action.READ, None, ())
    assert explanation.about.endswith(", 1841 x 1955 pixels, 15 of 16 bits, MONOCHROME1, Explicit VR Little Endian")
    assert explanation.decoding is not None
    assert list(explanation.decoding.analyzed or ()) == [0, 57, 1841, 1898]
    assert "decision: read" in render(explanation)


@pytest.mark.parametrize(
    ("film", "number", "keyword", "reason"),
    [
        (films.own_object(), 1, "ContributingEquipmentSequence", Reason.OWN_OBJECT),
        (films.non_image("SR"), 2, "SOPClassUID", Reason.MODALITY),
        (films.thumbnail({"Modality": "PX"}), 3, "Modality", Reason.MODALITY),
        (films.thumbnail({"PatientSpeciesDescription": "Canine"}), 4, "PatientSpeciesDescription", Reason.SPECIES),
        (films.thumbnail({"PresentationIntentType": "FOR PROCESSING"}), 5, "PresentationIntentType",
         Reason.FOR_PROCESSING),
        (films.thumbnail({"BodyPartExamined": "HIP"}), 6, "BodyPartExamined", Reason.NOT_CHEST),
        (films.thumbnail({"BodyPartExamined": "", "StudyDescription": "Hip, left"}), 6, "StudyDescription",
         Reason.NOT_CHEST),
        (films.lateral(), 7, "ViewPosition", Reason.LATERAL),
        (films.thumbnail({"ViewPosition": "", "SeriesDescription": "Thorax lat."}), 7, "SeriesDescription",
         Reason.LATERAL),
        (films.two_frames(), 8, "NumberOfFrames", Reason.MODALITY),
        (films.color(), 8, "SamplesPerPixel", Reason.COLOR),
        (films.one_pixel(), 8, "Columns", Reason.TOO_SMALL),
        (films.thumbnail({"PatientAge": "004M"}), 9, "PatientAge", Reason.AGE),
    ],
)  # fmt: skip
def test_the_rule_that_decides_is_named_with_its_attribute(
    tmp_path: Path, film: Dataset, number: int, keyword: str, reason: Reason
) -> None:
    explanation = of_file(tmp_path, film)

    assert [outcome.applies for outcome in explanation.rules] == [False] * (number - 1) + [True] + [None] * (9 - number)
    assert (explanation.rules[number - 1].decided_by, explanation.reason) == (keyword, reason)
    assert ("nothing" in explanation.advice) is (number == 2), "a film can be corrected and sent again"
    (line,) = [line for line in render(explanation).splitlines() if "YES" in line]
    assert line.startswith(f"  {number} ") and f"{keyword} is " in line


def test_pixels_decide_after_the_rules_and_without_a_model_no_square_is_known(tmp_path: Path) -> None:
    for film, reason in (
        (films.constant(), Reason.BLANK),
        (films.cut_short(), Reason.UNDECODABLE),
        (films.mislabeled_codestream(), Reason.UNDECODABLE),
    ):
        explanation = of_file(tmp_path, film)
        assert (explanation.rules[-1].applies, explanation.action, explanation.reason) == (False, Action.ANSWER, reason)
        assert "decoding: FAILS" in render(explanation)

    decoding = of_file(tmp_path, films.thumbnail(), model=tmp_path / "nowhere").decoding
    assert decoding is not None
    assert (decoding.reason, decoding.analyzed) == (None, None)
    assert "not known" in decoding.message


@pytest.mark.parametrize("keywords", ["", "ViewPosition PatientOrientation Modality SeriesInstanceUID Rows"])
def test_nothing_of_a_patient_is_shown(tmp_path: Path, keywords: str) -> None:
    film = quoting(marked(films.thumbnail()), keywords.split())
    film.SeriesDescription = f"{film.SeriesDescription} LATEROQzvxwkjp DECUBQzvxwkjp chest"
    film.ViewCodeSequence = [coded(*code, "x") for code in (("Qzvxwkjp", "SCT"), ("399348003", "Qzvxwkjp"))]
    path = films.saved(tmp_path, film)

    done = run_command("explain", path)

    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr + str(explain_file(path, model=MODEL))
    assert "SeriesDescription" in said and "text with CHEST, DECUB, LATERO" in said
    assert found_in(said.encode()) == []


def test_what_is_no_dicom_object_or_unknown_to_the_node_is_wrong_input(finished: Finished, tmp_path: Path) -> None:
    settings_path = written(tmp_path, finished.settings)
    text = settings_path.read_text(encoding="utf-8")
    nowhere = tmp_path / "nowhere.toml"
    nowhere.write_text(text.replace(str(finished.settings.storage.directory), str(tmp_path / "node")), encoding="utf-8")

    for words, said in {
        ("README.md",): "README.md: ",
        ("nothing.dcm",): "nothing.dcm",
        ("1.2.3.4", settings_path): "1.2.3.4: is no file, and no UID",
        ("../1.2", settings_path): "../1.2: is no file, and no UID",
        ("nothing.dcm", settings_path): "nothing.dcm: is no file, and no UID",
        (STUDY,): "explain UID node.toml",
        (STUDY, nowhere): "no node has run here",
    }.items():
        done = run_command("explain", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ") and said in line
    assert not (tmp_path / "node").exists()


def test_every_note_of_a_film_is_told_and_that_it_has_no_uid(tmp_path: Path) -> None:
    explanation = of_file(tmp_path, films.changed(films.thumbnail(), {"StudyInstanceUID": "Qzvxwkjp.1"}))

    said = render(replace(explanation, notes=tuple(Note)))

    told = [line.split(": ") for line in said.splitlines() if line.startswith("note ")]
    assert [begin for begin, *_ in told] == [f"note {note}" for note in Note]
    assert all("Note" not in words for _, *words in told), "the word stands at the beginning already"
    assert explanation.study is None
    assert "refuses to receive it" in said
    assert found_in(said.encode()) == []


FILM = films.thumbnail()
STUDY, UID = str(FILM.StudyInstanceUID), str(FILM.SOPInstanceUID)
LATERAL, REPORT = films.as_another(films.lateral(), "lateral"), films.non_image("SR")


def told(uid: str, settings_path: Path) -> str:
    done = run_command("explain", uid, settings_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def state_of(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and folder with size, mode and time, but for SQLite's shared memory, which is no content."""
    found = {str(path.relative_to(folder)): path.stat() for path in folder.rglob("*") if path.suffix != ".sqlite-shm"}
    return {name: (stat.st_size, stat.st_mode, stat.st_mtime_ns) for name, stat in found.items()}


def written(folder: Path, settings: Settings) -> Path:
    path = folder / "node.toml"
    path.write_text(config.render(settings), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A node that read one study, sent what it wrote, and was stopped in good order."""
    node = Finished(
        tmp_path_factory.mktemp("finished") / "node",
        change=lambda settings: replace(settings, site=SiteSettings(timezone="Europe/Berlin")),
    )
    node.read(FILM, LATERAL, REPORT)
    return node


def test_a_study_is_told_from_first_object_to_last_delivery_also_in_plain_lines(
    finished: Finished, tmp_path: Path
) -> None:
    folder = finished.settings.storage.directory
    before = state_of(folder)

    content = explain_uid(STUDY, finished.settings)

    assert content.row is not None
    assert (content.study, content.row.state, content.is_running) == (STUDY, "finished", False)
    received = {found.film: found for found in content.received}
    assert {uid: found.outcome for uid, found in received.items()} == {
        UID: "read",
        str(LATERAL.SOPInstanceUID): "lateral",
        str(REPORT.SOPInstanceUID): "left alone (modality)",
    }
    reading = received[UID].reading
    assert reading is not None
    assert (reading[1]["model"], reading[1]["engine"]) == ("scripted 1", "scripted")
    assert str(reading[1]["prompts"]).startswith("chexpert14 ")
    assert all(found.is_intact and found.round == 1 and found.version == 1 for found in received.values())
    (only,) = content.rounds
    assert sorted(output.kind for output in only.outputs) == ["gsps", "sr", "sr"]  # on the film, on the study
    assert content.lost == {}
    rows = [(row.delivery.destination, row.state, row.attempts) for row in content.deliveries]
    assert rows == [("archive", "sent", 1)] * 3
    steps = next_steps(content, finished.settings, Path("node.toml"))
    assert steps[0] == f"{LATERAL.SOPInstanceUID} (lateral): {ADVICE[Reason.LATERAL]}"
    assert state_of(folder) == before

    output = content.deliveries[0].delivery.sop_instance_uid
    of_film, of_output = (explain_uid(uid, finished.settings) for uid in (str(LATERAL.SOPInstanceUID), output))
    settings_path = written(tmp_path, finished.settings)

    lines = told(STUDY, settings_path).splitlines()

    assert lines[0].startswith(f"study {STUDY}: finished since ") and lines[0].endswith(("CET", "CEST"))
    assert any(UID in line and "read, decided at" in line and "by scripted 1 on scripted" in line for line in lines)
    assert any(line.startswith("  archive: sr ") and " sent, sent " in line for line in lines)
    assert [line for line in lines if line.startswith("do: nothing")] == []
    assert told(UID, settings_path).splitlines()[-1] == "do: nothing; the node is done with it"
    assert [found.outcome for found in of_film.received] == ["lateral"]
    assert of_output.received == ()
    assert [row.delivery.sop_instance_uid for row in of_output.deliveries] == [output]
    assert of_film.study == of_output.study == STUDY
    assert f"only what concerns {output}" in told(output, settings_path)


def test_what_went_wrong_is_told_with_what_to_do(
    tmp_path: Path, archive: peers.ReceivingArchive, settings: Settings
) -> None:
    other = films.thumbnail()
    refused, waiting = (films.as_another(films.thumbnail(), name, study=name) for name in ("a", "b"))
    other.PixelData = other.PixelData[::-1]
    with Service(settings) as node:
        for film in (FILM, other):
            assert peers.send(film, port=node.dicom_port) == 0
        node.wait_for("delivery.sent", count=2)
        archive.refuse(0xC000)
        assert explain_uid(STUDY, config.load(node.settings_path)).is_running
        assert peers.send(refused, port=node.dicom_port) == 0
        node.wait_for("delivery.parked", count=2)
        parked = told(str(refused.StudyInstanceUID), node.settings_path)
        with archive.down():
            assert peers.send(waiting, port=node.dicom_port) == 0
            node.wait_for("destination.down")
            delayed = told(str(waiting.StudyInstanceUID), node.settings_path)
            node.kill()
        (path,) = (tmp_path / "node").rglob(f"received/{UID}~*")
        flip_a_pixel(path)
        damaged = told(STUDY, node.settings_path)

    assert "DAMAGED on disk" in damaged and "CONFLICT" in damaged
    assert f"do: send film {UID} again from where it came" in damaged
    assert "do: find out which of the two films" in damaged
    assert parked.count("PARKED") == 2 and "refused the object with status C000" in parked
    assert f"python -m node retry {node.settings_path} {refused.StudyInstanceUID}" in parked.splitlines()[-1]
    assert "cannot be reached" in delayed
    assert f"python -m node doctor {node.settings_path}" in delayed.splitlines()[-1]


def test_a_study_is_found_by_the_whole_uid_of_an_object_alone(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for study, film in (("1.9.1", "1.2.3.1.5"), ("1.9.2", "1.2.3.1")):
        films.keep_bytes(spool, study_uid=study, sop_instance_uid=film, meta=films.META, body=b"film")
    (tmp_path / "studies" / "1.9.1" / "outputs").mkdir()
    (tmp_path / "studies" / "1.9.1" / "outputs" / f"2.25.7~{'0' * 64}.sr.dcm").touch()

    assert spool.find_studies("1.2.3.1") == ["1.9.2"]
    assert [spool.find_studies(uid) for uid in ("1.2.3.1.5", "2.25.7", "1.9.1")] == [["1.9.1"]] * 3
    assert [spool.find_studies(uid) for uid in ("1.2.3", "1.2", "2.25")] == [[], [], []]


def test_a_parked_film_stands_in_the_round_that_parked_it(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=104)
    spool = Spool(settings.storage.directory)
    file = films.keep(spool, FILM).instance.path.name
    report = OutputObject(
        kind="sr", study_uid=STUDY, sop_class_uid="1.2", sop_instance_uid="1.2.3", series_instance_uid="1.2.4"
    )
    mark = RoundMark(
        number=1, created_at=datetime.now(UTC), files=(), outputs=(report,), parked={file: str(Reason.INTERRUPTED)}
    )
    spool.mark_round(STUDY, mark)

    waiting = explain_uid(UID, settings)
    spool.uncover(STUDY)
    again = explain_uid(STUDY, settings)

    assert [(film.round, film.outcome) for film in waiting.received] == [(1, "interrupted")]
    assert [output.sop_instance_uid for round_ in waiting.rounds for output in round_.outputs] == ["1.2.3"]
    assert waiting.lost == {"1.2.3": "removed"}
    assert [(film.round, film.outcome) for film in again.received] == [(None, None)]


def test_what_was_not_answered_or_sent_can_be_asked_again(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=104)
    films.keep(Spool(settings.storage.directory), FILM)
    row = StudyRow(state="finished", stage=None, reason=None, changed_at=datetime.now(UTC))
    known = replace(explain_uid(STUDY, settings), row=row, is_running=True)
    (film,) = known.received
    unsent = SentAnswer(question="7", requested_at=datetime.now(UTC), reason="the film was replaced")
    refused = replace(film, asked="not answered: the words deny; name what to look for")

    explanations = (known, replace(known, answers=(unsent,)), replace(known, received=(refused,)))
    [(done,), (again,), (anew,)] = (next_steps(each, settings, tmp_path / "node.toml") for each in explanations)

    assert done == "nothing; the node is done with it"
    assert again.startswith("ask again and send the new answer: answer 7")
    assert "save it as a new object" in anew


@pytest.mark.drill(part="processes")
def test_a_study_is_told_even_while_postgresql_is_away(tmp_path: Path) -> None:
    with Postgres() as server, peers.ReceivingArchive() as archive:
        settings = on_database(settings_for(tmp_path / "node", archive_port=archive.port), server.url)
        with Service(settings) as node:
            assert peers.send(FILM, port=node.dicom_port) == 0
            node.wait_for("delivery.sent", count=2)
            node.wait_for("study.finished")
            content = explain_uid(STUDY, config.load(node.settings_path))
        server.stop()

        without = told(STUDY, node.settings_path)
        unknown = run_command("explain", derive_uid("unknown"), node.settings_path)

    assert [row.state for row in content.deliveries] == ["sent", "sent"]
    assert "read, decided at" in without
    assert "FAULT the database cannot be read" in without
    assert "do: mend the database" in without
    assert unknown.returncode == 2 and "no UID of a study or object that this node knows" in unknown.stderr
