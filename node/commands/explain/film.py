"""Explains the node's treatment of a file: each routing rule with its attributes, the decision, the decoding.

Nothing is shown that could identify a patient. Valid code strings (PS3.5 6.2, CS) and numbers are shown as they are. Of
free text, and of an invalid code string, only the words that the routing rules know are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pydicom.config import IGNORE
from pydicom.datadict import dictionary_VR
from pydicom.dataset import Dataset
from pydicom.uid import UID

from node.config import CHEX
from node.dicom import attributes, header_reading
from node.dicom.film_header import FilmHeader, parse_header
from node.domain import Note, Reason, is_uid
from node.errors import InputError, Undecodable
from node.outputs import wording
from node.outputs.patient import leaves_out
from node.read import decoding, pixel_format, routing
from node.read.manifest import FilmRule, read_film_rule
from node.read.routing import Action, Decision, Rule

ADVICE: Final[Mapping[Reason, str]] = {
    Reason.OWN_OBJECT: "the node wrote this object; do not route the node's own objects back to it",
    Reason.MODALITY: "if it is a chest film, correct the attribute at the modality and send it again; else leave it",
    Reason.FOR_PROCESSING: "let the modality send the image For Presentation",
    Reason.NOT_CHEST: "if it is a chest film, correct the attribute at the modality and send it again; else leave it",
    Reason.LATERAL: "if it is a frontal film, correct the attribute at the modality and send it again; else leave it",
    Reason.UNDECODABLE: "send the film again, uncompressed if the modality can; compare its size with the original",
    Reason.NO_PIXELS: "send the film with its pixels",
    Reason.BLANK: "look at the film: the part that is analyzed shows one gray",
    Reason.UNREADABLE: "look at the film; send it with the gray values that the detector measured",
    Reason.TOO_SMALL: "send the film itself and not its thumbnail",
    Reason.COLOR: "send the film in gray (MONOCHROME1 or MONOCHROME2)",
    Reason.SPECIES: "if it is of a person, correct the species at the modality and send it again",
    Reason.AGE: "if the age is wrong, correct it at the modality and send it again; the model's card has its ages",
}
"""Remedy for an object that is not read, by the reason."""
_WHAT_HAPPENS: Final[Mapping[Action, str]] = {
    Action.READ: "read",
    Action.ANSWER: "not read, answered with an object that says so",
    Action.LEAVE: "left alone, without an answer",
}
ABSENT: Final = "absent"
_CODE_STRING: Final = re.compile(r"[A-Z0-9 _]{1,16}(\\[A-Z0-9 _]{0,16})*")
_CODE: Final = re.compile(r"[A-Z0-9.-]{1,16}")
_SCHEMES: Final = frozenset(("DCM", "SCT", "SNM3", "SRT"))
_SHOWN: Final = ("CS", "LO", "UI")
"""The value representations whose text is shown, in part; ages, dates and pixels are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """The result of one routing rule.

    applies: None if an earlier rule decided, so that this rule was not tried
    attributes: each attribute that the rule reads, with its value as it may be shown
    decided_by: keyword of the attribute that gave the reason; None unless the rule applies
    """

    rule: int
    about: str
    applies: bool | None
    attributes: Mapping[str, str]
    decided_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """The result of decoding the pixels.

    reason: why the pixels cannot be decoded; None if they were decoded
    analyzed: left, top, right, bottom of the analyzed square, in pixels of the stored film; None if it is not known
    notes: about the pixels
    """

    reason: Reason | None
    message: str
    analyzed: tuple[float, float, float, float] | None = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmExplanation:
    """Why a file is read or not.

    about: its SOP class, size in pixels, bits and transfer syntax
    action, reason: the final decision, after decoding
    decoding: None if the object is left alone, or if the header's pixel attributes already exclude decoding
    """

    file: str
    film: str | None
    study: str | None
    about: str
    rules: tuple[RuleOutcome, ...]
    action: Action
    reason: Reason | None
    notes: tuple[Note, ...]
    decoding: Decoding | None
    advice: str


