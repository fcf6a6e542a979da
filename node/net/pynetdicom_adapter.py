"""Every use of pynetdicom's internals, written for pynetdicom 3.0.4; the other files use its documented interface only.

`GuardedSocket`, `MessageProvider`, `AssociationRequest` and `Fragments` replace pynetdicom's socket, message provider
and two kinds of PDU on the acceptor's side, and `_read_pdu` the way in which it reads one. A `PduReader` decides about
time and the length of PDUs; the acceptor's functions decide about the length of messages and where datasets go.
interoperability §8 says what pynetdicom would have to offer for each part of this file to go.
tests/node/net/test_pynetdicom_adapter.py fails when another version is installed, or when an internal used here has
changed.
"""

from __future__ import annotations

import queue
import socket
import socketserver
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
from pynetdicom.pdu import A_ASSOCIATE_RQ, P_DATA_TF, PDU
from pynetdicom.pdu_primitives import A_ASSOCIATE, P_DATA
from pynetdicom.presentation import PresentationContext
from pynetdicom.service_class import StorageServiceClass
from pynetdicom.transport import AssociationServer, AssociationSocket, RequestHandler

from node.net.association_pdus import Unacceptable, readable_acceptance
from node.net.pdu_reader import PduReader

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
_DATA_ARRIVED: Final = "Evt10"
_CONNECTION_CLOSED: Final = "Evt17"
_INVALID_PDU: Final = "Evt19"  # the state machine answers it with A-ABORT

_HEAD: Final = 6  # type and length of a PDU
_ITEM, _ITEM_HEAD = _HEAD + 4, 2
"""Where the first item of a P-DATA-TF begins behind its length: with context and control header (PS3.8 9.3.5.1)."""
_ACCEPTED, _DATA, _ABORT = 0x02, 0x04, 0x07
"""The types of A-ASSOCIATE-AC, P-DATA-TF and A-ABORT (PS3.8 9.3.1)."""

_WAIT_MILLISECONDS, _WAIT_SECONDS = 20, 0.02
"""A thread that has nothing to do looks again after this time; it is woken by what it waits for."""
_RESTING_SECONDS, _BUSY_SECONDS, _TURN_SECONDS = 0.02, 0.001, 0.003

OpenDataset = Callable[[Dataset, PresentationContext | None], BytesIO]
IsTooLong = Callable[[int, BytesIO | None], bool]
OnAborted = Callable[[str], None]


