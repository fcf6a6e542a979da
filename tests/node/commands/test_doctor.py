"""`doctor` on a node that was stopped, beside one that runs, where much is wrong at once, and on its model.

And what it says of certificates and destinations, which hear associations and echoes and no more, and of storage
folder, database, clock and ports, good and bad; it leaves nothing behind.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
from pydicom.uid import ComprehensiveSRStorage

from node import config
from node.check_result import Check, CheckState, run_check
from node.commands.doctor import (
    check_alerts,
    check_audit,
    check_database,
    check_model,
    check_passwords,
    check_ports,
    check_storage,
)
from node.config import (
    AlertsSettings,
    AuditSettings,
    ModelSettings,
    OrdersSettings,
    OrdersTlsSettings,
    ServerTlsSettings,
    Settings,
    WebhookSettings,
)
from node.domain import ModelIdentity
from node.health.checks import check_certificates, check_clock, check_destinations
from node.jobs import processes
from node.service.model import admit
from node.settings.destinations import DicomDestination, Hl7Destination, TlsSettings
from node.settings.http import HttpSettings
from node.store import database, files, received
from node.store.ledger import Ledger
from node.web import passwords
from tests.node.read.test_fallback import without_gpu
from tests.support import films, peers
from tests.support.certificates import Authority, Identity
from tests.support.committing import Committing
from tests.support.damage import flip
from tests.support.mllp import InformationSystem
from tests.support.postgres import Postgres
from tests.support.service import Service, on_database, run_command, settings_for, settings_with
from tests.support.spoken import PROMPTS
from tests.support.web_archive import web_archive

PASSWORD = "open-sesame"
OK, NOTE, FAULT = CheckState.OK, CheckState.NOTE, CheckState.FAULT


def test_beside_a_running_node_all_is_good_and_unchanged_and_after_it_the_ports_are_free(
    tmp_path: Path, phantom_model: Path
) -> None:
    folder = tmp_path / "node"
    with peers.ReceivingArchive() as archive, InformationSystem() as system:
        free = settings_with(system, folder, archive_port=archive.port)
        assert free.orders is not None
        settings = replace(
            free,
            model=ModelSettings(directory=phantom_model, uncompared="accept"),  # the node reads with a script
            listener=replace(free.listener, port=peers.free_port()),
            http=HttpSettings(port=peers.free_port()),
            orders=replace(free.orders, port=peers.free_port()),
        )
        with Service(settings) as node:
            node.read(films.thumbnail())
            archive.wait_for_kept(2)
            system.wait_for_kept(1)
            before, sent = sorted(folder.rglob("*")), len(archive.requests)
            looks = (check_storage, check_database, check_ports, check_destinations)
            checks = {check.name: check for look in looks for check in look(settings)}
            assert {check.state for check in checks.values()} == {OK}, checks
            assert "is ready" in checks["process node"].message
            held = [check.name for check in checks.values() if "used by this node, which runs" in check.message]
            assert held == ["port listener", "port http", "port orders"]
            assert sorted(folder.rglob("*")) == before
            assert (len(archive.requests), len(system.kept), archive.echoes) == (sent, 1, 1)
            assert not node.logged("association.refused")

            assert node.stop() == 0
            done = run_command("doctor", node.settings_path, "--json")
    assert done.returncode == 0, done.stdout
    content = json.loads(done.stdout)
    assert content["passed"] is True
    found = {check["name"]: check["state"] for check in content["checks"]}
    assert {name for name, state in found.items() if state != "ok"} == {"model findings", "model thresholds", "clock"}
    databases = {"database ledger.sqlite", "database engine.sqlite"}
    assert found.keys() > databases | {"storage", "model", "model graphs", "destination archive", "destination ris"}
    ports = [check["message"] for check in content["checks"] if check["name"].startswith("port ")]
    assert [message.endswith(" is free") for message in ports] == [True] * 3


def test_all_faults_are_told_at_once_and_no_password(tmp_path: Path) -> None:
    with InformationSystem() as system:
        settings = settings_with(system, tmp_path / "node", archive_port=peers.free_port())
        settings = replace(
            settings,
            model=ModelSettings(directory=tmp_path / "nowhere"),
            listener=replace(settings.listener, port=system.port),
            http=HttpSettings(password_file=tmp_path / "users"),
            audit=AuditSettings(file=tmp_path / "none" / "audit"),
            alerts=AlertsSettings(webhook=WebhookSettings(url=f"http://{peers.LOOPBACK}:{peers.free_port()}")),
        )
        url = f"postgresql://node:{PASSWORD}@{peers.LOOPBACK}:{peers.free_port()}/chex"
        text = config.render(settings).replace('database_url = ""', f'database_url = "{url}"')
        path = tmp_path / "node.toml"
        path.write_text(text, encoding="utf-8")

        done = run_command("doctor", path)

    assert (done.returncode, done.stderr) == (1, "")
    *lines, last = done.stdout.splitlines()
    faults = [line.removeprefix("FAULT ").split("  ")[0] for line in lines if line.startswith("FAULT ")]
    assert faults == ["database", "model", "port listener", "passwords", "audit", "alerts", "destination archive"]
    assert last == "7 faults, 2 notes"
    assert "storage.database_url" in done.stdout
    assert PASSWORD not in done.stdout
    assert not (tmp_path / "node").exists()


def test_a_check_that_raises_is_a_fault_that_quotes_nothing() -> None:
    def broken() -> tuple[Check, ...]:
        raise RuntimeError(PASSWORD)

    (check,) = run_check("storage", broken)

    assert (check.name, check.state) == ("storage", FAULT)
    assert "RuntimeError at test_doctor.py:" in check.message
    assert PASSWORD not in check.message


def checked(folder: Path, model: Path, *, engine: str = "onnx", prompts: str = "chexpert14") -> list[Check]:
    """What is said of a node's model."""
    settings = settings_for(folder / "node", archive_port=104)
    settings = replace(settings, model=ModelSettings(directory=model, engine=engine, prompts=prompts))
    return list(run_check("model", lambda: check_model(settings)))


