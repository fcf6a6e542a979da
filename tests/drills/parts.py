"""The parts of `make drills`: what each one runs, and how long that takes on two cores.

A part is a program, or the tests that bear its name: `pytestmark = pytest.mark.drill(part="kills")`. A program ends
with one JSON object; a short form of most of them is among the tests with the same name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from typing import Final, NamedTuple

PYTHON: Final = sys.executable


class Part(NamedTuple):
    """A part of the drills.

    minutes: on two cores, about
    command: the program; None where the tests that bear the part's name are all of it
    """

    minutes: int
    what: str
    command: tuple[str, ...] | None = None


def named_parts(parts: Collection[str], text: str) -> list[str]:
    """Take names with commas between them. Raises argparse.ArgumentTypeError for one that is no part."""
    found = text.split(",")
    if unknown := [name for name in found if name not in parts]:
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(unknown)}; choose of {', '.join(parts)}")
    return found


def _program(name: str, *options: str) -> tuple[str, ...]:
    return (PYTHON, "-m", f"tests.drills.{name}", *options)


PARTS: Final[dict[str, Part]] = {
    "kills": Part(8, "kill -9, threads that end, lost databases, clocks set back, full disks"),
    "processes": Part(4, "listener, worker and sender on PostgreSQL"),
    "pages": Part(8, "every page in Chromium"),
    "peers": Part(6, "Orthanc, DICOMscope, dciodvfy, PixelMed, rsyslog and Prometheus as peers"),
    "objects": Part(6, "every kind of output of every kind of film"),
    "runtimes": Part(6, "proofs, float16, int8, TensorRT's builders; imported checkpoints"),
    "laboratory": Part(6, "training runs, calibration, data sets of the paper, golden arrays of every size"),
    "packaging": Part(4, "the wheel, the examples as packages, the README's first steps"),
    "deployment": Part(3, "chart, containers, alert rules, dashboards"),
    "encodings": Part(5, "good films of every encoder at hand", _program("encodings")),
    "paper": Part(2, "from miniatures of the paper's data sets to its tables", _program("paper_small")),
    "conformance": Part(15, "OHIF, DICOMscope and validators", _program("conformance")),
    "chaos": Part(10, "kills, a full disk, an archive that goes away, under load", _program("chaos")),
    "soak": Part(
        30, "good and bad callers, idle HTTP clients: memory, threads, descriptors stay flat", _program("soak")
    ),
    "sweep": Part(30, "250 phantoms, looked through for contradictions", _program("sweep")),
    "bench": Part(30, "reports, receiving and a film's cost beside peers", _program("bench")),
    "fuzz": Part(30, "malformed associations, requests, pixels and files", _program("fuzz")),
    "containers": Part(10, "the images built and run on a stand-in base", ("make", "container-test")),
    "pictures": Part(5, "the pages beside an Orthanc: the pictures of the documents", ("make", "pictures")),
    "dashboards": Part(5, "the dashboards drawn with a node's figures", ("make", "dashboards")),
}
