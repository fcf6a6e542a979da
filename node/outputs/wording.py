"""The texts of all outputs, and the selection of findings and boxes that outputs report.

No text concludes "normal": the network may have missed what it did not report.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, get_args

from language.sentences import unstated
from models.contract import Box, Contradiction, Doubt, FindingState, ScoredBox, Side, Trusted
from node.dicom import identity
from node.domain import (
    Assessment,
    Code,
    Evidence,
    Film,
    Finding,
    FindingBox,
    GroundedSentence,
    Note,
    ReaderMark,
    Reason,
    Report,
)
from node.outputs.patient import short_text
from node.outputs.vocabulary import MARKS, READER, UNMEASURED, by_urgency, name_of, said_of
from node.prompt_set import LUNG
from node.read.framing import leaving

REASONS: Mapping[Reason, str] = {
    Reason.MODALITY: "it is not a kind of image that this program reads (computed or digital radiograph)",
    Reason.FOR_PROCESSING: "it holds raw detector data (FOR PROCESSING), not an image made to be looked at",
    Reason.NOT_CHEST: "its header says that it does not show the chest",
    Reason.LATERAL: "it is a lateral view; only frontal views are read",
    Reason.UNDECODABLE: "its pixel data could not be decoded",
    Reason.NO_PIXELS: "it holds no pixel data",
    Reason.BLANK: "its picture is blank: all pixels have the same value",
    Reason.UNREADABLE: "no person could read its picture: it has too few grays, or is nearly all black and white",
    Reason.TOO_SMALL: "its picture is too small to be read",
    Reason.COLOR: "it is a color image; only grayscale images are read",
    Reason.OWN_OBJECT: "it was made by this program",
    Reason.DAMAGED: "its stored copy was damaged on the disk of this program; it has to be sent again",
    Reason.AGE: "its patient's age lies outside the ages that the model is for",
    Reason.SPECIES: "its header says that its patient is an animal",
    Reason.INTERRUPTED: "the program ended several times while it was reading it; its operator has to look",
    Reason.READER_FAILED: "the network that reads films failed on it; its operator has to look",
    Reason.PATIENT_UNCLEAR: "its study has films of several patients or requests, and it does not say of which it is",
}
BY_PICTURE: Mapping[Reason, str] = {
    Reason.NOT_CHEST: "its picture does not look like one of the chest, and no known words name its view and the chest",
    Reason.LATERAL: (
        "its picture looks like a lateral view, and no known words name its view and the chest; only frontal views are "
        "read"
    ),
}
"""Reasons of films that the network looked at."""
NOTES: Mapping[Note, str] = {
    Note.VIEW_UNKNOWN: "no known words state its view or body part; it was read as a frontal chest view",
    Note.AGE_UNKNOWN: "its header states no age that could be read; the model is not for every age",
    Note.AGE_WITHOUT_UNIT: "its header states the patient's age without a unit; it was taken as years",
    Note.TEXT_RECODED: "text of its header is not in the character set that it names, and was read in another one",
    Note.TEXT_LEFT_OUT: "a text of its header could not be decoded, and is left empty",
    Note.SEVERITY_WORDED: "size and severity as the network words them, not measured",
    Note.TABLE_SCALED: "its lookup table uses less than half of the grays that it declares; it was scaled to all grays",
    Note.SIGN_DISAGREES: "its header and its compressed pixels disagree whether values are signed; the pixels count",
    Note.PIXELS_CUT: "more bytes follow its pixels than its header states; they were left out",
    Note.PADDING_IGNORED: "its header calls much of its picture padding; it was read with all of it",
}
"""Notes that stand in the limits of a reading."""
OF_TEXT = (Note.TEXT_RECODED, Note.TEXT_LEFT_OUT)
"""Notes that concern a film that was not read, too: its report names the patient."""
CAUTIONS: Mapping[Note, str] = {
    Note.VIEW_DISAGREES: "The picture does not look like a frontal chest view.",
    Note.MIRRORED: "The picture looks mirrored: check the sides.",
    Note.ROTATED: "The picture looks rotated.",
    Note.MAYBE_CHILD: "It may be a child's film: it states no age, and its field is small.",
    Note.IMAGE_TYPE: "Its Image Type says that it is no plain film.",
    Note.TWO_VIEWS: "Its header names a frontal view, its series a lateral one.",
    Note.CALLED_NORMAL: "The network also calls the whole film normal.",
    Note.STRETCHED: "No person could read the picture as given: it was stretched.",
    Note.POLARITY_UNCLEAR: "Its header contradicts itself: some viewers show it as a negative.",
    Note.IDENTIFIER_LEFT_OUT: "DICOM objects leave an identifier empty: see the film.",
    Note.OBLONG_PIXELS: "Its pixels are not square: a viewer may misplace boxes.",
    Note.HEADER_DISORDERED: "Its header has parts twice or out of order: see the film.",
}
"""All other notes, which stand in every output: such a film may have been read wrongly, or be taken for another."""
NEVER = "Not assessed, because nobody showed that this model recognizes it well enough; it may be there"
"""Why a finding that the model leaves out has no state."""

CONTRADICTIONS: Mapping[Contradiction, str] = {
    "other_side": "Asked again about each side by name, the network contradicts itself.",
    "sentence_denies": "The network's own sentence says that it is not there.",
    "companion_silent": "The network does not report an opacity of the lung, which it never is without.",
    "other_view": "The picture does not look like the view that it was read as.",
    "mirrored": "The picture looks mirrored.",
    "rotated": "The picture looks rotated.",
    "image_type": "Its Image Type says that it is no plain film.",
    "two_views": "Its header names a frontal view, and its series a lateral one.",
    "maybe_child": "The film may be a child's, whom the model is not for.",
}
"""What speaks against a finding that is reported, by its short name in `Finding.contradiction`: what the network itself
says of the finding, how the whole picture looks, or what its header says of it."""
_OF_LUNG: Final = " of lung"
UNRELIABLE: Final = "Places by this model are not reliable"
UNSIDED: Final = "The film does not say which side is which"
NOTHING_ELSE: Final = "Nothing else was looked for."

OF_FILM: Final[Collection[str]] = get_args(Doubt)
"""Those that are about the film, and so about each of its findings."""

TRUST: Mapping[Trusted, str] = {
    "real": "A finding is called present only if its threshold was measured on patient films.",
    "phantoms": "Thresholds are those measured on phantoms; they mean nothing on patient films.",
    "any": "Thresholds that were never measured on patient films are accepted by this site.",
}
"""The trusted thresholds in words, by `ModelIdentity.trusted`."""


def check(report: Report) -> None:
    """Raise ValueError if a box exceeds its film."""
    for film in report.read_films:
        columns, rows = size(film)
        boxes = [named.box for finding in film.findings for named in finding.boxes]
        boxes += [scored.box for sentence in film.sentences for scored in sentence.boxes]
        for box in [*boxes, analyzed(film)]:
            if (reason := leaving(box, columns=columns, rows=rows)) is not None:
                raise ValueError(reason)


def reported(film: Film) -> tuple[Finding, ...]:
    """Return the findings that get groups and drawn boxes, in prompt order: all but those absent or left out."""
    return tuple(finding for finding in film.findings if finding.state.is_reported)


def unreported(film: Film) -> tuple[Finding, ...]:
    """Return the other findings, in prompt order."""
    return tuple(finding for finding in film.findings if not finding.state.is_reported)


def searched(film: Film) -> list[Finding]:
    """Return the findings that neither network nor reader reports, and that the network looked for in some boxes."""
    return [found for found in film.in_state(FindingState.ABSENT) if found.reader is None and found.searched]


def unplaced(film: Film) -> Iterator[str]:
    """Yield in words the reported findings without a box, the most urgent first."""
    for finding in by_urgency(reported(film)):
        if not finding.boxes:
            yield f"{_labeled(finding, finding.side, certainty(finding))}, without a box"


def drawn(film: Film) -> Iterator[str]:
    """Say how many boxes go with a text on a film: a viewer may draw fewer, as OHIF 3.13.2 does on a busy machine."""
    if count := sum(len(finding.boxes) for finding in reported(film)):
        boxes = "one box" if count == 1 else f"{count} boxes"
        yield f"Located in {boxes}. If a viewer draws fewer than that beside this text, open the series again."


def is_rejected(finding: Finding) -> bool:
    """Return whether a reader says that a finding is not there."""
    return finding.state is FindingState.ABSENT and finding.reader is not None


def nothing_reported(film: Film) -> str:
    """Say of a film that nothing is reported on it; that nothing came near, only if that is known and true."""
    if is_nothing_near(film):
        return "No prompted finding came near its threshold."
    near = came_near(film)
    theirs = "their thresholds" if len(near) > 1 else "its threshold"
    return f"No prompted finding is reported{f', though {joined(near)} came near {theirs}' if near else ''}."


def nothing_in_short(film: Film) -> tuple[str, ...]:
    """Return the lines of `nothing_reported` in few words, for the presentation state."""
    if is_nothing_near(film):
        return "No prompted finding near its threshold.", "Not a report of a normal film."
    near = (f"Near its threshold: {name}." for name in came_near(film))
    return "No prompted finding reported.", *near, "Not a report of a normal film."


def is_nothing_near(film: Film) -> bool:
    """Return whether it is known of every finding that it came near no threshold, and no reader rejected one."""
    absent = film.in_state(FindingState.ABSENT)
    return all(finding.near is False and finding.reader is None for finding in absent)


def came_near(film: Film) -> list[str]:
    """Return the names of the findings that are not reported though they came near their thresholds."""
    found = (finding for finding in film.in_state(FindingState.ABSENT) if finding.reader is None and finding.near)
    return [uncapitalized(name_of(finding)) for finding in found]


def joined(names: Sequence[str]) -> str:
    """Return names as a sentence lists them: "a, b and c"."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def named_boxes(finding: Finding) -> Iterator[tuple[str, FindingBox]]:
    """Yield each box of a finding with a name: "Pleural effusion", or "Pleural effusion 1/2" and "2/2" for two."""
    name, count = name_of(finding), len(finding.boxes)
    for number, box in enumerate(finding.boxes, 1):
        yield (f"{name} {number}/{count}" if count > 1 else name), box


