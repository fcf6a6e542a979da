"""A node takes its first model, one that it served before, and one that was compared with such a one; no other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from models.contract import COMPARISON, Fallback
from models.manifest import WEIGHTS
from node import config
from node.config import ModelSettings
from node.domain import ModelIdentity
from node.errors import InputError
from node.metrics import Metrics
from node.service.model import ServedModels, admit, open_model, refusal
from tests.support.compared import compared, write
from tests.support.fakes import ScriptedReader
from tests.support.service import run_command, settings_for
from tests.support.spoken import PROMPTS

FIRST, SECOND, OTHER = (
    ModelIdentity(name="m", version=name, weights_sha256=name, manifest_sha256="0", engine="torch") for name in "123"
)
OTHERS = "compares other weights, thresholds or prompts"
IN_USE, WANTED, STRANGE = (compared(model, PROMPTS) for model in (FIRST, SECOND, OTHER))


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda _folder: None, "was never compared"),
        (lambda folder: write(folder, old=IN_USE, new=WANTED, measured=0), "no threshold of this model was measured"),
        (lambda folder: write(folder, old=IN_USE, new=WANTED, films=49), "compared on 49 films, which is too few"),
        (lambda folder: write(folder, old=IN_USE, new=WANTED, unmeasured=("edema", "fracture")),
         "measured threshold for edema, fracture"),
        (lambda folder: write(folder, old=STRANGE, new=WANTED), "compared with m 3, which this node has not served"),
        (lambda folder: write(folder, old=IN_USE, new=STRANGE), OTHERS),
        (lambda folder: write(folder, old=IN_USE, new=replace(WANTED, manifest_sha256="1")), OTHERS),
        (lambda folder: write(folder, old=IN_USE, new=replace(WANTED, prompts_sha256="1")), OTHERS),
        (lambda folder: (folder / COMPARISON).write_text("{"), "is no comparison of models"),
        (lambda folder: write(folder, old=IN_USE, new=WANTED), ""),
    ],
)  # fmt: skip
def test_a_model_is_admitted_by_its_comparison(tmp_path: Path, prepare: Callable[[Path], object], said: str) -> None:
    settings = settings_for(tmp_path, archive_port=1, model=ModelSettings(directory=tmp_path / "model"))
    settings.model.directory.mkdir()
    admit(settings, FIRST, PROMPTS)
    prepare(settings.model.directory)

    assert refusal(settings, FIRST, PROMPTS) is None
    assert (refusal(settings, SECOND, PROMPTS) is None) is (said == "")
    if said:
        with pytest.raises(InputError, match=said):
            admit(settings, SECOND, PROMPTS)
        admit(settings, FIRST, PROMPTS)
        settings = replace(settings, model=replace(settings.model, uncompared="accept"))
    with capture_logs() as logged:
        admit(settings, SECOND, PROMPTS)
    [told] = logged
    assert told["event"] == ("model.accepted" if said else "model.promoted")
    assert said or (told["films"], told["changed"]) == (50, 1)
    admit(replace(settings, model=replace(settings.model, uncompared="refuse")), SECOND, PROMPTS)


@pytest.mark.parametrize("look", ["has", "has_any"])
def test_processes_that_start_together_admit_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    settings = settings_for(tmp_path, archive_port=1)
    looked = getattr(ServedModels, look)

    def look_before_the_other(served: ServedModels, *model: object) -> bool:
        seen = bool(looked(served, *model))
        ServedModels(tmp_path).add(IN_USE, {})
        return seen

    monkeypatch.setattr(ServedModels, look, look_before_the_other)

    admit(settings, FIRST, PROMPTS)

    assert ServedModels(tmp_path).has(IN_USE)


def test_a_node_with_other_weights_ends_and_says_why(phantom_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(phantom_model, tmp_path / "model"))
    settings = settings_for(tmp_path / "storage", archive_port=9, model=ModelSettings(directory=model))
    (tmp_path / "node.toml").write_text(config.render(settings), encoding="utf-8")
    content = bytearray((model / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (model / WEIGHTS).write_bytes(content)

    ended = run_command("serve", tmp_path / "node.toml")

    assert ended.returncode == 2
    assert "is not the file that the manifest names" in ended.stderr
    assert list((tmp_path / "storage").glob("running*.json")) == [], "it is not taken for a killed process"


def test_a_runtime_that_runs_instead_of_another_is_logged_and_counted(tmp_path: Path) -> None:
    reader, metrics = ScriptedReader(), Metrics()
    reader.fallbacks = (Fallback(engine="tensorrt", reason="no_gpu", message="install a driver"),)

    with capture_logs() as lines:
        open_model(settings_for(tmp_path, archive_port=1), PROMPTS, metrics, lambda: reader)

    told = [line for line in lines if line["event"] == "runtime.fell_back"]
    assert [(line["log_level"], line["engine"], line["reason"]) for line in told] == [("warning", "tensorrt", "no_gpu")]
    labels = {"engine": "scripted", "fallback": "no_gpu"}
    assert metrics.registry.get_sample_value("cxr_engine_info", labels) == 1
