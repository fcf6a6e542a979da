"""Order in, film in, message out: with an information system beside the archive, in a service of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.hl7.text import read
from tests.support import films, mllp, peers
from tests.support.mllp import InformationSystem, Mood
from tests.support.service import Service, run_command, settings_with

FILM = films.thumbnail({"PatientName": "Zyxwvu^Qrst", "PatientID": "PID-7788", "AccessionNumber": "ACC-9911"})
ORDER = "\r".join(
    (
        r"MSH|^~\&|RIS||CHEX||20240131||ORM^O01|C1|P|2.3.1",
        "PID|1||PID-7788||Zyxwvu^Qrst",
        "ORC|NW|P1^RIS|F1^RIS||||^^^^^S",
        "OBR|1|P1^RIS|F1^RIS|XCHEST||||||||||||||ACC-9911",
    )
)


def test_a_result_answers_the_order_that_came_before_its_film(tmp_path: Path) -> None:
    moods = iter((Mood.DROP_AFTER, Mood.ERROR))
    with (
        peers.ReceivingArchive() as archive,
        InformationSystem(lambda: next(moods, Mood.ACCEPT)) as system,
        Service(settings_with(system, tmp_path / "node", archive_port=archive.port)) as service,
    ):
        (answer,) = mllp.ask(int(str(service.logged("service.ready")[0]["orders_port"])), ORDER.encode())
        assert str(answer.segment("MSA")[1]) == "AA"
        assert peers.send(FILM, port=service.dicom_port) == 0
        archive.wait_for_kept(2)
        first, second = system.wait_for_kept(2)
        service.wait_for("delivery.sent", count=3)
        said = json.loads(run_command("status", service.settings_path, "--json").stdout)
        assert service.stop() == 0

    assert first == second  # kept and not acknowledged, so it came again: the very same
    message = read(first.content)
    order, reference = (
        next(message.named("ORC")),
        [segment for segment in message.named("OBX") if segment.text(2) == "HD"],
    )
    assert (order.components(2), order.components(3)) == (("P1", "RIS"), ("F1", "RIS"))
    assert next(message.named("PID")).components(5)[:2] == ("Zyxwvu", "Qrst")
    report = next(received.dataset for received in archive.kept if received.dataset.Modality == "SR")
    assert [segment.text(5) for segment in reference] == [report.SOPInstanceUID]
    assert said["orders"] == {"stat": 1, "asap": 0, "routine": 0}
    assert said["deliveries"]["ris"]["sent"] == 1
    databases = b"".join(path.read_bytes() for path in (tmp_path / "node").glob("*.sqlite*"))
    for secret in ("Zyxwvu", "PID-7788", "ACC-9911"):
        assert secret not in json.dumps(service.lines)
        assert secret.encode() not in databases


@pytest.mark.drill(part="kills")
def test_a_node_killed_after_it_wrote_sends_what_it_wrote(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive, InformationSystem() as system:
        settings = settings_with(system, tmp_path / "node", archive_port=archive.port)
        with Service(settings, die_at=5) as first:  # right after the outputs were written
            assert peers.send(FILM, port=first.dicom_port) == 0
            assert first.wait_until_dead() == -9
        (written,) = (tmp_path / "node").rglob("*.hl7")
        content = written.read_bytes()

        with Service(settings) as second:
            (kept,) = system.wait_for_kept(1)
            second.wait_for("delivery.sent", count=3)

    assert kept.content.split(b"\r")[1:] == content.split(b"\r")[1:]
    assert [kept.control_id.encode()] == content.split(b"|")[9:10]
    assert list((tmp_path / "node").rglob("*.hl7")) == [written]
