"""Today's node goes on where a node of an earlier version was cut off.

`fixtures/storage-1.tar.xz` is the storage folder of a node of version 1, killed while its archive was down: one study
delivered, one written and waiting for the archive, one in its quiet time of 30 s. `fixtures/storage-2.tar.xz` is that
of the last node before its files moved into today's folders; there is also a study that is parked because its film was
damaged. The node was that commit's `tests.scripted_node` with the reader of `tests.fakes` (version "1"), an archive
"archive" with the AE title "ARCHIVE", and thumbnails of RG1 as films.
"""

from __future__ import annotations

import dataclasses
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.commands import operate
from tests import peers
from tests.films import body_of
from tests.service import Service, settings_for

FIXTURES = Path(__file__).with_name("fixtures")


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """A storage folder of an earlier version, and the study in each state."""

    archive: str
    delivered: str
    waiting: str
    received: str
    parked: tuple[str, ...] = ()


FIRST = Earlier(
    archive="storage-1.tar.xz",
    delivered="1.3.6.1.4.1.5962.1.2.9.20040826185059.5457",
    waiting="2.25.1002",
    received="2.25.2002",
)
BEFORE_THE_MOVE = Earlier(
    archive="storage-2.tar.xz",
    delivered="2.25.1003",
    waiting="2.25.1004",
    received="2.25.2003",
    parked=("2.25.3003",),
)


def outputs(storage: Path, study_uid: str) -> dict[str, bytes]:
    """The dataset of each output that a study has on disk, by its SOP Instance UID."""
    paths = (storage / "studies" / study_uid / "outputs").glob("*.dcm")
    return {path.name.rsplit(".", 2)[0].split("~")[0]: body_of(path.read_bytes()) for path in paths}


@pytest.mark.parametrize("earlier", [FIRST, BEFORE_THE_MOVE], ids=lambda earlier: earlier.archive)
def test_a_node_of_today_ends_what_an_earlier_node_began(tmp_path: Path, earlier: Earlier) -> None:
    with tarfile.open(FIXTURES / earlier.archive) as content:
        content.extractall(tmp_path, filter="data")
    storage = tmp_path / "node"
    written = outputs(storage, earlier.waiting)
    with peers.ReceivingArchive() as archive:
        settings = settings_for(storage, archive_port=archive.port)
        # The films of the fixture are old one day: they must not age out while the test looks at them.
        keeps = dataclasses.replace(settings.storage, keep_days=36500.0)
        with Service(dataclasses.replace(settings, storage=keeps)) as node:
            archive.wait_for_kept(4, limit_seconds=60.0)
            node.wait_for("delivery.sent", count=4)
            assert node.stop() == 0
        parked = operate.status(settings)["parked"]

    sent = {received.sop_instance_uid: body_of(received.content) for received in archive.kept}
    answered = outputs(storage, earlier.received)
    assert len(written) == len(answered) == 2
    assert sent == written | answered
    assert len(archive.requests) == 4  # nothing twice, and nothing of the study that had been delivered
    assert {received.dataset.StudyInstanceUID for received in archive.kept} == {earlier.waiting, earlier.received}
    assert not sent.keys() & outputs(storage, earlier.delivered).keys()
    assert isinstance(parked, list)
    assert tuple(work["study"] for work in parked) == earlier.parked