class MessageProvider(DIMSEServiceProvider):
    """Assembles the messages of one association fragment by fragment.

    pynetdicom collects each message in memory, however long it gets, and passes it on when it is complete.

    open_dataset: returns the file for the dataset of a C-STORE request, of its command and context, None if that was
    not accepted; if it raises, the association is aborted
    is_too_long: says whether a message exceeds its limit, by the bytes of its command and by its dataset
    on_aborted: gets the reason why the association is aborted: `protocol`, `length` or `pieces`
    """

    def __init__(
        self, association: Association, *, open_dataset: OpenDataset, is_too_long: IsTooLong, on_aborted: OnAborted
    ) -> None:
        super().__init__(association)
        self._open_dataset, self._is_too_long, self._on_aborted = open_dataset, is_too_long, on_aborted
        self._dataset: BytesIO | None = None
        self._context_id: int | None = None
        self._messages = self._answers = 0
        self._pieces = self._bytes = 0  # of the current message

    @property
    def is_answering(self) -> bool:
        """Whether a received message is not answered yet."""
        return self._messages > self._answers

    def receive_primitive(self, primitive: P_DATA) -> None:
        """Add the content of one PDU to the current message; runs in the thread that reads the connection."""
        values = primitive.presentation_data_value_list
        if not self._may_have(max(1, len(values)), sum(len(fragment) for _, fragment in values)):
            return
        try:
            for value in values:
                self._check_order(*value)
                fragment = P_DATA()
                fragment.presentation_data_value_list.append(value)
                super().receive_primitive(fragment)
                self._redirect_dataset()
                if self.message is None:
                    self._messages += 1
                    self._pieces = self._bytes = 0
                if self._messages - self._answers > MOST_UNANSWERED:
                    raise ValueError("requests come faster than answers")
        except Exception:  # the boundary to pynetdicom's parser: an exception would end its thread
            self._abort("protocol")
        else:
            self._limit_length()

    def continue_object(self, pdu: memoryview) -> bool:
        """Add a PDU that only continues the object of a C-STORE; false for any other one, which is left alone.

        Nearly all bytes of an object come so. They go to its file from where they were received: pynetdicom's way is
        as long for each PDU as for a whole message, and copies its bytes while no other association goes on.
        """
        message = self.message
        if message is None or self._dataset is None or message.data_set is not self._dataset:
            return False
        is_one_fragment = pdu[0] == _DATA and int.from_bytes(pdu[_HEAD:_ITEM], "big") == len(pdu) - _ITEM >= _ITEM_HEAD
        if not is_one_fragment or pdu[_ITEM] != self._context_id or pdu[_ITEM + 1] & _COMMAND_AND_LAST:
            return False
        fragment = pdu[_ITEM + _ITEM_HEAD :]
        if self._may_have(1, len(fragment)):
            try:
                self._dataset.write(fragment)
            except Exception:  # a boundary, as for every other PDU
                self._abort("protocol")
            else:
                self._limit_length()
        return True

    def get_msg(self, block: bool = False) -> tuple[None, None] | tuple[int, DimseServiceType]:
        """Return the next message for pynetdicom; a C-STORE request is handled here, whatever class it names.

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
        """Send an answer. The peer's silence counts from here: until now it has waited for the node."""
        super().send_msg(primitive, context_id)
        self._answers += 1
        self.dul._idle_timer.restart()

    def _may_have(self, pieces: int, count: int) -> bool:
        """Count fragments and their bytes for the current message; abort, and return false, if it has too many."""
        self._pieces += pieces
        self._bytes += count
        is_allowed = self._pieces <= _FREE_PIECES + self._bytes // _BYTES_OF_A_PIECE
        if not is_allowed:
            self._abort("pieces")
        return is_allowed

    def _limit_length(self) -> None:
        """Abort if the current message is too long."""
        message = self.message
        if message is not None and self._is_too_long(message.encoded_command_set.tell(), message.data_set):
            self._abort("length")

    def _check_order(self, context_id: int, fragment: bytes) -> None:
        """Raise ValueError for a fragment that does not continue the current message (PS3.7 6.3.1, PS3.8 E.2).

        All fragments come in one context, the command first. Otherwise an object would get another object's name or
        syntax.
        """
        if self.message is None:
            self._context_id = context_id
        is_of_command, is_expected = bool(fragment[0] & 1), type(self.message) in (type(None), DIMSEMessage)
        if is_of_command != is_expected or context_id != self._context_id:
            raise ValueError("the fragments do not form a message")

    def _context(self, context_id: int | None) -> PresentationContext | None:
        """Find an accepted context by its id."""
        return next((context for context in self.assoc.accepted_contexts if context.context_id == context_id), None)

    def _redirect_dataset(self) -> None:
        """Replace pynetdicom's memory buffer for the dataset of a C-STORE request when its command is complete."""
        message = self.message
        if isinstance(message, C_STORE_RQ) and message.data_set is not self._dataset:
            context = self._context(message.context_id)
            message.data_set = self._dataset = self._open_dataset(message.command_set, context)

    def _abort(self, reason: str) -> None:
        self._on_aborted(reason)
        self.message = None
        self.dul.event_queue.put(_INVALID_PDU)


