"""Runnable: records what the wheels of the gpu image require, in their own words, into gpu_wheels.json beside it.

    python -m tests.drills.gpu_wheels

It asks the package index for the wheels of Linux at the versions of constraints.txt. Where an index has the metadata
of a wheel apart, pip downloads no more; else it downloads the wheel, 256 MB of onnxruntime-gpu. The libraries of
TensorRT itself cannot be asked so: the index has a stand-in that fetches them from NVIDIA.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.paths import REPOSITORY

RECORD = Path(__file__).with_suffix(".json")
ASKED = (
    "torch",
    "cuda-bindings",
    "cuda-toolkit",
    "nvidia-cudnn-cu13",
    "nvidia-cusolver",
    "nvidia-nvshmem-cu13",
    "onnxruntime-gpu",
    "triton",
)


def pins() -> dict[str, str]:
    """The version of every package in constraints.txt."""
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): next(iter(each.specifier)).version for each in pinned}


def main() -> None:
    pinned = pins()
    # Three equal signs: not a build for the CPU, whose version has a word more.
    wanted = [f"{name}==={pinned[name]}" for name in ASKED]
    options = ["--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--only-binary", ":all:", "--report", "-"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options, *wanted]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    record = {
        f"{canonicalize_name(wheel['metadata']['name'])}=={wheel['metadata']['version']}": sorted(
            wheel["metadata"].get("requires_dist", [])
        )
        for wheel in report["install"]
    }
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
