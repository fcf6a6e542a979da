"""A spool whose files a bucket holds, too: nothing counts before its PUT, and another folder gets all of it back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from node.domain import OutputObject
from node.errors import SpoolFull
from node.hl7.order import Priority
from node.orders.store import OrderStore
from node.store.bucket import Bucket
from node.store.mirror import Levelled, Mirror
from node.store.received import Kept
from node.store.rounds import RoundMark
from node.store.spool import Spool
from tests.support import films
from tests.support.ordered import find, ordered
from tests.support.peers import wait_until
from tests.support.s3 import Network, S3Server, s3_server

STUDY, FILM = "1.2.3", "1.2.3.4"
RESULT = OutputObject(
    kind="sr", study_uid=STUDY, sop_class_uid="1.1", sop_instance_uid="1.2", series_instance_uid="1.3"
)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


class Bench:
    """A bucket, the network before it, and folders that use it."""

    def __init__(self, server: S3Server, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.settings = server.settings(folder, port=network.port, prefix=folder.name)
        self.direct = Bucket(server.settings(folder, prefix=folder.name))

    def mirror(self, name: str) -> Mirror:
        (self.folder / name).mkdir(exist_ok=True)
        return Mirror(self.folder / name, Bucket(self.settings))

    def spool(self, name: str) -> Spool:
        return Spool(self.folder / name, place=self.mirror(name))

    def names(self) -> list[str]:
        return sorted(item.name for folder in ("studies", "orders") for item in self.direct.list(folder))


@pytest.fixture
def bench(server: S3Server, tmp_path: Path) -> Iterator[Bench]:
    with Network(server.port) as network:
        yield Bench(server, network, tmp_path)


def keep(spool: Spool, body: bytes = b"film", *, film: str = FILM) -> Kept:
    return films.keep_bytes(spool, study_uid=STUDY, sop_instance_uid=film, meta=films.META, body=body)


def mark(*files: str) -> RoundMark:
    return RoundMark(number=1, created_at=datetime.now(UTC), files=files, outputs=())


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted((folder / "studies").rglob("*"))
        if path.is_file()
    }


def test_a_new_folder_gets_everything_back_with_its_times(bench: Bench) -> None:
    spool = bench.spool("first")
    kept = keep(spool).instance
    os.utime(kept.path, ns=(1, 1))  # the bucket has the time at which it was received
    spool.mark_stat(STUDY)
    spool.keep_output(RESULT, b"report")
    spool.mark_round(STUDY, mark(kept.path.name))
    keep(spool, film="1.2.3.5")

    second = bench.spool("second")

    levelled = bench.mirror("second").level()

    assert levelled == Levelled(fetched=5, sent=0, damaged=0)
    assert contents(bench.folder / "second") == contents(bench.folder / "first")
    assert [item.sop_instance_uid for item in second.unread(STUDY)] == ["1.2.3.5"]
    (known,) = [item for item in second.study(STUDY).instances if item.sop_instance_uid == FILM]
    assert known.received_at == kept.received_at
    assert second.is_stat(STUDY) and second.output(RESULT) == b"report"


def test_a_film_is_refused_at_once_while_the_bucket_is_away(bench: Bench) -> None:
    spool = bench.spool("first")
    bench.network.cut()

    for _ in range(2):
        with pytest.raises(SpoolFull, match="the bucket cannot be reached"):
            keep(spool)

    assert spool.study(STUDY).instances == ()
    bench.network.mend()
    wait_until(lambda: takes(spool), what="the bucket is tried again")
    assert len(bench.names()) == 1


def takes(spool: Spool) -> bool:
    try:
        keep(spool)
    except SpoolFull:
        return False
    return True


def test_a_put_without_an_answer_is_found_before_the_next_object(bench: Bench) -> None:
    spool = bench.spool("first")
    bench.network.loses_answers = True
    with pytest.raises(SpoolFull):
        keep(spool, b"first")
    assert len(bench.names()) == 1 and spool.study(STUDY).instances == ()
    bench.network.loses_answers = False

    wait_until(lambda: takes(spool), what="the bucket is tried again")

    assert [item.number for item in spool.versions(STUDY)] == [1, 2]
    assert sorted(contents(bench.folder / "first")) == bench.names()


def test_a_removed_study_leaves_only_its_marks_in_the_bucket(bench: Bench) -> None:
    spool = bench.spool("first")
    name = keep(spool).instance.path.name
    spool.keep_output(RESULT, b"report")
    spool.mark_round(STUDY, mark(name))

    assert spool.remove_study(STUDY)

    assert bench.names() == [f"studies/{STUDY}/rounds/000001.json"]
    assert sorted(contents(bench.folder / "first")) == bench.names()


def test_a_study_stays_whole_if_its_removal_fails(bench: Bench) -> None:
    spool = bench.spool("first")
    spool.mark_round(STUDY, mark(keep(spool).instance.path.name))
    before = contents(bench.folder / "first")
    bench.network.cut()

    with pytest.raises(OSError, match="cannot be reached"):
        spool.remove_study(STUDY)

    assert contents(bench.folder / "first") == before


def test_damaged_bytes_of_the_bucket_are_not_brought(bench: Bench) -> None:
    path = keep(bench.spool("first")).instance.path
    name = path.relative_to(bench.folder / "first").as_posix()
    known = bench.direct.get(name)
    assert known is not None
    bench.direct._put_with(name, b"other bytes", sha256=known.sha256, modified_ns=1, mode="overwrite")

    levelled = bench.mirror("second").level()

    assert levelled == Levelled(fetched=0, sent=0, damaged=1)
    assert contents(bench.folder / "second") == {}


def test_files_of_a_folder_without_a_bucket_are_put_at_the_start(bench: Bench) -> None:
    keep(Spool(bench.folder / "first"))

    assert bench.mirror("first").level() == Levelled(fetched=0, sent=1, damaged=0)
    assert bench.mirror("first").level() == Levelled(fetched=0, sent=0, damaged=0)
    assert bench.names() == sorted(contents(bench.folder / "first"))


def test_the_bucket_is_right_after_a_kill_between_two_writes(bench: Bench) -> None:
    mirror = bench.mirror("first")
    spool = Spool(bench.folder / "first", place=mirror)
    keep(spool)
    spool.keep_document(STUDY, "objects", "1", {"file": "a"})
    path = bench.folder / "first" / "studies" / STUDY / "objects" / "1.json"
    older = path.read_bytes()
    spool.keep_document(STUDY, "objects", "1", {"file": "b"})
    newer = path.read_bytes()
    path.write_bytes(older)

    assert mirror.level().fetched == 1
    assert path.read_bytes() == newer


def test_orders_are_in_the_bucket_until_they_are_forgotten(bench: Bench) -> None:
    orders = OrderStore(bench.folder / "first", place=bench.mirror("first"))
    order = ordered(accession="A1", study_uid="", placer_number=(), filler_number=(), priority=Priority.STAT)
    orders.keep(order)
    bench.mirror("second").level()

    assert find(OrderStore(bench.folder / "second"), study_uid="", accession="A1") == order

    orders.forget(order)

    assert bench.names() == []


def test_two_writers_of_a_mark_get_two_numbers(bench: Bench) -> None:
    first, second = bench.spool("first"), bench.spool("second")
    keep(first)
    first.mark_round(STUDY, mark("a"))
    (bench.folder / "second" / "studies" / STUDY / "rounds").mkdir(parents=True)

    second.mark_round(STUDY, mark("b"))

    assert [item.files for item in second.rounds(STUDY)] == [("a",), ("b",)]
    assert [item.number for item in second.rounds(STUDY)] == [1, 2]
