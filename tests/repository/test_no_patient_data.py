"""A whole run with a patient's values in everything, and not one of them in anything that leaves the patient's folders.

What a node wrote is its log, its pages, its tables, its files: all of it is searched, except the films, what answers
them, and the orders, which are the patient's. UIDs may stand everywhere.
"""

from __future__ import annotations

import json
import socket
import urllib.error
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
from pydicom import dcmread
from pydicom.datadict import dictionary_VR
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import Tag
from pynetdicom import AE, build_context

from tests.support import films, mllp, peers
from tests.support.mllp import InformationSystem, Mood
from tests.support.postgres import Postgres
from tests.support.service import Service, on_database, run_command, settings_with
from tests.support.traces import BIRTH_DATE, MARK, found_in, marked

# The sender's pydicom warns of what this test makes it send.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

PAGES = ("/metrics", "/ready", "/live", f"/{MARK}?name={MARK}")

ORDER = "\r".join(
    (
        rf"MSH|^~\&|{MARK}|{MARK}|CHEX||20240131||ORM^O01|{MARK}|P|2.3.1",
        f"PID|1||{MARK}1||{MARK}ö^{MARK}||{BIRTH_DATE:%Y%m%d}|F|||{MARK} street",
        f"ORC|NW|{MARK}^RIS|{MARK}^RIS|||||||||{MARK}^Physician",
        f"OBR|1|{MARK}^RIS|{MARK}^RIS|XCHEST||||||||||||||{MARK}3 ß",
    )
)


def malformed() -> list[Dataset]:
    """Films whose values are wrong where a parser complains, and would quote them."""
    dates, numbers = "PatientBirthDate StudyDate StudyTime PatientAge", "WindowCenter PatientWeight InstanceNumber Rows"
    names = "PatientSex ViewPosition PatientOrientation Modality SeriesInstanceUID FrameOfReferenceUID"
    wrong = (f"{dates} {numbers} {names}", dates, "SpecificCharacterSet")
    broken = [quoting(marked(films.thumbnail()), keywords.split()) for keywords in wrong]
    broken.append(marked(films.cut_short()))
    return [films.as_another(film, f"malformed {n}", study=f"malformed {n}") for n, film in enumerate(broken)]


def quoting(film: Dataset, keywords: Iterable[str]) -> Dataset:
    """Return a film whose attributes hold the mark as bytes, which pydicom sends without a look at them."""
    film = dcmread(BytesIO(films.file_bytes(film)))
    for keyword in keywords:
        tag, value = Tag(keyword), MARK.encode()
        film[tag] = RawDataElement(tag, dictionary_VR(keyword), len(value), value, 0, False, True)
    return film


def refused() -> list[Dataset]:
    """Films that are not taken: what should be a UID is none."""
    wrong = ({"StudyInstanceUID": f"{MARK}.1"}, {"StudyInstanceUID": f"../{MARK}"}, {"SOPInstanceUID": MARK})
    return [films.changed(marked(films.thumbnail()), uid) for uid in wrong]


def disturb(port: int, content: bytes) -> None:
    """Send what is no message of the protocol, and leave."""
    with suppress(OSError), socket.create_connection((peers.LOOPBACK, port), timeout=10) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(10)
        while connection.recv(4096):
            pass


def send_unparsable(port: int) -> None:
    """Send bytes as the dataset of a film: its UIDs are good, what follows is a patient and no DICOM."""
    film = marked(films.thumbnail({"PixelData": None}))
    entity = AE(ae_title="TESTER")
    entity.requested_contexts = [build_context(film.SOPClassUID, film.file_meta.TransferSyntaxUID)]
    association = entity.associate(peers.LOOPBACK, port, ae_title="CHEX")
    film.add_new(0x00104000, "UN", f"{MARK} comment".encode())
    film.add_new(0x7FE00010, "OW", f"{MARK}{MARK}".encode())
    association.send_c_store(film)
    association.release()


