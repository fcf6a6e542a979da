"""Answer one received file: route it, decode it, read it, code its findings. Uses no storage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset

from node.dicom.film_header import parse_header
from node.dicom.measuring_header import parse_measuring
from node.domain import Film, PromptSet, Reason
from node.errors import Undecodable
from node.read import cardiothoracic, decoding, findings, routing
from node.read.model import Reader

Timed = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answered:
    """The result for one object: a film with its answer, or film=None when the object is left alone.

    dataset: the object without its pixels; the writers of outputs copy from it
    picture: [row, column] uint8 as displayed, in stored orientation; only for a film that was read
    """

    dataset: Dataset
    film: Film | None
    reason: Reason | None
    picture: NDArray[np.uint8] | None = None


def untimed(_step: str) -> AbstractContextManager[None]:
    """Measure no time."""
    return nullcontext()


def answer_film(path: Path, reader: Reader, prompts: PromptSet, *, timed: Timed = untimed) -> Answered:
    """Route one object, and read it if it is a frontal chest film.

    timed: measures the steps route, decode and read
    Raises Undecodable only when the file is not a DICOM object, and OSError for an error of the disk.
    """
    with timed("route"):
        dataset = decoding.read_header(path)
        header = parse_header(dataset)
        decision = routing.choose(header)
    if decision.action is routing.Action.LEAVE:
        return Answered(dataset=dataset, film=None, reason=decision.reason)
    source = header.sop_instance_uid
    if decision.action is routing.Action.ANSWER:
        film = Film(source=source, reason=decision.reason, notes=decision.notes)
        return Answered(dataset=dataset, film=film, reason=decision.reason)
    try:
        with timed("decode"):
            image = decoding.decode(decoding.read_file(path), header, gray=reader.gray, square=reader.square)
    except Undecodable as error:
        reason = Reason(error.reason)
        return Answered(dataset=dataset, film=Film(source=source, reason=reason, notes=decision.notes), reason=reason)
    with timed("read"):
        reading = reader.read(image, prompts)
    film = Film(
        source=source,
        notes=decision.notes,
        columns=image.framing.columns,
        rows=image.framing.rows,
        analyzed=image.framing.analyzed,
        sentences=findings.ground(reading),
        withheld=reading.withheld,
        findings=findings.find(
            reading,
            prompts,
            source=source,
            framing=image.framing,
            model=reader.identity,
            sides_known=image.sides_known,
        ),
        ratio=cardiothoracic.describe(reading.ratio, header, parse_measuring(dataset)),
    )
    return Answered(dataset=dataset, film=film, reason=None, picture=image.picture)
