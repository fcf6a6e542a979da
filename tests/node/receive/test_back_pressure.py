"""A disk that is full, or almost: nothing is acknowledged that is not kept, and all is taken again afterwards."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydicom import Dataset
from pynetdicom import AE, build_context
from pynetdicom.association import Association

from tests.support import films, peers
from tests.support.listening import Node, listening

SENDERS = 20
MIB = 1024 * 1024
BALLAST_MIB = 400
"""Far more than other programs write to the disk meanwhile."""


def films_of_all_senders() -> list[Dataset]:
    return [films.as_another(films.thumbnail(), f"sender {number}", study="all") for number in range(SENDERS)]


@contextmanager
def associations(node: Node, film: Dataset) -> Iterator[list[Association]]:
    contexts = [build_context(film.SOPClassUID, film.file_meta.TransferSyntaxUID)]
    entity = AE(ae_title="TESTER")
    opened = [
        entity.associate("127.0.0.1", node.listener.port, ae_title="CHEX", contexts=contexts) for _ in range(SENDERS)
    ]
    try:
        yield opened
    finally:
        for association in opened:
            association.release()


def send_at_once(opened: Sequence[Association], sent: Sequence[Dataset]) -> list[int]:
    store: Callable[[Association, Dataset], int] = lambda association, film: int(association.send_c_store(film).Status)  # noqa: E731
    with ThreadPoolExecutor(SENDERS) as threads:
        return list(threads.map(store, opened, sent))


def test_twenty_senders_hear_of_a_full_disk_and_succeed_later(tmp_path: Path) -> None:
    sent = films_of_all_senders()
    with listening(tmp_path) as node, associations(node, sent[0]) as opened:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        try:
            assert send_at_once(opened, sent) == [0xA700] * SENDERS
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [*tmp_path.rglob("*.dcm"), *tmp_path.rglob(".incoming-*")] == []

        assert send_at_once(opened, sent) == [0x0000] * SENDERS
        assert len(node.spool.study(sent[0].StudyInstanceUID).instances) == SENDERS


def test_a_disk_below_its_reserve_refuses_open_and_new_senders(
    tmp_path: Path,
) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize // MIB
    if free < 3 * BALLAST_MIB:
        pytest.skip("needs 1.2 GB of free disk")
    sent = films_of_all_senders()
    with (
        listening(tmp_path / "data", min_free_mib=free - BALLAST_MIB // 2) as node,
        associations(node, sent[0]) as opened,
    ):
        with (tmp_path / "ballast").open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, BALLAST_MIB * MIB)

        assert send_at_once(opened, sent) == [0xA700] * SENDERS
        assert peers.send(sent[0], port=node.listener.port) is None
        assert node.count("cxr_associations_refused_total", reason="disk") == 1
        assert list(node.spool.studies()) == []

        (tmp_path / "ballast").unlink()
        assert send_at_once(opened, sent) == [0x0000] * SENDERS
