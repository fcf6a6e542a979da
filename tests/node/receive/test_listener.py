"""The listener: Success means kept; what is refused has its status, also while the disk is full or a node restarts."""

from __future__ import annotations

import hashlib
import resource
import shutil
import tracemalloc
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from unittest.mock import Mock

import httpx2
import pytest
from pydicom import dcmread
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, generate_uid
from pynetdicom import AE, build_context
from pynetdicom.association import Association
from pynetdicom.dsutils import encode
from pynetdicom.presentation import PresentationContext

from node import log
from node.commands.operate import status
from node.config import Caller, ListenerSettings, ServerTlsSettings, Settings
from node.dicom.header import identify
from node.metrics import Metrics
from node.receive.listener import Listener
from node.store.spool import Spool
from tests.node.net.test_tls import call
from tests.support import films, peers
from tests.support.certificates import Authority
from tests.support.listening import TESTER, Node, listening
from tests.support.peers import LOOPBACK, wait_until
from tests.support.service import Service

VERIFICATION = "1.2.840.10008.1.1"
STORAGE_COMMITMENT = "1.2.840.10008.1.20.1"
QUERY = "1.2.840.10008.5.1.4.1.2.2.1"
RETIRED_ULTRASOUND = "1.2.840.10008.5.1.4.1.1.6"
PRIVATE = "1.3.12.2.1107.5.9.1"
CHEST_FILM = "1.2.840.10008.5.1.4.1.1.1"
NEWER = "1.2.840.10008.5.1.4.1.1.99999"
SYNTAXES = ["", *".1 .1.99 .2 .4.50 .4.51 .4.57 .4.70 .4.80 .4.81 .4.90 .4.91 .4.201 .4.202 .4.203 .5".split()]
"""Of films, by their ends (PS3.6 A)."""


def associate(node: Node, *contexts: PresentationContext, calling_ae: str = "TESTER") -> Association:
    return AE(ae_title=calling_ae).associate(LOOPBACK, node.listener.port, ae_title="CHEX", contexts=list(contexts))


def test_success_means_the_bytes_are_on_disk_as_sent_and_who_sent_them(node: Node) -> None:
    film, events = films.thumbnail(), list[Mapping[str, object]]()
    sent = encode(film, is_implicit_vr=False, is_little_endian=True)

    with log.observed(events.append):
        assert peers.send(film, port=node.listener.port) == 0x0000

    (instance,) = node.spool.instances(film.StudyInstanceUID)
    assert sent is not None
    assert instance.path.read_bytes().endswith(sent)
    assert instance.sha256 == hashlib.sha256(sent).hexdigest()
    assert node.told == [film.StudyInstanceUID]
    meta = dcmread(instance.path).file_meta
    assert (meta.SourceApplicationEntityTitle, meta.ReceivingApplicationEntityTitle) == ("TESTER", "CHEX")
    assert meta.MediaStorageSOPClassUID == film.SOPClassUID
    (told,) = (event for event in events if event["event"] == "instance.kept")
    assert (told["calling_aet"], told["host"]) == ("TESTER", LOOPBACK)


def test_a_uid_of_two_studies_is_reported_without_patient_data(node: Node) -> None:
    film, events = films.thumbnail(), list[Mapping[str, object]]()
    study, again = film.StudyInstanceUID, films.thumbnail({"PatientName": "Another^Name", "StudyInstanceUID": "1.2.3"})

    with log.observed(events.append):
        for sent in (film, film, again, again, film):
            assert peers.send(sent, port=node.listener.port) == 0x0000

    (told,) = (event for event in events if event["event"] == "instance.doubled")
    assert (told["study"], told["other_study"]) == ("1.2.3", study)
    assert node.metrics.registry.get_sample_value("cxr_instances_total", {"outcome": "doubled"}) == 1
    assert node.told.count("1.2.3") == 2  # it is read, too
    assert "Another" not in str(events)


