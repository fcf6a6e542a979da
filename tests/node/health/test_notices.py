"""Notices of critical findings: each once, also over restarts and refusals, and with nothing of a patient."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pytest

from models.documents import encode
from node import config
from node.config import NotifySettings
from node.domain import Finding
from node.errors import ConfigError, RetryLater
from node.health import notices
from node.health.notices import Notice
from node.jobs import gathering
from node.jobs.answered_film import is_still_critical
from node.store import files
from node.store.correction import Correction, CorrectionKind
from node.store.received import Instance
from node.store.spool import Spool
from tests.node.outputs.test_rejection import highdicom_note
from tests.support import films, samples
from tests.support.peers import wait_until
from tests.support.service import Service, settings_for
from tests.support.spoken import PROMPTS
from tests.support.web_archive import web_archive

STUDY = "1.2.826.0.1.77"
WARD, NIGHT = (NotifySettings(name=name, pages="https://a", url="https://b") for name in ("ward", "night"))
PNEUMOTHORAX = {"pneumothorax": "Pneumothorax"}


@pytest.mark.parametrize("end", ["stop", pytest.param("kill", marks=pytest.mark.drill(part="kills"))])
def test_a_notice_that_was_refused_and_outlived_a_restart_is_told_once(tmp_path: Path, end: str) -> None:
    film = films.thumbnail()
    (tmp_path / "critical").touch()  # the scripted reader finds a pneumothorax
    with web_archive() as told:
        told.status = 503
        notify = NotifySettings(name="ward", pages="https://chex.example/", url=told.url)
        settings = settings_for(tmp_path / "node", archive_port=104)
        settings = replace(settings, destinations=(), notify=(notify,))
        with Service(settings) as node:
            node.read(film)
            node.wait_for("notice.delayed")
            if end == "kill":
                node.kill()
            else:
                assert node.stop() == 0
        refused = len(told.posts)
        told.status = 200

        with Service(settings) as node:
            node.wait_for("notice.sent")
            node.read(films.as_another(films.thumbnail(), "later", study="later"))  # a study of its own
            wait_until(lambda: len(told.posts) >= refused + 2, what="its notice", limit_seconds=60)
            path = f"/notices/{told.posts[0]['id']}"
            shown = node.request("GET", path, accept="text/html")

        *_, first, second = told.posts
        assert {post["id"] for post in told.posts[:refused]} == {first["id"]} != {second["id"]}
        assert len(told.posts) == refused + 2
        assert (shown.status_code, shown.headers["location"]) == (303, f"/studies/{film.StudyInstanceUID}")
        said = json.dumps(told.posts)
        for keyword in ("StudyInstanceUID", "SOPInstanceUID", "PatientName", "PatientID", "AccessionNumber"):
            assert not film.get(keyword) or str(film[keyword].value) not in said
        link = f"https://chex.example/notices/{first['id']}"
        assert {name: value for name, value in first.items() if name != "at"} == {
            "version": 1,
            "node": "CHEX",
            "kind": "finding",
            "id": first["id"],
            "finding": "pneumothorax",
            "title": "Pneumothorax: present",
            "link": link,
            "text": f"ChEX Node CHEX: Pneumothorax: present. RESEARCH, NOT FOR DIAGNOSIS. {link}",
        }


def folders(directory: Path) -> list[str]:
    """Of each notice the folder that it is in."""
    return sorted(path.parent.name for path in directory.glob("notices/*/*.json"))


def test_a_step_that_is_repeated_makes_no_second_notice_and_notices_leave_with_their_study(tmp_path: Path) -> None:
    for _ in range(2):
        notices.take(tmp_path, (WARD, NIGHT), STUDY, PNEUMOTHORAX)
    waiting = sorted((tmp_path / "notices" / "waiting").glob("*.json"))
    assert [notices.study_of(tmp_path, path.stem) for path in waiting] == [STUDY, STUDY]

    waiting[0].rename(tmp_path / "notices" / "told" / waiting[0].name)  # as the sender does
    notices.take(tmp_path, (WARD, NIGHT), STUDY, PNEUMOTHORAX)

    assert folders(tmp_path) == ["told", "waiting"]
    assert notices.study_of(tmp_path, waiting[0].stem) == STUDY
    assert notices.study_of(tmp_path, "../key") is None
    notices.remove_gone(Spool(tmp_path))  # it has no such study
    assert folders(tmp_path) == []


@pytest.mark.parametrize(
    ("is_released", "told", "left"),
    [(True, [], []), (False, [], ["waiting"]), (None, ["pneumothorax"], ["told"])],
    ids=["rejected", "may be", "stands"],
)
def test_a_finding_that_was_rejected_meanwhile_is_not_told(
    is_released: bool | None, told: list[str], left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, clock, synced = Spool(tmp_path), Clock(), list[Path]()
    monkeypatch.setattr(files, "sync_folder", synced.append)
    film = read_and_noticed(spool)
    if is_released is not None:
        reject(spool, film, is_released=is_released)
    posts = list[str]()

    def stands(notice: Notice) -> bool | None:
        return is_still_critical(spool, notice.study, notice.finding, PROMPTS)

    with sending(spool, lambda notice, _webhook: posts.append(notice.finding), clock=clock, stands=stands):
        wait_until(lambda: clock.asked > 0, what="a look at the notice")

    assert (posts, folders(tmp_path)) == (told, left)
    assert (tmp_path / "notices" / "told" in synced) is (is_released is None), "also after a power cut"


def read_and_noticed(spool: Spool) -> Instance:
    """A film with a pneumothorax, of which the ward is to be told."""
    film = films.keep(spool, films.thumbnail()).instance
    keep_answer(spool, film, replace(samples.finding(samples.PNEUMOTHORAX), sentence=None))
    notices.take(spool.directory, (WARD,), film.study_uid, PNEUMOTHORAX)
    return film


def keep_answer(spool: Spool, film: Instance, *findings: Finding) -> None:
    answer = replace(samples.film(findings=findings), source=film.sop_instance_uid)
    spool.keep_reading(film.study_uid, film.sop_instance_uid, {**encode(answer), "file": film.path.name})


class Clock:
    """Says the time that a test sets, and counts who asks: each turn of the sender does, about what waits."""

    def __init__(self) -> None:
        self.now, self.asked = 0.0, 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now

    def turn_to(self, now: float) -> None:
        """Set the time, and wait for some turns at it."""
        self.now, begun = now, self.asked
        wait_until(lambda: self.asked > begun + 3, what="the sender looked what is due")


def sending(
    spool: Spool,
    send: Callable[[Notice, NotifySettings], None],
    *,
    clock: Clock,
    stands: Callable[[Notice], bool | None] = lambda _notice: True,
) -> AbstractContextManager[object]:
    """Send what waits for the ward, with a turn each hundredth of a second."""
    return closing(notices.Notices(spool, (WARD,), send, stands=stands, clock=clock, pause_seconds=0.01))


def test_an_unclear_finding_is_looked_at_less_and_less_until_its_study_changes(tmp_path: Path) -> None:
    spool, clock = Spool(tmp_path), Clock()
    film = read_and_noticed(spool)
    posts, looks, is_clear = list[str](), list[float](), threading.Event()

    def stands(_notice: Notice) -> bool | None:
        looks.append(clock.now)
        return True if is_clear.is_set() else None

    with sending(spool, lambda notice, _webhook: posts.append(notice.finding), clock=clock, stands=stands):
        for now in (0, 4.9, 5, 14.9, 15, 35, 75, 155, 315, 614.9, 615, 914.9):
            clock.turn_to(now)
        waited = list(looks)
        reject(spool, film, is_released=False)  # a folder and a file: perhaps two looks
        clock.turn_to(914.9)
        changed = list(looks)
        is_clear.set()
        clock.now = 919.9
        wait_until(lambda: bool(posts), what="the ward is told")

    assert waited == [0, 5, 15, 35, 75, 155, 315, 615]
    assert set(changed) - {*waited} == {914.9}
    assert (posts, looks) == (["pneumothorax"], [*changed, 919.9])
    assert folders(tmp_path) == ["told"]


def test_a_notice_whose_sending_cannot_be_noted_is_not_sent_each_second(tmp_path: Path) -> None:
    spool, clock, posts = Spool(tmp_path), Clock(), list[str]()
    notices.take(tmp_path, (WARD,), read_and_noticed(spool).study_uid, {"edema": "Edema"})
    told = tmp_path / "notices" / "told"

    def send(notice: Notice, _webhook: NotifySettings) -> None:
        if told.is_dir():
            told.rmdir()
            told.touch()  # as a disk that is not writable
        posts.append(notice.finding)

    with sending(spool, send, clock=clock):
        clock.turn_to(0)
        first = sorted(posts)
        clock.turn_to(5)

    assert first == ["edema", "pneumothorax"]
    assert sorted(posts) == ["edema", "edema", "pneumothorax", "pneumothorax"]
    assert folders(tmp_path) == ["waiting", "waiting"]


def test_a_finding_waits_for_the_answer_to_a_film_that_came_again_and_stands_while_no_file_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    lateral, film = (
        films.keep(spool, films.as_another(films.thumbnail(), name, study="pair")).instance
        for name in ("lateral", "frontal")
    )

    def stands() -> bool | None:
        return is_still_critical(spool, film.study_uid, "pneumothorax", PROMPTS)

    keep_answer(spool, lateral)
    keep_answer(spool, film, replace(samples.finding(samples.PNEUMOTHORAX), sentence=None))
    assert stands() is True
    again = films.as_another(films.thumbnail(), "frontal", study="pair")
    films.keep(spool, films.changed(again, {"PatientID": "P-9"}))
    assert stands() is None
    monkeypatch.setattr(spool, "readings", mock.Mock(side_effect=OSError(errno.EIO, "the disk fails")))
    assert stands() is True


def test_a_finding_on_a_film_that_the_archive_rejected_stands_no_more_even_if_it_comes_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    study = read_and_noticed(spool).study_uid
    films.keep(spool, highdicom_note(films.thumbnail()))
    assert is_still_critical(spool, study, "pneumothorax", PROMPTS) is False

    films.keep(spool, films.thumbnail({"PatientID": "P-9"}))

    assert is_still_critical(spool, study, "pneumothorax", PROMPTS) is False


def reject(spool: Spool, film: Instance, *, is_released: bool) -> None:
    made = Correction(
        id=f"{1:032x}",
        study_uid=film.study_uid,
        film=film.sop_instance_uid,
        kind=CorrectionKind.REJECT,
        at=datetime.now(UTC),
        by="anna",
        source="page",
        prompt="pneumothorax",
    )
    spool.keep_document(film.study_uid, "corrections", made.id, encode(made))
    if is_released:
        gathering.release(spool, film.study_uid, gathering.waiting(spool, film.study_uid))


@pytest.mark.parametrize("why", ["told", "gone"])
def test_a_notice_that_was_told_or_whose_study_is_gone_is_not_sent(why: str, tmp_path: Path) -> None:
    spool, clock, posts = Spool(tmp_path), Clock(), list[str]()
    study = STUDY if why == "gone" else films.keep(spool, films.thumbnail()).instance.study_uid
    notices.take(tmp_path, (WARD,), study, PNEUMOTHORAX)
    [waiting] = (tmp_path / "notices" / "waiting").iterdir()
    if why == "told":  # by another process, while this one stored it
        shutil.copy(waiting, tmp_path / "notices" / "told")

    with sending(spool, lambda notice, _webhook: posts.append(notice.id), clock=clock):
        wait_until(lambda: not waiting.exists(), what="the notice left")

    assert posts == []


def test_a_webhook_that_fails_gets_one_notice_a_look_and_each_in_its_turn(tmp_path: Path) -> None:
    spool, clock, tried = Spool(tmp_path), Clock(), list[tuple[int, str]]()
    notices.take(tmp_path, (WARD,), read_and_noticed(spool).study_uid, {"edema": "Edema"})

    def fail(notice: Notice, _webhook: NotifySettings) -> None:
        tried.append((clock.asked, notice.finding))
        raise RetryLater("busy")

    with sending(spool, fail, clock=clock):
        clock.turn_to(4.9)
        first = list(tried)
        clock.turn_to(10)

    assert [asked for asked, _ in first] == [1, 3], "the second look asks whether both are due, and sends the other"
    assert [finding for _, finding in tried] == [finding for _, finding in first] * 2
    assert {finding for _, finding in first} == {"edema", "pneumothorax"}


def test_another_node_gives_the_same_study_another_number(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        notices.take(tmp_path / name, (WARD,), STUDY, PNEUMOTHORAX)

    one, other = (path.stem for path in tmp_path.glob("*/notices/waiting/*.json"))

    assert not {one[at : at + 8] for at in range(0, 32, 8)} & {other[at : at + 8] for at in range(0, 32, 8)}
    assert (tmp_path / "one" / "notices" / "key").stat().st_mode & 0o077 == 0


def test_the_settings_refuse_a_token_in_the_clear_and_two_of_a_name() -> None:
    table = {"storage": {"directory": "x"}, "listener": {"callers": [{"ae_title": "A", "hosts": ["192.0.2.1"]}]}}
    ward = {"name": "ward", "pages": "https://chex.example", "url": "http://192.0.2.9/secret"}

    with pytest.raises(ConfigError, match="over TLS only"):
        config.parse({**table, "notify": [{**ward, "token_file": "token"}]})
    with pytest.raises(ConfigError, match=r"notify\.name"):
        config.parse({**table, "notify": [ward, ward]})
    assert "secret" not in config.render(config.parse({**table, "notify": [ward]}))