def explain_file(path: Path, *, model: Path, reader: str = CHEX, character_set: str = "") -> FilmExplanation:
    """Explain the node's treatment of one DICOM file.

    model, reader: the model directory, and the network that reads with it, which determine the analyzed square
    character_set: see `header_reading.read_header`
    Raises InputError when the file cannot be read, or is not a DICOM object.
    """
    try:
        dataset, notes = header_reading.read_noted_header(path, character_set=character_set)
    except Undecodable as error:
        raise InputError(f"{path}: {error}; name a DICOM file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); name a DICOM file") from error
    header = parse_header(dataset)
    lack, rule = _film_rule(model, reader)
    rules = routing.rules_for(rule.ages)
    decision = routing.choose(header, rules)
    if decision.action is not Action.LEAVE and leaves_out(dataset):
        notes = (*notes, Note.IDENTIFIER_LEFT_OUT)
    decision = replace(decision, notes=(*decision.notes, *notes))
    is_film = decision.action is not Action.LEAVE and pixel_format.objection(header.pixels) is None
    decoded = _decode(path, header, rule, lack) if is_film else None
    if decision.action is Action.READ and decoded is not None:
        action = Action.READ if decoded.reason is None else Action.ANSWER
        decision = Decision(action=action, reason=decoded.reason, notes=(*decision.notes, *decoded.notes))
    study, film = header.study_instance_uid, header.sop_instance_uid
    return FilmExplanation(
        file=str(path),
        film=film if is_uid(film) else None,
        study=study if is_uid(study) else None,
        about=", ".join(_about(dataset, header)),
        rules=tuple(_outcomes(dataset, header, rules)),
        action=decision.action,
        reason=decision.reason,
        notes=decision.notes,
        decoding=decoded,
        advice=_advice(decision, has_uids=is_uid(study) and is_uid(film)),
    )


def render(explanation: FilmExplanation) -> str:
    """Return an explanation as lines of text; the decision and the advice come last."""
    reason = f" ({explanation.reason})" if explanation.reason is not None else ""
    lines = [
        explanation.file,
        f"film {explanation.film or 'without a valid UID'}, study {explanation.study or 'without a valid UID'}",
        explanation.about,
        "routing rules (the first rule that applies decides):",
        *map(_rule_line, explanation.rules),
        f"decoding: {_decoding_line(explanation.decoding)}" if explanation.decoding is not None else "",
        f"decision: {_WHAT_HAPPENS[explanation.action]}{reason}",
        *(f"note {note}: {wording.CAUTIONS.get(note) or wording.NOTES[note]}" for note in explanation.notes),
        f"do: {explanation.advice}",
    ]
    return "\n".join(filter(None, lines))


def _outcomes(dataset: Dataset, header: FilmHeader, rules: Sequence[Rule]) -> Iterator[RuleOutcome]:
    """Yield the result of every rule, including the rules after the rule that decided."""
    found = dict(enumerate(routing.apply_rules(header, rules)))
    for number, rule in enumerate(rules):
        objection = found[number][1] if number in found else None
        yield RuleOutcome(
            rule=number + 1,
            about=rule.about,
            applies=objection is not None if number in found else None,
            attributes={keyword: shown(dataset, keyword) for keyword in rule.looks_at},
            decided_by=None if objection is None else objection.keyword,
        )


def _film_rule(model: Path, reader: str) -> tuple[str, FilmRule]:
    """Return a model's requirements on films, or which facts are unknown without a model, and decode the whole film."""
    try:
        return "", read_film_rule(model, reader=reader)
    except InputError:
        lack = f"; which square is analyzed is not known without the manifest of a model directory ({model})"
        return lack, FilmRule(gray="voi", square=lambda columns, rows: (0.0, 0.0, float(columns), float(rows)))


