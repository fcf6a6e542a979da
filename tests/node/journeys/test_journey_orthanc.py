"""The whole way with a real Orthanc: it routes a film by Lua, SR and GSPS come back into the same study, once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import films, peers
from tests.support.orthanc import Orthanc, beside_node
from tests.support.service import Line, Service


@pytest.fixture
def reading_room(tmp_path: Path) -> Iterator[tuple[Orthanc, Service]]:
    """An Orthanc that knows the node, and a node that knows the Orthanc."""
    with beside_node(tmp_path) as (orthanc, settings), Service(settings) as service:
        yield orthanc, service
        assert service.stop() == 0


def test_a_routed_film_gets_report_and_overlay_in_its_study(
    reading_room: tuple[Orthanc, Service], chest_film: Path
) -> None:
    orthanc, _ = reading_room

    orthanc.upload(chest_film)
    orthanc.wait_for_count(3)

    (study,) = orthanc.study_uids()
    found = orthanc.instances(study)
    assert sorted(instance.Modality for instance in found) == ["CR", "PR", "SR"]
    assert {instance.PatientID for instance in found} == {films.rg1().PatientID}


@pytest.mark.drill(part="peers")
def test_results_and_repeated_films_come_back_to_nothing(
    reading_room: tuple[Orthanc, Service], chest_film: Path
) -> None:
    orthanc, service = reading_room
    orthanc.upload(chest_film)
    orthanc.wait_for_count(3)

    orthanc.upload(chest_film)
    status = peers.send(chest_film, port=service.dicom_port, calling_ae=orthanc.ae_title)
    results = [instance for instance in orthanc.instances() if instance.Modality in ("SR", "PR")]
    routed_back = [peers.send(result, port=service.dicom_port, calling_ae=orthanc.ae_title) for result in results]

    assert status == 0x0000
    assert routed_back == [0x0000, 0x0000]
    for result in results:  # a slow sender has a round for each of them
        service.wait_for_line(functools.partial(_left_as_own, uid=result.SOPInstanceUID))
    service.wait_for("study.finished", count=len(service.logged("study.ready")))
    arrived = [arrival.sop_instance_uid for arrival in orthanc.arrivals(calling_ae="CHEX")]
    assert sorted(arrived) == sorted(result.SOPInstanceUID for result in results)
    assert orthanc.count() == 3


def _left_as_own(line: Line, *, uid: str) -> bool:
    """Whether a line says that an object was not read because the node wrote it."""
    return line.get("reason") == "left:own_object" and line["sop_instance_uid"] == uid
