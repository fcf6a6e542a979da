"""The gpu image's libraries fit each other: what its wheels require, and what constraints.txt pins.

tests/drills/gpu_wheels.json has the requirements in the wheels' own words; `python -m tests.drills.gpu_wheels` records
them anew.
"""

from __future__ import annotations

import json
from importlib.metadata import requires, version
from importlib.util import find_spec

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.drills.gpu_wheels import ASKED, RECORD, pins
from tests.paths import REPOSITORY
from tests.support.peers import missing

pytestmark = pytest.mark.drill(part="packaging")

PINS = pins()
WHEELS: dict[str, list[str]] = json.loads(RECORD.read_text(encoding="utf-8"))
HERE = {name: str(value) for name, value in default_environment().items()}
IMAGE = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "python_version": "3.11"}


def needs_of(name: str, extras: set[str]) -> list[Requirement]:
    """What a recorded wheel needs in the image; nothing of a wheel that is not recorded."""
    lines = next((lines for wheel, lines in WHEELS.items() if wheel.partition("==")[0] == name), [])
    found = []
    for need in map(Requirement, lines):
        environments = [HERE | IMAGE | {"extra": extra} for extra in extras | {""}]
        if need.marker is None or any(need.marker.evaluate(environment) for environment in environments):
            found.append(need)
    return found


def reached() -> list[Requirement]:
    """Every requirement on the way from the wheels of PyTorch for CUDA and of ONNX Runtime, whose CUDA is PyTorch's."""
    begin = (f"torch=={PINS['torch']}", f"onnxruntime-gpu[cuda,cudnn]=={PINS['onnxruntime-gpu']}")
    open_needs, seen = [Requirement(each) for each in begin], dict[str, Requirement]()
    while open_needs:
        need = open_needs.pop()
        if str(need) not in seen:
            seen[str(need)] = need
            open_needs += needs_of(canonicalize_name(need.name), need.extras)
    return list(seen.values())


def test_the_record_is_of_the_pinned_versions() -> None:
    assert sorted(WHEELS) == sorted(f"{name}=={PINS[name]}" for name in ASKED), "run python -m tests.drills.gpu_wheels"


def test_what_the_wheels_for_cuda_require_is_met_by_pins() -> None:
    needs = [(str(need), PINS.get(canonicalize_name(need.name)), need.specifier) for need in reached()]

    assert [need for need, pin, specifier in needs if pin is None or pin not in specifier] == []


def test_only_what_is_required_is_pinned_for_a_gpu() -> None:
    section = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").partition("# Only with a GPU build")[2]
    names = {canonicalize_name(line.partition("==")[0]) for line in section.splitlines()[1:]}

    other = names - {canonicalize_name(need.name) for need in reached()}
    assert {name for name in other if not name.startswith("tensorrt")} == set()
    assert len(names) > 20


def test_pytorch_and_tensorrt_are_for_the_same_cuda() -> None:
    toolkit = PINS["cuda-toolkit"]

    assert toolkit.partition(".")[0] == "13"
    assert [name for name in PINS if name.endswith(("-cu11", "-cu12"))] == []
    assert {PINS[name] for name in PINS if name.startswith("tensorrt") and "rtx" not in name} == {PINS["tensorrt"]}
    assert {"tensorrt-cu13", "tensorrt-cu13-libs", "tensorrt-cu13-bindings"} <= PINS.keys()


@pytest.mark.parametrize("wheel", ["tensorrt-cu13-bindings", "tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13-libs"])
def test_wheels_that_are_installed_require_nothing_else(wheel: str) -> None:
    if find_spec(wheel.replace("-cu13", "").replace("-", "_")) is None:
        missing(f"needs {wheel} (extra test)")

    assert version(wheel) == PINS[wheel]
    assert [line for line in requires(wheel) or () if "extra ==" not in line] == []


def test_the_installed_pytorch_requires_what_is_recorded() -> None:
    recorded, installed = set(WHEELS[f"torch=={PINS['torch']}"]), set(requires("torch") or ())

    if "+" in version("torch"):  # PyTorch's build for the CPU: it leaves out what is for a GPU, and nothing else
        assert installed < recorded
        assert all(any(word in need for word in ("cuda", "cu13", "nvidia", "triton")) for need in recorded - installed)
    else:
        assert installed == recorded
