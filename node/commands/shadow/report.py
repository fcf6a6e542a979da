"""Shows a comparison of two models, as tables for a person and as JSON for a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from node.commands.shadow.comparison import FindingComparison, Tenth, calibration_error, reliability
from node.commands.shadow.run import Shadow
from node.domain import FindingState, JsonObject, ModelIdentity

_COLUMNS = (
    "finding",
    "films",
    "changed",
    "present",
    "mean probability",
    "boxes",
    "overlap",
    "right of judged",
    "Brier score",
)


def render(found: Shadow) -> str:
    """Return the comparison as text; numbers joined by an arrow are those of the model in use and of the new one."""
    compared = found.comparison
    lines = [
        f"in use: {_name(found.old)}, prompts {found.prompts[0].title}",
        f"new:    {_name(found.new)}, prompts {found.prompts[1].title};"
        f" {found.measured} findings have a measured threshold",
        f"films compared: {compared.films}, changed: {compared.changed},"
        f" skipped because they are removed or damaged: {found.skipped}",
        "",
        *_aligned([_COLUMNS, *map(_row, compared.findings)]),
    ]
    changes = [line for each in compared.findings for line in _changes(each)]
    outcomes = [f"{count} x {old} -> {new}" for (old, new), count in sorted(compared.outcomes.items()) if old != new]
    for title, part in (
        ("states that changed", changes),
        ("present by readers, by the model's probability", list(_calibration(compared.findings))),
        ("films that one of the models does not read", outcomes),
        ("findings of the prompt set in use only", compared.only_old),
        ("findings of the new prompt set only", compared.only_new),
    ):
        if part:
            lines += ["", f"{title}:", *(f"  {line}" for line in part)]
    return "\n".join(lines)


def to_json(found: Shadow) -> JsonObject:
    """Return the comparison as a JSON object; lists of two are of the model in use and of the new one."""
    compared = found.comparison
    return {
        "models": [f"{side.name} {side.version}" for side in (found.old, found.new)],
        "weights_sha256": [side.weights_sha256 for side in (found.old, found.new)],
        "prompts": [prompts.title for prompts in found.prompts],
        "films": compared.films,
        "skipped": found.skipped,
        "changed": compared.changed,
        "measured": found.measured,
        "unmeasured": list(found.unmeasured),
        "outcomes": [
            {"old": old, "new": new, "films": count} for (old, new), count in sorted(compared.outcomes.items())
        ],
        "findings": [_finding_to_json(each) for each in compared.findings],
        "only_old": list(compared.only_old),
        "only_new": list(compared.only_new),
    }


def _finding_to_json(found: FindingComparison) -> JsonObject:
    return {
        "prompt": found.prompt,
        "films": found.films,
        "changed": found.changed,
        "states": [_count(old, new, count) for (old, new), count in sorted(found.states.items())],
        "present": [found.present(0), found.present(1)],
        "mean_probability": [found.mean_probability(0), found.mean_probability(1)],
        "boxes": list(found.boxes),
        "overlap": _mean(found.overlaps),
        "judged": found.judged,
        "right": list(found.right),
        "brier_scores": None if found.squared_errors is None else list(found.squared_errors),
    }


def _count(old: str, new: str, films: int) -> JsonObject:
    return {"old": str(old), "new": str(new), "films": films}


def _row(found: FindingComparison) -> tuple[str, ...]:
    overlap = _mean(found.overlaps)
    return (
        found.prompt,
        str(found.films),
        str(found.changed),
        f"{found.present(0)} -> {found.present(1)}",
        f"{found.mean_probability(0):.2f} -> {found.mean_probability(1):.2f}",
        f"{found.boxes[0]} -> {found.boxes[1]}",
        "-" if overlap is None else f"{overlap:.2f}",
        f"{found.right[0]} -> {found.right[1]} of {found.judged}" if found.judged else "-",
        "-" if found.squared_errors is None else "{:.3f} -> {:.3f}".format(*found.squared_errors),
    )


def _calibration(findings: Sequence[FindingComparison]) -> Iterator[str]:
    """Say how far probabilities agree with what readers said, of all findings together; nothing without a reader."""
    sides = [reliability(findings, which) for which in (0, 1)]
    if not all(sides):
        return
    yield "expected calibration error: {:.3f} -> {:.3f}".format(*map(calibration_error, sides))
    by_number = [{tenth.number: tenth for tenth in tenths} for tenths in sides]
    for number in sorted(by_number[0].keys() | by_number[1].keys()):
        old, new = (_share(tenths.get(number)) for tenths in by_number)
        yield f"{number / 10:.1f} to {(number + 1) / 10:.1f}: {old} -> {new}"


def _share(tenth: Tenth | None) -> str:
    return "-" if tenth is None else f"{tenth.present} of {tenth.judged}"


def _changes(found: FindingComparison) -> list[str]:
    changed = {states: count for states, count in sorted(found.states.items()) if states[0] is not states[1]}
    return [f"{found.prompt}: {count} x {_said(old)} -> {_said(new)}" for (old, new), count in changed.items()]


def _said(state: FindingState) -> str:
    return "not reported" if state is FindingState.ABSENT else str(state).replace("_", " ")


def _mean(values: tuple[float, ...]) -> float | None:
    return sum(values) / len(values) if values else None


def _name(model: ModelIdentity) -> str:
    return f"{model.name} {model.version} ({model.weights_sha256[:12]})"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
