"""Real associations as the bytes they are made of, to be sent again, cut, bent or left unfinished."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydicom import Dataset
from pynetdicom import AE, evt
from pynetdicom.presentation import build_context

from tests.support.listening import connect
from tests.support.peers import LOOPBACK

ASSOCIATE_ACCEPT, ASSOCIATE_REJECT, DATA, RELEASE_ANSWER, ABORT = 2, 3, 4, 6, 7
VERIFICATION, IMPLICIT = b"1.2.840.10008.1.1", b"1.2.840.10008.1.2"
_HEAD_BYTES = 6


@dataclass(frozen=True, slots=True)
class Recording:
    """What a modality said: its request for an association, the PDUs of one C-STORE, its farewell."""

    request: bytes
    store: tuple[bytes, ...]
    release: bytes


def record(film: Dataset, *, port: int) -> Recording:
    """Send one film to a listener, and keep every PDU that was sent."""
    said: list[bytes] = []
    association = AE(ae_title="TESTER").associate(
        LOOPBACK,
        port,
        ae_title="CHEX",
        contexts=[build_context(film.SOPClassUID, film.file_meta.TransferSyntaxUID)],
        evt_handlers=[(evt.EVT_DATA_SENT, lambda event: said.append(event.data))],
    )
    status = association.send_c_store(film)
    association.release()
    assert status.Status == 0x0000
    return Recording(request=said[0], store=tuple(said[1:-1]), release=said[-1])


def associate(recording: Recording, *, port: int) -> socket.socket:
    """Open an association by the recorded request."""
    connection = connect(port)
    connection.sendall(recording.request)
    accepted = read_pdu(connection)
    assert accepted[:1] == bytes([ASSOCIATE_ACCEPT])
    return connection


def calling_from(address: str, port: int) -> socket.socket:
    """Open a connection from another address of this machine."""
    return socket.create_connection((LOOPBACK, port), timeout=5, source_address=(address, 0))


def read_pdu(connection: socket.socket) -> bytes:
    """Read one PDU; fewer bytes, or none, when the connection ends."""
    head = _read(connection, _HEAD_BYTES)
    return head + _read(connection, int.from_bytes(head[2:], "big")) if len(head) == _HEAD_BYTES else head


def status_of(pdu: bytes) -> int | None:
    """The status of a C-STORE response (PS3.7 9.3.1.2); None when this is no PDU of data, or has none."""
    value = _command_value(pdu, b"\0\0\0\x09")
    return None if value is None else int.from_bytes(value, "little")


def sop_instance_of(pdu: bytes) -> str:
    """The SOP Instance UID that a C-STORE response speaks of."""
    return (_command_value(pdu, b"\0\0\0\x10") or b"").decode("ascii", "replace").rstrip("\0")


def data(content: bytes, *, context: int = 1, control: int = 0) -> bytes:
    """One PDU with one fragment (PS3.8 9.3.5)."""
    fragment = (len(content) + 2).to_bytes(4, "big") + bytes([context, control]) + content
    return bytes([DATA, 0]) + len(fragment).to_bytes(4, "big") + fragment


def item(kind: int, content: bytes) -> bytes:
    """One item or sub-item (PS3.8 9.3.2)."""
    return bytes([kind, 0]) + len(content).to_bytes(2, "big") + content


def context(number: int = 1, abstract: bytes | None = VERIFICATION, syntaxes: Sequence[bytes] = (IMPLICIT,)) -> bytes:
    """A presentation context that is proposed (PS3.8 9.3.2.2); abstract: None leaves its item out."""
    named = b"" if abstract is None else item(0x30, abstract)
    return item(0x20, bytes([number, 0, 0, 0]) + named + b"".join(item(0x40, syntax) for syntax in syntaxes))


USER: Final = item(0x51, (16384).to_bytes(4, "big")) + item(0x52, b"1.2.3.4") + item(0x55, b"TESTER")
"""The user information of a good request: the longest PDU, the class and the version of its implementation."""
_DICOM = item(0x10, b"1.2.840.10008.3.1.1.1")


def request(
    *,
    calling: bytes = b"TESTER",
    called: bytes = b"CHEX",
    version: int = 1,
    name: bytes = _DICOM,
    contexts: bytes | None = None,
    user: bytes = item(0x50, USER),
    more: bytes = b"",
) -> bytes:
    """An A-ASSOCIATE-RQ (PS3.8 9.3.2), good unless told otherwise: contexts, user and more are whole items."""
    titles = called.ljust(16) + calling.ljust(16)
    items = name + (context() if contexts is None else contexts) + user + more
    content = version.to_bytes(2, "big") + bytes(2) + titles + bytes(32) + items
    return b"\1\0" + len(content).to_bytes(4, "big") + content


def echo(number: int = 1) -> bytes:
    """A C-ECHO request in the context of this number, as a PDU (PS3.7 9.3.5.1)."""
    elements = ((2, VERIFICATION + b"\0"), (0x100, b"\x30\0"), (0x110, b"\1\0"), (0x800, b"\1\1"))
    command = b"".join(_element(number, value) for number, value in elements)
    return data(_element(0, len(command).to_bytes(4, "little")) + command, context=number, control=3)


def echo_answer() -> bytes:
    """The answer Success to the first C-ECHO request of an association, as a PDU (PS3.7 9.3.5.2)."""
    return answer(b"\x30\x80", VERIFICATION + b"\0")


def store_answer(number: int, *, context: int = 1, status: int = 0) -> bytes:
    """The answer to the C-STORE request with this message id, as a PDU (PS3.7 9.3.1.2)."""
    return answer(b"\1\x80", b"1.2.840.10008.5.1.4.1.1.7\0", number=number, context=context, status=status)


def answer(kind: bytes, sop_class: bytes, *, number: int = 1, context: int = 1, status: int = 0) -> bytes:
    """An answer without a dataset, as a PDU (PS3.7 9.3)."""
    elements = (
        (2, sop_class),
        (0x100, kind),
        (0x120, number.to_bytes(2, "little")),
        (0x800, b"\1\1"),
        (0x900, status.to_bytes(2, "little")),
    )
    command = b"".join(_element(number, value) for number, value in elements)
    return data(_element(0, len(command).to_bytes(4, "little")) + command, context=context, control=3)


def message_id_of(pdu: bytes) -> int:
    """The message id of a request (PS3.7 9.3); 0 when this is no PDU of data, or has none."""
    return int.from_bytes(_command_value(pdu, b"\0\0\x10\x01") or b"", "little")


def is_last_of_dataset(pdu: bytes) -> bool:
    """Whether a PDU with one fragment ends a dataset."""
    return pdu[:1] == bytes([DATA]) and pdu[11] & 3 == 2


def _element(number: int, value: bytes) -> bytes:
    """An element of a command (PS3.7 6.3.1)."""
    return b"\0\0" + number.to_bytes(2, "little") + len(value).to_bytes(4, "little") + value


def _command_value(pdu: bytes, tag: bytes) -> bytes | None:
    """The value of an element of a command (PS3.7 6.3.1: implicit little endian); None when it is not there."""
    place = pdu.find(tag)
    if pdu[:1] != bytes([DATA]) or place < 0:
        return None
    length = int.from_bytes(pdu[place + 4 : place + 8], "little")
    return pdu[place + 8 : place + 8 + length]


def _read(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        try:
            part = connection.recv(count - len(content))
        except ConnectionError:
            part = b""
        if not part:
            return content
        content += part
    return content