class AssociationRequest(A_ASSOCIATE_RQ):
    """An A-ASSOCIATE-RQ that is decoded once, before there is an association. Raises ValueError for a bad one.

    pynetdicom would decode it in the association's thread, and end that without a report if it cannot.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__()
        try:
            self.decode(content)
            self._indication = super().to_primitive()
        except Exception as error:  # the boundary to its parser, which documents no set of exceptions
            raise ValueError("the association request cannot be read") from error

    def to_primitive(self) -> A_ASSOCIATE:
        """Return what the request says."""
        return self._indication


class Fragments(P_DATA_TF):
    """A P-DATA-TF PDU (PS3.8 9.3.5) whose fragments are views of its bytes, which pynetdicom copies four times.

    Raises ValueError if they do not fill the PDU.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._values = list(_presentation_data_values(memoryview(content)[_HEAD:]))

    def to_primitive(self) -> P_DATA:
        """Return the fragments for the message that they belong to."""
        primitive = P_DATA()
        primitive.presentation_data_value_list.extend(self._values)
        return primitive


def _presentation_data_values(items: memoryview) -> Iterator[tuple[int, bytes]]:
    """Yield id of the context and content of each item (PS3.8 9.3.5.1)."""
    while items:
        length = int.from_bytes(items[:4], "big")
        if length < 1 or length > len(items) - 4:
            raise ValueError("the items do not fill the PDU")
        yield items[4], cast(bytes, items[5 : 4 + length])
        items = items[4 + length :]


def _read_pdu(provider: DULServiceProvider, messages: MessageProvider, reader: PduReader) -> None:
    """Read a PDU and announce it, in place of pynetdicom's `_read_pdu_data`; of an object, as many as have arrived."""
    try:
        pdu = reader.read()
        while _may_bypass(provider) and messages.continue_object(pdu):
            provider._idle_timer.restart()
            if not (_may_bypass(provider) and cast(GuardedSocket, provider.socket).ready):
                return
            pdu = reader.read()
        content = bytes(pdu)  # it may have to wait in a queue, and the next PDU is read to the same place
        decoded, event = (
            (Fragments(content), _DATA_ARRIVED) if content[0] == _DATA else provider._decode_pdu(bytearray(content))
        )
    except OSError:
        provider.event_queue.put(_CONNECTION_CLOSED)
    except Exception:  # the boundary to pynetdicom's parser
        provider.event_queue.put(_INVALID_PDU)
    else:
        provider.event_queue.put(event)
        provider._recv_pdu.put(decoded)


def _may_bypass(provider: DULServiceProvider) -> bool:
    """Whether the state machine would take a PDU now, and nothing is to be sent or waits before it."""
    return (
        provider.state_machine.current_state == _DATA_TRANSFER
        and provider.event_queue.empty()
        and provider.to_provider_queue.empty()
    )


