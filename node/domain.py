"""The values of the program. Each type checks itself when it is made, so nothing downstream checks again.

States, sides, boxes and sentences are those of `models.contract`, which the network speaks too. On the node boxes are
0-based edges in pixels of the *stored* film (PS3.3 C.18.6.1.1). Only `framing.Framing` converts from the square that
the network sees.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal, TypeAlias, get_args

from models.contract import (
    Box,
    Contradiction,
    FindingState,
    ScoredBox,
    Sentence,
    SentenceRule,
    Side,
    Trusted,
    View,
    WithheldSentence,
)
from node.cardiothoracic_ratio import CardiothoracicRatio

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = dict[str, Json]

OutputPriority: TypeAlias = Literal["routine", "critical"]
"""The priority of an output: a critical one is delivered before those that wait for the same destination."""
ROUTINE: Final = "routine"
CRITICAL: Final = "critical"

KnownPlace: TypeAlias = Literal["told", "no_side", "film_unsided", "no_place"]
"""What is known of where a finding lies: all, `told`; `no_side`, if the network is not certain of one; `film_unsided`,
if the film does not tell which side is which; `no_place`, if the network is not certain of any: it has no box."""

TaggedView: TypeAlias = Literal["AP", "PA", "lateral", "frontal"]
"""The view that a film's header names; frontal: neither AP nor PA alone."""

NO_PART: Final = -1

UNSET_ZONE: Final = "UTC"
"""The zone of a site that has set none. It says nothing of the clocks there; a site in UTC writes Etc/UTC."""

_UID = re.compile(r"[0-9]+(\.[0-9]+)*")
_NAMESPACE = uuid.UUID("a3f1f7a6-3f0e-5d0b-9f9b-6c1d4b0c7e55")


def is_uid(text: str) -> bool:
    """Return whether a text is a UID, and so safe as a file name (PS3.5 9.1): digits and single dots, at most 64."""
    return len(text) <= 64 and _UID.fullmatch(text) is not None


def is_nobodys(number: str, nobodys: Collection[str]) -> bool:
    """Return whether a patient's number is one of those that stand for none (`SiteSettings.nobodys`)."""
    return number.strip().casefold() in nobodys


def derive_uid(*parts: str) -> str:
    """Derive a UID from texts: equal texts give an equal UID (PS3.5 B.2, `2.25.` and the integer of a uuid5)."""
    return f"2.25.{uuid.uuid5(_NAMESPACE, chr(0).join(parts)).int}"


class Reason(StrEnum):
    """Why a film was not read. Part of the outer contract."""

    MODALITY = "modality"
    FOR_PROCESSING = "for_processing"
    NOT_CHEST = "not_chest"
    LATERAL = "lateral"
    UNDECODABLE = "undecodable"
    NO_PIXELS = "no_pixels"
    BLANK = "blank"
    UNREADABLE = "unreadable"
    TOO_SMALL = "too_small"
    COLOR = "color"
    OWN_OBJECT = "own_object"
    DAMAGED = "damaged"
    INTERRUPTED = "interrupted"
    AGE = "age"
    SPECIES = "species"
    PATIENT_UNCLEAR = "patient_unclear"
    READER_FAILED = "reader_failed"


class Note(StrEnum):
    """Cautions about a film that was read."""

    VIEW_UNKNOWN = "view_unknown"
    AGE_UNKNOWN = "age_unknown"
    AGE_WITHOUT_UNIT = "age_without_unit"
    MAYBE_CHILD = "maybe_child"
    IMAGE_TYPE = "image_type"
    TWO_VIEWS = "two_views"
    TEXT_RECODED = "text_recoded"
    TEXT_LEFT_OUT = "text_left_out"
    VIEW_DISAGREES = "view_disagrees"
    MIRRORED = "mirrored"
    ROTATED = "rotated"
    CALLED_NORMAL = "called_normal"
    SEVERITY_WORDED = "severity_worded"
    STRETCHED = "stretched"
    TABLE_SCALED = "table_scaled"
    POLARITY_UNCLEAR = "polarity_unclear"
    SIGN_DISAGREES = "sign_disagrees"
    PIXELS_CUT = "pixels_cut"
    IDENTIFIER_LEFT_OUT = "identifier_left_out"
    HEADER_DISORDERED = "header_disordered"
    OBLONG_PIXELS = "oblong_pixels"
    PADDING_IGNORED = "padding_ignored"