def _decode(path: Path, header: FilmHeader, rule: FilmRule, lack: str) -> Decoding:
    """Decode a film as the node does; lack: facts that are unknown without a model, with a leading semicolon."""
    try:
        image = decoding.decode(path, header, gray=rule.gray, square=rule.square)
    except Undecodable as error:
        return Decoding(reason=Reason(error.reason), message=str(error))
    square = None if lack else image.framing.analyzed.edges
    message = f"the pixels can be decoded{lack}"
    return Decoding(reason=None, message=message, analyzed=square, notes=image.notes)


def _advice(decision: Decision, *, has_uids: bool) -> str:
    if not has_uids:
        return "set a valid Study and SOP Instance UID at the sender; the node refuses to receive it without them"
    if is_no_image(decision):
        return "nothing; if it is a film, its sender must give it the class of one, and its pixels"
    if decision.reason is not None:
        return ADVICE[decision.reason]
    return "if no result of it came, run explain with the study's UID and node.toml"


def is_no_image(decision: Decision) -> bool:
    """Return whether an object is left alone as no image, such as a rejection note or a reader's drawing."""
    return decision.action is Action.LEAVE and decision.reason is Reason.MODALITY


def _about(dataset: Dataset, header: FilmHeader) -> Iterator[str]:
    pixels = header.pixels
    yield shown(dataset, "SOPClassUID")
    if pixels.rows is not None:
        yield f"{pixels.columns} x {pixels.rows} pixels"
        yield f"{pixels.bits_stored} of {pixels.bits_allocated} bits"
        yield shown(dataset, "PhotometricInterpretation")
    yield uid_name(header.transfer_syntax_uid)


def _rule_line(outcome: RuleOutcome) -> str:
    about = f"  {outcome.rule} {outcome.about}"
    if outcome.applies is None:
        return f"{about}: not tried"
    if outcome.decided_by is not None:
        return f"{about}: YES, {outcome.decided_by} is {outcome.attributes[outcome.decided_by]}"
    values = [f"{keyword} {value}" for keyword, value in outcome.attributes.items() if value != ABSENT]
    return f"{about}: no" + (f" ({', '.join(values)})" if values else "")


def _decoding_line(decoded: Decoding) -> str:
    if decoded.reason is not None:
        return f"FAILS, {decoded.message} ({decoded.reason})"
    if decoded.analyzed is None:
        return decoded.message
    left, top, right, bottom = decoded.analyzed
    return f"{decoded.message}; columns {left:g} to {right:g} and rows {top:g} to {bottom:g} are analyzed"


def shown(dataset: Dataset, keyword: str) -> str:
    """Return the value of an attribute as it may be shown; `absent` and `empty` are different."""
    if keyword not in dataset:
        return ABSENT
    vr = dictionary_VR(keyword)
    if vr == "SQ":
        return _codes(dataset, keyword)
    if vr in ("US", "IS"):
        number = attributes.whole(dataset, keyword)
        return "no number" if number is None else str(number)
    if vr not in _SHOWN:
        return "present"
    value = attributes.text_with_gaps(dataset, keyword)
    if not value:
        return "empty"
    if vr == "UI":
        return uid_name(value)
    if vr == "CS" and _CODE_STRING.fullmatch(value):
        return value
    words = routing.words_that_count(value)
    return f"text with {', '.join(words)}" if words else "text without a word that counts"


def uid_name(value: str) -> str:
    """Return the registered name of a UID (PS3.6 A), else the UID itself."""
    return UID(value, validation_mode=IGNORE).name if is_uid(value) else "no valid UID"


def _codes(dataset: Dataset, keyword: str) -> str:
    """Return the codes of known schemes; `present` if there are none."""
    codes = [
        (attributes.text(item, "CodeValue"), attributes.text(item, "CodingSchemeDesignator"))
        for item in attributes.items(dataset, keyword)
    ]
    known = [f"{value} {scheme}" for value, scheme in codes if scheme in _SCHEMES and _CODE.fullmatch(value)]
    return ", ".join(known) or "present"
