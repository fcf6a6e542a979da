"""Receiving as the whole service does it: two ports, a conflict that a person is told of and nobody reads."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import httpx2

from node.commands.operate import render, status
from node.config import ServerTlsSettings
from tests.node.net.test_tls import call
from tests.support import films, peers
from tests.support.certificates import Authority
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, settings_for


def test_a_conflict_is_reported_and_every_port_is_served(tmp_path: Path) -> None:
    authority = Authority.found(tmp_path / "authority")
    own, scanner = authority.issue("node"), authority.issue("scanner")
    film = films.thumbnail()
    other = deepcopy(film)
    other.PixelData = bytes(reversed(other.PixelData))
    with ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "data", archive_port=archive.port)
        tls = ServerTlsSettings(port=0, certificate=own.certificate, key=own.key, ca=authority.certificate)
        settings = replace(settings, listener=replace(settings.listener, tls=tls))
        settings = replace(settings, http=replace(settings.http, probe_port=0))
        with Service(settings) as service:
            tls_port = int(str(service.logged("service.ready")[0]["tls_port"]))
            assert call(tls_port, authority, scanner)
            probes = f"http://{peers.LOOPBACK}:{service.logged('service.ready')[0]['probe_port']}"
            statuses = [
                httpx2.get(f"{probes}{path}").status_code for path in ("/live", "/ready", "/metrics", "/", "/login")
            ]
            assert statuses == [200, 200, 200, 404, 404]
            assert peers.send(film, port=service.dicom_port) == 0x0000
            service.wait_for("study.finished")

            assert peers.send(other, port=service.dicom_port) == 0x0000

            assert service.wait_for("instance.conflict")["sop_instance_uid"] == film.SOPInstanceUID
            said = status(settings)
            (conflict,) = said["conflicts"]
            assert conflict["study"] == film.StudyInstanceUID
            assert Path(conflict["file"]).is_file()
            assert f"conflict {film.StudyInstanceUID}: {film.SOPInstanceUID}" in render(said, zone=settings.site.zone)
            assert service.stop() == 0
        assert len(service.logged("study.finished")) == 1
        assert len(service.logged("study.submitted")) == 1