def test_the_same_film_twice_is_acknowledged_twice_and_kept_once(node: Node) -> None:
    film = films.thumbnail()
    sent = encode(film, is_implicit_vr=False, is_little_endian=True)
    assert sent is not None

    assert peers.send_all([film, film], port=node.listener.port) == [0x0000, 0x0000]

    assert len(node.spool.instances(film.StudyInstanceUID)) == 1
    assert [node.count("cxr_instances_total", outcome=outcome) for outcome in ("kept", "repeated")] == [1, 1]
    assert node.count("cxr_associations_accepted_total") == 1
    assert node.count("cxr_received_bytes_total") == 2 * len(sent)
    assert node.count("cxr_step_duration_seconds_count", step="receive") == 2


def test_nobody_is_let_in_while_the_disk_cannot_be_asked_or_is_below_its_reserve(tmp_path: Path) -> None:
    with listening(tmp_path / "gone") as gone, listening(tmp_path / "full", min_free_mib=10**9) as full:
        shutil.rmtree(tmp_path / "gone")
        for node in (gone, full):
            assert associate(node, build_context(VERIFICATION)).is_rejected
            assert node.count("cxr_associations_refused_total", reason="disk") == 1
            assert node.count("cxr_associations_open") == 0


def test_private_and_retired_storage_classes_and_every_transfer_syntax_of_films_are_accepted(node: Node) -> None:
    taken, own = [VERIFICATION, CHEST_FILM, RETIRED_ULTRASOUND, NEWER, PRIVATE], generate_uid()
    syntaxes = [f"1.2.840.10008.1.2{end}" for end in SYNTAXES]
    asked = [*taken, own, STORAGE_COMMITMENT, QUERY]
    association = associate(node, *map(build_context, asked), *(build_context(CHEST_FILM, each) for each in syntaxes))
    accepted = [(str(each.abstract_syntax), each.transfer_syntax) for each in association.accepted_contexts]
    association.release()

    assert {uid for uid, _ in accepted} == {*taken, own}
    assert [found for _, found in accepted[-len(syntaxes) :]] == [[syntax] for syntax in syntaxes]
    odd = films.of_class(films.thumbnail(), UID(PRIVATE))
    assert peers.send(odd, port=node.listener.port) == 0x0000
    (instance,) = node.spool.instances(odd.StudyInstanceUID)
    assert dcmread(instance.path).file_meta.MediaStorageSOPClassUID == PRIVATE


def test_an_object_without_a_study_is_refused(node: Node) -> None:
    assert peers.send(films.thumbnail({"StudyInstanceUID": None}), port=node.listener.port) == 0xC000
    assert node.count("cxr_instances_total", outcome="refused") == 1
    assert node.count("cxr_failures_total", stage="receive", reason="cannot_understand") == 1
    assert node.count("cxr_step_duration_seconds_count", step="receive") == 0


def test_a_deflated_film_is_kept_and_told_by_its_beginning(node: Node) -> None:
    film = films.thumbnail()
    film.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian

    assert peers.send(film, port=node.listener.port) == 0x0000

    (instance,) = node.spool.instances(film.StudyInstanceUID)
    assert dcmread(instance.path).PixelData == film.PixelData


def test_a_deflate_bomb_is_never_inflated_to_find_its_study() -> None:
    bomb = films.thumbnail()
    bomb.PixelData = bytes(100_000_000)
    sent = encode(bomb, is_implicit_vr=False, is_little_endian=True, deflated=True)
    assert sent is not None

    tracemalloc.start()
    found = identify(BytesIO(sent), DeflatedExplicitVRLittleEndian)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert found == (bomb.StudyInstanceUID, bomb.SOPInstanceUID)
    assert peak < 10_000_000


def test_what_fails_on_our_side_is_answered_with_another_status(tmp_path: Path) -> None:
    fail = Mock(side_effect=RuntimeError("nobody hears"))
    listener = Listener(ListenerSettings(port=0, callers=(TESTER,)), Spool(tmp_path), Metrics(), on_kept=fail)
    with closing(listener):
        assert peers.send(films.thumbnail(), port=listener.port) == 0x0110