def sided(name: str, side: Side | None) -> str:
    """Add a side to the name of a finding: "Right pleural effusion", "Opacity on both sides"."""
    if side is None:
        return name
    return f"{name} on both sides" if side is Side.BILATERAL else f"{side.capitalize()} {uncapitalized(name)}"


def zone_of(evidence: Evidence | None) -> str | None:
    """Return where a finding or box lies: "covering 34 % of the apex of the right lung"; None if no zone is known."""
    if evidence is None or evidence.site is None:
        return None
    return f"covering {percent(evidence.extent)} of the {place_name(evidence.site, evidence.side)}"


def zone_of_all(finding: Finding) -> Evidence | None:
    """Return the evidence of a finding whose boxes all lie in its zone; None for any other."""
    whole, boxes = finding.evidence, [box.evidence for box in finding.boxes]
    is_one = whole is not None and all(own is not None and own.zone == whole.zone for own in boxes)
    return whole if is_one else None


def place_of(finding: Finding, box: FindingBox) -> str | None:
    """Return where a box of a finding lies: by its zone, else on which side; None if neither is known."""
    if (zone := zone_of(box.evidence)) is not None:
        return zone
    if box.side is not None:
        return f"on the {box.side}"
    return None if box.lies is None else f"in the {box.lies} lung" if _is_of_lung(finding) else f"on the {box.lies}"


