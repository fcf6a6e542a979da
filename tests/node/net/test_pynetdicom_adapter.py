"""pynetdicom is the version that the adapter was written for, has the internals it uses, and is opened nowhere else."""

from __future__ import annotations

import ast
import inspect
import queue
import socket
from collections.abc import Callable
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pynetdicom import AE, _config, fsm
from pynetdicom.acse import ACSE
from pynetdicom.association import Association
from pynetdicom.dimse import DIMSEServiceProvider
from pynetdicom.dimse_messages import C_STORE_RQ, DIMSEMessage
from pynetdicom.dimse_primitives import C_STORE
from pynetdicom.dul import DULServiceProvider
from pynetdicom.pdu import A_ASSOCIATE_RQ, P_DATA_TF
from pynetdicom.pdu_primitives import P_DATA
from pynetdicom.service_class import StorageServiceClass
from pynetdicom.timer import Timer
from pynetdicom.transport import AssociationServer, AssociationSocket, RequestHandler

from node.net import pynetdicom_adapter
from node.net.pynetdicom_adapter import (
    AssociationRequest,
    Fragments,
    GuardedSocket,
    MessageProvider,
    RequestProvider,
)
from tests.paths import REPOSITORY
from tests.repository.test_architecture import name_of, parsed, python_files

ADAPTER = "node/net/pynetdicom_adapter.py"
ASK = f"; compare what {ADAPTER} uses with the installed pynetdicom, see interoperability §8"

SIGNATURES: tuple[tuple[Callable[..., object], str], ...] = (
    (A_ASSOCIATE_RQ.__init__, "self primitive"),
    (A_ASSOCIATE_RQ.decode, "self bytestream"),
    (A_ASSOCIATE_RQ.to_primitive, "self"),
    (ACSE.send_reject, "self result source diagnostic"),
    (Association.__init__, "self ae mode"),
    (Association.kill, "self"),
    (AssociationServer.server_close, "self"),
    (AssociationSocket.__init__, "self assoc client_socket address"),
    (AssociationSocket.recv, "self nr_bytes"),
    (AssociationSocket.send, "self bytestream"),
    (DIMSEServiceProvider.__init__, "self assoc"),
    (DIMSEServiceProvider.get_msg, "self block"),
    (DIMSEServiceProvider.receive_primitive, "self primitive"),
    (DIMSEServiceProvider.send_msg, "self primitive context_id"),
    (DULServiceProvider._decode_pdu, "self bytestream"),
    (DULServiceProvider.idle_timer_expired, "self"),
    (DULServiceProvider.kill_dul, "self"),
    (DULServiceProvider.peek_next_pdu, "self"),
    (RequestHandler._create_association, "self"),
    (StorageServiceClass.SCP, "self req context"),
    (StorageServiceClass.__init__, "self assoc"),
    (Timer.restart, "self"),
)

# Attributes of pynetdicom's objects that only the adapter names, and names that only the adapter imports.
ATTRIBUTES = frozenset(
    """
    LOG_HANDLER_LEVEL _create_association _decode_pdu _idle_timer _is_connected _reactor_checkpoint _recv_pdu
    _run_loop_delay
    acse data_set dimse dul encoded_command_set event_queue idle_timer_expired kill kill_dul msg_queue peek_next_pdu
    send_reject server_close state_machine
    """.split()
)
IMPORTS = frozenset(
    """
    A_ASSOCIATE_RQ AssociationServer AssociationSocket C_STORE_RQ DIMSEMessage DIMSEServiceProvider
    DULServiceProvider P_DATA P_DATA_TF PDU
    StorageServiceClass _config
    """.split()
)


@pytest.fixture
def association() -> Association:
    return Association(AE(), "acceptor")


def test_the_adapter_is_written_for_the_installed_version() -> None:
    written_for, installed = pynetdicom_adapter.VERSION, version("pynetdicom")

    assert installed == written_for, (
        f"{ADAPTER} was written for pynetdicom {written_for}, but pynetdicom {installed} is installed; compare what "
        "the adapter uses with the new version (interoperability §8), run the tests of receiving, then change VERSION"
    )