class Assessment(StrEnum):
    """The radiologist's assessment: a finding is there, is not, lies elsewhere, or was missed; or its sentence.

    Drawn: a finding that the network reports is there, and lies in a box that the reader drew for it.
    """

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    MOVED = "moved"
    DRAWN = "drawn"
    ADDED = "added"
    REWORDED = "reworded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderMark:
    """A reader's word, which stands above the network's; by: the reader's name on this node; at: UTC."""

    what: Assessment
    by: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A coded concept (PS3.3 8)."""

    value: str
    scheme: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingBox:
    """A box of a finding; its tracking UID is the same in every output (PS3.16 TID 1410, PS3.3 C.10.5).

    score: the network's, 1 of a box that a person drew
    lies: its side if the network is not certain of a side (`no_side`); only texts name it, as that of the box
    reader: who moved or drew it; None if the network gave it
    """

    box: Box
    score: float
    tracking_uid: str
    side: Side | None = None
    lies: Side | None = None
    evidence: Evidence | None = None
    reader: ReaderMark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundedSentence(Sentence):
    """A sentence of a film's answer; reader: the person who wrote it, None if nobody did."""

    reader: ReaderMark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Where a finding, or one of its boxes, lies by the network's own region boxes.

    zone: the prompt key of a region, None if the finding overlaps none
    extent: the share of that region's box, 0..1, that the boxes cover
    site, side: the codes of that region; no side on a film that does not name its sides
    """

    zone: str | None
    extent: float
    site: Code | None = field(default=None, compare=False)  # both follow from the zone
    side: Side | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.extent <= 1:
            raise ValueError(f"an extent must lie in 0..1, got {self.extent}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer to one pathology prompt; made from the prompt's key, never from generated text.

    sentence: index into the film's sentences; None when no sentence was generated for it
    side: the side on which all boxes are; None when neither the film nor the prompt gives the side
    probability: None if the model leaves it out, because its number was never validated
    boxes, evidence: none if it is not reported
    contradiction: the objection to it (`wording.CONTRADICTIONS`); None if there is none
    reader: what a person said about it; None if nobody did. The probability stays the network's
    near: whether its probability reached what makes it reported, or stayed less than 0.05 below; None if nobody knows
    thresholds: the probabilities from which it is possible, and from which it is present; None if nobody knows them
    searched: where the network looked for it, if it is absent: no boxes of a finding; only a layer of the page has them
    """

    prompt: str
    code: Code
    site: Code | None
    side: Side | None
    probability: float | None
    state: FindingState
    boxes: tuple[FindingBox, ...]
    sentence: int | None
    evidence: Evidence | None = None
    contradiction: Contradiction | None = None
    reader: ReaderMark | None = None
    near: bool | None = False
    thresholds: tuple[float, float] | None = None
    place: KnownPlace = "told"
    searched: tuple[ScoredBox, ...] = ()

    def __post_init__(self) -> None:
        if self.probability is None and any(box.reader is None for box in self.boxes):
            raise ValueError(f"{self.prompt}: what the network places in a box has a probability")

    @property
    def output_probability(self) -> float | None:
        """The probability for all outputs; None if there is none.

        There is none for a finding that a radiologist moved or added: the network put it elsewhere, or not at all.
        So it is if no box of the network's stays beside one that was moved, whatever else a person drew.
        """
        is_own_left = any(box.reader is None for box in self.boxes)
        is_moved = any(_is_placed(box.reader) for box in self.boxes) and not is_own_left
        return None if _is_placed(self.reader) or is_moved else self.probability


