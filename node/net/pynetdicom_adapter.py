"""Every use of pynetdicom's internals, written for pynetdicom 3.0.4; the other files use its documented interface only.

On the acceptor's side `PduSocket` replaces pynetdicom's socket: it reads whole PDUs, each within a time limit, and does
not trust declared lengths. `MessageProvider` puts messages together. `RequestProvider` sends the node's own requests.
The acceptor's functions decide about the length of messages and where datasets go.
The docstring of each part says what pynetdicom does instead (interoperability §8).
tests/node/net/test_pynetdicom_adapter.py fails at another version, and where another file uses an internal.
"""

from __future__ import annotations

import math
import queue
import select
import socket
import socketserver
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Final, cast

from pydicom.dataset import Dataset
from pynetdicom import _config, evt
from pynetdicom.association import Association
from pynetdicom.dimse import DIMSEServiceProvider
from pynetdicom.dimse_messages import C_STORE_RQ, DIMSEMessage
from pynetdicom.dimse_primitives import C_CANCEL, C_STORE, DimsePrimitiveType, DimseServiceType
from pynetdicom.dul import DULServiceProvider
from pynetdicom.pdu import P_DATA_TF, PDU
from pynetdicom.pdu_primitives import P_DATA
from pynetdicom.presentation import PresentationContext
from pynetdicom.service_class import StorageServiceClass
from pynetdicom.transport import AssociationServer, AssociationSocket, RequestHandler

from node.net.association_pdus import Unacceptable, left, readable_acceptance

VERSION: Final = "3.0.4"

MOST_UNANSWERED: Final = 16  # the node offers one at a time (PS3.7 D.3.3.3), but a PDU may hold thousands

_LARGEST_MESSAGE_ID: Final = 0xFFFF
_COMMAND_AND_LAST, _LAST = 0b11, 0b10
"""Bits of a fragment's control header (PS3.8 E.2); the second: the last fragment of a dataset."""

_FREE_PIECES: Final = 1000
_BYTES_OF_A_PIECE: Final = 256
"""A message may have this many fragments, and one more for so many bytes. Each costs as much as 10 kB of pixels."""

# States and events of pynetdicom's state machine, with the numbers of PS3.8 9.2
_DATA_TRANSFER: Final = "Sta6"
_REQUEST_ARRIVED: Final = "Evt6"
_CONNECTION_CLOSED: Final = "Evt17"
_INVALID_PDU: Final = "Evt19"  # the state machine answers it with A-ABORT

_LONGEST_PDU: Final = 1024 * 1024
_HEAD: Final = 6  # type and length of a PDU
_ACCEPTED, _DATA, _ABORT = 0x02, 0x04, 0x07
"""The types of A-ASSOCIATE-AC, P-DATA-TF and A-ABORT (PS3.8 9.3.1)."""

_WAIT_MILLISECONDS, _WAIT_SECONDS = 20, 0.02
"""An idle thread looks again after this time; the event that it waits for wakes it."""

OpenDataset = Callable[[Dataset, PresentationContext | None], BytesIO]
IsTooLong = Callable[[int, BytesIO | None], bool]
OnAborted = Callable[[str], None]


