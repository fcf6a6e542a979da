"""Independent validators, as thin calls: each returns its complaints, one text each.

A tool that is missing skips the test at home and fails it where CI=true.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset

from node.outputs.document import save_bytes
from tests.peers import missing

# DicomSRValidator's rules are more than Java 17's XPath limits allow (interoperability §7). It runs its code once:
# without the optimizing compiler it takes 10 seconds of processor time instead of 20.
_JAVA_OPTIONS = " ".join(
    (
        *(f"-Djdk.xml.xpath{name}Limit=0" for name in ("ExprGrp", "ExprOp", "TotalOp")),
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
    )
)

# The standard has the Text Style Sequence in every Text Object (PS3.3 C.10.5), dciodvfy has it in compound graphics
# alone; nor does it know the Device UID of PS3.3 C.7.5.1, and it says both once more at the end.
_TOLERATED = (
    "UI Device UID",
    "SQ Text Style Sequence",
    *(f"LO {name}" for name in ("CSS Font Name",)),
    *(f"CS {name}" for name in ("Horizontal Alignment", "Vertical Alignment", "Shadow Style")),
    *(f"CS {name}" for name in ("Underlined", "Bold", "Italic")),
    *(f"US {name}" for name in ("Text Color CIELab Value", "Shadow Color CIELab Value")),
    *(f"FL {name}" for name in ("Shadow Offset X", "Shadow Offset Y", "Shadow Opacity")),
    "this is a Standard Extended SOP Class",
)


def dciodvfy(dataset: Dataset, *, word: str = "Error") -> list[str]:
    """Check modules and attributes with dicom3tools; word: "Error" or "Warning"."""
    return [line for line in _run("dciodvfy", dataset) if line.startswith(word)]


def unknown_warnings(dataset: Dataset) -> list[str]:
    """Return the warnings of dicom3tools of 2022 other than those about what is right (`_TOLERATED`)."""
    return [line for line in dciodvfy(dataset, word="Warning") if not line.rstrip().endswith(_TOLERATED)]


def dsrdump(dataset: Dataset) -> list[str]:
    """Check that dcmtk can read a structured report."""
    lines = _run("dsrdump", "--unknown-relationship", dataset)
    return [line for line in lines if line.startswith(("E:", "F:"))]


def dcmpschk(dataset: Dataset) -> list[str]:
    """Check a presentation state with dcmtk, on a copy.

    It takes UTF-8 bytes 0x80 to 0x9F for controls, and an empty PatientName for an error although it is type 2.
    """
    copy = deepcopy(dataset)
    copy.PatientName = copy.PatientName or "EMPTY"
    copy.walk(_to_ascii)
    copy.SpecificCharacterSet = "ISO_IR 100"
    lines = _run("dcmpschk", copy)
    ok = any("Test passed" in line for line in lines)
    return [] if ok else lines


def pixelmed(datasets: Sequence[Dataset]) -> list[list[str]]:
    """Check structured reports against their templates, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(_pixelmed, datasets))


def _pixelmed(dataset: Dataset) -> list[str]:
    lines = _run("DicomSRValidator", dataset, environment={"JAVA_TOOL_OPTIONS": _JAVA_OPTIONS})
    assert any("validation complete" in line.lower() for line in lines), lines
    return [line for line in lines if line.startswith("Error") and not line.endswith("context group 100")]


def _run(tool: str, *arguments: str | Dataset, environment: dict[str, str] | None = None) -> list[str]:
    if shutil.which(tool) is None:
        missing(f"{tool} is not installed")
    with _saved(arguments) as words:
        run = subprocess.run(
            [tool, *words], capture_output=True, timeout=240, check=False, env={**os.environ, **(environment or {})}
        )
    lines = (run.stdout + run.stderr).decode("utf-8", "replace").splitlines()
    assert lines, f"{tool} said nothing and so checked nothing"
    return lines


@contextmanager
def _saved(arguments: Sequence[str | Dataset]) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        words = []
        for argument in arguments:
            if isinstance(argument, Dataset):
                path = Path(folder) / "object.dcm"
                path.write_bytes(save_bytes(argument))
                words.append(str(path))
            else:
                words.append(argument)
        yield words


def _to_ascii(_: Dataset, element: DataElement) -> None:
    if element.VR in ("LO", "LT", "PN", "SH", "ST", "UC", "UT") and element.value:
        element.value = str(element.value).encode("ascii", "replace").decode()
