"""pynetdicom is the version that the adapter was written for, and nobody else uses its internals."""

from __future__ import annotations

import ast
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pynetdicom import AE
from pynetdicom.association import Association
from pynetdicom.dimse_primitives import C_ECHO
from pynetdicom.pdu import P_DATA_TF

from node.net import pynetdicom_adapter
from node.net.pynetdicom_adapter import MessageProvider, fragments
from tests.paths import REPOSITORY
from tests.repository.test_architecture import name_of, parsed, python_files
from tests.support import pdus

ADAPTER = "node/net/pynetdicom_adapter.py"

# Attributes of pynetdicom's objects that only the adapter names, and names that only the adapter imports.
ATTRIBUTES = frozenset(
    """
    LOG_HANDLER_LEVEL _create_association _decode_pdu _idle_timer _is_connected
    _read_pdu_data _recv_pdu
    acse data_set dimse dul encoded_command_set event_queue idle_timer_expired kill kill_dul msg_queue
    send_reject server_close state_machine to_provider_queue
    """.split()
)
IMPORTS = frozenset(
    """
    AssociationServer AssociationSocket C_STORE_RQ DIMSEMessage DIMSEServiceProvider
    DULServiceProvider P_DATA P_DATA_TF PDU
    StorageServiceClass _config
    """.split()
)


def test_the_adapter_is_written_for_the_installed_version() -> None:
    written_for, installed = pynetdicom_adapter.VERSION, version("pynetdicom")

    assert installed == written_for, (
        f"{ADAPTER} was written for pynetdicom {written_for}, but pynetdicom {installed} is installed; compare what "
        "the adapter uses, by its docstrings, with the new version, run the tests of receiving, then change VERSION"
    )


def test_an_association_may_have_any_number_of_small_messages() -> None:
    answer, told = C_ECHO(), list[str]()
    answer.MessageIDBeingRespondedTo, answer.AffectedSOPClassUID, answer.Status = 1, "1.2.840.10008.1.1", 0
    provider = MessageProvider(
        Association(AE(), "acceptor"),
        open_dataset=lambda _command, _context: BytesIO(),
        is_too_long=lambda _command, _dataset: False,
        on_aborted=told.append,
    )

    for _ in range(1600):
        provider.take(memoryview(pdus.echo()))
        provider.send_msg(answer, 1)

    assert told == []


@given(
    items=st.lists(st.tuples(st.integers(0, 255), st.binary(min_size=1, max_size=40)), max_size=5),
    end=st.integers(0, 3),
)
def test_fragments_are_those_that_pynetdicom_finds(items: list[tuple[int, bytes]], end: int) -> None:
    content = b"".join((len(data) + 1).to_bytes(4, "big") + bytes([number]) + data for number, data in items)
    pdu = bytes([4, 0]) + len(content).to_bytes(4, "big") + content
    theirs = P_DATA_TF()
    theirs.decode(pdu)

    assert [(number, bytes(data)) for number, data in fragments(memoryview(pdu))] == items
    assert [tuple(item) for item in theirs.to_primitive().presentation_data_value_list] == items
    if items and 0 < end <= len(items[-1][1]):
        with pytest.raises(ValueError, match="fill"):
            list(fragments(memoryview(pdu[:-end])))


def test_no_other_file_reaches_into_pynetdicom() -> None:
    wrong = [
        f"{name_of(path)}: {found}"
        for path in python_files("node/receive", "node/deliver", "node/net")
        if name_of(path) != ADAPTER
        for found in sorted(attributes_of(path) & ATTRIBUTES | imports_of(path) & IMPORTS)
    ]

    assert wrong == []
    assert attributes_of(REPOSITORY / ADAPTER) >= ATTRIBUTES
    assert imports_of(REPOSITORY / ADAPTER) >= IMPORTS


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
