"""What the log says of those who call in vain."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from node.config import Caller, ListenerSettings
from node.net import callers
from node.net.callers import (
    OTHERS,
    Call,
    Refusal,
    RefusalKey,
    Refusals,
    RefusedCaller,
    RefusedCallers,
    admit,
    printable,
    read_all,
    read_file,
    to_do,
)
from node.store import files
from tests.support import pdus
from tests.support.listening import connect, listening
from tests.support.pdus import request
from tests.support.peers import wait_until

SCANNER = Caller(ae_title="SCANNER", hosts=("192.0.2.1", "2001:db8::1"))
WARD = Caller(ae_title="WARD", hosts=("192.0.2.2",), max_associations=2)
ROOMS = Caller(ae_title="ROOMS", hosts=("198.51.100.0/24", "2001:db8:1::/64"))
SETTINGS = ListenerSettings(ae_title="CHEX", callers=(SCANNER, WARD, ROOMS), max_associations=5)
CALL = Call(calling_aet="SCANNER", called_aet="CHEX", host="192.0.2.1")


class Watch:
    """Refusals under a clock that stands until it is set."""

    def __init__(self) -> None:
        self.now, self.logged = 1000.0, list[int]()
        self.refusals = Refusals(clock=lambda: self.now, on_logged=lambda _key, times: self.logged.append(times))

    def refuse(self, host: str = "192.0.2.1", reason: str = "caller", *, times: int = 1) -> None:
        for _ in range(times):
            self.refusals.note(RefusalKey("association.refused", reason, host))

    def tell_after(self, seconds: float) -> None:
        self.now += seconds
        self.refusals.tell()


def facts(said: list[EventDict]) -> list[tuple[object, object, object]]:
    return [(event["host"], event["reason"], event.get("times")) for event in said]


def test_the_first_of_each_host_and_reason_is_told_at_once_and_what_comes_again_once_a_minute() -> None:
    watch = Watch()
    one, other, silent = ("192.0.2.1", "caller"), ("192.0.2.2", "caller"), ("192.0.2.1", "silent")

    with capture_logs() as said:
        for kind in (one, other, silent):
            watch.refuse(*kind, times=2)
        watch.refuse(*one, times=998)
        watch.tell_after(59.0)
        assert facts(said) == [(*one, None), (*other, None), (*silent, None)]
        watch.tell_after(1.0)
        watch.refuse(*one, times=1000)
        watch.tell_after(60.0)
        watch.tell_after(60.0)
        watch.refuse(*one, times=3)  # after a minute without any
        watch.refusals.close()

    assert facts(said)[3:] == [(*one, 999), (*other, 1), (*silent, 1), (*one, 1000), (*one, None), (*one, 2)]
    assert watch.logged == [1, 1, 1, 999, 1, 1, 1000, 1, 2]


def test_many_addresses_are_told_of_together() -> None:
    watch = Watch()
    with capture_logs() as said:
        for number in range(10_000):
            watch.refuse(f"2001:db8::{number:x}")
        watch.tell_after(60.0)

    assert len(said) == 102
    assert facts(said)[100:] == [("others", "caller", None), ("others", "caller", 9899)]


def test_a_listener_counts_each_and_logs_few(tmp_path: Path) -> None:
    with capture_logs() as said:
        with listening(tmp_path) as node:
            for _ in range(20):
                with connect(node.listener.port) as stranger:
                    stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            for _ in range(10):
                with connect(node.listener.port) as peer:
                    peer.sendall(request())
                    pdus.read_pdu(peer)
                    peer.sendall(b"\x63\0\0\0\0\4abcd")
                    pdus.read_pdu(peer)
            node.wait_for_refusal("protocol", count=20)
            wait_until(lambda: node.count("cxr_associations_aborted_total", reason="protocol") == 10, what="all ended")
        refused, aborted = (
            [line for line in said if line["event"] == event]
            for event in ("association.refused", "association.aborted")
        )

    assert facts(refused)[0] == ("127.0.0.1", "protocol", None)
    assert sum(line.get("times", 1) for line in refused) == 20
    assert len(refused) < 5  # two, if it took less than a minute
    assert [(line["calling_aet"], line.get("times", 1)) for line in aborted] == [("TESTER", 1), ("TESTER", 9)]


def refused(reason: str = "caller", *, calling: str = "CR2") -> RefusedCaller:
    return RefusedCaller(
        at="2026-01-02T03:04:05Z", reason=reason, host="192.0.2.7", calling_aet=calling, called_aet="CHEX", times=1
    )


def test_the_last_ten_are_kept_with_how_often_each_came(tmp_path: Path) -> None:
    callers = RefusedCallers(tmp_path / "refused-callers.json")
    for number in range(12):
        callers.note(RefusalKey("association.refused", "caller", "192.0.2.7", f"CR{number}", "CHEX"), 1)
    callers.note(RefusalKey("association.refused", "caller", "192.0.2.7", "CR5", "CHEX"), 41)
    callers.note(RefusalKey("association.refused", "caller", OTHERS), 1000)
    callers.note(RefusalKey("association.aborted", "protocol", "192.0.2.9", "TESTER"), 1)
    callers.close()
    other, old = tmp_path / "refused-callers-2.json", refused(calling="OLD")
    files.write(other, files.to_json({"callers": [asdict(old)]}))
    assert read_file(other) == [old]

    kept = RefusedCallers(tmp_path / "refused-callers.json")
    kept.note(RefusalKey("association.refused", "silent", "192.0.2.8"), 1)
    kept.close()

    found = [(caller.calling_aet, caller.times) for caller in read_all(tmp_path)]
    assert found == [("CR3", 1), ("CR4", 1), *((f"CR{number}", 1) for number in range(6, 12)), ("CR5", 42), ("", 1)]


def test_a_disk_that_is_gone_refuses_nobody_twice(tmp_path: Path) -> None:
    callers = RefusedCallers(tmp_path / "gone" / "refused-callers.json")
    callers.note(RefusalKey("association.refused", "caller", "::1"), 1)
    callers.close()

    assert read_all(tmp_path) == []


def test_a_caller_is_told_the_settings_that_would_let_it_in_and_no_terminal_what_to_do() -> None:
    for title in ("CR2", 'A"]\\'):
        lines = tomllib.loads(callers.settings_for(refused(calling=title)))
        assert lines == {"listener": {"callers": [{"ae_title": title, "hosts": ["192.0.2.7"]}]}}
    for caller in (refused("silent", calling=""), refused(calling=""), refused(calling="A?"), refused("called_ae")):
        assert callers.settings_for(caller) == "", "no line would"

    assert to_do("called_ae", calling_aet="CR2", own_title="CHEX ") == "at CR2, call CHEX"
    assert to_do("called_ae", calling_aet="", own_title="CHEX ") == "at the sender, call CHEX"
    assert to_do("caller", calling_aet="CR2", own_title="CHEX ") == ""
    assert printable("  A\x1b[2J\r\nB\x9b0123456789abcdef") == "A?[2J??B?0123456"


def reason(
    call: Call, *, may_report: bool = False, has_room: bool = True, open_callers: list[Caller] | None = None
) -> str:
    admitted = admit(call, SETTINGS, may_report=may_report, has_room=has_room, open_callers=open_callers or [])
    return admitted.reason if isinstance(admitted, Refusal) else f"as {admitted.ae_title}"


@pytest.mark.parametrize(
    ("title", "host", "expected"),
    [
        ("SCANNER", "192.0.2.1", "as SCANNER"),
        ("SCANNER         ", "192.0.2.1", "as SCANNER"),
        ("scanner", "192.0.2.1", "caller"),
        ("SCANNER", "192.0.2.2", "caller"),
        ("WARD", "192.0.2.1", "caller"),
        # an address is known however it is written
        ("SCANNER", "::ffff:192.0.2.1", "as SCANNER"),
        ("SCANNER", "2001:0db8:0:0:0:0:0:1", "as SCANNER"),
        ("SCANNER", "no address", "caller"),
        # and by its network
        ("ROOMS", "198.51.100.255", "as ROOMS"),
        ("ROOMS", "::ffff:198.51.100.1", "as ROOMS"),
        ("ROOMS", "2001:db8:1::7", "as ROOMS"),
        ("ROOMS", "198.51.101.1", "caller"),
    ],
)
def test_a_caller_is_known_by_title_and_address_together(title: str, host: str, expected: str) -> None:
    assert reason(Call(calling_aet=title, called_aet=" CHEX  ", host=host)) == expected


@pytest.mark.parametrize(
    ("call", "has_room", "is_full", "expected", "answer"),
    [
        (CALL, False, False, "disk", (2, 3, 1)),
        (CALL, True, True, "limit", (2, 3, 2)),
        (replace(CALL, called_aet="OTHER"), True, False, "called_ae", (1, 1, 7)),
        (replace(CALL, called_aet="chex"), True, False, "called_ae", (1, 1, 7)),
        (replace(CALL, called_aet=""), True, False, "called_ae", (1, 1, 7)),
        (replace(CALL, calling_aet="OTHER"), True, False, "caller", (1, 1, 3)),
    ],
)
def test_only_what_passes_by_itself_is_refused_for_a_time(
    call: Call, has_room: bool, is_full: bool, expected: str, answer: tuple[int, int, int]
) -> None:
    """PS3.8 9.3.4: after a permanent rejection a sender gives up its films."""
    admitted = admit(call, SETTINGS, may_report=False, has_room=has_room, open_callers=[WARD] * 5 if is_full else [])

    assert isinstance(admitted, Refusal)
    assert (admitted.reason, admitted.answer) == (expected, answer)


def test_a_caller_is_let_in_up_to_its_own_limit_and_that_of_all() -> None:
    ward = replace(CALL, calling_aet="WARD", host="192.0.2.2")

    assert reason(ward, open_callers=[WARD, *[SCANNER] * 3]) == "as WARD"
    assert reason(ward, open_callers=[WARD] * 2) == reason(ward, open_callers=[SCANNER] * 5) == "limit"


def test_a_destination_may_report_even_when_the_disk_is_full() -> None:
    archive = Call(calling_aet="ARCHIVE", called_aet="CHEX", host="192.0.2.9")

    assert reason(archive) == "caller"
    assert reason(archive, may_report=True, has_room=False) == "as ARCHIVE"
    assert reason(archive, may_report=True, open_callers=[SCANNER] * 5) == "limit"
    ward = replace(CALL, calling_aet="WARD", host="192.0.2.2")
    assert reason(ward, may_report=True, open_callers=[WARD] * 2) == "limit", "its own"
