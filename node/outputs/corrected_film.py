"""The answer to a film after a radiologist's corrections, and everything that depends on them.

    accept   A finding that the network reports is present, and all objections to it are dropped.
    reject   The finding is not reported and has no box; its sentence is withheld.
    move     The finding is present; its box is where the radiologist drew it, in an unknown zone.
    add      The finding is present and has an additional box, in an unknown zone. If the network reports it, this
             confirms it.
    reword   The finding has the radiologist's sentence; all else stays.
    withdraw An earlier correction has no effect.

Consequences: a sentence on anything is withheld if it asserts a rejected finding, denies a confirmed finding or names
another side for it, or calls a region normal that holds a tenth of a radiologist's box; where the radiologist confirmed
anything, so is every sentence on findings that the network did not see. A reported finding whose sentence was withheld,
or contradicts the radiologist, gets a template sentence. A sentence loses "Possible, please review" if none of its
findings is only possible any more. The note that the network calls the whole film normal is dropped with the last
finding that it reports as present, devices aside; the note on worded severity with the last such sentence. Nothing else
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pydicom.dataset import Dataset

from language.check import Claim, Fault, assertions, contradictions, faults
from language.labels import DEVICES
from language.normal import names_in, normal_statements
from language.sentences import by_rule, is_not_seen, stated, unstated
from models.contract import Box, FindingState, PromptKind, ScoredBox, Side, WithheldSentence
from node.dicom.film_header import parse_header
from node.domain import Assessment, Film, Finding, FindingBox, GroundedSentence, Note, ReaderMark, derive_uid
from node.prompt_set import Prompt, PromptSet
from node.read import decoding
from node.read.findings import covered, is_severity_worded, together, zone_of
from node.read.framing import leaving
from node.store.correction import Correction, CorrectionKind, active

SideOf = Callable[[Box], Side | None]
"""Returns the side of the patient for a box of the stored film; None if the film or the box does not determine it."""

CORRECTED: Final = "corrected"
"""Why a sentence is withheld that contradicts a radiologist's correction."""

_MARKS: Final[Mapping[CorrectionKind, Assessment]] = {
    CorrectionKind.ACCEPT: Assessment.ACCEPTED,
    CorrectionKind.REJECT: Assessment.REJECTED,
    CorrectionKind.MOVE: Assessment.MOVED,
    CorrectionKind.ADD: Assessment.ADDED,
}
_CERTAIN: Final = 1.0
"""The score of a radiologist's boxes and sentences, and of template sentences about them."""
_LIES_IN: Final = 0.1
"""Minimum share of a box inside a region for which the region holds the finding; same as in `models.reading`."""


def sides_of(film: Film, header: Dataset | None) -> SideOf:
    """Return the function that gives the side of the patient for a box of a film.

    header: the header of the film's file; None if it cannot be read any more, so that no side is known
    """
    if header is None:
        return lambda _box: None
    parsed = parse_header(header)
    if film.columns is None or film.rows is None or film.analyzed is None or not decoding.sides_known(parsed):
        return lambda _box: None
    framing = decoding.framing_of(
        parsed, columns=film.columns, rows=film.rows, analyzed=film.analyzed, middle=film.middle
    )
    return lambda box: decoding.side_of(box, framing)


def objection(
    film: Film, corrections: Iterable[Correction], new: Correction, prompts: PromptSet, side_of: SideOf
) -> str | None:
    """Return why a correction is not possible and what to do, in one line; None if it is possible.

    corrections: earlier ones
    """
    if not film.is_read:
        return "this film was not read; there is nothing to correct"
    known = {correction.id for correction in corrections}
    if new.kind is CorrectionKind.WITHDRAW:
        return None if new.withdraws in known else "there is no such correction of this film"
    now = correct(film, corrections, prompts=prompts, side_of=side_of)
    finding = next((found for found in now.findings if found.prompt == new.prompt), None)
    original = next((found for found in film.findings if found.prompt == new.prompt), None)
    if finding is None or original is None:
        return "the film was not read for this finding; choose one of its findings"
    if new.kind is CorrectionKind.ACCEPT and not original.state.is_reported:
        return "the network does not report this finding; add it by drawing its box"
    if new.kind is CorrectionKind.MOVE and all(found.tracking_uid != new.tracking_uid for found in finding.boxes):
        return "this finding has no such box now; load the film again"
    if new.kind is CorrectionKind.REWORD and not finding.state.is_reported:
        return "a finding that is not reported has no sentence; accept or add it first"
    return None if new.box is None else leaving(new.box, columns=film.columns or 0, rows=film.rows or 0)


def correct(film: Film, corrections: Iterable[Correction], *, prompts: PromptSet, side_of: SideOf) -> Film:
    """Return a film with its corrections; those that do not fit it any more have no effect.

    corrections: those of any film, in any order
    """
    own = [correction for correction in active(corrections) if correction.film == film.source]
    if not own or not film.is_read:
        return film
    findings = tuple(
        _judged(finding, [item for item in own if item.prompt == finding.prompt], prompt_of(finding, prompts), side_of)
        for finding in film.findings
    )
    texts = {item.prompt: item for item in own if item.kind is CorrectionKind.REWORD}
    changed = _with_sentences(replace(film, findings=findings), texts, prompts, side_of)
    return replace(changed, notes=_notes(film, changed))


