"""`doctor` as a person runs it: on a node that was stopped, beside one that runs, and where much is wrong at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from node import config
from node.check_result import Check, CheckState, fault, note, ok, run_check
from node.commands import doctor
from node.commands.doctor import check_database, check_ports, check_storage
from node.config import ModelSettings, Settings
from node.health.checks import check_destinations
from node.settings.http import HttpSettings
from tests.support import films, peers
from tests.support.mllp import InformationSystem
from tests.support.service import Service, run_command, settings_with

PASSWORD = "open-sesame"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node that has read a film, its settings file, and what it sends to."""

    node: Service
    settings: Settings
    settings_path: Path
    archive: peers.ReceivingArchive
    system: InformationSystem


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path) -> Iterator[Site]:
    """A running node on ports that its settings name."""
    folder = tmp_path_factory.mktemp("site")
    with peers.ReceivingArchive() as archive, InformationSystem() as system:
        free = settings_with(system, folder / "node", archive_port=archive.port)
        assert free.orders is not None
        settings = replace(
            free,
            model=ModelSettings(directory=phantom_model),
            listener=replace(free.listener, port=peers.free_port()),
            http=HttpSettings(port=peers.free_port()),
            orders=replace(free.orders, port=peers.free_port()),
        )
        with Service(settings) as node:
            assert peers.send(films.thumbnail(), port=node.dicom_port) == 0
            node.wait_for("study.finished")
            archive.wait_for_kept(2)
            system.wait_for_kept(1)
            yield Site(node=node, settings=settings, settings_path=node.settings_path, archive=archive, system=system)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_beside_a_running_node_all_is_good_and_unchanged(site: Site) -> None:
    before, sent = names(site.settings.storage.directory), len(site.archive.requests)
    looks = (check_storage, check_database, check_ports, check_destinations)

    checks = {check.name: check for look in looks for check in look(site.settings)}

    assert {check.state for check in checks.values()} == {CheckState.OK}, checks
    assert "is ready" in checks["process node"].message
    held = [check.name for check in checks.values() if "used by this node, which runs" in check.message]
    assert held == ["port listener", "port http", "port orders"]
    assert names(site.settings.storage.directory) == before
    assert (len(site.archive.requests), len(site.system.kept)) == (sent, 1)
    assert site.archive.echoes == 1
    assert not site.node.logged("association.refused")


def test_after_the_node_has_stopped_its_ports_are_free(site: Site) -> None:
    assert site.node.stop() == 0

    done = run_command("doctor", site.settings_path, "--json")

    assert done.returncode == 0, done.stdout
    content = json.loads(done.stdout)
    assert content["passed"] is True
    assert {check["name"] for check in content["checks"] if check["state"] != "ok"} == {
        "model findings",
        "model thresholds",
        "clock",
    }
    assert [check["name"] for check in content["checks"]] == [
        "storage",
        "database ledger.sqlite",
        "database engine.sqlite",
        "model",
        "model findings",
        "model thresholds",
        "model graphs",
        "port listener",
        "port http",
        "port orders",
        "clock",
        "destination archive",
        "destination ris",
    ]
    ports = [check["message"] for check in content["checks"] if check["name"].startswith("port ")]
    assert all(message.endswith(" is free") for message in ports)


def test_all_faults_are_told_at_once_and_no_password(tmp_path: Path) -> None:
    with InformationSystem() as system:
        settings = settings_with(system, tmp_path / "node", archive_port=peers.free_port())
        settings = replace(
            settings,
            model=ModelSettings(directory=tmp_path / "nowhere"),
            listener=replace(settings.listener, port=system.port),
        )
        url = f"postgresql://node:{PASSWORD}@{peers.LOOPBACK}:{peers.free_port()}/chex"
        text = config.render(settings).replace('database_url = ""', f'database_url = "{url}"')
        path = tmp_path / "node.toml"
        path.write_text(text, encoding="utf-8")

        done = run_command("doctor", path)

    assert (done.returncode, done.stderr) == (1, "")
    *lines, last = done.stdout.splitlines()
    faults = [line.removeprefix("FAULT ").split("  ")[0] for line in lines if line.startswith("FAULT ")]
    assert faults == ["database", "model", "port listener", "destination archive"]
    assert last == "4 faults, 2 notes"
    assert PASSWORD not in done.stdout
    assert not (tmp_path / "node").exists()


def test_wrong_settings_are_exit_code_2_as_for_check(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text("[listener]\nport = -1\n", encoding="utf-8")

    done = run_command("doctor", path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


def test_a_check_that_raises_is_a_fault_that_quotes_nothing() -> None:
    def broken() -> tuple[Check, ...]:
        raise RuntimeError(PASSWORD)

    (check,) = run_check("storage", broken)

    assert (check.name, check.state) == ("storage", CheckState.FAULT)
    assert "RuntimeError at test_doctor.py:" in check.message
    assert PASSWORD not in check.message


def test_lines_and_json_say_the_same() -> None:
    checks = (ok("storage", "is good"), note("database x", "is slow"), fault("model", "is gone; bring it back"))

    assert doctor.render(checks).splitlines() == [
        "ok    storage     is good",
        "note  database x  is slow",
        "FAULT model       is gone; bring it back",
        "1 fault, 1 note",
    ]
    assert doctor.to_json(checks) == {
        "passed": False,
        "checks": [
            {"name": "storage", "state": "ok", "message": "is good"},
            {"name": "database x", "state": "note", "message": "is slow"},
            {"name": "model", "state": "fault", "message": "is gone; bring it back"},
        ],
    }
    assert doctor.render(checks[:1]).splitlines()[-1] == "everything is good"
    assert doctor.passed(checks[:2])
