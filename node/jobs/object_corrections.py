"""Turns what a reader decided about the node's results at a workstation into corrections, like those of the page.

The id of a correction is made of its object and of what it says, so an object that is looked at again changes nothing
more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import assessed_states, assessments
from node.dicom.assessments import ReaderDecision, ResultAssessment, Verdict
from node.dicom.drawn import LeftOut, clipped
from node.dicom.question_object import STATES
from node.domain import Box, Film, FindingState
from node.errors import InputError
from node.jobs.answered_film import AnsweredFilm, corrections_of, read_film
from node.outputs.corrected_film import correct, sides_of
from node.outputs.correction import Correction, CorrectionKind
from node.prompt_set import Prompt, PromptSet
from node.store.question_objects import ObjectMark
from node.store.spool import Spool

_REPORTS: Final = ("sr", "sr3d")
_UNKNOWN: Final = "it names neither a finding nor a report of this node in this study"

Make = Callable[[AnsweredFilm, Correction], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnsweredNow:
    """A film that was read; now: its answer with the corrections that were made before, made."""

    film: AnsweredFilm
    now: Film
    made: Sequence[Correction]

    def places(self) -> Iterator[tuple[str, Box]]:
        """Yield where each box lies or lay in any version of the newest reading, with its tracking UID."""
        for finding in (*self.film.answer.findings, *self.now.findings):
            yield from ((box.tracking_uid, box.box) for box in finding.boxes)
        yield from ((made.tracking_uid, made.box) for made in self.made if made.tracking_uid and made.box is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A correction without its id, its time and its person."""

    film: AnsweredFilm
    kind: CorrectionKind
    prompt: str
    tracking_uid: str = ""
    box: Box | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessor:
    """Makes corrections; make: `correcting.correct` with all but film and correction."""

    spool: Spool
    prompts: PromptSet
    make: Make

    def read(self, study_uid: str, mark: ObjectMark, dataset: Dataset) -> ResultAssessment | None:
        """Return what an object decides about the node's results; None if it decides nothing."""
        if dataset.SOPClassUID not in STATES:
            return assessments.read(dataset)
        known = defaultdict[str, list[Box]](list)
        for film in self._films(study_uid, before=mark.received_at):
            for uid, box in film.places():
                known[uid].append(box)
        return assessed_states.read(dataset, known)

    def follow(
        self, study_uid: str, mark: ObjectMark, found: ResultAssessment, *, by: str
    ) -> tuple[list[str], list[str]]:
        """Make the corrections of an object. Returns their ids, and why other decisions of it have no effect.

        by: the person who decided, "" if the object names nobody
        Raises RetryLater if the database does not answer; then the call may be repeated.
        """
        films = list(self._films(study_uid, before=mark.received_at))
        wanted = [item for decision in found.decisions for item in self._wanted(study_uid, decision, found, films)]
        reasons = [*found.left_out, *(item.reason for item in wanted if isinstance(item, LeftOut))]
        made = []
        for item in wanted:
            if isinstance(item, LeftOut):
                continue
            new = _correction(item, study_uid, mark, by=by)
            try:
                self.make(item.film, new)
            except InputError as error:
                reasons.append(str(error))
            else:
                made.append(new.id)
        return list(dict.fromkeys(made)), list(dict.fromkeys(reasons))

    def _films(self, study_uid: str, *, before: datetime) -> Iterator[_AnsweredNow]:
        """Yield the films that were read, as they were when the object came, so that a repeated call finds the same."""
        for instance in self.spool.study(study_uid).instances:
            try:
                film = read_film(self.spool, instance.sop_instance_uid)
            except InputError:  # it was not read, or is no film
                continue
            known = [made for made in corrections_of(self.spool, instance) if made.at < before]
            sides = sides_of(film.answer, film.header)
            now = correct(film.answer, known, prompts=self.prompts, side_of=sides)
            yield _AnsweredNow(film=film, now=now, made=known)

    def _wanted(
        self, study_uid: str, decision: ReaderDecision, found: ResultAssessment, films: Sequence[_AnsweredNow]
    ) -> Iterator[_Wanted | LeftOut]:
        if decision.verdict is Verdict.SUPPLEMENTED:
            yield self._supplement(decision, films)
        elif not decision.tracking_uid:
            yield from self._of_report(study_uid, decision, found, films)
        elif _is_doubtful(decision.tracking_uid, found):
            yield LeftOut(reason="two verdicts or two boxes for one box of the node: decide once")
        else:
            rejected = {item.tracking_uid for item in found.decisions if item.verdict is Verdict.REJECTED}
            yield _of_finding(decision, films, rejected)

    def _of_report(
        self, study_uid: str, decision: ReaderDecision, found: ResultAssessment, films: Sequence[_AnsweredNow]
    ) -> Iterator[_Wanted | LeftOut]:
        """Yield a correction for each reported finding of the reports that are assessed.

        A decision on one of them stands above that on its report.
        """
        own = {item.tracking_uid for item in found.decisions}
        kind = _KINDS.get(decision.verdict)
        if kind is None:
            yield LeftOut(reason="it does not say which finding is modified")
            return
        outputs = (output for mark in self.spool.rounds(study_uid) for output in mark.outputs)
        about = {out.film for out in outputs if out.kind in _REPORTS and out.sop_instance_uid in found.assessed}
        chosen = [read for read in films if read.film.instance.sop_instance_uid in about]
        if not chosen:
            yield LeftOut(reason=_UNKNOWN)
        for read in chosen:
            for finding in read.now.findings:
                is_open = own.isdisjoint(box.tracking_uid for box in finding.boxes)
                if finding.state is not FindingState.ABSENT and is_open:
                    yield _Wanted(film=read.film, kind=kind, prompt=finding.prompt)

    def _supplement(self, decision: ReaderDecision, films: Sequence[_AnsweredNow]) -> _Wanted | LeftOut:
        named = {name.casefold() for name in (*decision.names, decision.text or "") if name}
        keys = [prompt.key for prompt in self.prompts.prompts if not named.isdisjoint(_names(prompt))]
        if len(keys) != 1:
            return LeftOut(reason="a finding that is added is none that films are read for")
        if decision.box is None:
            return LeftOut(reason="a finding that is added has no region on a film")
        read = next((read for read in films if read.film.instance.sop_instance_uid in decision.films), None)
        if read is None:
            return LeftOut(reason="the film of a finding that is added was not read")
        box = _on_film(decision.box, read.film)
        if isinstance(box, LeftOut):
            return box
        return _Wanted(film=read.film, kind=CorrectionKind.ADD, prompt=keys[0], box=box)


