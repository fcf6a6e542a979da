"""Runnable: how fast this machine takes, reads and answers films, for deploy/growth.md.

    python -m tests.growth [FILMS]     30 by default, each a study of its own with a report and a presentation state

A node with the shipped model and an archive, both on this machine.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests import films, peers
from tests.service import Service, settings_for

STEPS = ("receive", "decode", "read", "write", "finish", "deliver")


def main(count: int) -> None:
    sources = [films.as_another(films.rg1(), f"growth {number}", study=f"growth {number}") for number in range(count)]
    megabytes = len(films.file_bytes(sources[0])) / 1e6
    with tempfile.TemporaryDirectory() as folder, peers.ReceivingArchive() as archive:
        settings = settings_for(Path(folder) / "node", archive_port=archive.port, quiet_seconds=0.5)
        with Service(settings, scripted=False) as node:
            began = time.monotonic()
            if peers.send_all(sources, port=node.dicom_port) != [0] * count:
                sys.exit("the node did not take every film")
            taken = time.monotonic() - began
            archive.wait_for_kept(2 * count, limit_seconds=60.0 + 20.0 * count)
            answered = time.monotonic() - began
            seconds = step_seconds(node.http_port)
    lines = [f"{count} films of {megabytes:.1f} MB", f"taken     {count / taken:6.1f} films/s"]
    lines.append(f"answered  {count / answered:6.2f} films/s, each with two objects")
    lines += [f"{step:9} {seconds[step]:6.3f} s" for step in STEPS]
    sys.stdout.write("\n".join(lines) + "\n")


def step_seconds(port: int) -> dict[str, float]:
    """The mean time of each step, as the node's own metric has it."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{peers.LOOPBACK}:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    pattern = r'cxr_step_duration_seconds_{}\{{step="(\w+)"\}} (\S+)'
    sums, counts = (dict(re.findall(pattern.format(what), text)) for what in ("sum", "count"))
    return {step: float(sums[step]) / max(float(counts[step]), 1.0) for step in sums}


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