def _is_of_lung(finding: Finding) -> bool:
    return finding.site is not None and finding.site.value == LUNG


def place_name(site: Code, side: Side | None) -> str:
    """Return a part of the body inside a sentence: "apex of the left lung", if its code means "Apex of Lung"."""
    name = " ".join(map(uncapitalized, short_text(site.meaning).split()))
    if side in (Side.RIGHT, Side.LEFT) and name.endswith(_OF_LUNG):
        return f"{name.removesuffix(_OF_LUNG)} of the {side} lung"
    return uncapitalized(sided(name, side))


def uncapitalized(text: str) -> str:
    """Return a text as it stands inside a line: its first letter small, unless the first word is an abbreviation."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def percent(probability: float) -> str:
    """Return a probability as people read it: a whole percent."""
    return f"{whole_percent(probability)} %"


def whole_percent(probability: float) -> int:
    """Return a probability in percent, rounded, with halves rounded up."""
    return math.floor(100 * float(probability) + 0.5)


def certainty(finding: Finding) -> str:
    """Return the certainty of a finding: the network's probability, a reader's assessment, or not evaluated."""
    if finding.reader is None and finding.output_probability is not None:
        return percent(finding.output_probability)
    return said_of(finding)


def number(finding: Finding) -> str:
    """Return the network's probability of a finding, "83 %", or "AI 83 %" beside an assessment; "" if not stated."""
    told = finding.output_probability
    return "" if told is None else f"{'' if finding.reader is None else 'AI '}{percent(told)}"


