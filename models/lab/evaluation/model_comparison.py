"""Compares another model with the one in use on a site's films: a node asks for it before it serves the other one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from models.command import aligned
from models.contract import LEAST_COMPARED, ComparedFinding, ComparedModel, FindingState, ModelComparison
from models.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteAnswer:
    """What a node answers for one film: the states of its findings, or the reason why it is not read."""

    reason: str | None
    states: Mapping[str, FindingState]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmsByModel:
    """What one model answers on films.

    findings: keys of the findings that are asked for, in order; measured: keys of those with a measured threshold
    answers: one for each film, in order
    """

    model: ComparedModel
    findings: tuple[str, ...]
    measured: tuple[str, ...]
    answers: tuple[SiteAnswer, ...]


def compare(
    labels: Sequence[Mapping[str, bool]], old: FilmsByModel, new: FilmsByModel, *, data: str, at: str, by: str
) -> ModelComparison:
    """Compare what the model in use and the new one answer on the same films.

    labels: for each film, presence by key of the finding; data: the name of the list of films
    Raises ModelError if both are the same model with the same prompts, or ask for no finding in common.
    """
    if old.model == new.model:
        raise ModelError("--model and --against name the same model and prompts; name another model or prompt set")
    shared = [key for key in old.findings if key in new.findings]
    if not shared:
        raise ModelError("the two prompt sets have no finding in common; nothing can be compared")
    pairs = list(zip(old.answers, new.answers, labels, strict=True))
    return ModelComparison(
        old=old.model,
        new=new.model,
        data=data,
        films=len(labels),
        changed=sum(_has_changed(was, now, shared) for was, now, _ in pairs),
        measured=len(new.measured),
        unmeasured=tuple(key for key in old.findings if key in old.measured and key not in new.measured),
        findings=tuple(_finding(key, pairs) for key in shared),
        at=at,
        by=by,
    )


def _has_changed(old: SiteAnswer, new: SiteAnswer, findings: Sequence[str]) -> bool:
    """Return whether a state differs, or the reason why the film is not read."""
    return old.reason != new.reason or any(old.states.get(key) is not new.states.get(key) for key in findings)


def table(found: ModelComparison) -> str:
    """Return a comparison as text; numbers joined by an arrow are of the model in use and of the new one."""
    rows = [("finding", "films", "changed", "present", "right of labelled"), *map(_row, found.findings)]
    lines = [
        f"in use: {found.old.model}, prompts {found.old.prompts}",
        f"new:    {found.new.model}, prompts {found.new.prompts}; {found.measured} findings have a measured threshold",
        f"films compared: {found.films}, changed: {found.changed}",
        "",
        *aligned(rows),
    ]
    return "\n".join([*lines, *_objections(found)])


def _objections(found: ModelComparison) -> Iterator[str]:
    """Return why a node will not serve the new model by this comparison."""
    if found.films < LEAST_COMPARED:
        yield f"\nA node asks for {LEAST_COMPARED} films of the site; list more."
    if not found.measured:
        yield "\nNo threshold of the new model was measured; calibrate it first."
    if found.unmeasured:
        names = ", ".join(found.unmeasured)
        yield f"\nOnly the model in use has a measured threshold for {names}; calibrate the new one."


def _finding(key: str, pairs: Sequence[tuple[SiteAnswer, SiteAnswer, Mapping[str, bool]]]) -> ComparedFinding:
    read = [(old, new, labels) for old, new, labels in pairs if key in old.states and key in new.states]
    present = [tuple(side.states[key] is FindingState.PRESENT for side in (old, new)) for old, new, _ in read]
    labelled = [(*said, labels[key]) for said, (*_, labels) in zip(present, read, strict=True) if key in labels]
    return ComparedFinding(
        finding=key,
        films=len(read),
        changed=sum(_has_changed(old, new, [key]) for old, new, _ in read),
        present=(sum(old for old, _ in present), sum(new for _, new in present)),
        labelled=len(labelled),
        right=(sum(old is label for old, _, label in labelled), sum(new is label for _, new, label in labelled)),
    )


def _row(found: ComparedFinding) -> tuple[str, ...]:
    return (
        found.finding,
        str(found.films),
        str(found.changed),
        "{} -> {}".format(*found.present),
        "{} -> {} of {}".format(*found.right, found.labelled) if found.labelled else "-",
    )
