"""Independent validators, as thin calls: each returns its complaints, one text each.

A tool that is missing skips the test at home and fails it where CI=true.
"""

from __future__ import annotations

import atexit
import functools
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Final

from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset

from node.outputs.document import save_bytes
from tests.support.peers import killed_after, missing

# PixelMed's rules are more than Java 17's XPath limits allow (interoperability §7). Most of its code
# runs a few times: without the optimizing compiler it takes half of the processor time.
_JAVA_OPTIONS = (
    *(f"-Djdk.xml.xpath{name}Limit=0" for name in ("ExprGrp", "ExprOp", "TotalOp")),
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xmx2g",
)
_PIXELMED = "/usr/share/java/pixelmed.jar"
_VALIDATOR = Path(__file__).with_name("ValidateReports.java")
_END_OF_FILE: Final = "end of file\n"
_LONGEST_SECONDS: Final = 250.0

# What reports add to PixelMed's templates, by name; they may be extended. Short Label and Algorithm Manufacturer are
# younger than its templates of 2022, it does not recognize the geometric purpose where there are several groups, and
# its TID 1404, by which TID 2000 has numbers, is empty.
_ADDED = re.compile(
    r"""/(
        TEXT\ \((125309,DCM,"Short\ Label"|122405,DCM,"Algorithm\ Manufacturer")\)
        | CODE\ \(363698007,SCT,"Finding\ Site"\)/NUM\ \(SHAREOFZONE,99CHEX,"[^"]+"\)
        | CONTAINER\ \(125007,DCM,"Measurement\ Group"\)/TEXT\ \(121106,DCM,"Comment"\)
          /CODE\ \(SENTENCEBY,99CHEX,"[^"]+"\)
        | CONTAINER\ \((C0034375,UMLS,"[^"]+"\)/CODE\ \([^/]+|59776-5,LN,"Findings")\)
          /NUM\ \(P[^,]+,99CHEX,"[^"]+,\ AI\ probability"\)
        | CONTAINER\ \(125007,DCM,"Measurement\ Group"\)/CODE\ \((?!363698007|121071|121005)[^/]+\)
        | CONTAINER\ \((19005-8,LN,"Impressions"|59776-5,LN,"Findings")\)
        | TEXT\ \((121073,DCM,"Impression"|121106,DCM,"Comment"|121071,DCM,"Finding"|QUESTION,99CHEX,"[^"]+")\)
        | SCOORD\ \(111030,DCM,"Image\ Region"\)
        | IMAGE\ \(260753009,SCT,"Source"\)
    ):\ Content\ Item\ not\ in\ template$""",
    re.VERBOSE,
)

# Where a person observer (TID 1003) stands on what a person said; PixelMed expects observers at the root alone. A
# report of TID 2000, which cannot be extended, has them on a section (row 9, the observation context of a heading) and
# nowhere else. By TID 1001 the context may be replaced at any location of the tree, and TID 1500 and 1410 can be
# extended (PS3.16 6.2.5): there the node has it on a group, on a comment in a group, and on an evaluation, which are a
# CONTAINER, a TEXT and a CODE, as the IOD permits (PS3.3 A.35.3.3.1.2). It belongs to its parent item (PS3.3 C.17.5).
_OBSERVER = re.compile(
    r"""\ (
        /CONTAINER\ \(18748-4,LN,"[^"]+"\)
          /CONTAINER\ \(59776-5,LN,"Findings"\)
        | /CONTAINER\ \(126000,DCM,"[^"]+"\)
          (
            /CONTAINER\ \(126010,DCM,"Imaging\ Measurements"\)
            /CONTAINER\ \(125007,DCM,"Measurement\ Group"\)
            (/TEXT\ \(121106,DCM,"Comment"\))?
            | /CONTAINER\ \(C0034375,UMLS,"Qualitative\ Evaluations"\)
              /CODE\ \([^/]+\)
          )
    )/(CODE\ \(121005,DCM,"Observer\ Type"\)|PNAME\ \(121008,DCM,"Person\ Observer\ Name"\))
    :\ Content\ Item\ not\ in\ template$""",
    re.VERBOSE,
)

# The standard has the Text Style Sequence in every Text Object (PS3.3 C.10.5), dciodvfy has it in compound graphics
# alone; nor does it know the Device UID of PS3.3 C.7.5.1, and it says both once more at the end.
_TOLERATED = (
    "UI Device UID",
    "SQ Text Style Sequence",
    "LO CSS Font Name",
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
    """Check structured reports against their templates, in the Java process of this thread."""
    process = _pixelmed_process(threading.get_ident())
    with _saved(datasets) as names:
        said = [_validated(process, name) for name in names]
    for part in said:
        assert any("validation complete" in line.lower() for line in part), part
    return [[line for line in part if is_complaint(line)] for part in said]


def _validated(process: subprocess.Popen[str], name: str) -> list[str]:
    assert process.stdin is not None and process.stdout is not None
    print(name, file=process.stdin, flush=True)
    said = list[str]()
    with killed_after(_LONGEST_SECONDS, process.kill):
        while (line := process.stdout.readline()) != _END_OF_FILE:
            assert line, f"PixelMed ended: {said}"
            said.append(line.rstrip("\n"))
    return said


@functools.cache
def _pixelmed_process(_thread: int) -> subprocess.Popen[str]:
    """Start PixelMed for a thread; it ends with the tests, when its standard input is closed."""
    _require("java", "javac", _PIXELMED)
    command = ["java", *_JAVA_OPTIONS, "-cp", _PIXELMED, str(_VALIDATOR)]
    process = subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    atexit.register(process.communicate)
    return process


def is_complaint(line: str) -> bool:
    """Say whether a line is an error, or a warning of an item that is not among those that reports may add."""
    if line.startswith("Error"):
        return not line.endswith("context group 100")
    return line.startswith("Warning") and not (_ADDED.search(line) or _OBSERVER.search(line))


def _require(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None and not Path(name).exists():
            missing(f"{name} is not installed: make system-packages")


def _run(tool: str, *arguments: str | Dataset) -> list[str]:
    _require(tool)
    with _saved(arguments) as words:
        run = subprocess.run([tool, *words], capture_output=True, timeout=240 + 10 * len(words), check=False)
    lines = (run.stdout + run.stderr).decode("utf-8", "replace").splitlines()
    assert lines, f"{tool} said nothing and so checked nothing"
    return lines


@contextmanager
def _saved(arguments: Sequence[str | Dataset]) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        words = []
        for number, argument in enumerate(arguments):
            if isinstance(argument, Dataset):
                path = Path(folder) / f"{number}.dcm"
                path.write_bytes(save_bytes(argument))
                words.append(str(path))
            else:
                words.append(argument)
        yield words


def _to_ascii(_: Dataset, element: DataElement) -> None:
    if element.VR in ("LO", "LT", "PN", "SH", "ST", "UC", "UT") and element.value:
        element.value = str(element.value).encode("ascii", "replace").decode()
