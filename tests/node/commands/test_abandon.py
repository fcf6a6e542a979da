"""Deliveries that a person ends, because their destination is gone for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.commands.operate import abandon, render, status
from node.config import Settings
from node.domain import Delivery, DeliveryState
from node.errors import InputError
from node.store import database
from node.store.ledger import Ledger
from tests.support.postgres import Postgres
from tests.support.service import on_database, settings_for


def delivery(destination: str, uid: str) -> Delivery:
    return Delivery(destination=destination, study_uid="1", sop_instance_uid=uid, kind="sr")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.drill(part="processes"))])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Of a node that stands; its one destination is called archive."""
    settings = settings_for(tmp_path / "node", archive_port=1)
    settings.storage.directory.mkdir()
    if request.param == "sqlite":
        return settings
    postgres: Postgres = request.getfixturevalue("postgres")
    return on_database(settings, postgres.url)


@pytest.fixture
def ledger(settings: Settings) -> Iterator[Ledger]:
    with closing(Ledger(database.open_ledger(settings.storage))) as ledger:
        yield ledger


def test_abandon_ends_what_is_open_for_a_removed_destination(settings: Settings, ledger: Ledger) -> None:
    open_states = (DeliveryState.WAITING, DeliveryState.SENDING, DeliveryState.PARKED)
    for number, state in enumerate((*open_states, DeliveryState.SENT, DeliveryState.COMMITTED)):
        ledger.set_delivery(delivery("gone", f"1.{number}"), state, attempts=1)
    ledger.set_sent(delivery("gone", "1.9"), attempts=1, awaits_commitment=True)
    ledger.set_delivery(delivery("archive", "1.0"), DeliveryState.PARKED, attempts=1)

    assert abandon(settings, "gone") == 4
    assert abandon(settings, "gone") == 0

    assert ledger.overview().deliveries == {
        ("gone", "abandoned"): 3, ("gone", "sent"): 2, ("gone", "committed"): 1, ("archive", "parked"): 1
    }  # fmt: skip
    assert ledger.open_deliveries() == []
    assert not ledger.is_delivered("1")
    content = status(settings)
    assert [parked.stage for parked in ledger.parked()] == ["deliver archive"]
    assert (content["ready"], content["abandoned"]) == (False, {"gone": 3}), "no process runs"
    assert "destination gone: abandoned 3" in render(content, zone=settings.site.zone)
    assert abandon(settings, "archive", force=True) == 1
    assert ledger.is_delivered("1")


def test_what_was_ended_stays_so_whatever_becomes_of_it(settings: Settings, ledger: Ledger) -> None:
    ended, other = delivery("gone", "1.1"), delivery("archive", "1.2")
    ledger.set_delivery(ended, DeliveryState.SENDING, attempts=1)
    ledger.add_delivery(other)
    abandon(settings, "gone")

    for state in (DeliveryState.WAITING, DeliveryState.PARKED):
        ledger.set_delivery(ended, state, attempts=2, reason="no answer")
        ledger.unpark_delivery(ended)
        assert ledger.delivery_state(ended) is DeliveryState.ABANDONED
    assert not ledger.set_sent(ended, attempts=2, awaits_commitment=True)
    assert ledger.delivery_state(ended) is DeliveryState.ABANDONED

    assert ledger.set_sent(other, attempts=1), "it is the last of its study"
    assert ledger.is_delivered("1")


def test_abandon_spares_a_configured_destination_unless_forced(settings: Settings, ledger: Ledger) -> None:
    ledger.set_delivery(delivery("archive", "1.1"), DeliveryState.PARKED, attempts=1)

    with pytest.raises(InputError, match=r"still in the settings; remove it there .* or add --force"):
        abandon(settings, "archive")
    with pytest.raises(InputError, match="there are no deliveries to it"):
        abandon(settings, "archvie")

    assert not ledger.is_delivered("1")
