"""What is told of a node's work: on its pages, by its commands, in its log, and by `doctor`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from node.check_result import run_check
from node.commands import operate
from node.commands.doctor import check_passwords
from node.config import Settings, render
from node.domain import Delivery, DeliveryState, OutputObject, StudyState
from node.errors import InputError
from node.service import app
from node.settings.http import HttpSettings
from node.store import files
from node.store.ledger import Ledger
from node.store.spool import Spool
from node.web import passwords
from tests.node.web import test_web_states
from tests.node.web.test_web_states import STUDY, client, in_ledger
from tests.paths import REPOSITORY
from tests.support import films

settings, spool = test_web_states.settings, test_web_states.spool
UID = "1.2.840.99.1"
SENT, PARKED, WAITING, ABANDONED = (
    DeliveryState.SENT,
    DeliveryState.PARKED,
    DeliveryState.WAITING,
    DeliveryState.ABANDONED,
)


def with_deliveries(
    *states: DeliveryState, study: str = STUDY, state: StudyState = "finished"
) -> Callable[[Ledger], None]:
    """Record a study and a delivery in each of these states."""

    def change(ledger: Ledger) -> None:
        ledger.set_study(study, state)
        for number, delivered in enumerate(states):
            delivery = Delivery(destination="archive", study_uid=study, sop_instance_uid=f"{study}.{number}", kind="sr")
            ledger.add_delivery(delivery)
            ledger.set_delivery(delivery, delivered, attempts=1, reason="no room there" if delivered != SENT else None)

    return change


@pytest.mark.parametrize(
    ("states", "state", "chip"),
    [
        ((SENT, SENT), "finished", "finished"),
        ((DeliveryState.COMMITTED,), "finished", "finished"),
        ((), "finished", "finished"),
        ((PARKED, PARKED), "finished", "not delivered"),
        ((WAITING,), "finished", "not delivered"),
        ((ABANDONED,), "finished", "not delivered"),
        ((SENT, PARKED), "finished", "partly delivered"),
        ((SENT, WAITING), "finished", "partly delivered"),
        ((PARKED,), "reading", "being read"),
        ((PARKED,), "parked", "parked"),
    ],
)
def test_a_study_is_finished_where_it_was_delivered(
    settings: Settings, spool: Spool, states: tuple[DeliveryState, ...], state: StudyState, chip: str
) -> None:
    in_ledger(settings, with_deliveries(*states, state=state))
    node = client(settings, spool)

    shown = {path: node.get(path).text for path in ("/", f"/studies/{STUDY}")}
    told = node.get(f"/api/v1/studies/{STUDY}").json()["line"]

    assert all(f'<span class="chip">{chip}</span>' in page for page in shown.values())
    assert all(('class="state finished"' in page) == (chip == "finished") for page in shown.values())
    taken = sum(delivery in (SENT, DeliveryState.COMMITTED) for delivery in states)
    expected = "nothing" if not states else "all" if taken == len(states) else "some" if taken else "none"
    assert (told["state"], told["delivered"]) == (state, expected)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("", {"1.1", "1.2", "1.3", "1.4"}),
        ("parked", {"1.2", "1.3", "1.4"}),
        ("not_delivered", {"1.2"}),
        ("finished", {"1.1", "1.2", "1.3"}),
        ("reading", set()),
    ],
)
def test_the_filter_shows_what_it_names(settings: Settings, spool: Spool, state: str, expected: set[str]) -> None:
    in_ledger(settings, with_deliveries(SENT, study="1.1"))
    in_ledger(settings, with_deliveries(PARKED, study="1.2"))
    in_ledger(settings, with_deliveries(SENT, PARKED, study="1.3"))
    in_ledger(settings, lambda ledger: ledger.set_study("1.4", "parked", stage="read", reason="damaged"))
    node = client(settings, spool)

    page = node.get("/", params={"state": state}).text
    answer = node.get("/api/v1/studies", params={"state": state}).json()

    assert {uid for uid in ("1.1", "1.2", "1.3", "1.4") if f'data-uid="{uid}"' in page} == expected
    assert ({line["uid"] for line in answer["studies"]}, answer["total"]) == (expected, len(expected))
    if state == "parked":
        assert "no room there" in page and "Retry" in page


def test_status_tells_what_was_not_delivered(settings: Settings, spool: Spool) -> None:
    in_ledger(settings, with_deliveries(PARKED, study="1.1"))
    in_ledger(settings, with_deliveries(SENT, study="1.2"))

    told = operate.status(settings)
    lines = operate.render(told, zone=settings.site.zone)

    assert (told["not_delivered"], told["studies"]) == (1, {"receiving": 0, "reading": 0, "finished": 2, "parked": 0})
    assert "studies finished: 2" in lines
    assert "finished, with nothing delivered: 1" in lines


@pytest.mark.parametrize("typed", ["Meier", "1.2.3a", "1.2%", "1,2", "<b>", "1" * 65, "MRN 77", "胸部"])
def test_what_the_filter_cannot_search_is_refused(settings: Settings, spool: Spool, typed: str) -> None:
    in_ledger(settings, with_deliveries(SENT))
    node = client(settings, spool)

    page = node.get("/", params={"q": typed})

    assert page.status_code == 200
    assert "Studies are found by digits of their UID alone" in page.text
    assert "data-uid" not in page.text
    assert "<b>&" not in page.text
    assert node.get("/api/v1/studies", params={"q": typed}).status_code == 422


@pytest.mark.parametrize("typed", ["1.2.3", " 1.2.3 ", "2", "1.2.", "."])
def test_digits_are_searched_as_they_are_typed(settings: Settings, spool: Spool, typed: str) -> None:
    in_ledger(settings, with_deliveries(SENT))
    in_ledger(settings, with_deliveries(SENT, study="9"))

    page = client(settings, spool).get("/", params={"q": typed}).text

    assert f'data-uid="{STUDY}"' in page
    assert 'data-uid="9"' not in page


def test_an_unknown_state_is_refused_in_words(settings: Settings, spool: Spool) -> None:
    in_ledger(settings, with_deliveries(SENT))

    page = client(settings, spool).get("/", params={"state": "lost"}).text

    assert "There is no such state" in page
    assert "data-uid" not in page


FILM = REPOSITORY / "node" / "commands" / "films" / "normal.dcm"
COMMANDS = {
    "help": ["node", "--help"],
    "status": ["node", "status", "SETTINGS"],
    "status as JSON": ["node", "status", "SETTINGS", "--json"],
    "explain": ["node", "explain", str(FILM)],
    "doctor": ["node", "doctor", "SETTINGS"],
    "check": ["node", "check", "SETTINGS"],
    "an error": ["node", "status", "nowhere.toml"],
    "phantoms": ["models.phantoms", "--help"],
}


@pytest.mark.drill(part="packaging")
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("unread", ["output", "both"])
def test_a_reader_that_goes_is_no_fault(
    settings: Settings, spool: Spool, tmp_path: Path, name: str, unread: str
) -> None:
    path = tmp_path / "node.toml"
    path.write_text(render(settings), encoding="utf-8")
    in_ledger(settings, with_deliveries(PARKED))
    command = [str(path) if word == "SETTINGS" else word for word in COMMANDS[name]]
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=REPOSITORY,
        stdout=writing,
        stderr=writing if unread == "both" else subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)

    by_argparse, is_told = name in ("help", "phantoms"), name == "an error" and unread == "output"
    assert done.returncode == (0 if by_argparse else 2 if is_told else 141), done.stderr
    assert (done.stderr or "").startswith("error: nowhere.toml" if is_told else "")
    assert is_told or not done.stderr


STRANGE = [
    "received/film.dcm",
    "received/1.2.3~0001~copy.dcm",
    "received/1.2.3~first~" + "a" * 64 + ".dcm",
    "received/a~b~c.dcm",
    "received/~~.dcm",
    "received/1.2.3~0001~" + "a" * 64 + ".dcm.bak",
    "received/.DS_Store",
    "received/notes\n\x1b[2J.txt",
    "received/folder/file.txt",
    "conflicts/x~y.dcm",
    "readings/Copy of reading.json",
    "outputs/1.2.3~backup.sr.dcm",
    "rounds/latest.json",
    "rounds/000001 (copy).json",
    "corrections/notes.txt",
    "corrections/0 (1).json",
    "questions/0 copy.json",
    "questions/~lock",
]


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_file_is_nothing_of_a_study_and_stays(spool: Spool, name: str) -> None:
    films.keep(spool, films.thumbnail(), study_uid=STUDY)
    output = OutputObject(
        kind="sr", study_uid=STUDY, sop_class_uid="1.2", sop_instance_uid="1.2.3", series_instance_uid="1.2.4"
    )
    path = spool.directory / "studies" / STUDY / name
    files.make_folder(path.parent)
    strange = files.to_json({"status": "read"})
    path.write_bytes(strange)

    spool.keep_output(output, b"report")
    again = Spool(spool.directory)
    again.sweep()

    assert again.output(output) == b"report"
    assert len(again.study(STUDY).instances) == len(again.versions(STUDY)) == 1
    assert [*again.conflicts(STUDY), *again.rounds(STUDY), *again.readings(STUDY)] == []
    assert (again.corrections(STUDY), again.documents(STUDY, "questions")) == ([], [])
    assert path.read_bytes() == strange


def test_a_strange_folder_among_the_studies_is_no_study(spool: Spool) -> None:
    folder = spool.directory / "studies"
    (folder / "backup of monday").mkdir()
    (folder / "backup of monday" / "film.dcm").write_bytes(b"film")
    (folder / "readme.txt").write_bytes(b"read me")
    (folder / "1.2.9").write_bytes(b"no folder")

    found = {study: (spool.study(study).instances, spool.has_unread(study)) for study in spool.studies()}

    assert found == {"1.2.9": ((), False)}


def test_a_mark_that_is_none_leaves_its_films_unread(spool: Spool) -> None:
    films.keep(spool, films.thumbnail(), study_uid=STUDY)
    rounds = spool.directory / "studies" / STUDY / "rounds"
    files.make_folder(rounds)
    (rounds / "000001.json").write_text('{"number": "first"}', encoding="utf-8")

    assert spool.rounds(STUDY) == []
    assert spool.has_unread(STUDY)


@pytest.mark.parametrize("is_old", [False, True], ids=["a new folder", "an old folder"])
def test_a_folder_gets_the_number_of_its_format(settings: Settings, is_old: bool) -> None:
    folder = settings.storage.directory
    folder.mkdir()
    if is_old:
        films.keep(Spool(folder), films.thumbnail(), study_uid=STUDY)

    for _ in range(2):
        spool = Spool(settings.storage.directory)

        assert (folder / "format").read_bytes() == b"3\n"
        assert list(spool.studies()) == ([STUDY] if is_old else [])


def test_a_folder_with_studies_and_no_number_is_refused(settings: Settings) -> None:
    folder = settings.storage.directory
    folder.mkdir()
    films.keep(Spool(folder), films.thumbnail(), study_uid=STUDY)
    (folder / "format").unlink()
    before = sorted(folder.rglob("*"))

    with pytest.raises(InputError, match=r"has studies and no file 'format'.*restore the backup"):
        Spool(settings.storage.directory)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("content", ["1\n", "4\n", "17", "", "one", "1.1", "\x00", "1 2"])
def test_an_unknown_format_is_refused_with_the_way_out(settings: Settings, tmp_path: Path, content: str) -> None:
    folder = settings.storage.directory
    folder.mkdir()
    (folder / "format").write_text(content, encoding="utf-8")
    before = sorted(folder.rglob("*"))

    with pytest.raises(InputError, match="go back to the version that wrote it, or restore the backup") as refused:
        Spool(folder)
    assert str(folder) in str(refused.value) and "docs/operate/upgrade.md" in str(refused.value)
    with ExitStack() as parts, pytest.raises(InputError, match="format"):
        parts.enter_context(app.run(settings, stop=Event()))
    assert {path.name for path in folder.rglob("*")} - {path.name for path in before} <= {"lock"}


def test_doctor_says_nothing_without_a_password_file(settings: Settings) -> None:
    assert run_check("passwords", lambda: check_passwords(settings)) == ()


@pytest.mark.parametrize(
    ("prepare", "state", "words"),
    [
        (lambda path: None, "ok", "has 1 user"),
        (lambda path: path.unlink(), "fault", "no such file"),
        (lambda path: path.write_text("", encoding="utf-8"), "fault", "has no user"),
        (lambda path: path.write_text("\n\n", encoding="utf-8"), "fault", "has no user"),
        (lambda path: path.write_text("anna:plain\n", encoding="utf-8"), "fault", "line 1 is not USER:HASH"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "fault", "is no text"),
        (lambda path: path.chmod(0o644), "note", "others may read"),
        (lambda path: path.chmod(0o640), "note", "others may read"),
        (lambda path: path.chmod(0o666), "fault", "others may change"),
        (lambda path: (path.unlink(), path.mkdir()), "fault", "is a directory"),
    ],
)
def test_doctor_looks_at_the_password_file(
    settings: Settings, tmp_path: Path, prepare: Callable[[Path], object], state: str, words: str
) -> None:
    path = tmp_path / "users"
    passwords.set_password(path, "anna", "correct horse battery")
    prepare(path)

    found = run_check("passwords", lambda: check_passwords(replace(settings, http=HttpSettings(password_file=path))))

    assert found[0].state == state
    assert words in found[0].message and str(path) in found[0].message
    assert "$argon2" not in json.dumps([check.message for check in found])