def live_through(service: Service, archive: peers.ReceivingArchive) -> None:
    """Let everything happen to a node that may bring a patient's values into what it says."""
    ready = service.logged("service.ready")[0]
    dicom_port, http_port, orders_port = (int(str(ready[f"{name}_port"])) for name in ("dicom", "http", "orders"))
    mllp.ask(orders_port, ORDER.encode(), ORDER.replace("ORM^O01", MARK).encode(), MARK.encode())
    for port in (dicom_port, http_port, orders_port):
        disturb(port, f"{MARK}^{MARK}\r\n\r\n".encode())
    archive.refuse(0xA700)
    film = marked(films.as_another(films.thumbnail(), "first", study="marked"))
    assert peers.send(film, port=dicom_port) == 0
    service.wait_for("delivery.delayed", count=2)
    archive.accept()
    late = marked(films.as_another(films.thumbnail({"PatientName": f"{MARK}^Corrected"}), "first", study="marked"))
    late.PixelData = late.PixelData[::-1]
    assert set(peers.send_all([late, *malformed()], port=dicom_port)) == {0}
    assert all(peers.send(dataset, port=dicom_port) != 0 for dataset in refused())
    send_unparsable(dicom_port)
    service.wait_for("study.finished", count=2 + len(malformed()))


def answers_of(service: Service) -> bytes:
    """What the pages and the commands of a node say."""
    said = []
    for page in PAGES:
        try:
            with peers.DIRECT.open(f"http://{peers.LOOPBACK}:{service.http_port}{page}", timeout=30) as answer:
                said.append(answer.read())
        except urllib.error.HTTPError as error:
            said.append(error.read())
    for command in ("status", "doctor"):
        asked = run_command(command, service.settings_path, "--json")
        assert json.loads(asked.stdout)
        said += [asked.stdout.encode(), asked.stderr.encode()]
    return b"\n".join(said)


def files_of(directory: Path) -> dict[str, bytes]:
    """The content of each file that is not the patient's own, and the names of all files and folders."""
    own = {directory / "orders"}
    for name in ("received", "conflicts", "outputs"):
        own.update(directory.glob(f"studies/*/{name}"))
    paths = sorted(directory.rglob("*"))
    names = "\n".join(str(path.relative_to(directory)) for path in paths).encode()
    others = [path for path in paths if path.is_file() and own.isdisjoint(path.parents)]
    return {"names": names, **{path.name: path.read_bytes() for path in others}}


def rows_of(postgres: Postgres) -> bytes:
    """Every row of every table as text; bytes are written in hexadecimal."""
    tables = postgres.execute(
        "SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables"
        " WHERE table_schema NOT IN ('pg_catalog', 'information_schema') AND table_type = 'BASE TABLE'"
    )
    assert len(tables) > 2
    rows = [row for (table,) in tables for row in postgres.execute(f"SELECT one::text FROM {table} AS one")]
    assert rows
    return "\n".join(str(row) for (row,) in rows).encode()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.drill(part="processes"))])
def postgres(request: pytest.FixtureRequest) -> Iterator[Postgres | None]:
    """The server whose rows are searched; None where the tables are files."""
    if request.param == "sqlite":
        yield None
        return
    with Postgres() as server:
        yield server


def test_a_node_tells_nothing_of_a_patient_outside_its_folders(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], postgres: Postgres | None
) -> None:
    moods = iter((Mood.ERROR, Mood.NONSENSE))
    with (
        peers.ReceivingArchive() as archive,
        InformationSystem(lambda: next(moods, Mood.ACCEPT), condition=f"{MARK} is unknown") as system,
    ):
        settings = settings_with(system, tmp_path / "node", archive_port=archive.port)
        with Service(on_database(settings, postgres.url if postgres else "")) as service:
            live_through(service, archive)
            answers = answers_of(service)
            service.kill()  # so that what the databases have not put in order yet is searched as well

    report = next(received for received in archive.kept if received.dataset.Modality == "SR")
    assert found_in(report.content)
    assert found_in(answers) == []
    assert found_in(json.dumps(service.lines, ensure_ascii=False).encode()) == []
    assert found_in(capfd.readouterr().err.encode()) == []
    assert postgres is None or found_in(rows_of(postgres)) == []
    traces = {name: found_in(content) for name, content in files_of(tmp_path / "node").items()}
    assert {name: found for name, found in traces.items() if found} == {}
