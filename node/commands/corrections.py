"""Exports what readers corrected as films with labels, which `models.train` reads; nothing of it names a patient.

Each film is a line of JSON and a PNG, its upright picture. Only a person's assessment is a label: a finding that was
accepted, moved or added is there in its boxes, one that was rejected is not. Where one lies that was accepted without a
box is not known. Patients are numbered by a key that is drawn for each export and not kept, so that films of one
patient stay together and nobody can tell whose they are.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from language.sentences import by_rule
from models.contract import FindingState
from node.commands.export.pseudonyms import Pseudonyms
from node.config import Settings
from node.dicom.film_header import parse_header
from node.domain import Film, Finding, JsonObject, is_nobodys
from node.errors import InputError, NodeError, Undecodable
from node.jobs.answered_film import AnsweredFilm, all_corrections
from node.outputs.corrected_film import correct, prompt_of, sides_of
from node.outputs.patient import said
from node.prompt_set import PromptSet
from node.read import decoding, prompts
from node.read.framing import Framing
from node.store import files
from node.store.spool import Spool
from node.web.pictures import to_png


def export(settings: Settings, path: Path) -> int:
    """Write a line for each corrected film, and its picture beside it; returns their number.

    The file gets its name when it is complete; after a failure neither is left.
    Raises InputError if there is no node or the file exists, NodeError if it cannot be written.
    """
    directory = settings.storage.directory
    files.require_started(directory)
    pictures = path.with_suffix(".films")
    for target in (path, pictures):
        if target.exists():
            raise InputError(f"{target}: exists; name a new file")
    prompt_set = prompts.load(settings.model.prompts)
    spool = Spool(directory, character_set=settings.site.character_set)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=files.TEMPORARY, dir=path.parent) as made:
            drawn, written = Path(made, pictures.name), Path(made, path.name)
            drawn.mkdir()
            lines = list(_lines(spool, drawn, prompt_set, nobodys=settings.site.nobodys))
            files.write(written, "".join(lines).encode(), mode=files.ORDINARY)
            drawn.rename(pictures)
            written.rename(path)
    except OSError as error:
        raise NodeError(f"{path}: cannot be written ({error.strerror}); name another file") from error
    return len(lines)


def _lines(spool: Spool, pictures: Path, prompt_set: PromptSet, *, nobodys: Collection[str]) -> Iterator[str]:
    """Yield the line of each corrected film after its picture is written."""
    mapped = Pseudonyms(key=secrets.token_bytes(32))
    for film, corrections in all_corrections(spool):
        answer = correct(film.answer, corrections, prompts=prompt_set, side_of=sides_of(film.answer, film.header))
        if (truth := truth_of(film, answer, prompt_set)) and (png := picture_of(film)) is not None:
            picture = pictures / f"{mapped.name(film.instance.study_uid, film.instance.sop_instance_uid)}.png"
            picture.write_bytes(png)
            number = said(film.header, "PatientID")
            patient = mapped.name(film.instance.study_uid if is_nobodys(number, {"", *nobodys}) else number)
            line = {"file": f"{pictures.name}/{picture.name}", "patient": patient, "truth": truth}
            yield json.dumps(line) + "\n"


def truth_of(film: AnsweredFilm, corrected: Film, prompt_set: PromptSet) -> JsonObject:
    """Return a reader's assessment of a film in the form of `models.lab.training.labels`; empty if none is left.

    corrected: the answer to it as readers corrected it
    """
    judged = [finding for finding in corrected.findings if finding.reader is not None]
    if not judged:
        return {}
    framing = _framing(film)
    there = [finding for finding in judged if finding.state is FindingState.PRESENT]
    return {
        "present": {finding.prompt: finding in there for finding in judged},
        "boxes": {
            finding.prompt: [list(framing.to_unit(box.box)) for box in finding.boxes]
            for finding in there
            if finding.boxes
        },
        "located": [finding.prompt for finding in judged if finding.boxes or finding not in there],
        "said": [_said(finding, framing, prompt_set) for finding in there],
    }


def _said(finding: Finding, framing: Framing, prompt_set: PromptSet) -> JsonObject:
    name = prompt_of(finding, prompt_set).phrases[0]
    return {
        "text": by_rule(name=name, state=FindingState.PRESENT, side=finding.side, zone=None),
        "positive": True,
        "findings": [finding.prompt],
        "regions": [],
        "boxes": [list(framing.to_unit(box.box)) for box in finding.boxes],
    }


def _framing(film: AnsweredFilm) -> Framing:
    answer = film.answer
    if answer.columns is None or answer.rows is None or answer.analyzed is None:
        raise ValueError("a film that was read has a size and an analyzed square")
    header = parse_header(film.header)
    return decoding.framing_of(
        header, columns=answer.columns, rows=answer.rows, analyzed=answer.analyzed, middle=answer.middle
    )


def picture_of(film: AnsweredFilm) -> bytes | None:
    """Return the upright film as displayed, without overlays and shutter, as PNG; None if it cannot be decoded."""
    try:
        picture = decoding.stored_picture(film.instance.path).film()
        upright = decoding.turned(picture.astype(np.float32), _framing(film).turn)
        return to_png(upright.astype(np.uint8))
    except Undecodable:
        return None