def below(finding: Finding) -> str:
    """Return the number of a finding that is not reported, with the threshold that it stays below if that is known."""
    told, is_absent = number(finding), finding.state is FindingState.ABSENT and finding.reader is None
    if not told or finding.thresholds is None or not is_absent:
        return told
    return f"{told} (threshold {percent(finding.thresholds[0])})"


def mark_of(finding: Finding, box: FindingBox) -> ReaderMark | None:
    """Return a reader's mark on one box: drawn by them, or its finding confirmed; None if it is the network's alone."""
    is_confirmed = finding.reader is not None and finding.reader.what is Assessment.ACCEPTED
    return box.reader or (finding.reader if is_confirmed else None)


def label(finding: Finding, box: FindingBox) -> str:
    """Return the label of a drawn box, with its own side: the probability, or the reader's mark."""
    said = mark_of(finding, box)
    return _labeled(finding, box.side, percent(finding.probability or 0.0) if said is None else READER[said.what])


def _labeled(finding: Finding, side: Side | None, sure: str) -> str:
    mark = f" ({MARKS[finding.state]})" if finding.state in MARKS else ""
    return f"{sided(name_of(finding), side)} {sure}{mark}"


def analyzed(film: Film) -> Box:
    """Return the analyzed square of a film that was read. Raises ValueError for any other."""
    if film.analyzed is None:
        raise ValueError("a film that was not read has no analyzed square")
    return film.analyzed


def paragraphs(*texts: str) -> str:
    """Join texts, one a line, for a report; CR LF separates lines (PS3.5 6.1.3), and viewers break long ones."""
    return "\r\n".join(texts)


def size(film: Film) -> tuple[int, int]:
    """Return columns and rows of a film that was read. Raises ValueError for any other."""
    if film.columns is None or film.rows is None:
        raise ValueError("a film that was not read has no size")
    return film.columns, film.rows


def sentences(film: Film) -> dict[str, str]:
    """Return the sentence beside each reported finding, by prompt, without a state that is the finding's own.

    A sentence of several findings stands beside the most urgent, and names the others. A sentence by rule stands beside
    none: it says what name, state and boxes say.
    """
    carriers: dict[str, list[Finding]] = {}
    texts = dict[str, str]()
    for finding in by_urgency(reported(film)):
        if finding.sentence is None or (sentence := film.sentences[finding.sentence]).by == "rule":
            continue
        whole, words = said(sentence), quoted(sentence)
        is_own = finding.state in MARKS and "(" not in whole.removesuffix(words)
        texts.setdefault(words, words if is_own else whole)
        carriers.setdefault(words, []).append(finding)
    return {
        first.prompt: f"{texts[words]}{f' (also of {names_of(others)})' if others else ''}"
        for words, (first, *others) in carriers.items()
    }


def loose(film: Film, carriers: Iterable[Finding]) -> list[tuple[str, tuple[ScoredBox, ...]]]:
    """Return the sentences that no carrier has, with what they are about and their boxes; the same words stand once.

    Without the score of its regions, which is no probability: beside "No pneumonia." it would read like one.
    """
    carried = {finding.sentence for finding in carriers}
    told = [unstated(sentence.text) for index, sentence in enumerate(film.sentences) if index in carried]
    topics = topics_of(film)
    found: dict[str, list[GroundedSentence]] = {}
    for index, sentence in enumerate(film.sentences):
        if index not in carried and not any(unstated(sentence.text) in text for text in told):
            found.setdefault(said(sentence), []).append(sentence)
    return [
        (
            f"{joined([topics[each.prompt] for each in same])}: {text}",
            tuple(dict.fromkeys(scored for each in same for scored in each.boxes)),
        )
        for text, same in found.items()
    ]