_KINDS: Final = {Verdict.ACCEPTED: CorrectionKind.ACCEPT, Verdict.REJECTED: CorrectionKind.REJECT}


def _is_doubtful(tracking_uid: str, found: ResultAssessment) -> bool:
    """Say whether an object says different things of one box."""
    about = [item for item in found.decisions if item.tracking_uid == tracking_uid]
    boxes = {item.box for item in about if item.verdict is Verdict.MODIFIED and item.box is not None}
    return len({item.verdict for item in about}) > 1 or len(boxes) > 1


def _names(prompt: Prompt) -> set[str]:
    """Return by what a reader may name the finding of a prompt, in lower case; nothing for a region."""
    if prompt.finding is None:
        return set()
    return {name.casefold() for name in (prompt.key, *prompt.phrases, prompt.finding.value, prompt.finding.meaning)}


def _of_finding(decision: ReaderDecision, films: Sequence[_AnsweredNow], rejected: set[str]) -> _Wanted | LeftOut:
    """Return the correction of one finding; rejected: the tracking UIDs of all boxes that the object rejects."""
    found = (
        (read.film, finding)
        for read in films
        for finding in (*read.now.findings, *read.film.answer.findings)
        if any(box.tracking_uid == decision.tracking_uid for box in finding.boxes)
    )
    film, finding = next(found, (None, None))
    if film is None or finding is None:
        return LeftOut(reason=_UNKNOWN)
    if decision.verdict is Verdict.REJECTED and not rejected.issuperset(box.tracking_uid for box in finding.boxes):
        return LeftOut(reason="a finding with several boxes is rejected as a whole only: reject each of its boxes")
    kind = _KINDS.get(decision.verdict)
    if kind is not None:
        return _Wanted(film=film, kind=kind, prompt=finding.prompt)
    if decision.box is not None and film.instance.sop_instance_uid in decision.films:
        box = _on_film(decision.box, film)
        if isinstance(box, LeftOut):
            return box
        uid = decision.tracking_uid
        return _Wanted(film=film, kind=CorrectionKind.MOVE, prompt=finding.prompt, tracking_uid=uid, box=box)
    if decision.box is None and decision.text:
        return _Wanted(film=film, kind=CorrectionKind.REWORD, prompt=finding.prompt, text=decision.text)
    return LeftOut(reason="a finding that is modified has neither a region on its film nor a text")


def _on_film(box: Box, film: AnsweredFilm) -> Box | LeftOut:
    return clipped(box, columns=film.answer.columns or 0, rows=film.answer.rows or 0)


def _correction(wanted: _Wanted, study_uid: str, mark: ObjectMark, *, by: str) -> Correction:
    film = wanted.film.instance.sop_instance_uid
    key = (mark.sop_instance_uid, film, wanted.kind, wanted.prompt, wanted.tracking_uid, str(wanted.box), wanted.text)
    return Correction(
        id=sha256("\0".join(key).encode()).hexdigest()[:32],
        study_uid=study_uid,
        film=film,
        kind=wanted.kind,
        at=mark.received_at,
        by=by,
        source="dicom",
        prompt=wanted.prompt,
        tracking_uid=wanted.tracking_uid,
        box=wanted.box,
        text=wanted.text,
    )
