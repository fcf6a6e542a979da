"""`explain`: of a file every rule with what it saw, of a UID the life of a study or an object; no value of a patient.

A UID is told of beside a running node and after its end; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.datadict import dictionary_VR
from pydicom.dataset import Dataset
from pydicom.uid import DigitalXRayImageStorageForPresentation

from node import config
from node.commands.explain.film import ADVICE, FilmExplanation, explain_file, render
from node.commands.explain.study import StudyExplanation, explain_uid, next_steps
from node.config import Settings, SiteSettings
from node.dicom.film_header import parse_header
from node.domain import Note, OutputObject, Reason, derive_uid
from node.read import routing
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

ADULTS = range(18, 200)
LOOKED_AT = {keyword for rule in routing.rules_for(ADULTS) for keyword in rule.looks_at}
MODEL = REPOSITORY / "models" / "weights" / "phantom"


def of_file(folder: Path, film: Dataset, *, model: Path = MODEL) -> FilmExplanation:
    path = films.saved(folder, film)
    return explain_file(path, model=model)


def deciding(explanation: FilmExplanation) -> tuple[int, str | None] | None:
    """Number and attribute of the rule that decided."""
    found = [(outcome.rule, outcome.decided_by) for outcome in explanation.rules if outcome.applies]
    assert len(found) <= 1
    return found[0] if found else None


def test_a_film_that_is_read_passes_every_rule(tmp_path: Path) -> None:
    explanation = of_file(tmp_path, films.rg1())

    assert [outcome.applies for outcome in explanation.rules] == [False] * len(routing.rules_for(ADULTS))
    assert (explanation.action, explanation.reason, explanation.notes) == (Action.READ, None, ())
    *_, size, bits, photometric, syntax = explanation.about.split(", ")
    assert (size, bits, photometric) == ("1841 x 1955 pixels", "15 of 16 bits", "MONOCHROME1")
    assert syntax == "Explicit VR Little Endian"
    assert explanation.decoding is not None
    assert list(explanation.decoding.analyzed or ()) == [0, 57, 1841, 1898]
    assert "decision: read" in render(explanation)


@pytest.mark.parametrize(
    ("make", "expected", "reason"),
    [
        (films.own_object, (1, "ContributingEquipmentSequence"), Reason.OWN_OBJECT),
        (lambda: films.non_image("SR"), (2, "SOPClassUID"), Reason.MODALITY),
        (lambda: films.thumbnail({"Modality": "PX"}), (3, "Modality"), Reason.MODALITY),
        (
            lambda: films.thumbnail({"PatientSpeciesDescription": "Canine"}),
            (4, "PatientSpeciesDescription"),
            Reason.SPECIES,
        ),
        (
            lambda: films.thumbnail({"PresentationIntentType": "FOR PROCESSING"}),
            (5, "PresentationIntentType"),
            Reason.FOR_PROCESSING,
        ),
        (lambda: films.thumbnail({"BodyPartExamined": "HIP"}), (6, "BodyPartExamined"), Reason.NOT_CHEST),
        (
            lambda: films.thumbnail({"BodyPartExamined": "", "StudyDescription": "Hip, left"}),
            (6, "StudyDescription"),
            Reason.NOT_CHEST,
        ),
        (films.lateral, (7, "ViewPosition"), Reason.LATERAL),
        (
            lambda: films.thumbnail({"ViewPosition": "", "SeriesDescription": "Thorax lat."}),
            (7, "SeriesDescription"),
            Reason.LATERAL,
        ),
        (films.two_frames, (8, "NumberOfFrames"), Reason.MODALITY),
        (films.color, (8, "SamplesPerPixel"), Reason.COLOR),
        (lambda: films.thumbnail({"PatientAge": "004M"}), (9, "PatientAge"), Reason.AGE),
        (films.one_pixel, (8, "Columns"), Reason.TOO_SMALL),
    ],
)
def test_the_rule_that_decides_is_named_with_its_attribute(
    tmp_path: Path, make: Callable[[], Dataset], expected: tuple[int, str], reason: Reason
) -> None:
    explanation = of_file(tmp_path, make())

    assert deciding(explanation) == expected
    assert explanation.reason is reason
    assert [outcome.applies for outcome in explanation.rules[expected[0] :]] == [None] * (9 - expected[0])
    is_image = expected[0] != 2
    assert ("nothing" not in explanation.advice) is is_image, "a film can be corrected and sent again"
    (line,) = [line for line in render(explanation).splitlines() if "YES" in line]
    assert line.startswith(f"  {expected[0]} ") and f"{expected[1]} is " in line


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (films.constant, Reason.BLANK),
        (films.cut_short, Reason.UNDECODABLE),
        (films.mislabeled_codestream, Reason.UNDECODABLE),
    ],
)
def test_pixels_that_cannot_be_read_decide_after_the_rules(
    tmp_path: Path, make: Callable[[], Dataset], reason: Reason
) -> None:
    explanation = of_file(tmp_path, make())

    assert deciding(explanation) is None
    assert (explanation.action, explanation.reason) == (Action.ANSWER, reason)
    assert "decoding: FAILS" in render(explanation)


def test_without_a_model_the_film_is_decoded_without_a_square(tmp_path: Path) -> None:
    explanation = of_file(tmp_path, films.thumbnail(), model=tmp_path / "nowhere")

    assert explanation.decoding is not None
    assert (explanation.decoding.reason, explanation.decoding.analyzed) == (None, None)
    assert "not known" in explanation.decoding.message


@given(
    st.dictionaries(
        st.sampled_from(sorted(keyword for keyword in LOOKED_AT if dictionary_VR(keyword) in ("CS", "LO", "UI"))),
        st.text(max_size=20),
        max_size=5,
    )
)
def test_the_last_rule_applied_is_the_decision(texts: dict[str, str]) -> None:
    film = Dataset()
    film.SOPClassUID, film.Modality, film.Rows, film.Columns = DigitalXRayImageStorageForPresentation, "DX", 512, 512
    film.PixelData = b""
    header = parse_header(films.changed(film, texts))

    *_, (rule, objection) = routing.apply_rules(header, routing.rules_for(ADULTS))

    decision = routing.choose(header, routing.rules_for(ADULTS))
    if objection is None:
        assert decision.action is Action.READ
    else:
        assert (decision.action, decision.reason) == (rule.action, objection.reason)
        assert objection.keyword in rule.looks_at


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


@pytest.mark.parametrize("name", ["README.md", "nothing.dcm"])
def test_what_is_no_dicom_object_is_wrong_input(name: str) -> None:
    done = run_command("explain", name)

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and name in line


def test_every_note_of_a_film_is_told(tmp_path: Path) -> None:
    explanation = of_file(tmp_path, films.thumbnail())

    said = render(replace(explanation, notes=tuple(Note))).splitlines()

    told = [line.split(": ") for line in said if line.startswith("note ")]
    assert [begin for begin, *_ in told] == [f"note {note}" for note in Note]
    assert all("Note" not in words for _, *words in told), "the word stands at the beginning already"


def test_a_film_whose_uids_are_none_is_explained_without_them(tmp_path: Path) -> None:
    film = films.changed(films.thumbnail(), {"StudyInstanceUID": "Qzvxwkjp.1"})

    explanation = of_file(tmp_path, film)

    assert explanation.study is None
    assert "refuses to receive it" in render(explanation)
    assert found_in(render(explanation).encode()) == []


FILM = films.thumbnail()
STUDY, UID = str(FILM.StudyInstanceUID), str(FILM.SOPInstanceUID)
LATERAL, REPORT = films.as_another(films.lateral(), "lateral"), films.non_image("SR")

FINISHED = StudyRow(state="finished", stage=None, reason=None, changed_at=datetime.now(UTC))


def in_berlin(settings: Settings) -> Settings:
    return replace(settings, site=SiteSettings(timezone="Europe/Berlin"))


def explained(uid: str, settings_path: Path) -> StudyExplanation:
    return explain_uid(uid, config.load(settings_path))


def told(uid: str, settings_path: Path) -> str:
    done = run_command("explain", uid, settings_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def state_of(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and folder with size, mode and time, but for SQLite's shared memory, which is no content."""
    found = {str(path.relative_to(folder)): path.stat() for path in folder.rglob("*") if path.suffix != ".sqlite-shm"}
    return {name: (stat.st_size, stat.st_mode, stat.st_mtime_ns) for name, stat in found.items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folder and settings of a node that read one study, sent what it wrote, and was stopped in good order."""
    folder = tmp_path_factory.mktemp("finished") / "node"
    node = Finished(folder, change=in_berlin)
    node.read(FILM, LATERAL, REPORT)
    path = folder.with_name("node.toml")
    path.write_text(config.render(node.settings), encoding="utf-8")
    return folder, path


def test_a_study_is_told_from_first_object_to_last_delivery(finished: tuple[Path, Path]) -> None:
    folder, settings_path = finished
    before = state_of(folder)

    content = explained(STUDY, settings_path)

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
    assert [(row.delivery.destination, row.state, row.attempts) for row in content.deliveries] == [
        ("archive", "sent", 1)
    ] * 3
    steps = next_steps(content, config.load(settings_path), settings_path)
    assert steps[0] == f"{LATERAL.SOPInstanceUID} (lateral): {ADVICE[Reason.LATERAL]}"
    assert state_of(folder) == before


def test_a_film_and_an_output_are_told_without_the_others(finished: tuple[Path, Path]) -> None:
    _, settings_path = finished
    output = explained(STUDY, settings_path).deliveries[0].delivery.sop_instance_uid

    of_film, of_output = explained(str(LATERAL.SOPInstanceUID), settings_path), explained(output, settings_path)

    assert [found.outcome for found in of_film.received] == ["lateral"]
    assert of_output.received == ()
    assert [row.delivery.sop_instance_uid for row in of_output.deliveries] == [output]
    assert of_film.study == of_output.study == STUDY
    assert f"only what concerns {output}" in told(output, settings_path)


def test_plain_lines_say_the_same_in_the_sites_time(finished: tuple[Path, Path]) -> None:
    _, settings_path = finished

    lines = told(STUDY, settings_path).splitlines()

    assert lines[0].startswith(f"study {STUDY}: finished since ") and lines[0].endswith(("CET", "CEST"))
    assert any(UID in line and "read, decided at" in line and "by scripted 1 on scripted" in line for line in lines)
    assert any(line.startswith("  archive: sr ") and " sent, sent " in line for line in lines)
    assert [line for line in lines if line.startswith("do: nothing")] == []
    assert told(UID, settings_path).splitlines()[-1] == "do: nothing; the node is done with it"


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
        assert explained(STUDY, node.settings_path).is_running
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
    known = replace(explain_uid(STUDY, settings), row=FINISHED)
    (film,) = known.received

    def steps(explanation: StudyExplanation) -> list[str]:
        return next_steps(replace(explanation, is_running=True), settings, tmp_path / "node.toml")

    unsent = SentAnswer(question="7", requested_at=datetime.now(UTC), reason="the film was replaced")
    refused = replace(film, asked="not answered: the words deny; name what to look for")

    assert steps(known) == ["nothing; the node is done with it"]
    (step,) = steps(replace(known, answers=(unsent,)))
    assert step.startswith("ask again and send the new answer: answer 7")
    (step,) = steps(replace(known, received=(refused,)))
    assert "save it as a new object" in step


@pytest.mark.drill(part="processes")
def test_a_study_is_told_even_while_postgresql_is_away(tmp_path: Path) -> None:
    with Postgres() as server, peers.ReceivingArchive() as archive:
        settings = on_database(settings_for(tmp_path / "node", archive_port=archive.port), server.url)
        with Service(settings) as node:
            assert peers.send(FILM, port=node.dicom_port) == 0
            node.wait_for("delivery.sent", count=2)
            node.wait_for("study.finished")
            content = explained(STUDY, node.settings_path)
        server.stop()

        without = told(STUDY, node.settings_path)
        unknown = run_command("explain", derive_uid("unknown"), node.settings_path)

    assert [row.state for row in content.deliveries] == ["sent", "sent"]
    assert "read, decided at" in without
    assert "FAULT the database cannot be read" in without
    assert "do: mend the database" in without
    assert unknown.returncode == 2 and "no UID of a study or object that this node knows" in unknown.stderr


@pytest.mark.parametrize("what", ["1.2.3.4", "../1.2", "nothing.dcm"])
def test_what_the_node_does_not_know_is_wrong_input(finished: tuple[Path, Path], what: str) -> None:
    _, settings_path = finished

    done = run_command("explain", what, settings_path)

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {what}: is no file, and no UID")


def test_a_uid_needs_settings_and_the_folder_of_a_node(finished: tuple[Path, Path], tmp_path: Path) -> None:
    _, settings_path = finished
    nowhere = tmp_path / "node.toml"
    text = settings_path.read_text(encoding="utf-8")
    nowhere.write_text(text.replace(str(settings_path.parent), str(tmp_path)), encoding="utf-8")

    alone, never_run = run_command("explain", STUDY), run_command("explain", STUDY, nowhere)

    assert (alone.returncode, never_run.returncode) == (2, 2)
    assert "explain UID node.toml" in alone.stderr
    assert "no node has run here" in never_run.stderr
    assert not (tmp_path / "node").exists()