def states(checks: Iterable[Check]) -> list[CheckState]:
    return [check.state for check in checks]


@without_gpu
def test_a_fallback_is_a_note_with_its_reason_and_builds_nothing(tmp_path: Path, phantom_model: Path) -> None:
    checks = checked(tmp_path, phantom_model, engine="tensorrt")

    assert states(checks) == [OK, *[NOTE] * 5, OK, NOTE]
    assert "runtime onnx answers" in checks[0].message and "chexpert14" in checks[0].message
    assert "onnx runs instead of tensorrt" in checks[1].message and "--target tensorrt" in checks[1].message
    assert "onnx runs instead of onnx-cuda" in checks[2].message
    assert "onnx runs instead of torch-cuda" in checks[3].message
    assert checks[4].message == (
        "never reported, because nobody showed that this model recognizes them well enough: "
        "atelectasis, fracture, pneumonia, support devices"
    )
    assert "python -m models.calibrate" in checks[5].message
    assert "of the tolerance" in checks[6].message
    assert (checks[7].name, checks[7].message) == ("model GPU", "PyTorch finds none")
    assert not (tmp_path / "node").exists()


def test_a_model_that_serve_would_refuse_is_a_fault(tmp_path: Path, phantom_model: Path) -> None:
    other = ModelIdentity(name="m", version="1", weights_sha256="1", manifest_sha256="1", engine="onnx")
    admit(settings_for(tmp_path / "node", archive_port=104), other, PROMPTS)

    checks = checked(tmp_path, phantom_model)

    assert states(checks)[:2] == [OK, FAULT]
    assert (checks[1].name, "was never compared" in checks[1].message) == ("model change", True)


def wrong_manifest(model: Path) -> None:
    manifest = model / "manifest.toml"
    manifest.write_text("color = 1\n" + manifest.read_text().replace("layers = 2", "layers = 0", 1))


