"""Real programs for the node to talk to, each on 127.0.0.1 and a free port, each stopped when its block ends.

`ReceivingArchive` is a Storage SCP that counts what it is sent and can misbehave in every way a PACS does; `send` is a
modality; Debian's Orthanc has a file of its own, `orthanc.py`.
"""

from __future__ import annotations

import http.client
import os
import random
import shutil
import socket
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from io import BytesIO
from pathlib import Path
from typing import NoReturn, Self, cast

import pytest
from pydicom import Dataset, dcmread
from pydicom.uid import ExplicitVRLittleEndian
from pynetdicom import AE, DEFAULT_TRANSFER_SYNTAXES, AllStoragePresentationContexts, evt
from pynetdicom.dimse_primitives import C_STORE
from pynetdicom.presentation import build_context

LOOPBACK = "127.0.0.1"
ELSEWHERE = "127.0.0.2"
"""An address of this machine that no setting names."""
_VERIFICATION = "1.2.840.10008.1.1"
_STORAGE_COMMITMENT = "1.2.840.10008.1.20.1"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks a server of this machine, whatever proxy the environment names."""


def free_port() -> int:
    """Name a port of the loopback interface that nobody listens on.

    It is none that the kernel gives to outgoing connections (32768 and higher on Linux, unless set otherwise): one of
    those could be taken before the caller opens it, or while a peer that is to come back on its port is down.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port


def responds(address: str) -> bool:
    """Whether a server that is just starting answers over HTTP; one that refuses or resets the connection does not."""
    try:
        with DIRECT.open(address, timeout=10) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def require(program: str) -> str:
    """Find a program of `make system-packages`; without it the test ends as one that is `missing` something.

    What lies beside our Python is never meant: pynetdicom installs commands there with the names of dcmtk's.
    """
    own = Path(sys.executable).parent
    folders = [folder for folder in (*os.get_exec_path(), "/usr/sbin") if Path(folder) != own]
    found = shutil.which(program, path=os.pathsep.join(folders))
    if found is not None:
        return found
    missing(f"{program} is not installed: make system-packages")


def missing(message: str) -> NoReturn:
    """End a test that lacks what this machine may not have: it skips at home and fails where CI=true."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)


def is_running(pid: int | str) -> bool:
    """Whether a process runs; one that has ended and whose parent did not ask for its exit code does not."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], *, what: str, limit_seconds: float = 30.0) -> None:
    """Ask another process again and again until it has come so far; a test that waits in vain fails.

    One that is too slow to answer (TimeoutError) has not come so far.
    """

    def holds() -> bool:
        try:
            return condition()
        except TimeoutError:
            return False

    end = time.monotonic() + limit_seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"after {limit_seconds} s still not so: {what}")
        time.sleep(0.05)


@contextmanager
def killed_after(seconds: float, kill: Callable[[], object]) -> Iterator[None]:
    """End a process that the block waits for, where the block takes longer."""
    alarm = threading.Timer(seconds, kill)
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def send(source: Path | Dataset, *, port: int, called_ae: str = "CHEX", calling_ae: str = "TESTER") -> int | None:
    """Send one object by C-STORE. Returns the status, or None where association or connection was refused or lost."""
    return send_all([source], port=port, called_ae=called_ae, calling_ae=calling_ae)[0]


def send_all(
    sources: Sequence[Path | Dataset],
    *,
    port: int,
    called_ae: str = "CHEX",
    calling_ae: str = "TESTER",
    host: str = LOOPBACK,
) -> list[int | None]:
    """Send objects over one association, each in the transfer syntax it has. Returns a status for each, like `send`."""
    datasets = [_with_file_meta(dcmread(source) if isinstance(source, Path) else source) for source in sources]
    entity = AE(ae_title=calling_ae)
    kinds = {(dataset.SOPClassUID, dataset.file_meta.TransferSyntaxUID) for dataset in datasets}
    contexts = [build_context(sop_class, syntax) for sop_class, syntax in sorted(kinds)]
    association = entity.associate(host, port, contexts=contexts, ae_title=called_ae)
    statuses: list[int | None] = []
    for dataset in datasets:
        # After one lost answer nothing more is tried: pynetdicom would wait its 30 s on a connection that is gone.
        lost = not association.is_established or None in statuses
        status = None if lost else association.send_c_store(dataset).get("Status")
        statuses.append(None if status is None else int(status))
    if association.is_established:
        association.release()
    return statuses


