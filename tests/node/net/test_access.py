from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from node.config import Caller, ListenerSettings
from node.net.callers import Call, Refusal, admit

SCANNER = Caller(ae_title="SCANNER", hosts=("192.0.2.1", "2001:db8::1"))
WARD = Caller(ae_title="WARD", hosts=("192.0.2.2",), max_associations=2)
SETTINGS = ListenerSettings(ae_title="CHEX", callers=(SCANNER, WARD), max_associations=5)
CALL = Call(calling_aet="SCANNER", called_aet="CHEX", host="192.0.2.1")


def reason(
    call: Call, *, may_report: bool = False, has_room: bool = True, open_callers: list[Caller] | None = None
) -> str:
    admitted = admit(call, SETTINGS, may_report=may_report, has_room=has_room, open_callers=open_callers or [])
    return admitted.reason if isinstance(admitted, Refusal) else f"as {admitted.ae_title}"


def test_a_caller_is_known_by_title_and_address_together() -> None:
    assert reason(CALL) == "as SCANNER"
    assert reason(replace(CALL, calling_aet="SCANNER         ")) == "as SCANNER"
    assert reason(replace(CALL, calling_aet="scanner")) == "caller"
    assert reason(replace(CALL, host="192.0.2.2")) == "caller"
    assert reason(replace(CALL, calling_aet="WARD")) == "caller"


def test_an_address_is_known_however_it_is_written() -> None:
    assert reason(replace(CALL, host="::ffff:192.0.2.1")) == "as SCANNER"
    assert reason(replace(CALL, host="2001:0db8:0:0:0:0:0:1")) == "as SCANNER"
    assert reason(replace(CALL, host="no address")) == "caller"


def test_a_caller_is_known_by_its_network() -> None:
    by_network = Caller(ae_title="CR", hosts=("198.51.100.0/24", "2001:db8:1::/64"))
    settings = replace(SETTINGS, callers=(by_network,))

    def caller(host: str) -> Caller | Refusal:
        call = Call(calling_aet="CR", called_aet="CHEX", host=host)
        return admit(call, settings, may_report=False, has_room=True, open_callers=[])

    assert caller("198.51.100.255") == caller("::ffff:198.51.100.1") == caller("2001:db8:1::7") == by_network
    assert isinstance(caller("198.51.101.1"), Refusal)


def test_another_called_title_and_a_full_disk_are_refused() -> None:
    assert reason(replace(CALL, called_aet="OTHER")) == "called_ae"
    assert reason(CALL, has_room=False) == "disk"


def test_a_destination_may_report_even_when_the_disk_is_full() -> None:
    archive = Call(calling_aet="ARCHIVE", called_aet="CHEX", host="192.0.2.9")

    assert reason(archive) == "caller"
    assert reason(archive, may_report=True, has_room=False) == "as ARCHIVE"
    assert reason(archive, may_report=True, open_callers=[SCANNER] * 5) == "limit"


@given(st.lists(st.sampled_from((SCANNER, WARD)), max_size=30))
def test_however_many_call_no_limit_is_passed(calls: list[Caller]) -> None:
    opened: list[Caller] = []
    for caller in calls:
        call = Call(calling_aet=caller.ae_title, called_aet="CHEX", host=caller.hosts[0])
        admitted = admit(call, SETTINGS, may_report=False, has_room=True, open_callers=opened)
        if isinstance(admitted, Caller):
            opened.append(admitted)

    assert opened.count(WARD) == min(2, calls.count(WARD)) or len(opened) == 5
    assert opened.count(WARD) <= 2
    assert len(opened) <= 5
