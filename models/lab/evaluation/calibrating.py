"""Calibrates a model on labelled films: chooses decisions on some patients, and reports on the others.

What is chosen: readouts, thresholds and bands (`tuning`); on phantoms the temperature, and how boxes are scored, which
needs the extra `evaluate`. A finding whose AUROC may be chance stays as it was. With labels it measures the error of
the cardiothoracic ratio, and limits the model to the ages of the films. Findings that get no threshold are listed with
the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from language.labels import NO_FINDING
from models.checkpoint.card import open_to_change
from models.contract import FindingState, Trusted
from models.decisions import PHANTOMS, Decisions, RatioError, ThresholdChange
from models.errors import ModelError
from models.lab.evaluation import anatomy
from models.lab.evaluation.cases import CaseSource, Truth
from models.lab.evaluation.evaluated_model import EvaluatedModel, Weighed, open_model, read_questions
from models.lab.evaluation.request import DEFAULT, MOST_FALSE
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices, area_under_curve
from models.lab.evaluation.thresholds import LEAST_POSITIVES, Aim
from models.lab.evaluation.tuning import best_rule, digest, is_known, tune
from models.lab.training.split import part_of
from models.manifest import Ages, Manifest, ReportRule
from models.progress import ProgressReport
from models.reading.cardiothoracic import ChestWidths
from models.reading.decision import decide

ADULT: Final = 18
LEAST_MEASURED: Final = 30
"""Films with a known ratio before its error is stated, and films of an age group before a model is for it."""
_PARTS: Final = 1000
MOST_CALLED: Final = 0.5
"""Present findings on the average film without a finding above which a calibration is refused."""
CHANCE: Final = 0.5
"""The AUROC of a random score."""
WORDS: Final = ReportRule(remove_above=0.995, soft_remove_above=0.995, emphasis=0.2)
"""How a model that was calibrated on phantoms puts its decisions into words, unless its manifest says otherwise.

Sentences then agree with the decisions, and none is replaced by one that says something else.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One calibration.

    population: the name of the films in the manifest; share: share of the patients to choose decisions on
    sensitivity, false_findings: see `Aim`; false_findings above `MOST_CALLED` takes its place
    by, at: who calibrates, and when, for the manifest's history
    """

    model: Path
    population: str
    share: float
    by: str
    at: str
    engine: str = "onnx"
    prompts: Path = DEFAULT
    sensitivity: float | None = None
    false_findings: float | None = None
    resamples: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingReport:
    """The result of a calibration for one finding.

    with_it, without: numbers of films with and without it to choose on, by label; needed: the least of each
    off: why it got no threshold from these films; "" if it did
    rest: figures on the films of the other patients, each with the bounds of its 95 % interval where there is one
    """

    finding: str
    with_it: int
    without: int
    needed: int
    off: str
    rest: Mapping[str, tuple[float, list[float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A calibration.

    chosen_on, reported_on: films and patients; aim: what thresholds were chosen for, in words
    called: for each finding, on how many films reported on it is present and to be reviewed, before and after
    false_findings: mean number of present findings on films without a finding, on the films reported on; at: when
    off: what else stays off, with its reason
    """

    before: Manifest
    after: Manifest
    population: str
    chosen_on: tuple[int, int]
    reported_on: tuple[int, int]
    share: float
    aim: str
    findings: tuple[FindingReport, ...]
    called: Mapping[str, tuple[int, int, int, int]]
    false_findings: tuple[float, list[float]] | None
    at: str
    off: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Films:
    """digests: what the films are recognized by, [film], as `chosen.digest`."""

    truths: Sequence[Truth]
    weighed: Sequence[Weighed]
    patients: NDArray[np.str_]
    digests: NDArray[np.str_]

    def of(self, some: Indices) -> _Films:
        return _Films(
            truths=[self.truths[index] for index in some],
            weighed=[self.weighed[index] for index in some],
            patients=self.patients[some],
            digests=self.digests[some],
        )

    @property
    def counts(self) -> tuple[int, int]:
        """Films and patients."""
        return len(self.patients), len(np.unique(self.patients))

    def labelled(self, key: str) -> tuple[Indices, NDArray[np.bool_]]:
        """Return the films on which the label of a finding is known, and whether they show it."""
        known = np.array([index for index, truth in enumerate(self.truths) if is_known(truth, key)], dtype=np.intp)
        return known, np.array([self.truths[index].labels[key] for index in known], dtype=np.bool_)

    def with_and_without(self, key: str) -> tuple[int, int]:
        """Count the films that show a finding by their label, and those that do not."""
        there = self.labelled(key)[1]
        return int(there.sum()), int((~there).sum())

    def probabilities(self, key: str, decisions: Decisions) -> NDArray[np.float64]:
        return decisions.probability(key, np.array([film.differences[key] for film in self.weighed]))

    def states(self, key: str, decisions: Decisions, trusted: Trusted) -> list[FindingState]:
        """Return the state of a finding on each film."""
        return [decide(decisions, key, float(value), trusted=trusted) for value in self.probabilities(key, decisions)]

    @property
    def normal(self) -> Indices:
        return np.flatnonzero([truth.is_normal for truth in self.truths])