def _with_file_meta(dataset: Dataset) -> Dataset:
    """Let a dataset made in a test be sent as explicit little endian."""
    if "TransferSyntaxUID" not in getattr(dataset, "file_meta", Dataset()):
        dataset.ensure_file_meta()
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One C-STORE request that reached the `ReceivingArchive`: the bytes as sent, as a DICOM file."""

    calling_ae: str
    sop_class_uid: str
    sop_instance_uid: str
    transfer_syntax_uid: str
    content: bytes

    @property
    def dataset(self) -> Dataset:
        """The object."""
        return dcmread(BytesIO(self.content))


class Mood(Enum):
    """What the `ReceivingArchive` does with the next C-STORE."""

    ANSWER = auto()
    HANG = auto()
    DROP = auto()


class ReceivingArchive:
    """An archive in the test's own process. `requests` has every C-STORE that came, `kept` those it took.

    handlers: of storage commitment (`tests.support.committing`), which it offers only then
    compressed: transfer syntaxes beside the default ones: few, for every association copies those of all contexts
    is_poison: says at which objects it closes the connection, every time
    """

    def __init__(
        self,
        *,
        ae_title: str = "ARCHIVE",
        port: int = 0,
        handlers: Sequence[evt.EventHandlerType] = (),
        tls: ssl.SSLContext | None = None,
        compressed: Sequence[str] = (),
    ) -> None:
        self.ae_title, self.port = ae_title, port or free_port()
        self._handlers, self._tls = handlers, tls
        self.requests: list[Received] = []
        self.kept: list[Received] = []
        self.echoes = 0
        self.is_poison: Callable[[Received], bool] = lambda _: False
        self._status, self._mood = 0x0000, Mood.ANSWER
        self._arrived, self._go_on = threading.Condition(), threading.Event()
        self._entity = AE(ae_title=ae_title)
        self._entity.maximum_associations = 100
        self._entity.add_supported_context(_VERIFICATION)
        if handlers:
            self._entity.add_supported_context(_STORAGE_COMMITMENT)
        for context in AllStoragePresentationContexts:
            self._entity.add_supported_context(
                cast(str, context.abstract_syntax), [*DEFAULT_TRANSFER_SYNTAXES, *compressed]
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, host: str = LOOPBACK) -> None:
        """Listen, after `stop` on the same port again."""
        address = (host, self.port)
        handlers = [(evt.EVT_C_STORE, self._on_store), (evt.EVT_C_ECHO, self._on_echo), *self._handlers]
        self._entity.start_server(address, block=False, evt_handlers=handlers, ssl_context=self._tls)

    def stop(self) -> None:
        """Be down: connections are refused from now on, and open ones are lost."""
        self._go_on.set()
        self._entity.shutdown()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Be down for a while."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def accept(self) -> None:
        """Behave well, which is what it does at first; a C-STORE that hangs is answered now."""
        self._status, self._mood = 0x0000, Mood.ANSWER
        self._entity.require_calling_aet = []
        self._go_on.set()

    def refuse(self, status: int) -> None:
        """Answer every C-STORE with a failure, 0xA700 for example."""
        self._status, self._mood = status, Mood.ANSWER

    def reject(self) -> None:
        """Reject every association: the calling AE title is not recognized (PS3.8 9.3.4)."""
        self._entity.require_calling_aet = ["NOBODY"]

    def verify_nobody(self) -> None:
        """Accept associations after the next start, but not the Verification class."""
        self._entity.remove_supported_context(_VERIFICATION)

    def refuse_class(self, sop_class_uid: str) -> None:
        """Accept associations after the next start, but not this storage class."""
        self._entity.remove_supported_context(sop_class_uid)

    def hang(self) -> None:
        """Take every C-STORE and never answer, until `accept` or `stop`."""
        self._go_on.clear()
        self._mood = Mood.HANG

    def drop(self) -> None:
        """Take every C-STORE and close the connection instead of an answer."""
        self._mood = Mood.DROP

    def wait_for_requests(self, count: int) -> list[Received]:
        """Wait until so many C-STOREs came, whatever was answered, and return all of them."""
        return self._wait_for(self.requests, count=count, limit_seconds=30.0)

    def wait_for_kept(self, count: int, *, limit_seconds: float = 30.0) -> list[Received]:
        """Wait until so many objects were taken, and return all of them."""
        return self._wait_for(self.kept, count=count, limit_seconds=limit_seconds)

    def wait_until(self, condition: Callable[[], bool], *, limit_seconds: float = 30.0) -> None:
        """Wait until a condition holds that changes when objects arrive."""
        with self._arrived:
            if not self._arrived.wait_for(condition, limit_seconds):
                raise AssertionError(f"after {limit_seconds} s still not so, with {len(self.kept)} objects kept")

    def _wait_for(self, arrivals: list[Received], *, count: int, limit_seconds: float) -> list[Received]:
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(arrivals) >= count, limit_seconds):
                raise AssertionError(f"after {limit_seconds} s {len(arrivals)} objects had arrived instead of {count}")
            return list(arrivals)

    def _on_echo(self, _event: evt.Event) -> int:
        self.echoes += 1
        return 0x0000

    def _on_store(self, event: evt.Event) -> int:
        request = cast(C_STORE, event.request)
        received = Received(
            calling_ae=str(event.assoc.requestor.ae_title),
            sop_class_uid=str(request.AffectedSOPClassUID),
            sop_instance_uid=str(request.AffectedSOPInstanceUID),
            transfer_syntax_uid=str(event.context.transfer_syntax),
            content=event.encoded_dataset(),
        )
        mood, status = self._mood, self._status
        self._note(self.requests, received)
        if mood is Mood.HANG:
            self._go_on.wait()
            status = self._status
        if mood is Mood.DROP or self.is_poison(received):
            cast(socket.socket, event.assoc.dul.socket.socket).shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
            return 0xC000
        if status == 0x0000:
            self._note(self.kept, received)
        return status

    def _note(self, arrivals: list[Received], received: Received) -> None:
        with self._arrived:
            arrivals.append(received)
            self._arrived.notify_all()
