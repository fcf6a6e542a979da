"""The page of an administrator, the line on every page while something is wrong, and asking a destination."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from starlette.testclient import TestClient

from node import config
from node.config import ServerTlsSettings, Settings
from node.domain import Delivery, DeliveryState
from node.health.checks import LastTroubles, Trouble, troubles
from node.net.callers import RefusalKey, RefusedCallers
from node.read.manifest import read_thresholds
from node.settings.destinations import DestinationSettings
from node.settings.http import HttpTlsSettings
from node.store import ledger_queries, received
from node.store.ledger import open_ledger
from tests.node.web.test_web_questions import Clock
from tests.support.certificates import Authority
from tests.support.finished import pages_of, parts_of
from tests.support.peers import LOOPBACK, free_port
from tests.support.service import on_database, settings_for
from tests.support.spoken import PROMPTS


@dataclass(frozen=True, kw_only=True)
class Pages:
    """The pages of a node that does not run, and what they are made of."""

    settings: Settings
    client: TestClient

    def ledger(self, *, state: DeliveryState, reason: str | None) -> None:
        with open_ledger(self.settings.storage) as ledger:
            ledger.set_delivery(DELIVERY, state, attempts=1, reason=reason)

    def text(self, path: str = "/system") -> str:
        answer = self.client.get(path)
        assert answer.status_code == 200
        return html.unescape(answer.text)


DELIVERY = Delivery(destination="archive", study_uid="1.2", sop_instance_uid="1.2.3", kind="sr")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path / "node", archive_port=104, dicom_port=11112)


@pytest.fixture
def pages(settings: Settings) -> Pages:
    parts = parts_of(settings, troubles=partial(troubles, settings))
    return Pages(settings=settings, client=pages_of(parts))


def test_nothing_is_wrong_with_a_node_that_works(pages: Pages) -> None:
    assert troubles(pages.settings) == ()
    assert "Something is down" not in pages.text("/")
    text = pages.text()
    parts = ("storage: ", "clock: ", "0 receiving, 0 reading", "0 stat, 0 asap", "not evaluated by", "Python 3.")
    assert [part for part in ("Nothing.", *parts, "No model is open in this process.") if part not in text] == []
    assert config.render(pages.settings) in pages.text("/system/settings")
    answer = pages.client.post("/api/v1/destinations/nobody/echo")
    assert (answer.status_code, answer.json()["detail"]) == (404, "the settings have no such destination")

    (told,) = re.findall("<tr><td>Lung consolidation</td>.*?</tr>", text, re.DOTALL)
    assert re.findall("<td>([^<]*)</td>", told) == ["Lung consolidation", "never", "42 %", "not on patient films"]
    accepted = read_thresholds(pages.settings.model.directory, PROMPTS, trusted="any")
    assert [each.present for each in accepted if each.prompt == "consolidation"] == [pytest.approx(0.551, abs=0.001)]


def test_a_paused_destination_says_why_and_since_when_until_it_accepts_again(pages: Pages) -> None:
    pages.ledger(state=DeliveryState.WAITING, reason="no connection")
    (trouble,) = troubles(pages.settings)

    assert trouble.key == "destination archive"
    assert trouble.since is not None
    text = pages.text()
    assert f"paused</b> since {trouble.since:%Y-%m-%d %H:%M}: no connection" in text and "nothing yet" in text
    for path in ("/", "/review", "/upload", "/system/settings", "/studies/1"):
        assert "archive is down" in html.unescape(pages.client.get(path).text), path

    pages.ledger(state=DeliveryState.SENT, reason=None)

    assert troubles(pages.settings) == ()
    accepted = ledger_queries.moment(ledger_queries.overview(pages.settings.storage).taken["archive"])
    text = pages.text()
    assert "accepts results" in text and f"<td>{accepted:%Y-%m-%d %H:%M}" in text


def certified(
    settings: Settings, *, days: int, of_authority: int = 90, is_chained: bool = False, is_readable: bool = True
) -> HttpTlsSettings:
    """Make a certificate, perhaps with its issuer in the same file, that expire in so many days."""
    authority = Authority.found(settings.storage.directory / "tls", days=of_authority)
    issued = authority.issue("node", days=days)
    if is_chained:
        issued.certificate.write_bytes(issued.certificate.read_bytes() + authority.certificate.read_bytes())
    if not is_readable:
        issued.certificate.write_text("no certificate", encoding="utf-8")
    return HttpTlsSettings(certificate=issued.certificate, key=issued.key)


@pytest.mark.parametrize(
    ("what", "key", "title"),
    [
        ("parked", "parked", "2 parked"),
        ("disk full", "disk", "the disk is full"),
        ("disk nearly full", "disk", "the disk is nearly full"),
        ("disk gone", "disk", "the disk fails"),
        ("database away", "database", "the database does not answer"),
        ("film damaged", "damaged film", "damaged film"),
        ("database damaged", "damaged database", "damaged database"),
    ],
)
def test_each_trouble_is_found_and_named(pages: Pages, what: str, key: str, title: str) -> None:
    settings, storage = pages.settings, pages.settings.storage
    free_mib = shutil.disk_usage(storage.directory).free // 2**20
    match what:
        case "parked":
            with open_ledger(storage) as ledger:
                ledger.set_study("1.2", "parked", stage="read", reason="why")
                ledger.set_delivery(DELIVERY, DeliveryState.PARKED, attempts=1, reason="refused")
        case "disk full":
            settings = replace(settings, storage=replace(storage, min_free_mib=free_mib * 2))
        case "disk nearly full":
            settings = replace(settings, storage=replace(storage, min_free_mib=free_mib * 3 // 4))
        case "disk gone":
            shutil.rmtree(storage.directory)
        case "database away":
            settings = on_database(settings, f"postgresql://node@{LOOPBACK}:{free_port()}/chex")
        case "film damaged":
            received.note_damage(storage.directory, "film")
        case "database damaged":
            (storage.directory / "ledger.sqlite.damaged-20260102T030405Z").touch()

    assert {trouble.key: trouble.title for trouble in troubles(settings)} == {key: title}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (partial(certified, days=60), []),
        (partial(certified, days=60, is_readable=False), ["is not valid"]),
        (partial(certified, days=20), ["expires soon"]),
        (partial(certified, days=90, of_authority=20, is_chained=True), ["expires soon"]),
        (partial(certified, days=-1), ["is not valid"]),
    ],
)
def test_a_certificate_that_expires_soon_or_is_not_valid_is_named(
    settings: Settings, change: Callable[[Settings], HttpTlsSettings], said: list[str]
) -> None:
    tls = change(settings)
    of_listener = ServerTlsSettings(
        certificate=tls.certificate, key=tls.key, ca=tls.certificate.with_name("authority.pem")
    )

    changed = replace(settings, http=replace(settings.http, tls=tls))
    assert [(trouble.key, trouble.title) for trouble in troubles(changed)] == [
        ("certificate http.tls", f"certificate http.tls {words}") for words in said
    ]
    if said == ["is not valid"]:
        changed = replace(settings, listener=replace(settings.listener, tls=of_listener))
        assert [trouble.title for trouble in troubles(changed)] == ["certificate listener.tls is not valid"]


def test_a_refused_caller_has_the_lines_that_admit_it(pages: Pages) -> None:
    kept = RefusedCallers(pages.settings.storage.directory / "refused-callers.json")
    kept.note(RefusalKey("association.refused", "caller", "192.0.2.7", "NEW_CR", "CHEX"), 2)
    kept.close()

    text = pages.text()

    assert "NEW_CR at 192.0.2.7, calling CHEX: caller, 2 times, last" in text
    assert '[[listener.callers]]\nae_title = "NEW_CR"\nhosts = ["192.0.2.7"]' in text


def test_no_secret_of_the_settings_is_shown(settings: Settings) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class ForeignDestination:
        """What the package of somebody else may keep in its settings."""

        name: str = "foreign"
        type: str = "foreign"
        api_token: str = "TOPSECRET-1"
        password: str = "TOPSECRET-2"
        key: str = "TOPSECRET-3"
        key_file: Path = Path("/etc/key.pem")

    url = "postgresql://ada:TOPSECRET-0@db/chex"
    foreign = cast(DestinationSettings, ForeignDestination())
    storage = replace(settings.storage, database_url=url)

    shown = config.render(replace(settings, storage=storage, destinations=(foreign,)))

    assert "TOPSECRET" not in shown
    assert "postgresql://ada:***@db/chex" in shown
    assert 'api_token = "***"' in shown and "/etc/key.pem" in shown


def test_troubles_are_looked_up_once_in_five_seconds_and_damage_counts_for_an_hour(pages: Pages) -> None:
    settings, clock, times = pages.settings, Clock(), list[float]()

    def look() -> tuple[Trouble, ...]:
        times.append(clock.now)
        return ()

    known = LastTroubles(look, clock=clock)
    for clock.now in (0.0, 4.9, 5.0, 9.9, 10.0):
        assert known() == ()
    assert times == [0.0, 5.0, 10.0]
    received.note_damage(settings.storage.directory, "film")
    later = [troubles(settings, now=datetime.now(UTC) + timedelta(minutes=minutes)) for minutes in (59, 61)]
    assert [len(found) for found in later] == [1, 0]
