"""A changed prompt set that a running node takes into use, or refuses with the whole file of settings."""

from __future__ import annotations

import hashlib
import http.client
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from node import config
from node.config import ModelSettings, Settings
from node.dicom.identity import VERSION
from node.domain import ModelIdentity
from node.errors import InputError
from node.read import prompts
from node.read.model import open_reader
from node.settings.destinations import DicomDestination
from tests.support import compared, films, peers
from tests.support.peers import LOOPBACK, ReceivingArchive
from tests.support.service import Service, run_command, settings_for
from tests.support.spoken import PROMPTS

BUILT_IN = Path(prompts.__file__).with_name("prompt_sets") / "chexpert14.toml"
RENAMED = ('phrases = ["Edema"]', 'phrases = ["Water in the lung"]')


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node whose prompt set is a file of its own, and its archive."""

    service: Service
    settings: Settings
    archive: ReceivingArchive

    @property
    def path(self) -> Path:
        return Path(self.settings.model.prompts)

    def send(self, name: str) -> str:
        """Send a film of a study of its own; its UID."""
        film = films.as_another(films.thumbnail(), name, study=name)
        assert peers.send(film, port=self.service.dicom_port) == 0
        return str(film.SOPInstanceUID)

    def reload(self) -> subprocess.CompletedProcess[str]:
        return run_command("reload", self.service.settings_path)

    def reports(self, count: int) -> list[str]:
        """The text in the reports of so many films, in the order in which the archive got them."""
        self.service.wait_for("delivery.sent", count=2 * count)
        reports = [kept for kept in self.archive.kept if kept.dataset.Modality == "SR"]
        return [report.content.decode("utf-8", errors="replace") for report in reports]

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection(LOOPBACK, self.service.http_port, timeout=30)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        connection.close()
        return text


def write(path: Path, version: str, *changes: tuple[str, str]) -> str:
    """Write a prompt set; changes: what stands in the built-in set, and what instead of it. Returns its hash."""
    text = BUILT_IN.read_text(encoding="utf-8").replace('version = "1.0"', f'version = "{version}"')
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def running(folder: Path, *, model: ModelSettings | None = None) -> Iterator[Node]:
    write(folder / "own.toml", "1")
    with ReceivingArchive() as archive:
        model = replace(model or ModelSettings(uncompared="accept"), prompts=str(folder / "own.toml"))
        settings = settings_for(folder / "node", archive_port=archive.port, model=model)
        with Service(settings) as service:
            yield Node(service=service, settings=settings, archive=archive)
            assert service.stop() == 0


def named_in(report: str) -> set[str]:
    """The prompt sets that a report names, with their hashes."""
    return set(re.findall(r"prompt set (own \d \(sha256 \w+\))", report))


WRONG = {
    "own.toml: prompt Edema: key: 'Edema' must be a snake_case word": ('key = "edema"', 'key = "Edema"'),
    "own.toml: Illegal character": ('key = "edema"', 'key = "edema'),
    "prompt edema: this model never learned: unlearned": ('phrases = ["Edema"]', 'phrases = ["unlearned"]'),
}


@pytest.mark.drill(part="processes")
def test_a_wrong_set_is_refused_and_a_good_one_is_used_from_the_next_round(tmp_path: Path) -> None:
    with running(tmp_path) as node:
        first, text = node.path.read_bytes(), node.service.settings_path.read_text(encoding="utf-8")
        destination = node.settings.destinations[0]
        assert isinstance(destination, DicomDestination)
        changed = replace(node.settings, destinations=(replace(destination, name="other"),))
        node.service.settings_path.write_text(config.render(changed), encoding="utf-8")
        for said, change in WRONG.items():
            write(node.path, "2", change)
            refused = node.reload()
            assert (refused.returncode, said in refused.stderr) == (2, True)
        node.service.settings_path.write_text(text, encoding="utf-8")
        node.path.write_bytes(first)
        (tmp_path / "hold").touch()
        node.send("held")
        node.service.wait_for("study.ready")
        second = write(node.path, "2", RENAMED)

        done = node.reload()
        (tmp_path / "hold").unlink()
        node.send("next")
        reports = node.reports(2)

        assert (done.returncode, done.stdout) == (0, "node: model.prompts in use\n"), done.stderr
        assert [named_in(report) for report in reports] == [
            {f"own 1 (sha256 {hashlib.sha256(first).hexdigest()})"},
            {f"own 2 (sha256 {second})"},
        ]
        assert ["Water in the lung is seen here." in report for report in reports] == [False, True]
        assert node.service.logged("delivery.sent")[0]["destination"] == "archive", "the rest of the file was refused"
        assert node.service.logged("prompts.reloaded")[0]["prompts"] == "own 2"
        assert "Water in the lung" in node.get("/api/v1/prompts")
        assert [line for line in node.get("/metrics").splitlines() if line.startswith("cxr_build_info")] == [
            f'cxr_build_info{{model="scripted 1",prompts="own 2",version="{VERSION}"}} 1.0'
        ]
        assert node.reload().stdout == "node: nothing has changed\n"


@pytest.mark.drill(part="processes")
def test_a_set_that_was_not_compared_is_refused(tmp_path: Path, phantom_model: Path) -> None:
    identity = ModelIdentity(name="scripted", version="1", weights_sha256="0" * 64, engine="scripted")
    directory = Path(shutil.copytree(phantom_model, tmp_path / "model"))
    with running(tmp_path, model=ModelSettings(directory=directory)) as node:
        in_use = compared.compared(identity, prompts.load(str(node.path)))
        write(node.path, "2", RENAMED)
        refused = node.reload()
        compared.write(directory, old=in_use, new=compared.compared(identity, prompts.load(str(node.path))))
        taken = node.reload()
        write(node.path, "3")
        accepting = replace(node.settings, model=replace(node.settings.model, uncompared="accept"))
        node.service.settings_path.write_text(config.render(accepting), encoding="utf-8")
        accepted = node.reload()

        assert refused.returncode == 2
        assert "scripted 1 was never compared, with these prompts" in refused.stderr
        assert taken.stdout == "node: model.prompts in use\n", taken.stderr
        assert node.service.logged("model.promoted")[0]["prompts"] == "own 2"
        assert accepted.stdout == "node: model.uncompared, model.prompts in use\n", accepted.stderr
        assert node.service.logged("model.accepted")[0]["prompts"] == "own 3"


def test_the_shipped_model_looks_at_prompts_before_they_are_used(phantom_model: Path) -> None:
    first, *others = PROMPTS.prompts
    reader = open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1)

    with pytest.raises(InputError, match="prompt atelectasis: this model never learned: tuberculosis"):
        reader.prepare(replace(PROMPTS, prompts=(replace(first, phrases=("Tuberculosis",)), *others)))
    with pytest.raises(InputError, match=r"decisions\.thresholds\.atelectasis belongs to no prompt"):
        reader.prepare(replace(PROMPTS, prompts=tuple(others)))
    with pytest.raises(InputError, match=r"decisions\.thresholds\.atelectasis belongs to no prompt"):  # the first
        reader.prepare(replace(PROMPTS, prompts=tuple(other for other in others if other.kind == "region")))
    reader.prepare(replace(PROMPTS, prompts=(*others, first)))