@pytest.mark.parametrize(
    ("damage", "prompts", "said"),
    [
        (wrong_manifest, "chexpert14", ["color", "sizes.prompt_encoder.layers"]),
        (lambda model: flip(model / "onnx" / "find.onnx", 1000), "chexpert14", ["run python -m export.build"]),
        (lambda model: flip(model / "weights.safetensors", -1000), "chexpert14", ["weights.safetensors"]),
        (lambda model: (model / "parity.json").unlink(), "chexpert14", ["parity.json"]),
        (lambda model: None, "nothing", ["chexpert14"]),
    ],
)
def test_a_model_that_is_damaged_or_asked_unknown_prompts_is_a_fault_that_says_what(
    tmp_path: Path, phantom_model: Path, damage: Callable[[Path], object], prompts: str, said: list[str]
) -> None:
    model = Path(shutil.copytree(phantom_model, tmp_path / "model", copy_function=shutil.copyfile))
    damage(model)

    checks = sorted(checked(tmp_path, model, prompts=prompts), key=lambda check: check.message)

    assert states(checks) == [FAULT] * len(said)
    assert [words in check.message for words, check in zip(said, checks, strict=True)] == [True] * len(said)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.found(tmp_path_factory.mktemp("lasting"), days=400)


@pytest.fixture(scope="module")
def own(lasting: Authority) -> Identity:
    return lasting.issue("own", days=400)


def with_tls(folder: Path, identity: Identity, authority: Authority) -> Settings:
    """Settings of a node whose port for orders has a certificate."""
    tls = OrdersTlsSettings(certificate=identity.certificate, key=identity.key, ca=authority.certificate)
    settings = settings_for(folder, archive_port=104)
    return replace(settings, orders=OrdersSettings(port=0, hosts=(peers.LOOPBACK,), tls=tls))


def only(checks: Iterable[Check]) -> Check:
    (check,) = checks
    return check


def to_archive(port: int, *, storage_commitment: bool = False, tls: TlsSettings | None = None) -> DicomDestination:
    known = DicomDestination(name="pacs", ae_title="ARCHIVE", host=peers.LOOPBACK, port=port)
    return replace(known, storage_commitment=storage_commitment, tls=tls)


def asked(tmp_path: Path, *destinations: DicomDestination | Hl7Destination, limit_seconds: float = 10.0) -> list[Check]:
    named = tuple(replace(each, name=f"{each.name}{number}") for number, each in enumerate(destinations))
    settings = replace(settings_for(tmp_path / "node", archive_port=104), destinations=named)
    return list(check_destinations(settings, limit_seconds=limit_seconds))


def test_a_certificate_is_good_short_or_a_fault(
    tmp_path: Path, lasting: Authority, own: Identity, authority: Authority
) -> None:
    for shown, by, found, said in (
        (own, lasting, [OK, OK], "days"),
        (authority.issue("short"), authority, [NOTE, NOTE], ""),
        (lasting.issue("expired", days=-1), lasting, [OK, FAULT], "expired 1 day ago"),
        (replace(own, key=lasting.issue("other").key), lasting, [FAULT], "mismatch"),
        (replace(own, key=tmp_path / "nowhere.key"), lasting, [FAULT], "nowhere.key"),
    ):
        checks = list(check_certificates(with_tls(tmp_path, shown, by)))

        assert states(checks) == found, checks
        assert said in checks[-1].message
        assert {check.name for check in checks} == {"certificate orders.tls"}


def test_every_tls_table_is_looked_at_also_beside_one_that_cannot_be_read(
    tmp_path: Path, lasting: Authority, own: Identity
) -> None:
    odd = tmp_path / "trusted.pem"  # which OpenSSL alone reads
    odd.write_text(lasting.certificate.read_text().replace(" CERTIFICATE-", " TRUSTED CERTIFICATE-"))
    settings = with_tls(tmp_path, own, lasting)
    listener = ServerTlsSettings(certificate=own.certificate, key=own.key, ca=lasting.certificate)
    believing = tuple(
        replace(to_archive(104, tls=TlsSettings(ca=ca)), name=ca.name) for ca in (odd, lasting.certificate)
    )

    checks = check_certificates(
        replace(settings, listener=replace(settings.listener, tls=listener), destinations=believing)
    )

    assert [(check.name.removeprefix("certificate "), check.state) for check in checks] == [
        *[("listener.tls", OK)] * 2,
        *[("orders.tls", OK)] * 2,
        ("destinations[1].tls", FAULT),
        ("destinations[2].tls", OK),
    ]


