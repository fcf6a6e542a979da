"""DICOMscope (Debian): what it draws of presentation states, and presentation states that it writes."""

from __future__ import annotations

import copy
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydicom import dcmread
from pydicom.dataset import Dataset

from node.domain import derive_uid
from node.outputs import gsps
from node.outputs.document import save_bytes
from tests.drills.conformance import pictures
from tests.support import films
from tests.support.peers import missing, require

_JAR: Final = Path("/usr/share/java/DICOMscope.jar")
_NATIVE: Final = "/usr/lib/x86_64-linux-gnu/jni"
_LAUNCHER: Final = Path(__file__).with_name("ShowStates.java")
_DRAWER: Final = Path(__file__).with_name("DrawState.java")
# No port, no archive, no print server: a picture needs none of them.
_SETTINGS: Final = """[[GENERAL]]
[APPLICATION]
LogDirectory = {folder}
LogLevel = NONE
[DATABASE]
Directory = {folder}
[MONITOR]
Resolution = 1152\\864
Screensize = 400\\300
PreviewSize = 256\\256
[LUT]
Directory = /usr/share/dicomscope/lut
[GUI]
PSPanelOn = true
HighResolutionGraphics = false
"""


def show(folder: Path, pairs: Sequence[tuple[Dataset, Dataset]]) -> list[bytes]:
    """Show films with their presentation states, one after the other. Returns a PNG of the viewer's canvas for each."""
    _prepare(folder)
    words = []
    for number, (film, state) in enumerate(pairs):
        names = [str(folder / f"{number}.{ending}") for ending in ("film.dcm", "state.dcm", "png")]
        Path(names[0]).write_bytes(films.file_bytes(film))
        Path(names[1]).write_bytes(save_bytes(state))
        words += names
    command = [*_java(str(_JAR)), str(_LAUNCHER), *words]
    with _screen() as display:
        run = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "DISPLAY": display},
            capture_output=True,
            timeout=60 + 20 * len(pairs),
            check=False,
        )
    assert run.returncode == 0, run.stderr.decode(errors="replace")[-2000:]
    return [Path(name).read_bytes() for name in words[2::3]]


def draw(
    folder: Path, film: Dataset, *graphics: tuple[str, str, Sequence[float]], creator: str, label: str, text: str = ""
) -> Dataset:
    """Draw on a film and return the presentation state that DICOMscope saves; graphics: units, type and points."""
    settings = _prepare(folder)
    source, state = folder / "film.dcm", folder / "state.dcm"
    source.write_bytes(films.file_bytes(film))
    subprocess.run([require("javac"), "-cp", str(_JAR), "-d", str(folder), str(_DRAWER)], check=True, timeout=60)
    words = [str(settings), str(source), str(state), creator, label, text]
    for units, kind, points in graphics:
        words += [units, kind, ",".join(map(str, points))]
    command = [*_java(f"{_JAR}:{folder}"), "-Djava.awt.headless=true", _DRAWER.stem, *words]
    run = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr.decode(errors="replace")[-2000:]
    return dcmread(state)


def without_graphics(state: Dataset) -> Dataset:
    """Return a presentation state with the same gray values, area, shutter and overlays, and nothing drawn."""
    bare = copy.deepcopy(state)
    del bare.GraphicAnnotationSequence
    bare.GraphicLayerSequence = [layer for layer in state.GraphicLayerSequence if layer.GraphicLayer == gsps.OVERLAYS]
    if not bare.GraphicLayerSequence:
        del bare.GraphicLayerSequence
    bare.SOPInstanceUID = derive_uid("bare", str(state.SOPInstanceUID))
    return bare


def calibrating(state: Dataset) -> Dataset:
    """Return a state for the calibration film: the same area, nothing drawn or hidden, gray values as stored."""
    bare = pictures.without_overlays(without_graphics(state))
    for keyword in ("SoftcopyVOILUTSequence", "ModalityLUTSequence", "RescaleSlope", "RescaleIntercept", "RescaleType"):
        if keyword in bare:
            delattr(bare, keyword)
    bare.PresentationLUTShape = "IDENTITY"
    return bare


def _java(path: str) -> list[str]:
    """Return the command for classes of a path, without the optimizing compiler: most code runs a few times."""
    return [require("java"), "-XX:TieredStopAtLevel=1", f"-Djava.library.path={_NATIVE}", "-cp", path]


def _prepare(folder: Path) -> Path:
    """Return the settings that DICOMscope runs with in a folder, which is made."""
    if not _JAR.exists():
        missing("DICOMscope is not installed: make system-packages")
    require("javac")
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "DICOMscope.cfg"
    settings.write_text(_SETTINGS.format(folder=folder), encoding="ascii")
    return settings


@contextmanager
def _screen() -> Iterator[str]:
    """Run an X server without a monitor, that listens on no port. Yields the name of its display."""
    reading, writing = os.pipe()
    command = [require("Xvfb"), "-displayfd", str(writing), "-screen", "0", "1280x1024x24", "-nolisten", "tcp"]
    server = subprocess.Popen(command, pass_fds=(writing,), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(writing)
    try:
        with os.fdopen(reading) as answer:
            yield f":{answer.readline().strip()}"
    finally:
        server.terminate()
        server.wait(20)
