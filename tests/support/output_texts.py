"""Everything that the outputs of a film say to a reader or a program, as text, by output."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pytest
from PIL import ImageDraw
from pydicom.dataset import Dataset

from node.domain import Film
from node.hl7.text import read
from node.outputs import fhir, gsps, impression, oru, overlay, report_json, report_txt, wording
from node.outputs.sr import report as sr
from node.web import shown_film
from tests.support import samples
from tests.support.samples import BERLIN

_SILENT = ("UI", "OB", "OW", "DA", "TM", "DT")
"""Value representations that tell nothing about findings."""


@cache
def texts_of(film: Film) -> Mapping[str, str]:
    """Return the texts of every output of a film, with values of codes and numbers; identities and UIDs left out."""
    report, headers = samples.report(film), samples.sources(samples.cr())
    reports = {"sr": sr.write, "sr3d": sr.write_3d, "text": sr.write_text}
    found = {kind: _of(*samples.datasets(write, report, headers, BERLIN)) for kind, write in reports.items()}
    found["gsps"] = _of(*samples.datasets(gsps.write, report, samples.received(samples.cr()), BERLIN))
    found["oru"] = "\n".join(hl7_lines(film))
    found["fhir"] = _of_bundle(fhir.write(report, headers, BERLIN, order=None, documents=[])[1])
    found["report.txt"] = report_txt.render(report)
    found["report.json"] = json.dumps(report_json.report_to_json(report, []))
    found["study page"] = repr(shown_film.show(film))
    found["impression"] = " ".join(impression.of_film(film))
    columns, rows = wording.size(film)
    with pytest.MonkeyPatch.context() as patch:
        written = DrawnTexts(patch)
        overlay.draw(np.zeros((rows, columns), np.uint8), film)
    found["sc"] = "\n".join(written.lines)
    return found


def _of_bundle(content: bytes) -> str:
    """Return a FHIR bundle with the text that it attaches in base64."""

    def readable(found: dict[str, object]) -> dict[str, object]:
        data = found.get("data")
        return found | {"data": base64.b64decode(data).decode()} if isinstance(data, str) else found

    bundle = json.loads(content, object_hook=readable)
    return "\n".join(_strings(bundle))


def _strings(found: object) -> Iterator[str]:
    match found:
        case dict():
            for name, value in found.items():
                if name not in ("identifier", "fullUrl", "request", "reference", "uid", "studyUid", "seriesUid"):
                    yield from _strings(value)
        case list():
            for value in found:
                yield from _strings(value)
        case _:
            yield str(found)


def hl7_lines(film: Film) -> list[str]:
    """Return type, name, value and units of each OBX of the message of a film, without its UIDs."""
    message = oru.write(samples.report(film), samples.sources(samples.cr()), BERLIN, order=None, documents=[])[1]
    return [
        "|".join(segment.text(place) for place in (2, 3, 5, 6)) + f"|{segment.text(5, 2)}|{segment.text(5, 9)}"
        for segment in read(message).named("OBX")
        if segment.text(2) != "ST"
    ]


def _of(*objects: Dataset) -> str:
    return "\n".join(line for dataset in objects for line in _lines(dataset))


def _lines(dataset: Dataset) -> Iterator[str]:
    for element in dataset:
        if element.VR == "SQ":
            for item in element.value:
                yield from _lines(item)
        elif element.VR not in _SILENT:
            yield str(element.value)


class DrawnTexts:
    """What Pillow is told to write on pictures: each text with its place there and the size of the picture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn: list[tuple[str, tuple[float, ...], tuple[int, int]]] = []
        whole = ImageDraw.ImageDraw.text

        def text(canvas: ImageDraw.ImageDraw, xy: tuple[float, float], value: str, **style: object) -> None:
            self.drawn.append((value, canvas.textbbox(xy, value, font=style["font"]), canvas.im.size))  # type: ignore[arg-type]
            whole(canvas, xy, value, **style)  # type: ignore[arg-type]  # handed through as it came

        monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)

    @property
    def lines(self) -> list[str]:
        return [value for value, _, _ in self.drawn]

    def cut_off(self) -> list[str]:
        """Return the texts that do not lie wholly on their picture."""
        return [
            value
            for value, (left, top, right, bottom), (columns, rows) in self.drawn
            if left < 0 or top < 0 or right > columns or bottom > rows
        ]