def calibrate(request: Request, films: CaseSource, report: ProgressReport) -> Calibrated:
    """Choose decisions on films, and measure them on others; writes nothing.

    Raises ModelError if the labels suffice for no finding, and what opening the model and reading its films raise.
    """
    before = open_to_change(request.model)
    is_drawn = request.population == PHANTOMS
    model = open_model(
        request.model,
        engine=request.engine,
        questions=read_questions(request.prompts),
        trusted="phantoms" if is_drawn else "real",
    )
    everything = _weigh(model, films, is_drawn=is_drawn, report=report)
    chooses = np.array([is_chosen(patient, share=request.share) for patient in everything.patients])
    chosen, rest = everything.of(np.flatnonzero(chooses)), everything.of(np.flatnonzero(~chooses))
    least = 1 if is_drawn else LEAST_POSITIVES
    _require_any(chosen, least)
    report("choosing decisions")
    aim, said = _aim(request, chosen, least=least)
    untold = {} if is_drawn else {key: why for key in _keys(everything) if (why := _untold(key, chosen, rest, request))}
    if not is_drawn:
        _require_told(chosen, untold, least)
    after = tune(before, chosen.truths, chosen.weighed, population=request.population, aim=aim, left_out=untold)
    off: dict[str, str] = {}
    if is_drawn:
        after = _drawn_rules(model, after, chosen)
    else:
        after = replace(after, chosen_on=tuple(sorted({*after.chosen_on, *chosen.digests.tolist()})))
        after, off["age rule"] = with_ages(after, [truth.age for truth in everything.truths])
    chests = [film.chest for film in everything.weighed]
    after, off["cardiothoracic ratio"] = with_ratio(after, everything.truths, chests, population=request.population)
    after, off["change between two films"] = _with_change(before, after)
    trusted: Trusted = "phantoms" if is_drawn else "real"
    own, was = ((each.on_phantoms() if is_drawn else each).decisions for each in (after, before))
    reports = tuple(_finding(key, own, chosen, rest, request, untold, least=least) for key in _keys(everything))
    false_findings = _false_findings(own, rest, request, trusted)
    _require_few(false_findings or _false_findings(own, chosen, request, trusted), request)
    return Calibrated(
        before=before,
        after=replace(after, history=(*after.history, *_history(before, after, request, len(chosen.truths), reports))),
        population=request.population,
        chosen_on=chosen.counts,
        reported_on=rest.counts,
        share=request.share,
        aim=said,
        findings=reports,
        called={key: _called(key, was, own, rest, trusted) for key in _keys(everything)},
        false_findings=false_findings,
        at=request.at,
        off={name: reason for name, reason in off.items() if reason},
    )


