"""Today's node goes on where a node of the first version was cut off.

`fixtures/storage-1.tar.xz` is the storage folder of a node of version 1, killed while its archive was down: one study
delivered, one written and waiting for the archive, one in its quiet time of 30 s. The node was that commit's
`tests.scripted_node` with the reader of `tests.fakes` (version "1"), an archive "archive" with the AE title "ARCHIVE",
and thumbnails of RG1 as films.
"""

from __future__ import annotations

import dataclasses
import tarfile
from pathlib import Path

import pytest

from tests import peers
from tests.films import body_of
from tests.service import Service, settings_for

FIXTURE = Path(__file__).with_name("fixtures") / "storage-1.tar.xz"

DELIVERED = "1.3.6.1.4.1.5962.1.2.9.20040826185059.5457"
WAITING = "2.25.1002"
RECEIVED = "2.25.2002"


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """The old node's folder, where today's node will look for it."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "node"


def outputs(storage: Path, study_uid: str) -> dict[str, bytes]:
    """The dataset of each output that a study has on disk, by its SOP Instance UID."""
    paths = (storage / "studies" / study_uid / "outputs").glob("*.dcm")
    return {path.name.rsplit(".", 2)[0]: body_of(path.read_bytes()) for path in paths}


def test_a_node_of_today_ends_what_a_node_of_the_first_version_began(storage: Path) -> None:
    written = outputs(storage, WAITING)
    with peers.ReceivingArchive() as archive:
        settings = settings_for(storage, archive_port=archive.port)
        # The films of the fixture are old one day: they must not age out while the test looks at them.
        keeps = dataclasses.replace(settings.storage, keep_days=36500.0)
        with Service(dataclasses.replace(settings, storage=keeps)) as node:
            archive.wait_for_kept(4, limit_seconds=60.0)
            node.wait_for("delivery.sent", count=4)
            assert node.stop() == 0

    sent = {one.sop_instance_uid: body_of(one.content) for one in archive.kept}
    answered = outputs(storage, RECEIVED)
    assert len(written) == len(answered) == 2
    assert sent == written | answered
    assert len(archive.requests) == 4  # nothing twice, and nothing of the study that had been delivered
    assert {one.dataset.StudyInstanceUID for one in archive.kept} == {WAITING, RECEIVED}
    assert not sent.keys() & outputs(storage, DELIVERED).keys()
