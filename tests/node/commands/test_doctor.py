"""`doctor` on a node that was stopped, beside one that runs, where much is wrong at once, and on its model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from models.engines import EngineUnavailable
from models.engines.engine_files import EngineFiles
from node import config
from node.check_result import Check, CheckState, run_check
from node.commands.doctor import NOWHERE, check_database, check_model, check_ports, check_storage
from node.config import AlertsSettings, AuditSettings, ModelSettings, Settings, WebhookSettings
from node.domain import ModelIdentity
from node.health.checks import check_destinations
from node.service.model import admit
from node.settings.http import HttpSettings
from tests.models.test_engine_files import FakeCompiler
from tests.node.read.test_fallback import without_gpu
from tests.support import films, peers
from tests.support.damage import flip
from tests.support.mllp import InformationSystem
from tests.support.service import Service, run_command, settings_for, settings_with
from tests.support.spoken import PROMPTS

PASSWORD = "open-sesame"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node that has read a film, and what it sends to."""

    node: Service
    settings: Settings
    archive: peers.ReceivingArchive
    system: InformationSystem


@contextmanager
def started(folder: Path, phantom_model: Path) -> Iterator[Site]:
    """Start a node on ports that its settings name, and let it read a film."""
    with peers.ReceivingArchive() as archive, InformationSystem() as system:
        free = settings_with(system, folder / "node", archive_port=archive.port)
        assert free.orders is not None
        settings = replace(
            free,
            model=ModelSettings(directory=phantom_model, uncompared="accept"),  # the node reads with a script
            listener=replace(free.listener, port=peers.free_port()),
            http=HttpSettings(port=peers.free_port()),
            orders=replace(free.orders, port=peers.free_port()),
        )
        with Service(settings) as node:
            assert peers.send(films.thumbnail(), port=node.dicom_port) == 0
            node.wait_for("study.finished")
            archive.wait_for_kept(2)
            system.wait_for_kept(1)
            yield Site(node=node, settings=settings, archive=archive, system=system)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_beside_a_running_node_all_is_good_and_unchanged_and_after_it_the_ports_are_free(
    tmp_path: Path, phantom_model: Path
) -> None:
    with started(tmp_path, phantom_model) as site:
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

        assert site.node.stop() == 0
        done = run_command("doctor", site.node.settings_path, "--json")
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
    assert PASSWORD not in done.stdout
    assert not (tmp_path / "node").exists()


def test_a_check_that_raises_is_a_fault_that_quotes_nothing() -> None:
    def broken() -> tuple[Check, ...]:
        raise RuntimeError(PASSWORD)

    (check,) = run_check("storage", broken)

    assert (check.name, check.state) == ("storage", CheckState.FAULT)
    assert "RuntimeError at test_doctor.py:" in check.message
    assert PASSWORD not in check.message


@pytest.fixture
def model(phantom_model: Path, tmp_path: Path) -> Path:
    """A copy of the shipped model that a test may damage."""
    return Path(shutil.copytree(phantom_model, tmp_path / "model", copy_function=shutil.copyfile))


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

    assert states(checks) == [CheckState.OK, *[CheckState.NOTE] * 5, CheckState.OK, CheckState.NOTE]
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

    assert states(checks)[:2] == [CheckState.OK, CheckState.FAULT]
    assert (checks[1].name, "was never compared" in checks[1].message) == ("model change", True)


def test_each_mistake_in_a_manifest_is_a_fault(tmp_path: Path, model: Path) -> None:
    manifest = model / "manifest.toml"
    manifest.write_text("color = 1\n" + manifest.read_text().replace("layers = 2", "layers = 0", 1))

    checks = checked(tmp_path, model)

    assert states(checks) == [CheckState.FAULT, CheckState.FAULT]
    assert sorted(check.message.removeprefix(f"{manifest}: ").split()[0].rstrip(":") for check in checks) == [
        "color", "sizes.prompt_encoder.layers"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("onnx/find.onnx", "run python -m export.build"), ("weights.safetensors", "weights.safetensors")],
)
def test_a_file_that_changed_is_a_fault_that_names_it(tmp_path: Path, model: Path, name: str, remedy: str) -> None:
    flip(model / name, (model / name).stat().st_size // 2)

    [check] = checked(tmp_path, model)

    assert (check.state, remedy in check.message) == (CheckState.FAULT, True)


def test_a_missing_file_and_an_unknown_prompt_set_are_faults(tmp_path: Path, model: Path) -> None:
    [unknown] = checked(tmp_path, model, prompts="nothing")
    (model / "parity.json").unlink()
    [missing] = checked(tmp_path, model)

    assert (unknown.state, "chexpert14" in unknown.message) == (CheckState.FAULT, True)
    assert (missing.state, "parity.json" in missing.message) == (CheckState.FAULT, True)


def test_an_engine_that_is_not_built_yet_is_not_built_by_a_look(tmp_path: Path) -> None:
    graph, compiler = tmp_path / "find.float16.onnx", FakeCompiler()
    graph.write_bytes(b"a graph")

    with pytest.raises(EngineUnavailable) as unavailable:
        EngineFiles(NOWHERE).open(graph, compiler)

    assert unavailable.value.reason == "not_built"
    assert compiler.built == []
