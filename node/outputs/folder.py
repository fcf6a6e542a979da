"""Write the results of one study as a folder (design §8): report.json, report.txt, its objects, and overlays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Final

from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.errors import InvalidDicomError

from node.dicom.film_header import pixel_shape
from node.domain import Film, JsonObject, Report
from node.output_kinds import OUTPUTS, Written, file_name
from node.outputs import document, overlay, report_json, report_txt, wording
from node.outputs.source import Source
from node.store import files

_REPORT, _TEXT = "report.json", "report.txt"
_RESULTS: Final = (
    *("*.overlay.png", "*.ratio.dcm", "*.*-*.dcm", f"{files.TEMPORARY}*"),
    *(f"{start}{kind}.dcm" for kind in OUTPUTS.own for start in ("*.", "")),
)
"""Patterns of files of an earlier run; a package's kind of output has a hyphen in its name."""


def write_folder(
    out: Path,
    report: Report,
    objects: Iterable[Written],
    sources: Mapping[str, Source],
    *,
    sections: Sequence[Report] = (),
    left_alone: Sequence[Film] = (),
    made_from: str = "",
) -> JsonObject:
    """Write `out/<StudyInstanceUID>/` and return the content of its report.json, which is written last.

    objects: every DICOM object of the report; an existing intact file with the same UID is kept
    sources: every film by SOP Instance UID; a film that cannot be decoded gets no overlay
    sections: the reports in report.txt, one per part of the study, if that is not the report itself
    left_alone: objects without an answer, for report.json only
    made_from: identifies everything that the results depend on, for `made_before`
    """
    folder = out / report.study_uid
    folder.mkdir(parents=True, exist_ok=True)
    files.sync_folder(out)
    names = []
    for written in objects:
        names.append(file_name(written, len(report.read_films)))
        _keep(folder / names[-1], written.dataset)
    for film in report.read_films:
        source = sources[film.source]
        if (picture := source.picture()) is None:
            continue
        names.append(f"{film.source}.overlay.png")
        png = BytesIO()
        made = f"{wording.made_by(report)}, {report.created_at:%Y-%m-%d %H:%M} UTC"
        drawn = overlay.draw(picture, film, shape=pixel_shape(source.header), made=made)
        # Takes half the time of Pillow's default level 6; the file is 3 % larger.
        drawn.save(png, "PNG", compress_level=3)
        _write(folder / names[-1], png.getvalue())
    for stale in {path.name for pattern in _RESULTS for path in folder.glob(pattern)} - set(names):
        (folder / stale).unlink()
    _write(folder / _TEXT, _text(sections or [report]).encode())
    content = report_json.report_to_json(report, names, left_alone=left_alone)
    if len(sections) > 1:
        content["parts"] = [[film.source for film in section.films] for section in sections]
    if made_from:
        hashes: JsonObject = {name: hash_of(folder / name) for name in (*names, _TEXT)}
        content["made"] = {"from": made_from, "files": hashes}
    _write(folder / _REPORT, (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode())
    return content


def _text(sections: Sequence[Report]) -> str:
    """Render reports; several get a heading each, so that nobody takes them for one patient's."""
    if len(sections) == 1:
        return report_txt.render(sections[0])
    title = "Part {} of {}: this study has films of several patients or accession numbers"
    return "\n".join(
        f"{title.format(number, len(sections))}\n\n{report_txt.render(section)}"
        for number, section in enumerate(sections, 1)
    )


def made_before(folder: Path, made_from: str) -> JsonObject | None:
    """Return the report.json of a study if its results have the same `made_from` and are intact; None otherwise."""
    try:
        content = json.loads((folder / _REPORT).read_bytes())
        made = content["made"]
        is_whole = made["from"] == made_from and all(
            hash_of(folder / name) == sha256 for name, sha256 in made["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return content if is_whole and isinstance(content, dict) else None


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _keep(path: Path, dataset: Dataset) -> None:
    """Write an object unless the file has it already, intact: one UID always has the same bytes."""
    with suppress(FileNotFoundError, InvalidDicomError, EOFError):
        existing = dcmread(path)
        if existing.SOPInstanceUID == dataset.SOPInstanceUID and document.save_bytes(existing) == path.read_bytes():
            return
    _write(path, document.save_bytes(dataset))


def _write(path: Path, content: bytes) -> None:
    """Write a result atomically, with the permissions of the umask."""
    files.write(path, content, mode=files.ORDINARY)