def _notes(film: Film, changed: Film) -> tuple[Note, ...]:
    """Return the notes of a film that still hold after its corrections."""
    pairs = zip(film.findings, changed.findings, strict=True)
    holds = {
        Note.CALLED_NORMAL: any(
            was.state is now.state is FindingState.PRESENT and now.prompt != DEVICES for was, now in pairs
        ),
        Note.SEVERITY_WORDED: is_severity_worded(changed.sentences),
    }
    return tuple(note for note in film.notes if holds.get(note, True))


def prompt_of(finding: Finding, prompts: PromptSet) -> Prompt:
    """Return the prompt of a finding; if the prompt set has none, one made from the finding's code."""
    known = (prompt for prompt in prompts.prompts if prompt.key == finding.prompt)
    return next(known, None) or Prompt(
        key=finding.prompt,
        kind=PromptKind.PATHOLOGY,
        phrases=(finding.code.meaning,),
        negatives=(f"no {finding.code.meaning}",),
        finding=finding.code,
    )


def _judged(finding: Finding, corrections: Sequence[Correction], prompt: Prompt, side_of: SideOf) -> Finding:
    """Return a finding after its corrections, oldest first."""
    found = finding
    for correction in corrections:
        found = _after(found, finding, correction)
    if found is finding:
        return finding
    boxes = tuple(
        replace(box, side=prompt.side or (side_of(box.box) if prompt.paired else None))
        if box.evidence is None and box not in finding.boxes
        else box
        for box in found.boxes
    )
    if boxes == finding.boxes and found.state.is_reported:
        return found
    side = prompt.side or together([box.side for box in boxes])
    return replace(found, boxes=boxes, side=side, evidence=None)


def _after(found: Finding, original: Finding, correction: Correction) -> Finding:
    """Return a finding after one more correction; original: the network's answer."""
    if correction.kind is CorrectionKind.REWORD:
        return found
    mark = ReaderMark(what=_MARKS[correction.kind], by=correction.by, at=correction.at)
    if correction.kind is CorrectionKind.REJECT:
        return replace(found, state=FindingState.ABSENT, boxes=(), sentence=None, contradiction=None, reader=mark)
    boxes = found.boxes
    is_reported = original.state.is_reported
    if correction.kind is CorrectionKind.ACCEPT:
        if not is_reported:
            return found
        boxes = found.boxes or original.boxes
    elif correction.kind is CorrectionKind.MOVE:
        moved = next((box for box in boxes if box.tracking_uid == correction.tracking_uid), None)
        if moved is None:
            return found
        if moved.reader is not None:
            mark = replace(mark, what=moved.reader.what)  # of a drawn box: the network never gave it
        boxes = tuple(_moved(box, correction, mark) for box in boxes)
    elif correction.box is not None:
        mark = replace(mark, what=Assessment.DRAWN) if is_reported else mark
        uid = derive_uid("tracking", correction.film, correction.prompt, correction.id)
        boxes = (*boxes, FindingBox(box=correction.box, score=_CERTAIN, tracking_uid=uid, reader=mark))
    sentence = original.sentence if found.sentence is None else found.sentence
    return replace(found, state=FindingState.PRESENT, boxes=boxes, sentence=sentence, contradiction=None, reader=mark)


def _moved(box: FindingBox, correction: Correction, mark: ReaderMark) -> FindingBox:
    if box.tracking_uid != correction.tracking_uid or correction.box is None:
        return box
    return replace(box, box=correction.box, score=_CERTAIN, side=None, lies=None, evidence=None, reader=mark)


def _with_sentences(film: Film, texts: Mapping[str, Correction], prompts: PromptSet, side_of: SideOf) -> Film:
    """Withhold sentences that contradict a radiologist; give each finding without a sentence a template sentence."""
    decided = {finding.prompt: finding.state for finding in film.findings if finding.reader is not None}
    gone = {finding.prompt for finding in film.findings if finding.reader and finding.state is FindingState.ABSENT}
    placed = [finding for finding in film.findings if finding.reader and finding.boxes]
    is_found = any(state.is_reported for state in decided.values())
    kept: dict[int, GroundedSentence] = {}
    withheld = list(film.withheld)
    for index, sentence in enumerate(film.sentences):
        is_contradicted = contradictions(sentence.text, decided) or _calls_normal(sentence, placed)
        is_contradicted = is_contradicted or (is_found and is_not_seen(sentence.text))
        is_elsewhere = any(_is_elsewhere(sentence, found, prompts, side_of) for found in placed)
        if sentence.prompt in gone or is_contradicted or is_elsewhere:
            withheld.append(WithheldSentence(text=sentence.text, prompt=sentence.prompt, reason=CORRECTED))
        else:
            kept[index] = _restated(sentence, film, prompts)
    sentences = list(kept.values())
    places = {index: place for place, index in enumerate(kept)}
    findings = []
    for finding in film.findings:
        place = None if finding.sentence is None else places.get(finding.sentence)
        own = _own_sentence(finding, None if place is None else sentences[place], texts, prompt_of(finding, prompts))
        if own is not None:
            if place is not None and sentences[place].prompt == finding.prompt:
                sentences[place] = own
            else:
                place = len(sentences)
                sentences.append(own)
        findings.append(replace(finding, sentence=place))
    return replace(film, findings=tuple(findings), sentences=tuple(sentences), withheld=tuple(withheld))