def test_one_association_too_many_is_rejected_and_counted(tmp_path: Path) -> None:
    with listening(tmp_path, settings=ListenerSettings(max_associations=1)) as node:
        first = associate(node, build_context(VERIFICATION))

        assert node.count("cxr_associations_open") == 1
        assert peers.send(films.thumbnail(), port=node.listener.port) is None
        node.wait_for_refusal("limit")
        first.release()
        wait_until(lambda: node.count("cxr_associations_open") == 0, what="it has ended")
        assert peers.send(films.thumbnail(), port=node.listener.port) == 0x0000


@pytest.mark.parametrize(
    ("calling_ae", "priorities", "is_stat"),
    [("TESTER", [0, 2], False), ("TESTER", [0, 1], True), ("EMERGENCY", [0], True)],
)
def test_a_request_of_high_priority_or_a_stat_caller_makes_its_study_urgent(
    tmp_path: Path, calling_ae: str, priorities: list[int], is_stat: bool
) -> None:
    emergency, film = Caller(ae_title="EMERGENCY", hosts=("127.0.0.1",), priority="stat"), films.thumbnail()
    context = build_context(film.SOPClassUID, film.file_meta.TransferSyntaxUID)
    with listening(tmp_path, settings=ListenerSettings(callers=(TESTER, emergency))) as node:
        association = associate(node, context, calling_ae=calling_ae)
        for priority in priorities:  # of the film, and of the film again
            assert association.send_c_store(film, priority=priority).Status == 0x0000
        association.release()

        assert node.spool.is_stat(film.StudyInstanceUID) is is_stat


SENDERS = 20


def test_twenty_senders_hear_of_a_full_disk_and_succeed_later(tmp_path: Path) -> None:
    sent = [films.as_another(films.thumbnail(), f"sender {number}", study="all") for number in range(SENDERS)]
    context = build_context(sent[0].SOPClassUID, sent[0].file_meta.TransferSyntaxUID)
    with listening(tmp_path) as node, ThreadPoolExecutor(SENDERS) as threads:
        opened = [associate(node, context) for _ in sent]

        def statuses() -> list[int]:
            answers = threads.map(lambda association, film: association.send_c_store(film), opened, sent)
            return [int(answer.Status) for answer in answers]

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        try:
            assert statuses() == [0xA700] * SENDERS
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [*tmp_path.rglob("*.dcm"), *tmp_path.rglob(".incoming-*")] == []

        assert statuses() == [0x0000] * SENDERS
        assert len(node.spool.instances(sent[0].StudyInstanceUID)) == SENDERS
        for association in opened:
            association.release()


def test_a_conflict_is_reported_and_every_port_is_served(tmp_path: Path, settings: Settings) -> None:
    authority = Authority.found(tmp_path / "authority")
    own, scanner = authority.issue("node"), authority.issue("scanner")
    film = films.thumbnail()
    other = deepcopy(film)
    other.PixelData = bytes(reversed(other.PixelData))
    tls = ServerTlsSettings(port=0, certificate=own.certificate, key=own.key, ca=authority.certificate)
    settings = replace(settings, listener=replace(settings.listener, tls=tls))
    settings = replace(settings, http=replace(settings.http, probe_port=0))
    with Service(settings) as service:
        tls_port = int(str(service.logged("service.ready")[0]["tls_port"]))
        assert call(tls_port, authority, scanner)
        probes = f"http://{LOOPBACK}:{service.logged('service.ready')[0]['probe_port']}"
        answers = [httpx2.get(f"{probes}{path}") for path in ("/live", "/ready", "/metrics", "/", "/login")]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 404, 404]
        assert peers.send(film, port=service.dicom_port) == 0x0000
        service.wait_for("study.finished")
        metrics = httpx2.get(f"{probes}/metrics").text
        for step in ("receive", "plan", "route", "decode", "read", "write"):
            assert f'cxr_step_duration_seconds_count{{step="{step}"}} 1.0' in metrics

        assert peers.send(other, port=service.dicom_port) == 0x0000

        assert service.wait_for("instance.conflict")["sop_instance_uid"] == film.SOPInstanceUID
        (conflict,) = status(settings)["conflicts"]
        assert conflict["study"] == film.StudyInstanceUID
        assert Path(conflict["file"]).is_file()
        assert service.stop() == 0
    assert len(service.logged("study.finished")) == 1
    assert len(service.logged("study.submitted")) == 1