def _is_placed(mark: ReaderMark | None) -> bool:
    return mark is not None and mark.what in (Assessment.MOVED, Assessment.ADDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """The network that answered; part of every output.

    sentences: which of them leave
    unmeasured_ratio: whether films have a cardiothoracic ratio whose error was not measured on such films
    """

    name: str
    version: str
    weights_sha256: str
    engine: str
    manifest_sha256: str = ""
    trusted: Trusted = "real"
    sentences: SentenceRule = "checked"
    unmeasured_ratio: bool = False

    @property
    def is_checked(self) -> bool:
        """Whether sentences must agree with the decisions."""
        return self.sentences != "raw"

    @property
    def parts(self) -> tuple[str, ...]:
        """Everything about the network that an answer depends on."""
        return tuple(str(getattr(self, item.name)) for item in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmView:
    """The view of a film: the one that its header names (`tag`) and the one that its picture shows (`seen`).

    tag: None if the header names none
    seen: None if the model cannot tell, or did not look
    certainty: the probability of what is seen, 0..1
    """

    tag: TaggedView | None = None
    seen: View | None = None
    certainty: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Film:
    """The answer to one received image: read, or not read with a reason.

    source: its SOP Instance UID; view: None if neither header nor picture was looked at
    analyzed: the square that the network saw, on the stored film; None when the film was not read
    ratio: None if heart or lungs were not found, or do not lie as they do in a chest
    middle: see `Framing.about`
    """

    source: str
    reason: Reason | None = None
    notes: tuple[Note, ...] = ()
    columns: int | None = None
    rows: int | None = None
    analyzed: Box | None = None
    sentences: tuple[GroundedSentence, ...] = ()
    findings: tuple[Finding, ...] = ()
    withheld: tuple[WithheldSentence, ...] = ()
    ratio: CardiothoracicRatio | None = None
    view: FilmView | None = None
    middle: float | None = None

    def __post_init__(self) -> None:
        if self.is_read and (self.analyzed is None or self.columns is None or self.rows is None):
            raise ValueError("a film that was read has a size and an analyzed square")

    @property
    def is_read(self) -> bool:
        """Whether the network read the film."""
        return self.reason is None

    def in_state(self, state: FindingState) -> tuple[Finding, ...]:
        """Return the findings in one state, in prompt order."""
        return tuple(finding for finding in self.findings if finding.state is state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference:
    """A reference to a DICOM object."""

    sop_class_uid: str
    sop_instance_uid: str
    series_instance_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one round of a study, or of a part of it; never changed once created.

    created_at: start of the analysis, aware UTC, fixed once
    predecessors: the structured reports of the newest earlier round, which those of this round replace
    earlier: the outputs of each earlier round, oldest first
    part: the name of the part, if the study has several: films of other patients or accession numbers
    """

    study_uid: str
    films: tuple[Film, ...]
    model: ModelIdentity
    prompts_name: str
    prompts_version: str
    prompts_sha256: str
    created_at: datetime
    predecessors: tuple[OutputObject, ...] = ()
    earlier: tuple[tuple[OutputObject, ...], ...] = ()
    part: str = ""

    @property
    def read_films(self) -> tuple[Film, ...]:
        """The films that the network read."""
        return tuple(film for film in self.films if film.is_read)

    def object_uid(self, said: str) -> str:
        """Return the UID of an object of this round; said: a UID derived from its whole content.

        Content that the newest round wrote is the same object. Content that only an older round wrote (a name was
        corrected, and corrected back) becomes a new object, which an archive accepts and a workstation shows as newest.
        """
        earlier = [{output.sop_instance_uid for output in written} for written in self.earlier]
        if not any(said in written for written in earlier):
            return said
        again = [derive_uid("again", said, str(number)) for number in range(1, len(earlier) + 1)]
        return next((uid for uid in (said, *again) if uid in earlier[-1]), again[-1])

    def version(self, uid: str, subject: Subject, *, kinds: Collection[str]) -> int:
        """Return the version of an object among the node's objects on a subject: 1 for the first.

        uid: its own; kinds: those of one document, as the forms of a report
        A round that wrote nothing new about it, in whatever form, made no version.
        """
        known: set[str] = set()
        version = 1
        for outputs in self.earlier:
            of_it = {
                output.sop_instance_uid for output in outputs if output.subject == subject and output.kind in kinds
            }
            if uid in of_it - known:
                break
            version += not of_it <= known
            known |= of_it
        return version


class About(StrEnum):
    """The kinds of subjects of outputs: a film, its cardiothoracic ratio, a study or part of it, an answer."""

    FILM = "film"
    RATIO = "ratio"
    STUDY = "study"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of an output; film: its SOP Instance UID, "" for a study or a part of it."""

    about: About = About.STUDY
    film: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom, and for which request, an output is written, as its films say; hashes, because it outlives the films.

    number, issuer: Patient ID and its issuer; "" if no film has one
    names, born: names and dates of birth in the films, which count if a number is missing
    """

    number: str = ""
    issuer: str = ""
    names: tuple[str, ...] = ()
    born: tuple[str, ...] = ()
    accession: str = ""

    def contradicts(self, other: Identity) -> bool:
        """Return whether this is another patient or another request. A missing value contradicts nothing.

        So an issuer that was missing and is added makes no other patient.
        """
        if self.number and other.number:
            is_another = self.number != other.number or _differ((self.issuer,), (other.issuer,))
        else:
            is_another = _differ(self.names, other.names) or _differ(self.born, other.born)
        return is_another or _differ((self.accession,), (other.accession,))


def _differ(these: Collection[str], others: Collection[str]) -> bool:
    said, otherwise_said = set(filter(None, these)), set(filter(None, others))
    return bool(said and otherwise_said) and said.isdisjoint(otherwise_said)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputObject:
    """An output: a DICOM object, or a message without SOP class and series. One UID never carries two contents.

    subject: what it is about; a message and a rejection note are about the study
    priority: critical if a film of the round has a critical finding
    template: root template of a structured report (PS3.16), as 1500; "" for other kinds
    number: Instance Number; 0 for a message
    part: index of the part of the study that it is about, in `RoundMark.parts`; `NO_PART` if it is about none
    identity: its part's identity
    voids: for a rejection note or a withdrawal, the UIDs of the outputs that are void by it
    receivers: names of the destinations that it is, or was, queued for
    """

    kind: str
    study_uid: str
    sop_class_uid: str
    sop_instance_uid: str
    series_instance_uid: str
    subject: Subject = field(default=Subject(), compare=False)
    priority: OutputPriority = field(default=ROUTINE, compare=False)
    template: str = field(default="", compare=False)
    number: int = field(default=0, compare=False)
    part: int = field(default=0, compare=False)
    identity: Identity = field(default=Identity(), compare=False)
    voids: tuple[str, ...] = field(default=(), compare=False)
    receivers: tuple[str, ...] = field(default=(), compare=False)


class DeliveryState(StrEnum):
    """Committed: the destination confirmed that it keeps the object (PS3.4 J). Abandoned: a person ended it unsent.

    Parked: a person must act; nothing is lost.
    """

    WAITING = "waiting"
    SENDING = "sending"
    SENT = "sent"
    COMMITTED = "committed"
    PARKED = "parked"
    ABANDONED = "abandoned"


StudyState: TypeAlias = Literal["receiving", "reading", "finished", "parked"]
STUDY_STATES: Final = get_args(StudyState)
DELIVERY_STATES: Final = tuple(state for state in DeliveryState if state is not DeliveryState.ABANDONED)
"""The states that are always counted, even if the count is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One output for one destination; safe to repeat. It has the priority of its output."""

    destination: str
    study_uid: str
    sop_instance_uid: str
    kind: str
    priority: OutputPriority = field(default=ROUTINE, compare=False)

    @property
    def id(self) -> str:
        """Identifies the delivery: the same output goes to the same destination once."""
        return f"{self.destination}:{self.sop_instance_uid}"