def _restated(sentence: GroundedSentence, film: Film, prompts: PromptSet) -> GroundedSentence:
    """Return a sentence with the leading state that is true after a film's corrections; adds none."""
    words = unstated(sentence.text)
    if words == sentence.text or is_not_seen(sentence.text):
        return sentence
    named = {sentence.prompt, *(said.key for said in assertions(words))}
    asserted = {
        prompt_of(finding, prompts).name: finding.state
        for finding in film.findings
        if finding.prompt in named and finding.state.is_reported
    }
    return replace(sentence, text=stated(words, asserted))


def _is_elsewhere(sentence: GroundedSentence, finding: Finding, prompts: PromptSet, side_of: SideOf) -> bool:
    """Whether a sentence puts a radiologist's finding on a side, or into a region, without any of its boxes."""
    if Fault.WRONG_SIDE in faults(sentence.text, _claim(finding, prompt_of(finding, prompts))):
        return True
    named = [said.sides for said in assertions(sentence.text) if said.key == finding.prompt]
    boxes = [found.box for found in finding.boxes]
    sides = [side_of(box) for box in boxes]
    is_known = None not in sides  # a box across the middle is on both sides; a film may determine no sides
    if is_known and not frozenset[str]().union(*named) <= frozenset(map(str, sides)):
        return True
    regions = [said.box for said in sentence.boxes] if _is_of_region(sentence, prompts) else []
    return bool(named and regions) and not any(covered(box, regions) for box in boxes)


def _is_of_region(sentence: GroundedSentence, prompts: PromptSet) -> bool:
    return any(prompt.key == sentence.prompt and prompt.kind is PromptKind.REGION for prompt in prompts.prompts)


def _calls_normal(sentence: GroundedSentence, placed: Iterable[Finding]) -> bool:
    """Whether a sentence calls its region normal although a radiologist's finding has a box there."""
    regions = [region.box for region in sentence.boxes]
    holds_finding = any(covered(found.box, regions) >= _LIES_IN for finding in placed for found in finding.boxes)
    return holds_finding and bool(normal_statements(sentence.text))


def _own_sentence(
    finding: Finding, said: GroundedSentence | None, texts: Mapping[str, Correction], prompt: Prompt
) -> GroundedSentence | None:
    """Return the replacement of a finding's sentence; None if the sentence may stay, or there is none."""
    boxes = tuple(ScoredBox(box=box.box, score=box.score) for box in finding.boxes)
    if not finding.state.is_reported:
        return None
    if (worded := texts.get(finding.prompt)) is not None:
        mark = ReaderMark(what=Assessment.REWORDED, by=worded.by, at=worded.at)
        return GroundedSentence(
            text=worded.text, prompt=finding.prompt, score=_CERTAIN, boxes=boxes, by="reader", reader=mark
        )
    if said is not None and (finding.reader is None or _fits(said, finding, prompt)):
        is_own = said.prompt == finding.prompt
        return replace(said, boxes=boxes) if finding.reader is not None and is_own and said.boxes != boxes else None
    if said is None and finding.reader is None and finding.sentence is None:
        return None
    side, zone = finding.side, zone_of(finding)
    text = by_rule(name=prompt.name, state=finding.state, side=side, zone=zone)
    score = _CERTAIN if finding.reader is not None or finding.probability is None else finding.probability
    return GroundedSentence(text=text, prompt=finding.prompt, score=score, boxes=boxes, by="rule")


def _fits(said: GroundedSentence, finding: Finding, prompt: Prompt) -> bool:
    """Whether a sentence agrees with the radiologist: present, on this side, and in no zone if the zone is unknown."""
    names_zone = finding.evidence is None and bool(names_in(said.text.lower(), "zones"))
    asks_for_review = said.by == "rule" and "please review" in said.text
    return not (faults(said.text, _claim(finding, prompt)) or names_zone or asks_for_review)


def _claim(finding: Finding, prompt: Prompt) -> Claim:
    """Return the claim that sentences may make about a finding."""
    return Claim(
        finding=finding.prompt,
        state=finding.state,
        side=finding.side,
        region=None,
        region_has_finding=False,
        names=(*prompt.phrases, prompt.name),
    )
