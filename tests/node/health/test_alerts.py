"""Alerts by webhook: each trouble once, its end once, across restarts, and never in the way of a film."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from unittest import mock

import pytest
from structlog.testing import capture_logs

from node import config
from node.config import AlertsSettings, Settings, WebhookSettings
from node.errors import ConfigError, RetryLater
from node.health import alerts
from node.health.alerts import Alert, Alerts, AlertState, due, noted, post_alert, told
from node.health.checks import Trouble
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


class Watched:
    """What is wrong with a node, how often it was looked for, and the alerts that were sent."""

    def __init__(self, *found: Trouble) -> None:
        self.found, self.looks, self.sent = [*found], 0, list[str]()

    def look(self) -> Sequence[Trouble]:
        self.looks += 1
        return tuple(self.found)

    def send(self, alert: Alert) -> None:
        self.sent.append(f"{alert.status} {alert.title}")

    def start(self, directory: Path) -> Alerts:
        return Alerts(directory, self.look, self.send, after_seconds=0.05)

    def wait_for_sent(self, count: int) -> None:
        peers.wait_until(lambda: len(self.sent) >= count, what=f"{count} alerts")

    def wait_for_looks(self, count: int) -> None:
        before = self.looks
        peers.wait_until(lambda: self.looks > before + count, what="looks")


Send = Callable[[Alert], None]


def run(directory: Path, look: Sequence[Trouble], send: Send, event: str, count: int = 1) -> list[tuple[str, int]]:
    """Run the thread until it has logged an event so often; each event, and the attempt that it was."""
    with capture_logs() as lines:
        running = Alerts(directory, lambda: look, send, after_seconds=0.05)
        peers.wait_until(lambda: sum(line["event"] == event for line in list(lines)) >= count, what=event)
        running.close()
    return [(line["event"], line["attempts"]) for line in lines if "attempts" in line]


def test_a_restart_repeats_nothing(tmp_path: Path) -> None:
    watched = Watched()
    run(tmp_path, [DOWN], watched.send, "alert.sent")
    for _ in range(3):
        Alerts(tmp_path, lambda: [DOWN], watched.send, after_seconds=0.05).close()

    run(tmp_path, [], watched.send, "alert.sent")

    assert watched.sent == ["begun archive is down", "ended archive is down"]


def test_what_a_webhook_does_not_take_waits_in_its_order(tmp_path: Path) -> None:
    watched, tried = Watched(DOWN, FULL), list[str]()

    def refuse(alert: Alert) -> None:
        tried.append(alert.title)
        raise RetryLater("away")

    running = Alerts(tmp_path, watched.look, refuse, after_seconds=0.05)
    peers.wait_until(lambda: bool(tried), what="an attempt")
    watched.wait_for_looks(3)
    running.close()
    run(tmp_path, [DOWN, FULL], watched.send, "alert.sent", count=2)

    assert tried == ["archive is down"]
    assert watched.sent == ["begun archive is down", "begun the disk is full"]


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


def test_of_several_processes_one_sends_the_alert_while_the_disk_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(FULL)
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", mock.Mock(side_effect=OSError(errno.ENOSPC, "no space left on device")))
        several = [watched.start(tmp_path) for _ in range(3)]
        watched.wait_for_sent(1)
        watched.wait_for_looks(20)
        assert alerts.read(tmp_path) == {}
    peers.wait_until((tmp_path / alerts.FILE).is_file, what="the state on disk")
    watched.wait_for_looks(20)
    watched.found.clear()
    watched.wait_for_sent(2)
    watched.wait_for_looks(20)
    for running in several:
        running.close()

    assert watched.sent == ["begun the disk is full", "ended the disk is full"]


@pytest.mark.parametrize("failure", ["no lock", "state not readable"])
def test_the_alert_of_a_failing_disk_is_sent_though_the_lock_or_the_state_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    watched, state, opened = Watched(FULL), tmp_path / alerts.FILE, os.open

    def fail(path: Path | str, flags: int, mode: int = 0o777) -> int:
        if failure == "no lock" and flags & os.O_CREAT:
            raise OSError(errno.EROFS, "read-only file system")
        return opened(path, flags, mode)

    if failure == "state not readable":
        state.mkdir()
    with monkeypatch.context() as disk:
        disk.setattr(os, "open", fail)
        running = watched.start(tmp_path)
        watched.wait_for_sent(1)
    if failure == "state not readable":
        state.rmdir()
    peers.wait_until(state.is_file, what="the state on disk")
    watched.found.clear()
    watched.wait_for_sent(2)
    running.close()

    assert watched.sent == ["begun the disk is full", "ended the disk is full"]


def test_a_damaged_state_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / alerts.FILE).write_text('{"known": 7}', encoding="utf-8")

    assert alerts.read(tmp_path) == {}


def test_an_unforeseen_error_does_not_end_the_thread(tmp_path: Path) -> None:
    watched, look = Watched(), mock.Mock(side_effect=chain([RuntimeError("Zyx^Secret")], repeat([FULL])))

    with capture_logs() as lines:
        running = Alerts(tmp_path, look, watched.send, after_seconds=0.05)
        watched.wait_for_sent(1)
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


def test_a_webhook_that_does_not_take_it_or_is_away_is_asked_later() -> None:
    with web_archive() as other, web_archive() as house:
        house.headers = {"Location": other.url}
        for house.status in (302, 307, 404, 500):
            with pytest.raises(RetryLater, match=f"the webhook answered with the status {house.status}"):
                posting(house.url)(ALERT)
    with pytest.raises(RetryLater, match="does not answer"):
        posting(house.url)(ALERT)

    assert (len(house.posts), other.posts) == (4, [])


def test_alerts_that_cannot_be_sent_safely_are_refused_and_the_path_of_a_webhook_is_not_shown() -> None:
    def parsed(table: dict[str, object]) -> Settings:
        callers = [{"ae_title": "A", "hosts": ["192.0.2.1"]}]
        return config.parse({"storage": {"directory": "x"}, "listener": {"callers": callers}, "alerts": table})

    for webhook, complaint in (
        (None, "alerts.webhook: is missing; add it"),
        ({"url": "http://example.org/x", "token_file": "t"}, "a token is sent over TLS only"),
        ({"url": "ftp://example.org"}, "must be https"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            parsed({} if webhook is None else {"webhook": webhook})
    rendered = config.render(parsed({"webhook": {"url": "https://chat.example.org/services/T0/SECRET"}}))
    assert 'url = "https://chat.example.org/***"' in rendered


@pytest.mark.drill(part="peers")
def test_a_webhook_that_hangs_holds_up_no_film_and_no_stop(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        (tmp_path / "node").mkdir(mode=0o700)
        (tmp_path / "node" / "ledger.sqlite.damaged-20260102T030405Z").touch()
        silent.settimeout(60.0)
        hook = WebhookSettings(url=f"http://127.0.0.1:{silent.getsockname()[1]}/")
        with Service(replace(settings, alerts=AlertsSettings(after_seconds=0.2, webhook=hook))) as node:
            connection, _ = silent.accept()
            with connection:
                node.read(films.thumbnail())
                archive.wait_for_kept(2)
                assert not node.logged("alert.sent")
                assert node.stop() == 0
