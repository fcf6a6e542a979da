"""Kills of a node with a bucket, which goes away in between; then another machine gets everything back from the bucket.

moto is the S3 server: it holds objects in memory and is not killed, so this says nothing of a server's durability.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from models.progress import ProgressReport
from node.store import received
from node.store.bucket import Bucket
from node.store.mirror import Mirror
from tests.drills.chaos import night
from tests.drills.chaos.archives import judge_own
from tests.drills.chaos.node import Cluster
from tests.drills.chaos.senders import Acknowledged, Senders, caller_names
from tests.support import peers
from tests.support.s3 import Network, on_bucket, s3_server
from tests.support.service import settings_for

_LIMIT_SECONDS: Final = 300.0
_IN_ANSWER_SECONDS: Final = 1.0
"""What was stored before a cut may be answered so long after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How often the node is killed, how many films come, and for how long the bucket is away in between.

    hostile: as in `night.Plan`
    """

    kills: int
    films: int
    seconds: float
    seed: int
    hostile: tuple[str, ...] = ()


def run(cut: Cut, folder: Path, *, say: ProgressReport) -> dict[str, object]:
    """Live through it and count; the figures, with `passed`."""
    began, draw, port = time.monotonic(), random.Random(cut.seed), peers.free_port()
    with s3_server() as server, Network(server.port) as network, peers.ReceivingArchive() as archive:
        names = caller_names(night.SENDERS)
        plain = settings_for(folder / "node", archive_port=archive.port, dicom_port=port, callers=names)
        settings = on_bucket(plain, server.settings(folder, port=network.port))
        with night.one_process(settings) as node:
            films_of = random.Random(cut.seed + 1)
            senders = Senders(port=port, count=night.SENDERS, films=cut.films, draw=films_of, hostile=cut.hostile)
            try:
                taken_away = _kill_and_cut(cut, node, network, senders, draw=draw, say=say)
                senders.allow(cut.films)
                is_taken = senders.wait_for(cut.films, limit_seconds=_LIMIT_SECONDS)
            finally:
                senders.close()
            is_idle, interrupted = night.retry_interrupted(settings, patience_seconds=_LIMIT_SECONDS / 2)
            crashes, ends = node.crashes, node.ends
        verdict = judge_own(archive, senders.acknowledged, excused=night.IN_HAND * ends, unreadable=senders.hostile)
        (folder / "another").mkdir()
        levelled = Mirror(folder / "another", Bucket(server.settings(folder))).level()
        missing = _missing(folder / "another", senders.acknowledged)
        here, there = _contents(folder / "node"), _contents(folder / "another")
    return {
        "passed": verdict.passed
        and is_taken
        and is_idle
        and not (crashes or missing or taken_away or levelled.damaged)
        and here == there,
        "kills": cut.kills,
        "acknowledged": senders.done,
        "acknowledged_while_away": taken_away,
        "idle_at_the_end": is_idle,
        "interrupted": interrupted,
        "crashes": crashes,
        "files_in_the_bucket": levelled.fetched,
        "missing_in_the_bucket": len(missing),
        "other_bytes_in_the_bucket": sum(here[name] != there[name] for name in here.keys() & there.keys()),
        "only_on_one_side": sorted(here.keys() ^ there.keys()),
        "archive": verdict.figures(),
        "seconds": round(time.monotonic() - began, 1),
    }


def _kill_and_cut(
    cut: Cut, node: Cluster, network: Network, senders: Senders, *, draw: random.Random, say: ProgressReport
) -> int:
    """Kill the node again and again; once, in the middle, the bucket is away. How many films were taken meanwhile."""
    taken = 0
    for number in range(1, cut.kills + 1):
        senders.allow(cut.films * number // (cut.kills + 1))
        if number == (cut.kills + 1) // 2:
            network.cut()
            say("the bucket is away")
            time.sleep(_IN_ANSWER_SECONDS)
            before = senders.done
            time.sleep(cut.seconds / 2)
            node.kill_one(draw)  # it starts while there is no bucket
            time.sleep(cut.seconds / 2)
            taken = senders.done - before
            network.mend()
        else:
            senders.wait_for(senders.done + 1, limit_seconds=10.0)
            time.sleep(draw.uniform(0.0, 2.0))
            node.kill_one(draw)
        say(f"kill {number} of {cut.kills}: {senders.done} films acknowledged")
    return taken


def _missing(folder: Path, acknowledged: Acknowledged) -> list[str]:
    """Name the acknowledged films that a folder does not have as they were received."""
    return [
        film
        for study, films in acknowledged.items()
        for film in films
        if not any(map(received.is_intact, (folder / "studies" / study / "received").glob(f"{film}~*.dcm")))
    ]


def _contents(folder: Path) -> Mapping[str, bytes]:
    """Return the files of all studies."""
    studies = folder / "studies"
    return {
        path.relative_to(studies).as_posix(): path.read_bytes()
        for path in studies.rglob("*")
        if path.is_file() and not path.name.startswith(".") and path.suffix != ".begun"
    }
