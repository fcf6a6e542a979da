"""Alerts by webhook: each trouble once, its end once, across restarts, and never in the way of a film."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from node import config
from node.config import AlertsSettings, Settings, WebhookSettings
from node.errors import ConfigError, RetryLater
from node.health import alerts
from node.health.alerts import Alert, Alerts, AlertState, due, noted, post_alert, told
from node.health.checks import Trouble
from node.store import files
from tests.support import films, peers
from tests.support.certificates import Authority
from tests.support.service import Service, settings_for
from tests.support.web_archive import web_archive

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
DOWN = Trouble(
    kind="destination", name="archive", title="archive is down", message="archive takes no results: gone.", since=NOON
)
FULL = Trouble(kind="disk", title="the disk is full", message="full")
AWAY = Trouble(kind="database", title="the database does not answer", message="away")
FAILS = Trouble(kind="disk", title="the disk fails", message="check it")
DAMAGED = Trouble(kind="damaged", name="film", title="damaged film", message="check the disk")
PARKED = Trouble(kind="parked", title="2 parked", message="look")
ALERT = Alert(
    status="begun", kind="destination", name="archive", title="archive is down", message="archive takes no results.",
    since=NOON.isoformat(), at=NOON.isoformat(),
)  # fmt: skip


def alerts_of(
    course: Sequence[tuple[float, Sequence[Trouble]]], *, away: Sequence[float] = ()
) -> list[tuple[float, Alert]]:
    """The alerts, and when, of what is wrong at some seconds, with 60 s of patience; away: when nobody takes one."""
    state: AlertState = {}
    said = list[tuple[float, Alert]]()
    for seconds, found in course:
        now = NOON + timedelta(seconds=seconds)
        state = noted(state, found, now=now, after_seconds=60.0)
        for key, alert in () if seconds in away else tuple(due(state, now=now, after_seconds=60.0)):
            state = told(state, key, alert)
            said.append((seconds, alert))
    return said


@pytest.mark.parametrize(
    ("course", "expected"),
    [
        ([(0, [DOWN]), (59, [DOWN])], []),
        ([(0, [DOWN]), (60, [DOWN]), (500, [DOWN])], [(60, "begun archive is down")]),
        ([(0, [DOWN]), (30, []), (60, [DOWN]), (90, [DOWN])], []),
        (
            [(0, [DOWN]), (60, [DOWN]), (100, []), (159, []), (160, []), (500, [])],
            [(60, "begun archive is down"), (160, "ended archive is down")],
        ),
        ([(0, [DOWN]), (60, [DOWN]), (100, []), (130, [DOWN]), (400, [DOWN])], [(60, "begun archive is down")]),
        (
            [(0, [DOWN, FULL]), (60, [DOWN, FULL]), (70, [DOWN]), (130, [DOWN])],
            [(60, "begun archive is down"), (60, "begun the disk is full"), (130, "ended the disk is full")],
        ),
        (
            [(0, [DOWN, PARKED]), (60, [DOWN, PARKED]), (70, [AWAY]), (200, [AWAY]), (210, [DOWN, PARKED])],
            [(60, "begun archive is down"), (60, "begun 2 parked"), (200, "begun the database does not answer")],
        ),
        ([(0, [DOWN]), (60, [replace(DOWN, message="other words")]), (90, [DOWN])], [(60, "begun archive is down")]),
        (
            [(0, [DAMAGED]), (60, [DAMAGED]), (70, [FAILS]), (200, [FAILS]), (210, [DAMAGED])],
            [(60, "begun damaged film"), (200, "begun the disk fails")],
        ),
        ([(1000, [DOWN]), (0, [DOWN]), (60, [DOWN])], [(60, "begun archive is down")]),  # the clock was set back
        (
            [(900, [DOWN]), (960, [DOWN]), (1000, []), (100, []), (160, [])],
            [(960, "begun archive is down"), (160, "ended archive is down")],
        ),
    ],
)
def test_each_trouble_is_told_once_and_its_end_once(
    course: Sequence[tuple[float, Sequence[Trouble]]], expected: list[tuple[float, str]]
) -> None:
    assert [(seconds, f"{alert.status} {alert.title}") for seconds, alert in alerts_of(course)] == expected


@pytest.mark.parametrize(
    ("away", "expected"),
    [
        ((), [(60, "begun"), (3800, "ended")]),
        ((60,), [(3700, "begun"), (3800, "ended")]),
        ((60, 3700), [(3800, "ended")]),
        ((60, 3700, 3800), [(9000, "ended")]),
    ],
)
def test_the_end_of_a_trouble_says_how_long_it_lasted_and_how_many_waited_though_its_beginning_was_not_told(
    away: Sequence[float], expected: list[tuple[float, str]]
) -> None:
    worst, later = [replace(DOWN, waiting=3)], [replace(DOWN, waiting=1)]
    course = [(0, worst), (60, worst), (3700, later), (3725, ()), (3800, ()), (9000, ()), (9999, ())]

    said = alerts_of(course, away=away)

    assert [(seconds, alert.status) for seconds, alert in said] == expected
    assert said[-1][1].message == "It lasted 1 h 2 min; up to 3 results waited."


def test_a_webhook_that_refuses_is_asked_less_and_less() -> None:
    waits = [alerts.wait_seconds(attempts, longest=3600.0) for attempts in (0, 1, 2, 9, 10, 2000)]

    assert waits == [5.0, 10.0, 20.0, 2560.0, 3600.0, 3600.0]


Send = Callable[[Alert], None]


def run(directory: Path, look: Sequence[Trouble], send: Send, event: str, count: int = 1) -> list[tuple[str, int]]:
    """Run the thread until it has logged an event so often; each event, and the attempt that it was."""
    with capture_logs() as lines:
        running = Alerts(directory, lambda: look, send, after_seconds=0.05)
        peers.wait_until(lambda: sum(line["event"] == event for line in list(lines)) >= count, what=event)
        running.close()
    return [(line["event"], line["attempts"]) for line in lines if "attempts" in line]


def test_a_restart_repeats_nothing(tmp_path: Path) -> None:
    sent = list[str]()

    def send(alert: Alert) -> None:
        sent.append(f"{alert.status} {alert.title}")

    run(tmp_path, [DOWN], send, "alert.sent")

    for _ in range(3):
        running = Alerts(tmp_path, lambda: [DOWN], send, after_seconds=0.05)
        running.close()
    run(tmp_path, [], send, "alert.sent")

    assert sent == ["begun archive is down", "ended archive is down"]


def test_what_a_webhook_does_not_take_waits_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, looks, is_away = list[str](), Counter[str](), threading.Event()

    def look() -> Sequence[Trouble]:
        looks["all"] += 1
        return [DOWN, FULL]

    def send(alert: Alert) -> None:
        tried.append(alert.title)
        if is_away.is_set():
            raise RetryLater("away")

    is_away.set()
    running = Alerts(tmp_path, look, send, after_seconds=0.05)
    peers.wait_until(lambda: bool(tried), what="an attempt")
    before = looks["all"]
    peers.wait_until(lambda: looks["all"] > before + 3, what="looks before the next attempt")
    running.close()
    assert tried == ["archive is down"]

    is_away.clear()
    run(tmp_path, [DOWN, FULL], send, "alert.sent", count=2)

    assert tried == ["archive is down", "archive is down", "the disk is full"]


def test_an_alert_that_is_always_refused_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "_FIRST_WAIT_SECONDS", 0.01)

    def send(alert: Alert) -> None:
        if alert.title == "archive is down":
            raise RetryLater("400")

    tried = run(tmp_path, [DOWN, FULL], send, "alert.delayed", count=3)

    assert tried[:4] == [("alert.delayed", 1), ("alert.sent", 2), ("alert.delayed", 1), ("alert.delayed", 2)]
    assert [(entry.alert.title, entry.is_told) for entry in alerts.read(tmp_path).values()] == [
        ("archive is down", False),
        ("the disk is full", True),
    ]


def test_an_alert_is_sent_once_while_the_disk_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, looks = list[str](), Counter[str]()

    def look() -> Sequence[Trouble]:
        looks["all"] += 1
        return [FULL]

    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fail)
        running = Alerts(tmp_path, look, lambda alert: sent.append(alert.title), after_seconds=0.05)
        peers.wait_until(lambda: len(sent) > 0, what="the alert")
        before = looks["all"]
        peers.wait_until(lambda: looks["all"] > before + 2, what="two more looks")
        assert alerts.read(tmp_path) == {}
    peers.wait_until((tmp_path / alerts.FILE).is_file, what="the state on disk")
    running.close()

    assert sent == ["the disk is full"]
    assert alerts.read(tmp_path)


def test_of_several_processes_one_sends_the_alert_while_the_disk_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, looks = list[str](), Counter[str]()
    found = [FULL]

    def look() -> Sequence[Trouble]:
        looks["all"] += 1
        return found

    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    def told(number: int) -> None:
        before = looks["all"]
        peers.wait_until(lambda: len(sent) >= number and looks["all"] > before + 20, what="the alert, and more looks")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fail)
        several = [
            Alerts(tmp_path, look, lambda alert: sent.append(alert.status), after_seconds=0.05) for _ in range(3)
        ]
        told(1)
    peers.wait_until((tmp_path / alerts.FILE).is_file, what="the state on disk")
    told(1)
    found.clear()
    told(2)
    for running in several:
        running.close()

    assert sent == ["begun", "ended"]


def test_another_process_sends_the_alerts_of_one_that_ended_while_the_disk_was_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    run(tmp_path, [FULL], lambda _alert: None, "alert.sent")

    run(tmp_path, [FULL], lambda _alert: None, "alert.sent")


@pytest.mark.parametrize("failure", ["read-only", "no room for the lock", "directory gone", "state not readable"])
def test_the_alert_of_a_failing_disk_is_sent_though_the_lock_or_the_state_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    directory, sent, found, opened = tmp_path / "node", list[str](), [FULL], os.open

    def fail(path: Path | str, flags: int, mode: int = 0o777) -> int:
        if failure == "read-only" and flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, "read-only file system")
        if failure == "no room for the lock" and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "no space left on device")
        return opened(path, flags, mode)

    if failure != "directory gone":
        directory.mkdir()
    if failure == "state not readable":
        (directory / alerts.FILE).mkdir()
    with monkeypatch.context() as disk:
        disk.setattr(os, "open", fail)
        running = Alerts(directory, lambda: found, lambda alert: sent.append(alert.status), after_seconds=0.05)
        peers.wait_until(lambda: len(sent) > 0, what="the alert")
    if failure == "directory gone":
        directory.mkdir()
    if failure == "state not readable":
        (directory / alerts.FILE).rmdir()
    peers.wait_until((directory / alerts.FILE).is_file, what="the state on disk")
    found.clear()
    peers.wait_until(lambda: len(sent) > 1, what="the end")
    running.close()

    assert sent == ["begun", "ended"]


def test_a_state_in_memory_is_dropped_while_another_process_has_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, looks, found, failing, opened = list[str](), Counter[str](), [FULL], threading.Event(), os.open

    def look() -> Sequence[Trouble]:
        looks["all"] += 1
        return found

    def fail(path: Path | str, flags: int, mode: int = 0o777) -> int:
        if threading.current_thread().name == "alerts" and flags & os.O_CREAT:
            looks["opened"] += 1
            if failing.is_set():
                raise OSError(errno.EROFS, "read-only file system")
        return opened(path, flags, mode)

    failing.set()
    monkeypatch.setattr(os, "open", fail)
    running = Alerts(tmp_path, look, lambda alert: sent.append(alert.status), after_seconds=0.05)
    peers.wait_until(lambda: len(sent) > 0, what="the alert")
    with files.try_lock(tmp_path / "told-troubles.lock") as is_free:
        assert is_free
        failing.clear()
        before = looks["opened"]
        peers.wait_until(lambda: looks["opened"] > before + 2, what="attempts to take the lock")
        found.clear()
    before = looks["all"]
    peers.wait_until(lambda: looks["all"] > before + 5, what="looks after the lock was released")
    running.close()

    assert sent == ["begun"]


def test_a_process_that_is_closed_while_it_sends_keeps_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answer = threading.Event(), threading.Event()

    def send(_alert: Alert) -> None:
        begun.set()
        answer.wait(60.0)

    def is_free() -> bool:
        with files.try_lock(tmp_path / "told-troubles.lock") as free:
            return free

    running = Alerts(tmp_path, lambda: [FULL], send, after_seconds=0.05)
    assert begun.wait(60.0)
    with monkeypatch.context() as patience:
        patience.setattr(threading.Thread, "join", lambda _thread, timeout: None)
        running.close()

    assert not is_free()
    answer.set()
    peers.wait_until(is_free, what="the end of the turn")


def test_a_damaged_state_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / alerts.FILE).write_text('{"known": 7}', encoding="utf-8")

    assert alerts.read(tmp_path) == {}


def test_an_unforeseen_error_does_not_end_the_thread(tmp_path: Path) -> None:
    sent, calls = list[str](), list[int]()

    def look() -> Sequence[Trouble]:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("Zyx^Secret")
        return [FULL]

    with capture_logs() as lines:
        running = Alerts(tmp_path, look, lambda alert: sent.append(alert.title), after_seconds=0.05)
        peers.wait_until(lambda: len(sent) == 1, what="the alert after the error")
        running.close()

    assert "Secret" not in str(lines)


def posting(url: str, **changes: object) -> Send:
    settings = WebhookSettings(url=url, **changes)  # type: ignore[arg-type]  # fields of it
    return partial(post_alert, settings=settings, node="CHEX")


def test_a_webhook_gets_json_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{peers.LOOPBACK}:1")  # no proxy of the environment is used
    (tmp_path / "token").write_text("opensesame\n", encoding="utf-8")
    with web_archive() as house:
        posting(house.url, token_file=tmp_path / "token")(ALERT)

    assert [headers["Authorization"] for _, _, headers, _ in house.requests] == ["Bearer opensesame"]
    assert house.posts == [
        {
            "version": 1,
            "node": "CHEX",
            "status": "begun",
            "kind": "destination",
            "name": "archive",
            "title": "archive is down",
            "message": "archive takes no results.",
            "since": "2026-01-02T12:00:00+00:00",
            "at": "2026-01-02T12:00:00+00:00",
            "text": "ChEX Node CHEX: archive is down. archive takes no results.",
        }
    ]


def test_a_webhook_is_believed_by_the_authority_that_its_settings_name(authority: Authority) -> None:
    identity = authority.issue("webhook")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(identity.certificate, identity.key)
    with web_archive(tls=context) as house:
        address = house.url.replace("http:", "https:")
        with pytest.raises(RetryLater, match="does not answer"):
            posting(address)(ALERT)
        posting(address, ca=authority.certificate)(ALERT)

    assert len(house.posts) == 1


@pytest.mark.parametrize("status", [302, 307, 404, 500])
def test_a_webhook_that_does_not_take_it_is_asked_later(status: int) -> None:
    with web_archive() as other, web_archive() as house:
        house.status, house.headers = status, {"Location": other.url}
        with pytest.raises(RetryLater, match=f"the webhook answered with the status {status}"):
            posting(house.url)(ALERT)

    assert (len(house.posts), other.posts) == (1, [])


def test_a_webhook_that_is_away_is_asked_later() -> None:
    with pytest.raises(RetryLater, match="does not answer"):
        posting(f"http://127.0.0.1:{peers.free_port()}/")(ALERT)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({}, "alerts.webhook: is missing; add it"),
        ({"webhook": {"url": "http://example.org/x", "token_file": "t"}}, "a token is sent over TLS only"),
        ({"webhook": {"url": "ftp://example.org"}}, "must be https"),
    ],
)
def test_alerts_that_cannot_be_sent_safely_are_refused(table: dict[str, object], complaint: str) -> None:
    settings = {
        "storage": {"directory": "x"},
        "listener": {"callers": [{"ae_title": "A", "hosts": ["192.0.2.1"]}]},
        "alerts": table,
    }

    with pytest.raises(ConfigError, match=complaint):
        config.parse(settings)


def test_the_path_of_a_webhook_is_not_shown(tmp_path: Path) -> None:
    hook = WebhookSettings(url="https://chat.example.org/services/T0/SECRET")
    settings = replace(settings_for(tmp_path, archive_port=104), alerts=AlertsSettings(webhook=hook))

    assert 'url = "https://chat.example.org/***"' in config.render(settings)


def alarmed(settings: Settings, url: str) -> Settings:
    return replace(settings, alerts=AlertsSettings(after_seconds=0.2, webhook=WebhookSettings(url=url)))


@pytest.mark.drill(part="peers")
def test_a_webhook_that_hangs_holds_up_no_film_and_no_stop(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        (tmp_path / "node").mkdir(mode=0o700)
        (tmp_path / "node" / "ledger.sqlite.damaged-20260102T030405Z").touch()
        silent.settimeout(60.0)
        with Service(alarmed(settings, f"http://127.0.0.1:{silent.getsockname()[1]}/")) as node:
            connection, _ = silent.accept()
            with connection:
                node.read(films.thumbnail())
                archive.wait_for_kept(2)
                assert not node.logged("alert.sent")
                assert node.stop() == 0