class RequestProvider(DIMSEServiceProvider):
    """Sends the requests of one association, each under an id of its own, and takes answers to the current one only.

    pynetdicom takes whatever comes next for the answer, and sends every request under the id 1.
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
        """Return the answer that a request waits for (`block`); none, if what came is not the answer to it."""
        waiting = super().get_msg(block)
        _, message = waiting
        if block and message is not None:
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


class GuardedSocket(AssociationSocket):
    """The connection of one association, read through a `PduReader`.

    While a request waits to be handled nothing is read, so that a sender cannot run ahead of the disk.
    """

    def __init__(self, messages: MessageProvider, connection: socket.socket, *, reader: PduReader) -> None:
        super().__init__(messages.assoc, client_socket=connection)
        self.reader, self._messages = reader, messages

    @property
    def ready(self) -> bool:
        """Whether there is something to read, and reading is allowed now."""
        if self.socket is None or not self._is_connected or not self._messages.msg_queue.empty():
            return False
        is_open = self.assoc.dul.state_machine.current_state == _DATA_TRANSFER
        is_answering = is_open and self._messages.is_answering
        try:
            is_ready = self.reader.is_ready(wait_milliseconds=_WAIT_MILLISECONDS if is_open and not is_answering else 0)
            if is_answering and not is_ready:
                self._wait_for_answer()
            return is_ready
        except (OSError, ValueError):
            self.event_queue.put(_CONNECTION_CLOSED)
            return False

    def _wait_for_answer(self) -> None:
        """Wait a moment until something is to be sent: the peer, too, waits for the answer."""
        waiting = self.assoc.dul.to_provider_queue
        with waiting.not_empty:
            if not waiting.queue:
                waiting.not_empty.wait(_WAIT_SECONDS)

    def send(self, bytestream: bytes) -> None:
        """Send a PDU; a peer that does not accept it in time is disconnected."""
        if bytestream[0] == _ABORT:  # pynetdicom reports its own aborts nowhere
            self.reader.tell_abort("idle" if self.assoc.dul.idle_timer_expired() else "protocol")
        self.reader.limit_sending()
        super().send(bytestream)


def silence() -> None:
    """Do not prepare a log line about every PDU, which `log.mute` drops; for servers that are made afterwards."""
    _config.LOG_HANDLER_LEVEL = "none"


def make_association(handler: RequestHandler) -> Association:
    """Make the association of an accepted connection; it cannot read or send before `attach`."""
    association = handler._create_association()
    association.dul.event_queue.get_nowait()  # the socket made there has announced the connection; ours does, too
    return association


def attach(
    association: Association,
    connection: socket.socket,
    *,
    request: AssociationRequest,
    reader: PduReader,
    open_dataset: OpenDataset,
    is_too_long: IsTooLong,
    on_aborted: OnAborted,
) -> None:
    """Connect an association with its connection, on which its request has come already; see `MessageProvider`."""
    messages = MessageProvider(association, open_dataset=open_dataset, is_too_long=is_too_long, on_aborted=on_aborted)
    provider = association.dul
    provider._read_pdu_data = partial(_read_pdu, provider, messages, reader)  # type: ignore[method-assign]
    provider.socket = GuardedSocket(messages, connection, reader=reader)
    provider._recv_pdu.put(request)
    provider.event_queue.put(_REQUEST_ARRIVED)
    association.dimse = messages


def run(association: Association) -> None:
    """Start an association and wait for its end."""
    try:
        association.start()
        association.join()
    finally:
        association.dul.kill_dul()


def admit(association: Association) -> None:
    """Apply the limits of an admitted association from now on."""
    cast(GuardedSocket, association.dul.socket).reader.admit()


def reject(association: Association, answer: tuple[int, int, int]) -> None:
    """Answer an association request with result, source and reason (PS3.8 9.3.4); only while it is handled."""
    association.acse.send_reject(*answer)
    association.kill()


def was_answered(association: Association) -> bool:
    """Whether an association request was accepted or rejected, which pynetdicom omits when its own code raises."""
    return association.acceptor.primitive is not None


def was_ended(association: Association) -> bool:
    """Whether an association that was accepted ended by a release, a rejection, an abort or a closed connection."""
    return association.is_released or association.is_rejected or association.is_aborted


def close_port(server: AssociationServer) -> None:
    """Stop accepting; `shutdown` of pynetdicom works only for a server that its AE has started."""
    socketserver.BaseServer.shutdown(server)
    AssociationServer.server_close(server)


def send_at_once(association: Association) -> None:
    """Disable Nagle's algorithm: together with delayed acknowledgment at the peer it costs 40 ms per object."""
    connection = association.dul.socket
    plain = None if connection is None else connection.socket
    if plain is not None:
        with suppress(OSError):  # a peer may accept and close at once; the next send then fails
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def rest(association: Association) -> None:
    """Let an open association wait for the next request; its two threads would look for something 1,000 times a second.

    Before the one is paused it gets a turn, or it might take the answer to the next request.
    """
    time.sleep(_TURN_SECONDS)
    association._reactor_checkpoint.clear()
    association.dul._run_loop_delay = _RESTING_SECONDS


def resume(association: Association) -> bool:
    """End the rest of an association; false if its peer has ended it, or asks to, which is answered now."""
    provider = association.dul
    provider._run_loop_delay = _BUSY_SECONDS
    is_open = (
        association.is_established
        and provider.is_alive()
        and provider.state_machine.current_state == _DATA_TRANSFER
        and provider.peek_next_pdu() is None
    )
    if not is_open:
        association._reactor_checkpoint.set()
    return is_open