def is_chosen(patient: str, *, share: float) -> bool:
    """Whether decisions are chosen on the films of a patient, by a hash of their name: always the same answer."""
    return part_of(f"calibrate {patient}", parts=_PARTS) < share * _PARTS


def _keys(films: _Films) -> list[str]:
    """Name the findings that are asked for."""
    return sorted(films.weighed[0].differences)


def _weigh(model: EvaluatedModel, films: CaseSource, *, is_drawn: bool, report: ProgressReport) -> _Films:
    truths, weighed, patients, digests = [], [], [], []
    for index in range(len(films)):
        case = films.load(index)
        truths.append(case.truth)
        has_ratio = anatomy.true_ratio(case.truth) is not None
        weighed.append(model.weigh(case, located=is_drawn, chest=has_ratio))
        patients.append(case.truth.patient or case.name)
        digests.append(digest(case.gray))
        report("reading films", index + 1, len(films))
    return _Films(truths=truths, weighed=weighed, patients=np.array(patients), digests=np.array(digests))


def _require_any(chosen: _Films, least: int) -> None:
    counts = {key: chosen.with_and_without(key) for key in _keys(chosen)} if chosen.truths else {}
    if not any(min(own) >= least for own in counts.values()):
        had = ", ".join(f"{key} {own[0]} and {own[1]}" for key, own in counts.items() if any(own)) or "no label at all"
        raise ModelError(
            f"no finding is on {least} films and missing on {least} of those that decisions are chosen on "
            f"({len(chosen.truths)} films; with and without it: {had}); label more films"
        )


def _untold(key: str, chosen: _Films, rest: _Films, request: Request) -> str:
    """Return why the AUROC of a finding is not shown to be above chance; "" if it is."""
    for films, which in ((chosen, "that decisions are chosen on"), (rest, "reported on")):
        if not films.truths:
            continue
        known, there = films.labelled(key)
        if not there.any() or there.all():
            missing = "no film" if there.any() else "only films"
            return f"{missing} without it among those {which}; it stays as it was"
        value, bounds = _told(key, films, request)
        if bounds[0] <= CHANCE:
            return (
                f"AUROC {value:.2f} ({bounds[0]:.2f} to {bounds[1]:.2f}) on the {len(known)} films {which}, which may "
                "be chance; it stays as it was"
            )
    return ""


def _told(key: str, films: _Films, request: Request) -> tuple[float, list[float]]:
    """Return the AUROC of a finding that some of the films show and some do not, with its interval."""
    known, there = films.labelled(key)
    scores = np.array([films.weighed[index].differences[key] for index in known])

    def figures(some: Indices) -> Figures:
        return {"auroc": area_under_curve(there[some], scores[some])}

    return _bounded(figures, films.patients[known], request)["auroc"]


def _require_told(chosen: _Films, untold: Mapping[str, str], least: int) -> None:
    enough = [key for key in _keys(chosen) if min(chosen.with_and_without(key)) >= least]
    if all(key in untold for key in enough):
        reasons = "; ".join(f"{key}: {untold[key]}" for key in enough)
        raise ModelError(f"no finding has an AUROC that is surely above chance ({reasons}); nothing is changed")


def _require_few(false_findings: tuple[float, list[float]] | None, request: Request) -> None:
    if request.population == PHANTOMS:
        return
    if false_findings is None and request.false_findings is None:
        raise ModelError(
            "no film is labelled no_finding by somebody who saw it, so nobody knows what would be called present on "
            "normal films; nothing is changed. Label some, or accept it with --false-findings"
        )
    most = max(MOST_CALLED, request.false_findings or 0.0)
    if false_findings is not None and false_findings[0] > most:
        raise ModelError(
            f"{false_findings[0]:.2f} findings would be called present on the average film without a finding, more "
            f"than {most:g}; nothing is changed. Ask for a lower --sensitivity, or allow more with --false-findings"
        )


