"""Compare two films of one patient, finding by finding: new, not reported any more, larger, smaller, unchanged.

Boxes of two films have no common frame, so each is measured against the network's own zones: the share of a zone that
the boxes of a finding cover. A change counts only beyond the error that the model makes on films of one kind where
nothing changed (`[change]` of its manifest); without that figure nothing is compared. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from language.sentences import is_plural
from models.contract import ChangeError, FindingState, Trusted
from node.domain import Film, Finding, ModelIdentity
from node.outputs import vocabulary, wording
from node.outputs.vocabulary import said_of

PHANTOMS: Final = "phantoms"
REST: Final = "What is not reported on either film may have been missed."
_REPORTED: Final = (FindingState.PRESENT, FindingState.INDETERMINATE)
_PROJECTIONS: Final = ("AP", "PA")


class Change(StrEnum):
    """The change of a finding between two films."""

    NEW = "new"
    GONE = "gone"
    LARGER = "larger"
    SMALLER = "smaller"
    UNCHANGED = "unchanged"
    NOT_REPORTED = "not_reported"
    NOT_COMPARABLE = "not_comparable"


class Obstacle(StrEnum):
    """Why films, or one finding on them, cannot be compared, in words."""

    NOT_READ = "one of the films was not read"
    OTHER_MODEL = "the films are not known to be read by one model"
    OTHER_PROMPTS = "the films were read for different lists of findings"
    DOUBTFUL = "one of the films has a note that it may have been read wrongly"
    VIEW_UNKNOWN = "it is not known whether each film is AP or PA"
    OTHER_VIEW = "one film is AP and the other PA"
    UNMEASURED = "nobody measured how far its answers differ between films without a change"
    OTHER_POPULATION = "nobody measured on such films how far its answers differ without a change"
    NOT_ASKED = "only one of the films was read for it"
    UNCALIBRATED = "the threshold was not measured on such films"
    NEAR = "the probability changed by less than the model's error"
    NO_ZONE = "its zone is not told"
    OTHER_ZONE = "the boxes lie in other zones on the two films"
    MIXED = "the boxes cover more of one zone and less of another"
    CORRECTED = "a reader corrected the finding"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFilm:
    """A film, the network that read it, and the hash of its prompt set."""

    film: Film
    model: ModelIdentity
    prompts_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFinding:
    """The change of one finding.

    obstacle: only of a finding that is not comparable
    earlier, later: tracking UIDs of its boxes
    """

    prompt: str
    change: Change
    text: str
    obstacle: Obstacle | None = None
    earlier: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmComparison:
    """Two films of one patient; obstacle: why nothing of them is compared, then there is no finding."""

    text: str
    obstacle: Obstacle | None = None
    findings: tuple[ComparedFinding, ...] = ()


def compare(earlier: ReadFilm, later: ReadFilm, *, error: ChangeError | None) -> FilmComparison:
    """Compare two films; the caller vouches that they are of one patient, and which is the earlier one.

    error: the change error of the model that read both; None if it states none
    """
    obstacle = _obstacle(earlier, later) or without_measure(error, later.model.trusted)
    if obstacle is not None or error is None:
        return not_compared(obstacle or Obstacle.UNMEASURED)
    before = {finding.prompt: finding for finding in earlier.film.findings}
    after = {finding.prompt: finding for finding in later.film.findings}
    compared = tuple(_compared(before.get(key), after.get(key), error) for key in before | after)
    told = [found.text for found in compared if found.change is not Change.NOT_REPORTED]
    return FilmComparison(text=" ".join((*told, REST)), findings=compared)


def without_measure(error: ChangeError | None, trusted: Trusted) -> Obstacle | None:
    """Return why a model cannot compare any films; error: from its manifest; trusted: see `ModelIdentity`."""
    if error is None:
        return Obstacle.UNMEASURED
    return None if _counts(error.measured_on, trusted) else Obstacle.OTHER_POPULATION


def not_compared(obstacle: Obstacle) -> FilmComparison:
    """Return why films are not compared."""
    return FilmComparison(text=f"The films are not comparable: {obstacle}.", obstacle=obstacle)


def extents(finding: Finding) -> dict[str, float]:
    """Return the share of each zone that the boxes of a finding cover, by the zone's prompt key.

    None if a box lies in no single zone, so that its extent is undefined.
    """
    if any(box.evidence is None or box.evidence.zone is None for box in finding.boxes):
        return {}
    found: dict[str, float] = {}
    for evidence in (*(box.evidence for box in finding.boxes), finding.evidence):
        if evidence is not None and evidence.zone is not None:
            found[evidence.zone] = max(evidence.extent, found.get(evidence.zone, 0.0))
    return found


def _obstacle(earlier: ReadFilm, later: ReadFilm) -> Obstacle | None:
    """Return the objection to comparing two films at all."""
    films = (earlier.film, later.film)
    views = [_view(film) for film in films]
    reasons = {
        Obstacle.NOT_READ: not all(film.is_read for film in films),
        Obstacle.OTHER_MODEL: _answers(earlier.model) != _answers(later.model),
        Obstacle.OTHER_PROMPTS: earlier.prompts_sha256 != later.prompts_sha256,
        Obstacle.DOUBTFUL: any(wording.cautions(film) != wording.cautions_of_header(film) for film in films),
        Obstacle.VIEW_UNKNOWN: None in views,
        Obstacle.OTHER_VIEW: views[0] != views[1],
    }
    return next((obstacle for obstacle, holds in reasons.items() if holds), None)


def _answers(model: ModelIdentity) -> tuple[str, str, str]:
    """Return the identities that findings depend on; without the runtime, because runtimes are proven equal."""
    return model.weights_sha256, model.manifest_sha256, model.trusted


def _view(film: Film) -> str | None:
    """Return AP or PA by the header, else by the picture; None if both are unknown."""
    named = (film.view.tag, film.view.seen) if film.view is not None else ()
    return next((view for view in named if view in _PROJECTIONS), None)


def _counts(population: str, trusted: Trusted) -> bool:
    """Return whether an error that was measured on a population holds for the films that a model is used on."""
    return trusted == "any" or (population == PHANTOMS) == (trusted == PHANTOMS)


def _compared(earlier: Finding | None, later: Finding | None, error: ChangeError) -> ComparedFinding:
    change, obstacle = _change(earlier, later, error)
    named = later or earlier
    if named is None:
        raise ValueError("a finding is on one of the films")
    return ComparedFinding(
        prompt=named.prompt,
        change=change,
        obstacle=obstacle,
        text=_text(named, change, obstacle),
        earlier=_tracked(earlier),
        later=_tracked(later),
    )


def _change(earlier: Finding | None, later: Finding | None, error: ChangeError) -> tuple[Change, Obstacle | None]:
    if earlier is None or later is None:
        return Change.NOT_COMPARABLE, Obstacle.NOT_ASKED
    if earlier.reader is not None or later.reader is not None:
        return Change.NOT_COMPARABLE, Obstacle.CORRECTED
    if FindingState.UNCALIBRATED in (earlier.state, later.state):
        return Change.NOT_COMPARABLE, Obstacle.UNCALIBRATED
    if (earlier.probability is None) is not (later.probability is None):
        return Change.NOT_COMPARABLE, Obstacle.NOT_ASKED
    was, is_now = earlier.state in _REPORTED, later.state in _REPORTED
    if not was and not is_now:
        return Change.NOT_REPORTED, None
    if was is not is_now:
        if abs((later.probability or 0.0) - (earlier.probability or 0.0)) <= error.probability:
            return Change.NOT_COMPARABLE, Obstacle.NEAR
        return (Change.NEW if is_now else Change.GONE), None
    return _resized(extents(earlier), extents(later), error.extent)


def _resized(earlier: Mapping[str, float], later: Mapping[str, float], error: float) -> tuple[Change, Obstacle | None]:
    if not earlier or not later:
        return Change.NOT_COMPARABLE, Obstacle.NO_ZONE
    if earlier.keys() != later.keys():
        return Change.NOT_COMPARABLE, Obstacle.OTHER_ZONE
    grown = {zone: later[zone] - earlier[zone] for zone in earlier}
    more, less = any(growth > error for growth in grown.values()), any(growth < -error for growth in grown.values())
    if more and less:
        return Change.NOT_COMPARABLE, Obstacle.MIXED
    return (Change.LARGER if more else Change.SMALLER if less else Change.UNCHANGED), None


def _text(finding: Finding, change: Change, obstacle: Obstacle | None) -> str:
    """Return a finding's change in words; finding: the one on the later film, if that was read for it."""
    name = vocabulary.name_of(finding)
    sided = name if not finding.state.is_reported else wording.sided(name, finding.side)
    be, was = ("are", "were") if is_plural(name) else ("is", "was")
    if obstacle is not None:
        missing = f" {be} {said_of(finding)}, and" if not finding.state.is_reported else ""
        return f"{sided}{missing} cannot be compared with the earlier film: {obstacle}."
    if finding.state is FindingState.LEFT_OUT:
        return f"{sided} {be} {said_of(finding)}."
    review = f" {said_of(finding).capitalize()}." if finding.state in vocabulary.MARKS else ""
    texts = {
        Change.NEW: f"{sided} {be} reported, and {was} not reported on the earlier film.",
        Change.GONE: f"{sided} {be} not reported any more, and may have been missed.",
        Change.LARGER: f"{sided} {be} larger than on the earlier film.",
        Change.SMALLER: f"{sided} {be} smaller than on the earlier film.",
        Change.UNCHANGED: f"{sided} {be} about as large as on the earlier film.",
        Change.NOT_REPORTED: f"{sided} {be} not reported on either film, and may have been missed.",
    }
    return texts[change] + review


def _tracked(finding: Finding | None) -> tuple[str, ...]:
    return () if finding is None else tuple(box.tracking_uid for box in finding.boxes)