class MessageProvider(DIMSEServiceProvider):
    """Assembles the messages of one association fragment by fragment.

    pynetdicom collects each message in memory, or in a file of the system's folder, however long it gets and in however
    many fragments, and passes it on when it is complete.

    open_dataset: returns the file for the dataset of a C-STORE request, of its command and context, None if that was
    not accepted; if it raises, the association is aborted
    is_too_long: returns whether a message exceeds its limit, by the bytes of its command and by its dataset
    on_aborted: gets the reason why the association is aborted: `protocol`, `length` or `pieces`
    """

    def __init__(
        self, association: Association, *, open_dataset: OpenDataset, is_too_long: IsTooLong, on_aborted: OnAborted
    ) -> None:
        super().__init__(association)
        self._open_dataset, self._is_too_long, self.on_aborted = open_dataset, is_too_long, on_aborted
        self._dataset: BytesIO | None = None
        self._context_id: int | None = None
        self._messages = self._answers = 0
        self._pieces = self._bytes = 0  # of the current message

    @property
    def is_answering(self) -> bool:
        """Whether a received message is not answered yet."""
        return self._messages > self._answers

    def take(self, pdu: memoryview) -> None:
        """Add a P-DATA-TF to the current message; runs in the thread that reads the connection.

        Nearly all bytes of an object go to its file from where they were received: pynetdicom copies them five times,
        and passes each PDU through two queues, while no other association goes on.
        """
        try:
            fault = self._add(pdu)
        except Exception:  # the boundary to pynetdicom's parser: an exception would end its thread
            fault = "protocol"
        if fault is not None:
            self._abort(fault)

    def _add(self, pdu: memoryview) -> str | None:
        """Add the fragments of a PDU; the reason to abort if there are too many, or the message is too long."""
        found = list(fragments(pdu))
        self._pieces += max(1, len(found))
        self._bytes += len(pdu)
        if self._pieces > _FREE_PIECES + self._bytes // _BYTES_OF_A_PIECE:
            return "pieces"
        for context_id, fragment in found:
            self._check_order(context_id, fragment)
            is_on_disk = self.message is not None and self.message.data_set is self._dataset
            if is_on_disk and self._dataset is not None and not fragment[0] & _COMMAND_AND_LAST:
                self._dataset.write(fragment[1:])
            else:
                self._pass_on(context_id, fragment)
        message = self.message
        if message is not None and self._is_too_long(message.encoded_command_set.tell(), message.data_set):
            return "length"
        return None

    def _pass_on(self, context_id: int, fragment: memoryview) -> None:
        """Let pynetdicom add a fragment. When a command is complete, its dataset gets a file. Raises ValueError."""
        primitive = P_DATA()
        primitive.presentation_data_value_list.append((context_id, bytes(fragment)))
        self.receive_primitive(primitive)
        message = self.message
        if isinstance(message, C_STORE_RQ) and message.data_set is not self._dataset:
            context = self._context(message.context_id)
            message.data_set = self._dataset = self._open_dataset(message.command_set, context)
        if message is None:
            self._messages += 1
            self._pieces = self._bytes = 0
        if self._messages - self._answers > MOST_UNANSWERED or self.cancel_req:
            raise ValueError("requests come faster than answers, or cancel what cannot be canceled")

    def _check_order(self, context_id: int, fragment: memoryview) -> None:
        """Raise ValueError for a fragment that does not continue the current message (PS3.7 6.3.1, PS3.8 E.2).

        All fragments come in one context, the command first. Otherwise, as in pynetdicom, an object would get another
        object's name or syntax.
        """
        if self.message is None:
            self._context_id = context_id
        is_of_command, is_expected = bool(fragment[0] & 1), type(self.message) in (type(None), DIMSEMessage)
        if is_of_command != is_expected or context_id != self._context_id:
            raise ValueError("the fragments do not form a message")

    def get_msg(self, block: bool = False) -> tuple[None, None] | tuple[int, DimseServiceType]:
        """Return the next message for pynetdicom; a C-STORE request of any class is handled here.

        pynetdicom aborts on each private or retired class, and takes a C-STORE that names Verification for an echo. It
        asks 1,000 times a second, with every association; while a message arrives, this waits for it a moment,
        whatever `block` says, which no acceptor sets.
        """
        try:
            waiting = self.msg_queue.get(timeout=0.0 if self.message is None else _WAIT_SECONDS)
        except queue.Empty:
            return None, None
        context_id, message = waiting
        if not (isinstance(message, C_STORE) and message.is_valid_request):
            return waiting
        context = self._context(context_id)
        if context is None:
            return waiting
        try:
            StorageServiceClass(self.assoc).SCP(message, context)
        except Exception:  # a boundary: a peer that cannot accept an answer, such as one that asks for PDUs of 1 byte
            self._abort("protocol")
        return None, None

    def send_msg(self, primitive: DimsePrimitiveType, context_id: int) -> None:
        """Send an answer. The peer's silence counts from here: until now it has waited for the node.

        pynetdicom counts it from the last PDU that it received.
        """
        super().send_msg(primitive, context_id)
        self._answers += 1
        self.dul._idle_timer.restart()

    def _context(self, context_id: int | None) -> PresentationContext | None:
        """Find an accepted context by its id."""
        return next((context for context in self.assoc.accepted_contexts if context.context_id == context_id), None)

    def _abort(self, reason: str) -> None:
        self.on_aborted(reason)
        self.message = None
        self.dul.event_queue.put(_INVALID_PDU)