def _aim(request: Request, chosen: _Films, *, least: int) -> tuple[Aim, str]:
    """Return the aim of the thresholds, and the same in words."""
    if request.sensitivity is not None:
        return Aim(sensitivity=request.sensitivity, least=least), f"each at a sensitivity of {request.sensitivity:g}"
    if request.population == PHANTOMS:
        return Aim(least=least), "the best F1 of all findings together"
    normal, most = len(chosen.normal), MOST_FALSE if request.false_findings is None else request.false_findings
    if normal < least:
        raise ModelError(
            f"{normal} of the films that decisions are chosen on are labelled no_finding by somebody who saw them; "
            f"{least} are needed to know what is called on normal films. Label more, or give --sensitivity"
        )
    words = f"{most:g} findings called present, as expected, on the average film without a finding ({normal} films)"
    return Aim(false_findings=most, least=least), words


def _drawn_rules(model: EvaluatedModel, manifest: Manifest, chosen: _Films) -> Manifest:
    """Choose how the boxes of phantoms are scored."""
    from models.lab.evaluation.detection import Precision  # needs the extra `evaluate`

    located = [film.located for film in chosen.weighed if film.located is not None]
    rule = best_rule(
        manifest.detection,
        lambda some: Precision(chosen.truths, [model.detections(each, some) for each in located]).per_class(),
    )
    return replace(manifest, detection=rule, report=WORDS if manifest.report == ReportRule() else manifest.report)


def with_ratio(
    manifest: Manifest, truths: Sequence[Truth], chests: Sequence[ChestWidths | None], *, population: str
) -> tuple[Manifest, str]:
    """State the error of the cardiothoracic ratio; returns why not, too. One on real films goes before phantoms."""
    stated = manifest.cardiothoracic
    if population == PHANTOMS and stated is not None and stated.measured_on != PHANTOMS:
        return manifest, ""
    made = {name: value for name, value in anatomy.measure_ratio(truths, chests).items() if value is not None}
    counted = int(made.get("films", 0))
    if counted < LEAST_MEASURED:
        had = "measured on patient films" if stated is not None and stated.measured_on != PHANTOMS else "off"
        why = f"{counted} films have a known ratio and a measured one; {LEAST_MEASURED} are needed"
        return manifest, f"stays as it was ({had}): {why}"
    figures = {name: round(made[name], 6) for name in ("mean_absolute_error", "bias", "lower", "upper")}
    return replace(manifest, cardiothoracic=RatioError(measured_on=population, films=counted, **figures)), ""


def with_ages(manifest: Manifest, ages: Sequence[int | None]) -> tuple[Manifest, str]:
    """Limit a model to the ages that enough films are of; never to more than it is for already."""
    known = [age for age in ages if age is not None]
    adults = sum(age >= ADULT for age in known)
    groups = {"adults": adults, "children": len(known) - adults}
    if not any(count >= LEAST_MEASURED for count in groups.values()):
        return manifest, (
            f"stays as it was: the ages of {len(known)} of {len(ages)} films are known; "
            f"{LEAST_MEASURED} of adults or of children are needed"
        )
    own = manifest.ages or Ages()
    least = own.least if groups["children"] >= LEAST_MEASURED else max(own.least, ADULT)
    most = own.most if adults >= LEAST_MEASURED else min(own.most if own.most is not None else ADULT, ADULT - 1)
    if most is not None and least > most:
        return manifest, "stays as it was: these films are of ages that the model is not for"
    rule = Ages(least=least, most=most)
    return replace(manifest, ages=None if rule == Ages() else rule), ""


def _with_change(before: Manifest, after: Manifest) -> tuple[Manifest, str]:
    """Leave out an error of change that was measured with other probabilities; `models.calibrate` measures another."""
    if after.change is None:
        return after, "off: no pair of films says where nothing changed"
    was, now = (
        each.on_phantoms().decisions if after.change.measured_on == PHANTOMS else each.decisions
        for each in (before, after)
    )
    if (was.temperature, was.readout) == (now.temperature, now.readout):
        return after, ""
    return replace(after, change=None), "off: it was of other probabilities, and no pair of films measures it"