@pytest.mark.parametrize(("function", "parameters"), SIGNATURES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_a_method_takes_what_the_adapter_gives(function: Callable[..., object], parameters: str) -> None:
    actual = " ".join(inspect.signature(function).parameters)

    assert actual == parameters, f"{function.__qualname__} takes ({actual}), not ({parameters})" + ASK


@pytest.mark.parametrize("own", [MessageProvider, GuardedSocket, AssociationRequest, RequestProvider])
def test_every_overridden_method_is_checked_here(own: type) -> None:
    (base,) = own.__bases__
    overridden = {f"{base.__name__}.{name}" for name, member in vars(own).items() if callable(member)} & {
        f"{base.__name__}.{name}" for name in vars(base)
    }

    assert overridden
    assert overridden <= {function.__qualname__ for function, _ in SIGNATURES}
    assert own is not GuardedSocket or isinstance(inspect.getattr_static(base, "ready"), property)


def test_an_association_has_the_queues_and_the_state(association: Association) -> None:
    dul, provider = association.dul, association.dimse

    assert {type(dul.event_queue), type(provider.msg_queue)} == {queue.Queue}, ASK
    assert dul.event_queue.empty(), ASK
    assert (dul.socket, provider.message, provider.dul, provider.assoc) == (None, None, dul, association), ASK
    assert dul.state_machine.current_state == "Sta1", ASK
    assert isinstance(association.acse, ACSE), ASK
    assert association._reactor_checkpoint.is_set() and dul._run_loop_delay == 0.001, ASK
    assert dul.peek_next_pdu() is None, ASK
    assert isinstance(dul._idle_timer, Timer), ASK
    assert _config.LOG_HANDLER_LEVEL in ("standard", "none"), ASK


def test_the_events_do_what_the_adapter_sends_them_for() -> None:
    table = fsm.TRANSITION_TABLE

    assert "Sta6" in fsm.STATES
    assert table["Evt19", "Sta6"] == "AA-8", "an invalid PDU is no longer answered with A-ABORT" + ASK
    assert table["Evt6", "Sta2"] == "AE-6", "a request is no longer taken from the queue of PDUs" + ASK
    assert table["Evt17", "Sta6"] == "AA-4", "a closed connection is no longer indicated as an abort" + ASK


def test_a_socket_announces_its_connection_once(association: Association) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wrapped = AssociationSocket(association, client_socket=ours)

        assert wrapped.socket is ours and wrapped._is_connected, ASK
        assert wrapped.event_queue is association.dul.event_queue, ASK
        assert list(association.dul.event_queue.queue) == ["Evt5"], ASK


def test_a_complete_command_changes_the_class_of_its_message(association: Association) -> None:
    request = C_STORE()
    request.MessageID, request.Priority = 1, 2
    request.AffectedSOPClassUID, request.AffectedSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", "1.2.3"
    request.DataSet = BytesIO(b"12345678")
    sent = C_STORE_RQ()
    sent.primitive_to_message(request)
    command, *datasets = sent.encode_msg(1, 16382)
    received = DIMSEMessage()

    assert type(received) is DIMSEMessage and received.data_set is not None
    assert type(command) is P_DATA, ASK
    assert not received.decode_msg(command)
    assert isinstance(received, C_STORE_RQ) and received.context_id == 1, ASK
    assert received.command_set.AffectedSOPInstanceUID == "1.2.3", ASK
    assert received.encoded_command_set.tell() > 0, ASK
    buffer = received.data_set = BytesIO()
    assert received.decode_msg(datasets[0])
    primitive = received.message_to_primitive()
    assert isinstance(primitive, C_STORE) and primitive.DataSet is buffer and buffer.getvalue() == b"12345678", ASK


@given(items=st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=40)), max_size=5), end=st.integers(0, 3))
def test_fragments_are_those_that_pynetdicom_finds(items: list[tuple[int, bytes]], end: int) -> None:
    content = b"".join((len(data) + 1).to_bytes(4, "big") + bytes([number]) + data for number, data in items)
    pdu = bytes([4, 0]) + len(content).to_bytes(4, "big") + content
    theirs = P_DATA_TF()
    theirs.decode(pdu)

    ours = Fragments(bytearray(pdu)).to_primitive().presentation_data_value_list
    assert [[number, bytes(data)] for number, data in ours] == [list(item) for item in items]
    assert [list(item) for item in theirs.to_primitive().presentation_data_value_list] == [list(item) for item in items]
    if items and 0 < end <= len(items[-1][1]):
        with pytest.raises(ValueError, match="fill"):
            Fragments(bytearray(pdu[:-end]))


@pytest.mark.parametrize("item", ["00000000", "000000", "00000005 01 00", "ffffffff 01 00"])
def test_items_that_do_not_fill_the_pdu_are_refused(item: str) -> None:
    with pytest.raises(ValueError, match="fill"):
        Fragments(bytearray.fromhex("04 00 00000000" + item))


def test_no_other_file_reaches_into_pynetdicom() -> None:
    wrong = [
        f"{name_of(path)}: {found}"
        for path in python_files("node/receive", "node/deliver", "node/net")
        if name_of(path) != ADAPTER
        for found in sorted(attributes_of(path) & ATTRIBUTES | imports_of(path) & IMPORTS)
    ]

    assert wrong == []


def test_the_lists_of_internals_are_those_of_the_adapter() -> None:
    adapter = REPOSITORY / ADAPTER

    assert attributes_of(adapter) >= ATTRIBUTES
    assert imports_of(adapter) >= IMPORTS


def attributes_of(path: Path) -> set[str]:
    return {node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)}


def imports_of(path: Path) -> set[str]:
    """The names that a file imports from pynetdicom."""
    return {
        alias.name
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "pynetdicom"
        for alias in node.names
    }
