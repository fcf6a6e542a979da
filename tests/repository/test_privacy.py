"""What the program says to the network, seen by the kernel: nothing but to its own peers, and no file in HOME."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import REPOSITORY
from tests.support.peers import require

# Addresses of calls that send something or connect; a local socket (AF_UNIX, AF_NETLINK) leaves no machine.
_ADDRESS = re.compile(r"sin6?_port=htons\((\d+)\).*?(?:inet_addr\(\"|inet_pton\(AF_INET6, \")([^\"]+)\"")


def addresses(tmp_path: Path, *arguments: object) -> set[tuple[str, int]]:
    """Run Python in a clean environment, without CI, and return every address that it spoke to."""
    home, calls = tmp_path / "home", tmp_path / "calls"
    home.mkdir()
    watch = [require("strace"), "-f", "-qq", "--seccomp-bpf", "-e", "trace=connect,sendto,sendmsg,sendmmsg"]
    done = subprocess.run(
        [*watch, "-o", str(calls), sys.executable, *map(str, arguments)],
        cwd=REPOSITORY,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert [path for path in home.rglob("*") if path.is_file()] == []
    found = _ADDRESS.findall(calls.read_text(encoding="utf-8", errors="replace"))
    return {(host, int(port)) for port, host in found if port != "0"}  # so getaddrinfo finds a source; nothing is sent


@pytest.mark.drill(part="peers")
def test_reading_a_film_speaks_to_nobody(tmp_path: Path, phantom_model: Path, chest_film: Path) -> None:
    out = tmp_path / "out"

    assert addresses(tmp_path, "-m", "node", "read", chest_film, "--model", phantom_model, "--out", out) == set()

    assert list(out.rglob("report.json"))


def test_a_node_speaks_to_its_own_peers_alone(tmp_path: Path, phantom_model: Path) -> None:
    spoken = addresses(tmp_path, "-m", "node", "demo", "--model", phantom_model, "--out", tmp_path / "out")

    assert spoken
    assert {host for host, _ in spoken} == {"127.0.0.1"}


@pytest.mark.parametrize("module", ["models.engines.onnx_engine", "export.graphs", "models.reading.tokenizers"])
def test_telemetry_is_off_before_a_library_is_imported(module: str) -> None:
    program = (
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('onnxruntime', 'tokenizers', 'huggingface_hub'):\n"
        "            assert os.environ.get('ORT_DISABLE_TELEMETRY') == '1', name\n"
        "            assert os.environ.get('HF_HUB_OFFLINE') == '1', name\n"
        "            met.append(name)\n"
        "met = []\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"import {module}\n"
        "assert met\n"
    )

    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, env={}, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