def topics_of(film: Film) -> dict[str, str]:
    """Return the subject of each sentence of a film, by its prompt: the name of its finding, or of its region."""
    prompts = [*(each.prompt for each in film.sentences), *(each.prompt for each in film.withheld)]
    names = {finding.prompt: uncapitalized(name_of(finding)) for finding in film.findings}
    return {prompt: names.get(prompt, prompt.replace("_", " ")) for prompt in prompts}


def said(sentence: GroundedSentence) -> str:
    """Return a sentence on one line, after the state of what it asserts if that is only possible."""
    text = short_text(sentence.text.strip(), 2000)
    return text.removesuffix(unstated(text)) + quoted(sentence)


def quoted(sentence: GroundedSentence) -> str:
    """Return its words alone: in quotation marks if they are the network's own, with their author if a reader's."""
    words = unstated(short_text(sentence.text.strip(), 2000))
    marks = {"rule": words, "reader": f"{words} ({READER[Assessment.REWORDED]})"}
    return marks.get(sentence.by, f'"{words}"')


def reason_of(contradiction: Contradiction | None, state: FindingState | None = None) -> str | None:
    """Return in words what speaks against a finding, or why it is not assessed; None if nothing does."""
    if state is FindingState.LEFT_OUT:
        return f"{NEVER}."
    return None if contradiction is None else CONTRADICTIONS[contradiction]


def about_box(film: Film, finding: Finding, box: FindingBox) -> str | None:
    """Return the sentence of a finding, what speaks against it, and what a reader said of one of its boxes; or None.

    A sentence that a reader wrote is left out, for it has an observer of its own (`reworded`).
    """
    sentence = None if finding.sentence is None else film.sentences[finding.sentence]
    text = None if sentence is None or sentence.reader is not None else said(sentence)
    parts = (text, reason_of(finding.contradiction), reader_of(mark_of(finding, box)))
    return " ".join(filter(None, parts)) or None


def reworded(film: Film, finding: Finding) -> GroundedSentence | None:
    """Return the sentence that a reader wrote for a finding; None if nobody did."""
    sentence = None if finding.sentence is None else film.sentences[finding.sentence]
    return None if sentence is None or sentence.reader is None else sentence


def reader_of(mark: ReaderMark | None) -> str | None:
    """Return a reader's mark as a sentence; None without one."""
    return None if mark is None else f"{READER[mark.what].capitalize()}."


def film_number(report: Report, film: Film) -> str:
    """Return the name of a film in texts."""
    return f"Film {report.films.index(film) + 1} of {len(report.films)}"


def film_name(report: Report, film: Film) -> str:
    """Return the name of a film in texts, with its UID."""
    return f"{film_number(report, film)} (SOP Instance UID {film.source})"


def intended_use(report: Report, films: Sequence[Film]) -> str:
    """Return the last text of every output: its purpose, its origin and its limits.

    films: the output's films, with the findings and sentences that it contains
    """
    model = report.model
    return (
        f"{identity.RESEARCH_LABEL}. Made by {identity.PROGRAM} {identity.VERSION} {_review(films)}; for "
        "research use, and to be checked on the images by a physician. "
        f"Model {model.name} {model.version} (weights sha256 {model.weights_sha256}, engine {model.engine}); "
        f"{prompt_set(report)}. "
        "Sentences in quotation marks are the network's own, the others are standard wording. "
        f"Probabilities are the network's own and were not calibrated for a hospital. {TRUST[model.trusted]}"
    )


def made_by(report: Report) -> str:
    """Return by which program and model a report was made, for a picture."""
    model, weights = report.model, report.model.weights_sha256[:12]
    return f"{identity.PROGRAM} {identity.VERSION}, model {model.name} {model.version} (weights {weights})"


def _review(films: Sequence[Film]) -> str:
    """Return whether a person has spoken on any finding or sentence, and on which films if not on all.

    Nobody has verified the report.
    """
    corrected = [str(number) for number, film in enumerate(films, 1) if _is_corrected(film)]
    if not corrected:
        return "without review by a person"
    name = "film" if len(corrected) == 1 else "films"
    which = f" on {name} {joined(corrected)} of {len(films)}" if len(corrected) < len(films) else ""
    return f"with corrections by a reader{which}, who did not verify it"


def _is_corrected(film: Film) -> bool:
    marks = chain((finding.reader for finding in film.findings), (sentence.reader for sentence in film.sentences))
    return any(mark is not None for mark in marks)


