"""Reading and asking without a network: files in, the same objects out as the service would send."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from node import imaging, pixel_format, routing
from node.domain import Box, Film, JsonObject, PromptSet, is_uid
from node.errors import InputError, Undecodable
from node.folder import write_folder
from node.framing import Framing
from node.imaging import Radiograph
from node.inference import Answer, Question, Reader
from node.pipeline import WRITERS, Answered, answer_film, make_report, write_objects

_PICTURE_SUFFIXES = frozenset((".png", ".jpg", ".jpeg"))


def read(
    paths: Sequence[Path],
    out: Path,
    *,
    reader: Reader,
    prompts: PromptSet,
    zone: ZoneInfo,
    on_film: Callable[[Path, str], None] = lambda _path, _outcome: None,
) -> list[JsonObject]:
    """Read files and folders; write `out/<StudyInstanceUID>/` for every study and return each report.json.

    on_film: hears each file and its outcome
    Raises InputError when a path does not exist or holds no DICOM object, or `out` cannot be a folder.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be used for results ({error.strerror}); name a folder") from error
    studies: dict[str, dict[str, Answered]] = {}
    for path, is_named in _files(paths):
        try:
            answered = answer_film(path, reader, prompts)
            study_uid, source = str(answered.header.StudyInstanceUID), str(answered.header.SOPInstanceUID)
        except (Undecodable, AttributeError) as error:
            if is_named:
                raise InputError(f"{path}: no DICOM object with its UIDs; name DICOM files or folders") from error
            on_film(path, "no DICOM object")
            continue
        if not (is_uid(study_uid) and is_uid(source)):
            if is_named:
                raise InputError(f"{path}: its Study or SOP Instance UID is not a valid UID; correct the file")
            on_film(path, "no valid UIDs")
            continue
        if source in studies.setdefault(study_uid, {}):
            on_film(path, "the same object again")
            continue
        studies[study_uid][source] = answered
        on_film(path, str(answered.reason or "read"))
    if not studies:
        raise InputError("no DICOM object found; name DICOM files or folders")
    return [
        _write(study_uid, list(films.values()), out, reader=reader, prompts=prompts, zone=zone)
        for study_uid, films in studies.items()
    ]


def ask(path: Path, questions: Sequence[Question], *, reader: Reader, prompts: PromptSet) -> list[Answer]:
    """Ask about one film: a DICOM file, a PNG or a JPEG.

    Raises InputError when the file is no frontal film or a box does not touch what the network sees.
    """
    image = _load(path, reader)
    for question in questions:
        if question.box is not None:
            _check_box(question.box, image.framing)
    try:
        return reader.ask(image, questions, prompts)
    except ValueError as error:
        raise InputError(str(error)) from error


def answer_to_json(answer: Answer) -> JsonObject:
    """One entry of `questions` in the answer of `node ask` (DESIGN.md 8)."""
    question = answer.question
    return {
        "prompt": question.prompt,
        "box": None if question.box is None else list(question.box.edges),
        "sentence": answer.sentence,
        "score": answer.score,
        "positive": answer.positive,
        "boxes": [{"box": list(one.box.edges), "score": one.score} for one in answer.boxes],
    }


def questions_of(phrases: Sequence[str], boxes: Sequence[Box]) -> list[Question]:
    """Pair up what was asked: one prompt with one box is one question, otherwise each is one of its own.

    Raises InputError when nothing was asked, or several prompts and boxes at once.
    """
    if not phrases and not boxes:
        raise InputError("nothing was asked; give --prompt TEXT or --box L,T,R,B")
    if len(phrases) == len(boxes) == 1:
        return [Question(prompt=phrases[0], box=boxes[0])]
    if phrases and boxes:
        raise InputError("several prompts and boxes do not pair up; ask one prompt with one box, or only one kind")
    return [Question(prompt=phrase) for phrase in phrases] + [Question(box=box) for box in boxes]


def _files(paths: Sequence[Path]) -> list[tuple[Path, bool]]:
    """Every file with whether it was named itself; folders are searched."""
    found: list[tuple[Path, bool]] = []
    for path in paths:
        if path.is_dir():
            found += [(inner, False) for inner in sorted(path.rglob("*")) if inner.is_file()]
        elif path.is_file():
            found.append((path, True))
        else:
            raise InputError(f"{path}: does not exist; name DICOM files or folders")
    return found


def _write(
    study_uid: str, answered: Sequence[Answered], out: Path, *, reader: Reader, prompts: PromptSet, zone: ZoneInfo
) -> JsonObject:
    films = [one.film for one in answered if one.film is not None]
    report = make_report(
        study_uid, films, model=reader.identity, prompts=prompts, created_at=datetime.now(UTC).replace(microsecond=0)
    )
    sources = {str(one.header.SOPInstanceUID): one.header for one in answered}
    return write_folder(
        out,
        report,
        write_objects(report, sources, zone=zone, kinds=WRITERS),
        {one.film.source: one.picture for one in answered if one.film is not None and one.picture is not None},
        left_alone=[
            Film(source=str(one.header.SOPInstanceUID), reason=one.reason) for one in answered if one.film is None
        ],
    )


def _load(path: Path, reader: Reader) -> Radiograph:
    if not path.is_file():
        raise InputError(f"{path}: does not exist; name a DICOM, PNG or JPEG file")
    if path.suffix.lower() in _PICTURE_SUFFIXES:
        return _load_picture(path, reader)
    try:
        decision = routing.choose(imaging.read_header(path))
        if decision.action is not routing.Action.READ:
            raise InputError(f"{path}: is no frontal chest film ({decision.reason}); name one")
        return imaging.load(imaging.read_file(path), gray=reader.gray, square=reader.square)
    except Undecodable as error:
        raise InputError(f"{path}: {error}; name a DICOM, PNG or JPEG file") from error


def _load_picture(path: Path, reader: Reader) -> Radiograph:
    """Take the gray values of an ordinary picture as they are (SPEC.md 1.1)."""
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = np.asarray(ImageOps.exif_transpose(image).convert("L"))
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{path}: is no readable picture of usual size; name a DICOM, PNG or JPEG file") from error
    rows, columns = picture.shape
    if min(rows, columns) < pixel_format.MIN_SIDE:
        raise InputError(f"{path}: has a side under {pixel_format.MIN_SIDE} pixels; name a film")
    left, top, right, bottom = reader.square(columns, rows)
    framing = Framing(columns=columns, rows=rows, square=Box(left=left, top=top, right=right, bottom=bottom))
    gray = picture.astype(np.float32) / np.float32(255)
    try:
        imaging.refuse_blank(gray, framing.square)
    except Undecodable as error:
        raise InputError(f"{path}: {error}; name a film") from error
    return Radiograph(gray=gray, picture=picture, framing=framing)


def _check_box(box: Box, framing: Framing) -> None:
    if box.left < 0 or box.top < 0 or box.right > framing.columns or box.bottom > framing.rows:
        raise InputError(f"the box {box.edges} leaves the film, which has {framing.columns} x {framing.rows} pixels")