def fragments(pdu: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield context id and fragment of each item of a P-DATA-TF (PS3.8 9.3.5). Raises ValueError if they do not fit."""
    at = _HEAD
    while at < len(pdu):
        end = at + 4 + int.from_bytes(pdu[at : at + 4], "big")
        if end < at + 6 or end > len(pdu):  # a context id and a control header at least
            raise ValueError("the items do not fill the PDU")
        yield pdu[at + 4], pdu[at + 5 : end]
        at = end


class PduSocket(AssociationSocket):
    """The connection of one association, read in large pieces and limited time.

    While a request is not answered nothing is read, so that a sender cannot run ahead of the disk. pynetdicom reads on,
    asks 1,000 times a second by `select` whether something has come, reads pieces of 4 KiB, trusts the length that a
    PDU declares, and waits for the rest without limit.

    request_end: the time (of `time.monotonic`) by which a PDU must have arrived before the association is admitted
    idle_seconds: the limit for each PDU afterwards, in both directions
    on_admitted: called once, when the association is admitted; before, its end is not reported as an abort
    """

    def __init__(
        self,
        messages: MessageProvider,
        connection: socket.socket,
        *,
        request_end: float,
        idle_seconds: float,
        on_admitted: Callable[[], None],
    ) -> None:
        super().__init__(messages.assoc, client_socket=connection)
        self._connection, self.messages, self._provider = connection, messages, messages.assoc.dul
        self._request_end, self._idle_seconds = request_end, idle_seconds
        self._on_admitted, self._is_admitted = on_admitted, False
        self._buffer = memoryview(bytearray(_HEAD + _LONGEST_PDU))
        connection.setblocking(False)

    def admit(self) -> None:
        """Apply the limits of an admitted association."""
        self._is_admitted = True
        self._on_admitted()

    def discard(self) -> None:
        """Free the buffer: an ended association waits for the collection of garbage."""
        self._buffer = memoryview(b"")

    @property
    def ready(self) -> bool:
        """Whether there is something to read, and reading is allowed now; waits a moment for it.

        While a request is not answered nothing is read. Nor is it while something else waits: so the state machine is
        in no other state when the PDU has come, and need not see one with data.
        """
        provider = self._provider
        is_open = provider.state_machine.current_state == _DATA_TRANSFER
        if self.socket is None or not self._is_connected or self.messages.is_answering:
            return False
        if is_open and not (provider.event_queue.empty() and provider.to_provider_queue.empty()):
            return False
        try:
            if isinstance(self._connection, ssl.SSLSocket) and self._connection.pending():
                return True
            return self._arrives(_WAIT_MILLISECONDS if is_open else 0)
        except (OSError, ValueError):
            self.event_queue.put(_CONNECTION_CLOSED)
            return False

    def take(self) -> None:
        """Read a PDU and announce it, in place of pynetdicom's `_read_pdu_data`; of a message, all that have come."""
        provider = self._provider
        try:
            pdu = self.read()
            while provider.state_machine.current_state == _DATA_TRANSFER and pdu[0] == _DATA:
                self.messages.take(pdu)
                provider._idle_timer.restart()
                if not self.ready:
                    return
                pdu = self.read()
            decoded, event = provider._decode_pdu(bytearray(pdu))
        except OSError:
            self.event_queue.put(_CONNECTION_CLOSED)
        except Exception:  # the boundary to pynetdicom's parser
            self.event_queue.put(_INVALID_PDU)
        else:
            self.event_queue.put(event)
            provider._recv_pdu.put(decoded)

    def read(self) -> memoryview:
        """Read one PDU whole. Returns a view of it, which the next call overwrites.

        Raises ValueError if its type does not exist, OSError if it is too long or too slow or the connection ends.
        """
        end = time.monotonic() + self._idle_seconds if self._is_admitted else self._request_end
        try:
            self._receive(self._buffer[:_HEAD], end)
            length = int.from_bytes(self._buffer[2:_HEAD], "big")
            if not 1 <= self._buffer[0] <= _ABORT:
                raise ValueError("the type of a PDU does not exist")
            if length > _LONGEST_PDU:
                self._tell_abort("length")
                raise ConnectionAbortedError("the declared length of a PDU is over the limit")
            self._receive(self._buffer[_HEAD : _HEAD + length], end)
        except TimeoutError:
            self._tell_abort("stalled")
            raise
        return self._buffer[: _HEAD + length]

    def _receive(self, view: memoryview, end: float) -> None:
        """Receive until a view is full. Raises OSError, TimeoutError at `end`."""
        while view:
            try:
                received = self._connection.recv_into(view)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._arrives(math.ceil(1000 * left(end)))
                continue
            if not received:
                raise ConnectionResetError("the connection ended within a PDU, or before one")
            view = view[received:]

    def _arrives(self, wait_milliseconds: int) -> bool:
        """Wait until bytes arrive, and return whether they have. Bytes that were read are acknowledged before.

        A sender with Nagle's algorithm, such as dcmtk's, otherwise waits 40 ms with the last bytes of each message. The
        system forgets it after a while. It makes the system send, so it is left out while bytes keep coming.
        """
        poll = select.poll()  # select.select fails on descriptors above 1023
        poll.register(self._connection, select.POLLIN)
        if poll.poll(0) or not wait_milliseconds:
            return bool(poll.poll(0))
        with suppress(OSError):
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return bool(poll.poll(wait_milliseconds))

    def send(self, bytestream: bytes) -> None:
        """Send a PDU; a peer that does not accept it in time is disconnected."""
        if bytestream[0] == _ABORT:  # pynetdicom reports its own aborts nowhere
            self._tell_abort("idle" if self._provider.idle_timer_expired() else "protocol")
        with suppress(OSError):
            self._connection.settimeout(self._idle_seconds)
        super().send(bytestream)
        with suppress(OSError):
            self._connection.setblocking(False)

    def _tell_abort(self, reason: str) -> None:
        """Report that the node ends an admitted association."""
        if self._is_admitted:
            self.messages.on_aborted(reason)


class RequestProvider(DIMSEServiceProvider):
    """Sends the requests of one association, each under an id of its own, and takes answers to the current one only.

    pynetdicom takes the next message for the answer, and sends every request under the id 1.
    """

    def __init__(self, association: Association) -> None:
        super().__init__(association)
        self.is_out_of_turn = False
        self._asked, self._is_sending, self._is_early = 0, False, False

    def send_msg(self, primitive: DimsePrimitiveType, context_id: int) -> None:
        """Send a request or an answer."""
        if primitive.MessageIDBeingRespondedTo is None and not isinstance(primitive, C_CANCEL):
            self._asked = primitive.MessageID = self._asked % _LARGEST_MESSAGE_ID + 1
            self._is_early = not self.msg_queue.empty() or (isinstance(primitive, C_STORE) and self._has_come())
            self._is_sending = isinstance(primitive, C_STORE)
        super().send_msg(primitive, context_id)

    def get_msg(self, block: bool = False) -> tuple[None, None] | tuple[int, DimseServiceType]:
        """Return the answer that a request waits for (`block`); none, if the message is not its answer.

        pynetdicom's own thread asks, too, and might take the answer; it gets nothing.
        """
        if not block:
            return None, None
        waiting = super().get_msg(block)
        _, message = waiting
        if message is not None:
            self.is_out_of_turn = self._is_early or message.MessageIDBeingRespondedTo != self._asked
        return (None, None) if self.is_out_of_turn else waiting

    def on_sent(self, event: evt.Event) -> None:
        """Look whether something has come before the last PDU of an object is sent; called after each PDU."""
        pdu = event.pdu
        if not (self._is_sending and isinstance(pdu, P_DATA_TF)):
            return
        last = pdu.presentation_data_value_items[-1].presentation_data_value
        if last and last[0] & _COMMAND_AND_LAST == _LAST:
            self._is_sending = False
        else:
            self._is_early = self._is_early or self._has_come()

    def _has_come(self) -> bool:
        connection = self.dul.socket
        return connection is not None and connection.ready


def prepare(association: Association) -> None:
    """Let an association that is being opened read its peer's acceptance however that is written, and check answers."""
    provider, requests = association.dul, RequestProvider(association)
    provider._decode_pdu = partial(_decode_acceptance, provider)  # type: ignore[assignment,method-assign]
    association.dimse = requests
    association.bind(evt.EVT_PDU_SENT, requests.on_sent)


def was_answered_out_of_turn(association: Association) -> bool:
    """Whether an association was ended because of an answer to another request, or to one that was not sent yet."""
    return isinstance(association.dimse, RequestProvider) and association.dimse.is_out_of_turn


def _decode_acceptance(provider: DULServiceProvider, content: bytearray) -> tuple[PDU, str]:
    """Decode a PDU. One that cannot be made readable is decoded as it is, which ends the association."""
    if content[0] == _ACCEPTED:
        with suppress(Unacceptable):
            content = bytearray(readable_acceptance(bytes(content)))
    return DULServiceProvider._decode_pdu(provider, content)


def silence() -> None:
    """Do not prepare a log line about every PDU, which `log.mute` drops; for servers that are made afterwards."""
    _config.LOG_HANDLER_LEVEL = "none"


def make_association(handler: RequestHandler) -> Association:
    """Make the association of an accepted connection; it cannot read or send before `attach`.

    pynetdicom makes one for a connection that is silent, too, after a TLS handshake in the thread that accepts.
    """
    association = handler._create_association()
    association.dul.event_queue.get_nowait()  # the socket made there has announced the connection; ours does, too
    return association


def attach(connection: PduSocket, request: bytes) -> None:
    """Connect an association with its connection.

    request: the A-ASSOCIATE-RQ that has come already, as `association_pdus.readable` makes it
    """
    association = connection.assoc
    provider = association.dul
    provider._read_pdu_data = connection.take  # type: ignore[method-assign]
    provider.socket, association.dimse = connection, connection.messages
    provider._recv_pdu.put(provider._decode_pdu(bytearray(request))[0])
    provider.event_queue.put(_REQUEST_ARRIVED)


def run(association: Association) -> None:
    """Start an association and wait for its end."""
    try:
        association.start()
        association.join()
    finally:
        association.dul.kill_dul()


def admit(association: Association) -> None:
    """Apply the limits of an admitted association from now on."""
    cast(PduSocket, association.dul.socket).admit()


def reject(association: Association, answer: tuple[int, int, int]) -> None:
    """Answer an association request with result, source and reason (PS3.8 9.3.4); only while it is handled.

    pynetdicom admits a caller if the handler of its request raises.
    """
    association.acse.send_reject(*answer)
    association.kill()


def close_port(server: AssociationServer) -> None:
    """Stop accepting; `shutdown` of pynetdicom works only for a server that its AE has started."""
    socketserver.BaseServer.shutdown(server)
    AssociationServer.server_close(server)


def send_at_once(association: Association) -> None:
    """Disable Nagle's algorithm: together with delayed acknowledgment at the peer it costs 40 ms per object.

    pynetdicom never does.
    """
    connection = association.dul.socket
    plain = None if connection is None else connection.socket
    if plain is not None:
        with suppress(OSError):  # a peer may accept and close at once; the next send then fails
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