@pytest.mark.parametrize(
    ("case", "found", "said"),
    [
        ("takes all", [OK], ["Comprehensive SR", "Storage Commitment"]),
        ("rejects", [FAULT], ["calling AE title not recognised", "CHEX", "ARCHIVE"]),
        ("refuses reports and commitment", [FAULT, FAULT], ["Comprehensive SR Storage", "output sr"]),
        ("has no echo", [NOTE], []),
    ],
)
def test_an_archive_is_asked_what_it_takes_and_sent_nothing(
    tmp_path: Path, case: str, found: list[CheckState], said: list[str]
) -> None:
    archive = peers.ReceivingArchive(handlers=Committing().handlers if case == "takes all" else [])
    if case == "refuses reports and commitment":
        archive.refuse_class(ComprehensiveSRStorage)
    if case == "has no echo":
        archive.verify_nobody()
    with archive:
        if case == "rejects":
            archive.reject()
        checks = asked(tmp_path, to_archive(archive.port, storage_commitment=case != "has no echo"))

    assert states(checks) == found, checks
    assert [words for words in said if words not in checks[0].message] == []
    assert len(checks) == 1 or "storage_commitment" in checks[1].message
    assert archive.requests == []


def test_every_class_of_a_form_is_asked_for_and_no_destination_is_a_note(tmp_path: Path) -> None:
    archive = peers.ReceivingArchive()
    archive.refuse_class(ComprehensiveSRStorage)
    with archive:
        forms, texts = (replace(to_archive(archive.port), outputs=kinds) for kinds in (("sr3d",), ("text", "gsps")))
        refused, accepted = asked(tmp_path, forms, texts)
    (none,) = asked(tmp_path)

    assert (refused.state, accepted.state, none.state) == (FAULT, OK, NOTE)
    assert "Comprehensive SR Storage" in refused.message and "output sr3d" in refused.message
    assert "Basic Text SR Storage" in accepted.message
    assert "nothing is sent" in none.message


def test_a_closed_or_silent_peer_is_a_fault_in_time(tmp_path: Path) -> None:
    with InformationSystem() as system, socket.create_server((peers.LOOPBACK, 0)) as silent:
        began = time.monotonic()
        checks = asked(
            tmp_path,
            to_archive(silent.getsockname()[1]),
            to_archive(peers.free_port()),
            Hl7Destination(name="ris", host=peers.LOOPBACK, port=peers.free_port()),
            Hl7Destination(name="his", host=peers.LOOPBACK, port=system.port),
            limit_seconds=1.0,
        )
        took = time.monotonic() - began

    assert states(checks) == [FAULT, FAULT, FAULT, OK]
    assert "in 1 s" in checks[0].message
    assert "Connection refused" in checks[1].message and "Connection refused" in checks[2].message
    assert took < 3
    assert system.kept == []


def test_a_tls_handshake_is_tried_and_a_refusal_is_a_fault(
    tmp_path: Path, lasting: Authority, own: Identity, authority: Authority
) -> None:
    stranger = authority.issue("stranger")
    good = TlsSettings(ca=lasting.certificate, certificate=own.certificate, key=own.key)
    refused = replace(good, certificate=stranger.certificate, key=stranger.key)
    unbelieved = replace(good, ca=authority.certificate)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=lasting.certificate)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(own.certificate, own.key)
    with peers.ReceivingArchive(tls=server) as archive, InformationSystem(tls=server) as system:
        checks = asked(
            tmp_path,
            to_archive(archive.port, tls=good),
            to_archive(archive.port, tls=refused),
            to_archive(archive.port, tls=unbelieved),
            Hl7Destination(name="ris", host=peers.LOOPBACK, port=system.port, tls=good),
            Hl7Destination(name="ris", host=peers.LOOPBACK, port=system.port, tls=refused),
        )

    assert states(checks) == [OK, FAULT, FAULT, OK, FAULT]
    assert "refuses the node's certificate" in checks[1].message
    assert "its certificate is refused" in checks[2].message
    assert "refuses the node's certificate" in checks[4].message