def _finding(
    key: str,
    decisions: Decisions,
    chosen: _Films,
    rest: _Films,
    request: Request,
    untold: Mapping[str, str],
    *,
    least: int,
) -> FindingReport:
    with_it, without = chosen.with_and_without(key)
    off = ""
    if min(with_it, without) < least:
        off = f"{with_it} films with it and {without} without; {least} of each are needed"
        if decisions.leaves_out(key):
            off += "; it is left out"
    elif key in untold:
        off = untold[key]
    elif decisions.leaves_out(key):
        off = "left out: at no threshold half of the films called show it"
    return FindingReport(
        finding=key,
        with_it=with_it,
        without=without,
        needed=least,
        off=off,
        rest={} if not rest.truths or min(with_it, without) < least else _on_rest(key, decisions, rest, request),
    )


def _on_rest(key: str, decisions: Decisions, rest: _Films, request: Request) -> Mapping[str, tuple[float, list[float]]]:
    """Measure a finding on the films that nothing was chosen on."""
    known, there = rest.labelled(key)
    if not len(known):
        return {}
    said = rest.probabilities(key, decisions)[known]
    present = (said >= decisions.threshold(key)) & (not decisions.leaves_out(key))
    absent = (said < decisions.lower(key)) | decisions.leaves_out(key)

    def figures(some: Indices) -> Figures:
        return {
            "auroc": area_under_curve(there[some], said[some]),
            "sensitivity": _share(present[some][there[some]]),
            "to_review": _share(~(present | absent)[some]),
            "missed": _share(absent[some][there[some]]),
            "called_wrongly": _share(present[some][~there[some]]),
        }

    return _bounded(figures, rest.patients[known], request)


def _false_findings(
    decisions: Decisions, rest: _Films, request: Request, trusted: Trusted
) -> tuple[float, list[float]] | None:
    if not len(rest.normal):
        return None
    films = rest.of(rest.normal)
    states = [films.states(key, decisions, trusted) for key in _keys(films) if key != NO_FINDING]
    called = np.array([[state is FindingState.PRESENT for state in own] for own in states]).sum(axis=0)
    return _bounded(lambda some: {"false": float(called[some].mean())}, films.patients, request)["false"]


def _bounded(
    figures: Callable[[Indices], Figures], patients: NDArray[np.str_], request: Request
) -> dict[str, tuple[float, list[float]]]:
    """Return figures with the bounds of their 95 % intervals, by drawing patients anew."""
    own = figures(np.arange(len(patients)))
    bounds = Bootstrap(resamples=request.resamples).intervals(figures, patients)
    return {name: (value, bounds.get(name, [])) for name, value in own.items() if value is not None}


def _share(marks: NDArray[np.bool_]) -> float | None:
    return float(marks.mean()) if len(marks) else None


def _called(key: str, before: Decisions, after: Decisions, rest: _Films, trusted: Trusted) -> tuple[int, int, int, int]:
    """Count films on which a finding is present and to be reviewed, before and after."""
    counts = []
    for decisions in (before, after):
        states = rest.states(key, decisions, trusted)
        reviewed = states.count(FindingState.INDETERMINATE) + states.count(FindingState.UNCALIBRATED)
        counts += [states.count(FindingState.PRESENT), reviewed]
    return counts[0], counts[1], counts[2], counts[3]


def _history(
    before: Manifest, after: Manifest, request: Request, films: int, reports: Sequence[FindingReport]
) -> list[ThresholdChange]:
    """Say of each finding that these films were enough for which threshold it has now."""
    was, own = before.decisions, after.decisions
    return [
        ThresholdChange(
            finding=finding.finding,
            before=was.threshold(finding.finding),
            after=own.threshold(finding.finding),
            reason=f"calibrated on {films} films of {request.population}",
            by=request.by,
            at=request.at,
        )
        for finding in reports
        if min(finding.with_it, finding.without) >= finding.needed
        and own.measurements.get(finding.finding) != was.measurements.get(finding.finding)
    ]