def prompt_set(report: Report) -> str:
    """Return name, version and hash of the prompt set."""
    return f"prompt set {report.prompts_name} {report.prompts_version} (sha256 {report.prompts_sha256})"


def limits(film: Film) -> str:
    """Return the limits of a film's reading: the analyzed square, notes, thresholds and places; never blank.

    Without `cautions`, which the output has already.
    """
    notes = (noted(note) for note in film.notes if note in NOTES)
    return " ".join((*_square(film), *notes, *_thresholds(film), *_unreliable(film), NOTHING_ELSE))


def _square(film: Film) -> Iterator[str]:
    if not is_whole(film):
        columns, rows = size(film)
        of = f"{columns} x {rows} pixels"
        yield f"Analyzed was the square of {edges(analyzed(film))} of {of}; the rest of the film was not analyzed."


def _thresholds(film: Film) -> Iterator[str]:
    """Say from which probabilities the findings that the network reports are present and possible, and why only so."""
    found = [finding for finding in by_urgency(reported(film)) if finding.reader is None]
    told = [f"{names_of([finding])} {said}" for finding in found if (said := _threshold(finding))]
    if told:
        yield f"Thresholds: {'; '.join(told)}."
    if unmeasured := [finding for finding in found if finding.state is FindingState.UNCALIBRATED]:
        yield f"Only possible, because {UNMEASURED}: {names_of(unmeasured)}."


def _threshold(finding: Finding) -> str:
    if finding.thresholds is None:
        return ""
    possible, present = map(percent, finding.thresholds)
    from_present = [] if finding.state is FindingState.UNCALIBRATED else [f"present from {present}"]
    from_possible = [] if from_present and possible == present else [f"possible from {possible}"]
    return ", ".join((*from_present, *from_possible))


def _unreliable(film: Film) -> Iterator[str]:
    """Yield the notes that the film names no side, and that the network is uncertain of places, each at most once."""
    found = [finding for finding in by_urgency(reported(film)) if finding.reader is None]
    if any(finding.place == "film_unsided" for finding in found):
        yield f"{UNSIDED}."
    if any(finding.place in ("no_side", "no_place") for finding in found):
        without = [finding for finding in found if finding.place == "no_place"]
        yield f"{UNRELIABLE}{f'; no box is drawn for {names_of(without)}' if without else ''}."


def names_of(findings: Iterable[Finding]) -> str:
    """Return findings as a sentence lists them: "pleural effusion and opacity"."""
    return joined([uncapitalized(name_of(finding)) for finding in findings])


def edges(box: Box) -> str:
    """Return the edges of a box in words."""
    left, top, right, bottom = map(round, box.edges)
    return f"columns {left} to {right}, rows {top} to {bottom}"


def noted(note: Note) -> str:
    """Return a note as a sentence."""
    return CAUTIONS.get(note) or f"Note: {NOTES[note]}."


def version(number: int) -> tuple[str, ...]:
    """Return the line about the version of a report; none for the first."""
    return () if number == 1 else (f"Version {number}. It replaces all earlier versions of this report.",)


def cautions(film: Film) -> tuple[str, ...]:
    """Return the notes of a film that stand in every output, for its beginning."""
    return tuple(CAUTIONS[note] for note in film.notes if note in CAUTIONS)


def cautions_of_header(film: Film) -> tuple[str, ...]:
    """Return those of `cautions` that do not depend on the picture, for a film that was not read."""
    return tuple(CAUTIONS[note] for note in film.notes if note in (Note.IDENTIFIER_LEFT_OUT, Note.HEADER_DISORDERED))


def is_whole(film: Film) -> bool:
    """Return whether the whole film was analyzed."""
    return tuple(round(edge) for edge in analyzed(film).edges) == (0, 0, *size(film))


def not_processed(film: Film) -> str:
    """Return the text that says why a film has no result. Raises ValueError for a film that was read."""
    if film.reason is None:
        raise ValueError("a film that was read has no such reason")
    was_seen = film.view is not None and film.view.seen is not None and film.reason in BY_PICTURE
    reason = (BY_PICTURE if was_seen else REASONS)[film.reason]
    notes = (noted(note) for note in film.notes if note in OF_TEXT)
    said = f"Not processed: {reason}. There is no result for it, neither positive nor negative."
    return " ".join((said, *notes))
