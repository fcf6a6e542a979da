"""TLS to an archive: with dcmtk as the other side, and with certificates that nobody should believe."""

from __future__ import annotations

import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.errors import DestinationDown
from node.settings.destinations import DicomDestination, TlsSettings
from tests.support import films, peers, senders
from tests.support.certificates import Authority, Identity


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.found(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def pacs(authority: Authority) -> Identity:
    return authority.issue("pacs")


@pytest.fixture(scope="module")
def own(authority: Authority) -> Identity:
    return authority.issue("node")


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = films.saved(tmp_path, films.thumbnail())
    return path


def archive_of(identity: Identity, authority: Authority) -> peers.ReceivingArchive:
    """An archive that asks everybody for a certificate of this authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(identity.certificate, identity.key)
    return peers.ReceivingArchive(tls=context)


def to(port: int, authority: Authority, identity: Identity | None, *, host: str = peers.LOOPBACK) -> DicomDestination:
    certificate, key = (None, None) if identity is None else (identity.certificate, identity.key)
    tls = TlsSettings(ca=authority.certificate, certificate=certificate, key=key)
    return DicomDestination(name="pacs", ae_title="ARCHIVE", host=host, port=port, tls=tls)


@contextmanager
def storescp(folder: Path, identity: Identity, authority: Authority) -> Iterator[int]:
    """Run dcmtk's storage SCP with TLS; its port."""
    folder.mkdir()
    command = [peers.require("storescp"), "+tls", str(identity.key), str(identity.certificate), "+px", "-d"]
    command += ["+cf", str(authority.certificate), "-rc", "-od", str(folder), str(port := peers.free_port())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            peers.wait_until(lambda: process.poll() is None and _listens(port), what="storescp listens")
            yield port
        finally:
            process.kill()


def _listens(port: int) -> bool:
    """Look in the system's table: a connection for a look would keep a server busy that serves one at a time."""
    table = Path("/proc/net/tcp").read_text(encoding="ascii")
    return re.search(rf":{port:04X} 00000000:0000 0A ", table) is not None


def test_dcmtk_takes_an_object_over_tls(
    tmp_path: Path, film: Path, authority: Authority, pacs: Identity, own: Identity
) -> None:
    with storescp(tmp_path / "kept", pacs, authority) as port:
        senders.probe(to(port, authority, own), calling_aet="CHEX")
        senders.deliver(film.read_bytes(), to(port, authority, own), calling_aet="CHEX")

        (kept,) = (tmp_path / "kept").iterdir()
    assert films.thumbnail().SOPInstanceUID in kept.name


def refusal(film: Path, destination: DicomDestination) -> str:
    """What a delivery and a probe both say."""
    with pytest.raises(DestinationDown) as sent:
        senders.deliver(film.read_bytes(), destination, calling_aet="CHEX")
    with pytest.raises(DestinationDown) as probed:
        senders.probe(destination, calling_aet="CHEX")
    assert str(sent.value) == str(probed.value)
    return str(sent.value)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("foreign", "unable to get local issuer"),
        ("expired", "certificate has expired"),
        ("of another name", "IP address mismatch"),
    ],
)
def test_an_archive_without_a_good_certificate_is_refused(
    film: Path, authority: Authority, stranger: Authority, own: Identity, kind: str, said: str
) -> None:
    shown = {"foreign": stranger.issue("pacs"), "expired": authority.issue("old", days=-1)}.get(kind)
    host = peers.LOOPBACK if shown else "127.0.0.2"
    with archive_of(shown or authority.issue("pacs"), authority) as archive:
        archive.stop()
        archive.start(host=host)
        assert f"its certificate is refused ({said}" in refusal(film, to(archive.port, authority, own, host=host))

    assert archive.requests == []


@pytest.mark.parametrize("kind", ["none", "stranger"])
def test_an_archive_that_does_not_believe_the_node_says_so(
    film: Path, authority: Authority, stranger: Authority, pacs: Identity, kind: str
) -> None:
    identity = None if kind == "none" else stranger.issue("node")
    with archive_of(pacs, authority) as archive:
        assert "refuses the node's certificate" in refusal(film, to(archive.port, authority, identity))

    assert archive.requests == []


def test_an_archive_that_speaks_no_tls_gets_nothing(film: Path, authority: Authority, own: Identity) -> None:
    with peers.ReceivingArchive() as archive:
        assert "pacs" in refusal(film, to(archive.port, authority, own))

    assert archive.requests == []


def test_files_that_cannot_be_used_are_named(film: Path, authority: Authority, own: Identity, tmp_path: Path) -> None:
    broken = Identity(certificate=own.certificate, key=tmp_path / "nowhere.key")

    assert refusal(film, to(1, authority, broken)) == (
        "pacs: the files of its tls table cannot be used (No such file or directory)"
    )


def test_threads_of_refused_connections_end(film: Path, authority: Authority, stranger: Authority) -> None:
    with archive_of(stranger.issue("pacs"), authority) as archive:
        before = threading.active_count()
        for _ in range(3):
            refusal(film, to(archive.port, authority, None))
        peers.wait_until(lambda: threading.active_count() <= before, what="the threads end")
        assert archive.requests == []