def test_a_file_of_audit_messages_is_looked_at(tmp_path: Path) -> None:
    settings, file = settings_for(tmp_path, archive_port=104), tmp_path / "audit.log"

    for place, found in ((file, [OK]), (tmp_path / "nowhere" / "audit.log", [FAULT]), (tmp_path, [FAULT])):
        assert states(check_audit(replace(settings, audit=AuditSettings(file=place)))) == found

    assert not file.exists()
    assert list(check_audit(settings)) == []


def test_the_webhook_of_alerts_is_tried_without_an_alert(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, archive_port=104)
    with web_archive() as house:
        hook = WebhookSettings(url=house.url)
        hooks = [
            hook,
            replace(hook, url=f"http://{peers.LOOPBACK}:1/hook/SECRET"),
            replace(hook, url=house.url.replace("http:", "https:")),
            replace(hook, token_file=tmp_path / "nowhere"),
        ]
        shown = [only(check_alerts(replace(settings, alerts=AlertsSettings(webhook=each)))).message for each in hooks]
        assert house.posts == []

    assert ["cannot be reached" in said for said in shown] == [False, True, True, True]
    assert "SECRET" not in "".join(shown)
    assert list(check_alerts(settings)) == []


HOUR = timedelta(hours=1)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose storage folder is there and empty."""
    folder = tmp_path / "node"
    folder.mkdir(mode=0o700)
    return settings_for(folder, archive_port=104)


def by_name(checks: Iterable[Check]) -> dict[str, CheckState]:
    return {check.name: check.state for check in checks}


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EROFS, "check the disk"),
        (errno.EACCES, "chown"),
        (errno.EFBIG, os.strerror(errno.EFBIG)),
    ],
)
def test_what_is_said_of_a_folder_fits_what_the_disk_says(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    monkeypatch.setattr(files.Aside, "write", mock.Mock(side_effect=OSError(number, os.strerror(number))))
    check = only(check_storage(settings))

    assert check.state is FAULT
    assert remedy in check.message
    assert list(settings.storage.directory.iterdir()) == []


def make_format(folder: Path, content: str) -> None:
    """Have a folder with a study say of which format it is."""
    (folder / "studies" / "1.2.3").mkdir(parents=True)
    (folder / "format").write_text(content, encoding="utf-8")


@pytest.mark.parametrize(
    ("make", "found", "said"),
    [
        (lambda _: None, {"storage": OK}, "GiB free"),
        (lambda folder: make_format(folder, "1\n"), {"storage": FAULT}, "docs/operate/upgrade.md"),
        (lambda folder: make_format(folder, "4\n"), {"storage": FAULT}, "docs/operate/upgrade.md"),
        (lambda folder: (folder / "studies" / "1.2.3").mkdir(parents=True), {"storage": FAULT}, "operate/upgrade.md"),
        (lambda folder: folder.chmod(0o710), {"storage": OK, "storage mode": NOTE}, ""),
        (lambda folder: folder.rmdir(), {"storage": NOTE}, "the first start creates it"),
        (lambda folder: (folder.rmdir(), folder.touch()), {"storage": FAULT}, ""),
    ],
)
def test_a_folder_is_good_odd_or_a_fault_and_left_as_it_was(
    settings: Settings, make: Callable[[Path], object], found: dict[str, CheckState], said: str
) -> None:
    make(settings.storage.directory)
    before = sorted(settings.storage.directory.parent.rglob("*"))

    checks = list(check_storage(settings))

    assert by_name(checks) == found
    assert said in checks[0].message
    assert sorted(settings.storage.directory.parent.rglob("*")) == before


def test_a_full_disk_is_a_fault_and_a_nearly_full_one_or_one_of_another_user_a_note(settings: Settings) -> None:
    free_mib = shutil.disk_usage(settings.storage.directory).free // 2**20

    full, nearly = (
        only(check_storage(replace(settings, storage=replace(settings.storage, min_free_mib=wanted))))
        for wanted in (10**9, free_mib * 2 // 3)
    )

    assert (full.state, nearly.state) == (FAULT, NOTE)
    assert "storage.min_free_mib" in full.message
    if os.geteuid() == 0:  # only root can give a folder away, and sees more than the node
        os.chown(settings.storage.directory, 65534, 65534)
        assert by_name(check_storage(settings)) == {"storage": OK, "storage owner": NOTE}


def test_an_unready_node_holds_its_ports_and_a_dead_one_or_another_program_does_not(settings: Settings) -> None:
    def ports(settings: Settings) -> tuple[dict[str, CheckState], str]:
        checks = list(check_ports(settings))
        return by_name(checks), checks[0].message

    with socket.create_server((peers.LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        with web_archive() as pages:
            running = {"executor": "node", "http_port": pages.port, "dicom_port": port}
            files.write(settings.storage.directory / "running.json", files.to_json(running))
            http = HttpSettings(port=pages.port)
            here = replace(settings, listener=replace(settings.listener, port=port), http=http)
            pages.status = 503  # it still opens its model
            living, (own, _) = by_name(check_storage(here)), ports(here)
            away = replace(here, listener=replace(here.listener, host="192.0.2.1"))  # no address of this machine
            foreign, said_of_host = ports(away)
            pages.closes = True  # another program, on the port of a dead node
            (stranger,) = processes.states(here.storage, here.http)
        dead, (taken, said_of_port) = by_name(check_storage(here)), ports(here)

    assert living == dead == {"storage": OK, "process node": NOTE}
    assert own == {"port listener": OK, "port http": OK}
    assert foreign == taken == {"port listener": FAULT, "port http": OK}
    assert "listener.host" in said_of_host
    assert "listener.port" in said_of_port and str(port) in said_of_port
    assert (stranger.ready, stranger.answers) == (False, False)


def test_a_database_is_good_absent_damaged_or_open_to_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, engine = database.sqlite_files(settings.storage)
    Ledger(database.open_ledger(settings.storage)).close()

    good = by_name(check_database(settings))
    ledger.chmod(0o644)
    is_open = by_name(check_database(settings))
    ledger.write_bytes(b"SQLite format 3\0" + b"\xff" * 8192)
    damaged = {check.name: check for check in check_database(settings)}["database ledger.sqlite"]
    aside = database.set_damaged_aside(settings.storage, database.LEDGER)

    assert good == {"database ledger.sqlite": OK, "database engine.sqlite": OK}
    assert not engine.exists()
    assert (is_open["database ledger.sqlite"], damaged.state) == (NOTE, FAULT)
    assert "restart the node" in damaged.message
    assert aside is not None
    assert by_name(check_database(settings))[f"database {aside.name}"] is NOTE
    Ledger(database.open_ledger(settings.storage)).close()
    monkeypatch.setattr(database, "_is_whole", lambda _path, mode: mode == "mode=ro")
    assert database.is_whole(ledger), "what changes meanwhile looks damaged but under its locks"


@pytest.mark.drill(part="processes")
def test_postgresql_is_good_before_and_after_the_first_start_but_not_for_who_may_not_make_tables(
    settings: Settings, postgres: Postgres
) -> None:
    shared = on_database(settings, postgres.url)
    postgres.execute("DROP ROLE IF EXISTS reader")
    postgres.execute("CREATE ROLE reader LOGIN")

    reader = only(check_database(on_database(settings, postgres.url.replace("node@", "reader@"))))
    before = only(check_database(shared))
    Ledger(database.open_ledger(shared.storage)).close()
    after = only(check_database(shared))

    assert (reader.state, before.state, after.state) == (FAULT, OK, OK), (before, after)
    assert "PostgreSQL 1" in before.message
    assert "chex and dbos" in reader.message


@pytest.mark.parametrize(
    ("changed", "seconds", "found", "said"),
    [
        (lambda facts: facts, 0.0, [OK], "PostgreSQL 16.1 answers in"),
        (lambda facts: replace(facts, is_standby=True), 0.0, [FAULT], "name the primary"),
        (lambda facts: replace(facts, forbidden=("chex", "dbos")), 0.0, [FAULT], "chex and dbos"),
        (lambda facts: replace(facts, now=facts.now - HOUR), 0.0, [OK, NOTE], "differ by 36"),
        (lambda facts: facts, 1.05, [NOTE], "took 1."),
    ],
)
def test_a_postgresql_is_good_slow_or_a_fault(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    changed: Callable[[database.ServerFacts], database.ServerFacts],
    seconds: float,
    found: list[CheckState],
    said: str,
) -> None:
    def ask(_storage: object) -> database.ServerFacts:
        time.sleep(seconds)
        return changed(database.ServerFacts(version="16.1", is_standby=False, now=datetime.now(UTC), forbidden=()))

    monkeypatch.setattr(database, "ask_server", ask)
    checks = list(check_database(on_database(settings, "postgresql://node@nowhere/chex")))

    assert [check.state for check in checks] == found
    assert said in checks[-1].message


def test_a_clock_behind_the_newest_film_or_program_is_a_fault(settings: Settings) -> None:
    folder = settings.storage.directory / "studies" / "1.2.3" / "received"
    folder.mkdir(parents=True)
    old, new = (folder / received.file_name("1.2.3.4", number=number, sha256="0" * 64) for number in (1, 2))
    new.touch()
    old.touch()
    os.utime(old, (1.0, 1.0))
    film = received.newest_arrival(settings.storage.directory / "studies")
    assert film is not None
    settings = replace(settings, site=replace(settings.site, timezone="Europe/Berlin"))

    good, stepped = only(check_clock(settings)), only(check_clock(settings, now=film - timedelta(seconds=30)))
    behind = only(check_clock(settings, now=film - HOUR))
    changed = only(check_clock(settings, now=film - HOUR, last_change=film - timedelta(minutes=1)))
    shutil.rmtree(folder)
    long_ago = only(check_clock(settings, now=film - timedelta(days=36500)))

    assert [check.state for check in (good, stepped, behind, changed, long_ago)] == [OK, OK, FAULT, FAULT, FAULT]
    assert "timedatectl" in good.message
    assert "newest film" in behind.message
    assert "a study changed at" in changed.message
    assert "installed" in long_ago.message


@pytest.mark.parametrize(
    ("prepare", "state", "words"),
    [
        (lambda path: None, "ok", "has 1 user"),
        (lambda path: path.unlink(), "fault", "no such file"),
        (lambda path: path.write_text("\n\n", encoding="utf-8"), "fault", "has no user"),
        (lambda path: path.write_text("anna:plain\n"), "fault", "line 1 is not USER:HASH"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "fault", "is no text"),
        (lambda path: path.chmod(0o640), "note", "others may read"),
        (lambda path: path.chmod(0o606), "fault", "others may change"),
        (lambda path: (path.unlink(), path.mkdir()), "fault", "is a directory"),
    ],
)
def test_the_password_file_is_looked_at(
    settings: Settings, tmp_path: Path, prepare: Callable[[Path], object], state: str, words: str
) -> None:
    path = tmp_path / "users"
    passwords.set_password(path, "anna", "correct horse battery")
    prepare(path)

    found = run_check("passwords", lambda: check_passwords(replace(settings, http=HttpSettings(password_file=path))))

    assert found[0].state == state
    assert words in found[0].message and str(path) in found[0].message
    assert "$argon2" not in str([check.message for check in found])
    assert run_check("passwords", lambda: check_passwords(settings)) == (), "without a file nothing is said"
