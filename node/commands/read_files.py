"""Read films from files, without DICOM network: the same outputs as the service, and a table with one line a film."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias, cast
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from models.contract import FindingState
from node import csv_table
from node.config import SiteSettings
from node.dicom import header_reading
from node.dicom.identity import VERSION
from node.domain import Film, JsonObject, Reason, is_uid
from node.errors import InputError, NodeError, Undecodable
from node.output_kinds import DEFAULT_OUTPUTS
from node.outputs.folder import hash_of, made_before, write_folder
from node.outputs.patient import noted
from node.outputs.source import from_files
from node.outputs.study_parts import divide, without_nobodys
from node.outputs.writers import make_report, report_on, write_objects
from node.prompt_set import PromptSet
from node.read.film import Answered, answer_film
from node.read.model import RadiographReader

DONE_BEFORE: Final = "done before"

OnFile: TypeAlias = Callable[[Path, str], None]
StudyFiles: TypeAlias = Mapping[str, tuple[Path, Dataset]]
"""The files of one study by SOP Instance UID, each with SOP class, instance and study out of its header."""
_ABOUT: Final = ("study", "film", "status", "reason", "cardiothoracic_ratio", "impression")


def collect(paths: Sequence[Path], *, on_file: OnFile = lambda _path, _outcome: None) -> Mapping[str, StudyFiles]:
    """Find the DICOM objects in files and folders, by study, in the order found; opens no model.

    on_file: called with each file that is left out, and why
    Raises InputError when a path does not exist, a named file is not a DICOM object, or no DICOM object is found.
    """
    studies: dict[str, dict[str, tuple[Path, Dataset]]] = {}
    for path, is_named in _files(paths):
        try:
            identity = header_reading.read_identity(path)
        except Undecodable as error:
            if is_named:
                raise InputError(f"{path}: {error}; name DICOM files or folders") from error
            on_file(path, f"left out, {error}")
            continue
        except OSError as error:
            if is_named:
                raise InputError(f"{path}: cannot be read ({error.strerror})") from error
            on_file(path, f"cannot be read ({error.strerror})")
            continue
        study_uid, source = str(identity.StudyInstanceUID), str(identity.SOPInstanceUID)
        if not (is_uid(study_uid) and is_uid(source)):
            if is_named:
                raise InputError(f"{path}: its Study or SOP Instance UID is not a valid UID; correct the file")
            on_file(path, "no valid UIDs")
        elif source in studies.setdefault(study_uid, {}):
            on_file(path, "the same object again")
        else:
            studies[study_uid][source] = (path, identity)
    if not studies:
        raise InputError("no DICOM object found; name DICOM files or folders")
    return studies


def check_folder(out: Path) -> None:
    """Check that a folder for results can be written or created; leaves no file there. Raises InputError if not."""
    existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(f"{out}: cannot be used for results ({error.strerror}); name a folder") from error


def _files(paths: Sequence[Path]) -> list[tuple[Path, bool]]:
    """Return every file, and whether it was named itself or found in a folder. Raises InputError."""
    found: list[tuple[Path, bool]] = []
    for path in paths:
        if path.is_dir():
            found += [(inner, False) for inner in sorted(path.rglob("*")) if inner.is_file()]
        elif path.is_file():
            found.append((path, True))
        else:
            raise InputError(f"{path}: does not exist; name DICOM files or folders")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader:
    """Reads the films of files, and writes their results.

    zone: local time of the objects
    character_set: see `header_reading.read_header`
    kinds: the kinds of objects to write
    on_file: called with each file and its outcome
    """

    reader: RadiographReader
    prompts: PromptSet
    zone: ZoneInfo
    character_set: str = ""
    kinds: Sequence[str] = DEFAULT_OUTPUTS
    on_file: OnFile = lambda _path, _outcome: None

    def read(self, studies: Mapping[str, StudyFiles], out: Path) -> Iterator[JsonObject]:
        """Read the studies in turn; write `out/<StudyInstanceUID>/` for each, and yield its report.json.

        A study is not read again if its results are intact and were made of the same files in the same way.
        Raises InputError when a file can no longer be read, NodeError when `out` cannot be written.
        """
        for study_uid, objects in studies.items():
            made_from = self._made_from(objects)
            before = made_before(out / study_uid, made_from)
            if before is not None:
                for path, _ in objects.values():
                    self.on_file(path, DONE_BEFORE)
                yield before
                continue
            answered = []
            for path, identity in objects.values():
                answered.append(self._answer(path, identity))
                self.on_file(path, str(answered[-1].reason or "read"))
            try:
                yield self._write(study_uid, objects, answered, out, made_from)
            except OSError as error:
                raise NodeError(
                    f"{out}: cannot be written ({error.strerror}); correct that, then run the same command to continue"
                ) from error

    def _made_from(self, objects: StudyFiles) -> str:
        """Return a hash of everything that the results depend on. Raises InputError when a file cannot be read."""
        try:
            files = sorted(hash_of(path) for path, _ in objects.values())
        except OSError as error:
            raise InputError(f"{error.filename}: cannot be read ({error.strerror})") from error
        made_by = (VERSION, *self.reader.identity.parts, self.prompts.sha256)
        how = (str(self.zone), *filter(None, (self.character_set,)), *self.kinds)
        return hashlib.sha256("\0".join((*made_by, *how, *files)).encode()).hexdigest()

    def _answer(self, path: Path, identity: Dataset) -> Answered:
        """Answer one object; if its whole header cannot be parsed, it is undecodable and only its identity is known."""
        try:
            answered = answer_film(path, self.reader, self.prompts, character_set=self.character_set)
        except Undecodable:
            film = Film(source=str(identity.SOPInstanceUID), reason=Reason.UNDECODABLE)
            return Answered(dataset=identity, film=film, reason=film.reason)
        return answered if answered.film is None else replace(answered, film=noted(answered.film, answered.dataset))

    def _write(
        self, study_uid: str, objects: StudyFiles, answered: Sequence[Answered], out: Path, made_from: str
    ) -> JsonObject:
        """Write the results of a study: the objects on each of its parts, and one report.json on all films."""
        nobodys = SiteSettings().nobodys
        headers = without_nobodys({str(answer.dataset.SOPInstanceUID): answer.dataset for answer in answered}, nobodys)
        films = {answer.film.source: answer.film for answer in answered if answer.film is not None}
        division = divide(study_uid, {uid: headers[uid] for uid in films}, nobodys=nobodys)
        unclear = tuple(Film(source=uid, reason=Reason.PATIENT_UNCLEAR) for uid in sorted(division.unclear))
        report = make_report(
            study_uid,
            [*(film for uid, film in films.items() if uid not in division.unclear), *unclear],
            model=self.reader.identity,
            prompts=self.prompts,
            created_at=datetime.now(UTC).replace(microsecond=0),
        )
        parts = [report_on(part, report) for part in division.parts]
        sources = from_files(headers, dict(zip(headers, (path for path, _ in objects.values()), strict=True)))
        left = [answer for answer in answered if answer.film is None]
        return write_folder(
            out,
            report,
            chain.from_iterable(write_objects(part, sources, zone=self.zone, kinds=self.kinds) for part in parts),
            sources,
            sections=[*parts, replace(report, films=unclear)] if unclear else parts or [report],
            left_alone=[Film(source=str(answer.dataset.SOPInstanceUID), reason=answer.reason) for answer in left],
            made_from=made_from,
        )


def write_table(path: Path, reports: Sequence[JsonObject]) -> None:
    """Write a line for each film of some `report.json`, with the state and the probability of each finding.

    Raises NodeError if the file cannot be written.
    """
    lines = [line for report in reports for line in _lines(report)]
    names = dict.fromkeys((*_ABOUT, *(name for line in lines for name in line)))
    try:
        path.write_text(csv_table.write(names, lines), encoding="utf-8", newline="")
    except OSError as error:
        raise NodeError(f"{path}: cannot be written ({error.strerror}); name another file") from error


def _lines(report: JsonObject) -> Iterator[dict[str, object]]:
    for film in cast(list[JsonObject], report["films"]):
        ratios = [item["value"] for item in _items(film, "measurements") if item["name"] == "cardiothoracic_ratio"]
        line: dict[str, object] = {
            "study": report["study"],
            "film": film["source"],
            "status": film["status"],
            "reason": film["reason"],
            "cardiothoracic_ratio": next(iter(ratios), None),
            "impression": "; ".join(cast(list[str], film.get("impression", []))),
        }
        for finding in _items(film, "findings"):
            line[str(finding["prompt"])] = _state(finding)
            line[f"{finding['prompt']}_probability"] = finding["probability"]
        yield line


def _items(film: Mapping[str, object], key: str) -> list[JsonObject]:
    return cast(list[JsonObject], film.get(key, []))


def _state(finding: JsonObject) -> str:
    """Return a state in the words of all outputs: a finding below its threshold is not called absent."""
    names = {FindingState.ABSENT: "not_reported", FindingState.LEFT_OUT: "not_assessed"}
    state = FindingState(str(finding["state"]))
    return names.get(state, str(state))
