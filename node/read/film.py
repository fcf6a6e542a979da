"""Answer one received file: route it, decode it, read it, code its findings. Uses no storage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pydicom.dataset import Dataset

from language.labels import DEVICES
from models.contract import FindingState, PromptKind
from node import log
from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, View
from node.dicom import header_reading
from node.dicom.film_header import FilmHeader, calibrated_spacing, parse_header
from node.domain import Film, FilmView, ModelIdentity, Note, Reason
from node.errors import ReaderFailed, Undecodable
from node.prompt_set import PromptSet
from node.read import decoding, findings, routing, view_check
from node.read.decoding import Radiograph, Thumbnail
from node.read.model import RadiographReader, Reading
from node.read.routing import Decision
from node.read.view_check import doubt_reading

ADULT_YEARS: Final = 18

Timed = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answered:
    """The result for one object: a film with its answer, or film=None when the object is left alone.

    dataset: the object without its pixels; the writers of outputs copy from it
    thumbnail: the thumbnail of a film that was read
    """

    dataset: Dataset
    film: Film | None
    reason: Reason | None
    thumbnail: Thumbnail | None = None


def untimed(_step: str) -> AbstractContextManager[None]:
    """Measure no time."""
    return nullcontext()


def answer_film(
    path: Path, reader: RadiographReader, prompts: PromptSet, *, character_set: str = "", timed: Timed = untimed
) -> Answered:
    """Route one object, and read it if it is a frontal chest film.

    character_set: see `header_reading.read_header`
    timed: measures the steps route, decode and read
    A film on which another network than ChEX fails is answered with this reason; the log has the error.
    Raises Undecodable only when the file is not a DICOM object, and OSError for an error of the disk.
    """
    with timed("route"):
        dataset, notes = header_reading.read_noted_header(path, character_set=character_set)
        header = parse_header(dataset)
        decision = routing.choose(header, routing.rules_for(reader.ages))
        decision = replace(decision, notes=(*decision.notes, *notes))
    if decision.action is routing.Action.LEAVE:
        return Answered(dataset=dataset, film=None, reason=decision.reason)
    source = header.sop_instance_uid
    if decision.action is routing.Action.ANSWER:
        return _unread(dataset, decision, view_check.film_view(header), source=source)
    try:
        with timed("decode"):
            image = decoding.decode(path, header, gray=reader.gray, square=reader.square)
        with timed("read"):
            reading = reader.read(image, prompts)
    except Undecodable as error:
        undecodable = replace(decision, reason=Reason(error.reason))
        return _unread(dataset, undecodable, view_check.film_view(header), source=source)
    except ReaderFailed as error:
        log.get().error("reader.failed", sop_instance_uid=source, reason=str(error))
        failed = replace(decision, reason=Reason.READER_FAILED)
        return _unread(dataset, failed, view_check.film_view(header), source=source)
    decision = replace(decision, notes=(*decision.notes, *image.notes))
    view = view_check.film_view(header, reading.view)
    decision = view_check.confirm(decision, view.tag, reading.view, names_chest=routing.shows_chest(header))
    if decision.action is routing.Action.ANSWER:
        return _unread(dataset, decision, view, source=source)
    reading = _believed(reading, decision, reader, prompts)
    film = film_of(
        reading,
        image,
        prompts,
        source=source,
        model=reader.identity,
        notes=decision.notes,
        ratio=describe_ratio(reading.ratio, header, calibrated_spacing(dataset)),
        view=view,
    )
    return Answered(dataset=dataset, film=film, reason=None, thumbnail=image.thumbnail)


def answer_picture(image: Radiograph, reader: RadiographReader, prompts: PromptSet, *, source: str) -> Film:
    """Read a picture without a header, a PNG or JPEG; source: a UID for it. Raises ReaderFailed."""
    reading = reader.read(image, prompts)
    view = view_check.film_view(None, reading.view)
    unknown = Decision(action=routing.Action.READ, notes=(Note.VIEW_UNKNOWN, *image.notes))
    decision = view_check.confirm(unknown, None, reading.view, names_chest=False)
    if decision.reason is not None:
        return Film(source=source, reason=decision.reason, notes=decision.notes, view=view)
    reading = _believed(reading, decision, reader, prompts)
    return film_of(reading, image, prompts, source=source, model=reader.identity, notes=decision.notes, view=view)


def _believed(reading: Reading, decision: Decision, reader: RadiographReader, prompts: PromptSet) -> Reading:
    """Return a film's reading, limited by doubts about its picture.

    No sentence denies anything on a film with a note on picture or header, or that is called normal beside a finding.
    """
    doubt = view_check.doubt_of(reading.view, decision.notes)
    if doubt is not None or decision.notes or _called_normal(reading):
        reading = view_check.without_denials(reading)
    return doubt_reading(reading, doubt, prompts, is_checked=reader.identity.is_checked)


def _unread(dataset: Dataset, decision: Decision, view: FilmView, *, source: str) -> Answered:
    """Answer a film that is not read with the reason of a decision."""
    film = Film(source=source, reason=decision.reason, notes=decision.notes, view=view)
    return Answered(dataset=dataset, film=film, reason=decision.reason)


def _called_normal(reading: Reading) -> tuple[Note, ...]:
    """Note that "no finding" is present beside a finding, which it doubts no more than another: once for the film."""
    present = [answer for answer in reading.prompts if answer.state is FindingState.PRESENT]
    is_normal = any(answer.kind is PromptKind.NO_FINDING for answer in present)
    has_finding = any(answer.kind is PromptKind.PATHOLOGY and answer.key != DEVICES for answer in present)
    return (Note.CALLED_NORMAL,) if is_normal and has_finding else ()


def film_of(
    reading: Reading,
    image: Radiograph,
    prompts: PromptSet,
    *,
    source: str,
    model: ModelIdentity,
    notes: tuple[Note, ...] = (),
    ratio: CardiothoracicRatio | None = None,
    view: FilmView | None = None,
) -> Film:
    """Return the coded reading of a film; source: its SOP Instance UID; ratio: with its header's objection."""
    worded = [Note.SEVERITY_WORDED] if findings.is_severity_worded(reading.sentences) else []
    return Film(
        source=source,
        notes=(*notes, *_called_normal(reading), *worded),
        columns=image.framing.columns,
        rows=image.framing.rows,
        analyzed=image.framing.analyzed,
        sentences=findings.ground(reading),
        withheld=reading.withheld,
        findings=findings.find(
            reading,
            prompts,
            source=source,
            framing=image.framing.about(reading.middle),
            model=model,
            sides_known=image.sides_known,
        ),
        ratio=ratio,
        view=view,
        middle=reading.middle,
    )


def describe_ratio(
    ratio: CardiothoracicRatio | None, header: FilmHeader, spacing: tuple[float, float] | None
) -> CardiothoracicRatio | None:
    """Add to a ratio its view, why it has no band, and the size of its pixels; spacing: see `calibrated_spacing`.

    Usual limits are for adults in a PA view: on an AP film the heart is magnified, and a child's heart is wide. An
    error that was never measured on such films goes first: then the number is meaningless.
    """
    if ratio is None:
        return None
    view = view_check.projection_of(header)
    return replace(
        ratio,
        view=view,
        objection=Incomparable.UNMEASURED
        if ratio.objection is Incomparable.UNMEASURED
        else _objection(view, header.age_years),
        mm_per_pixel=None if spacing is None else spacing[0 if ratio.heart.is_vertical else 1],
    )


def _objection(view: View | None, age_years: int | None) -> Incomparable | None:
    if view is None:
        return Incomparable.VIEW_UNKNOWN
    if view is View.AP:
        return Incomparable.VIEW_AP
    if age_years is None:
        return Incomparable.AGE_UNKNOWN
    return Incomparable.CHILD if age_years < ADULT_YEARS else None
