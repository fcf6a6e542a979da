"""The results of the checks, as lines for a person and as JSON for a program."""

from __future__ import annotations

from collections.abc import Sequence

from node.checks import Check, CheckState


def passed(checks: Sequence[Check]) -> bool:
    """Say whether there is no fault; notes are allowed."""
    return all(check.state is not CheckState.FAULT for check in checks)


def render(checks: Sequence[Check]) -> str:
    """Return a line for each check, and a last line with the counts."""
    width = max(len(check.name) for check in checks)
    lines = [f"{_word(check.state):<5} {check.name:<{width}}  {check.message}" for check in checks]
    return "\n".join([*lines, _summary(checks)])


def to_json(checks: Sequence[Check]) -> dict[str, object]:
    """Return what the checks found as a JSON object."""
    return {
        "passed": passed(checks),
        "checks": [{"name": check.name, "state": str(check.state), "message": check.message} for check in checks],
    }


def _word(state: CheckState) -> str:
    return state.upper() if state is CheckState.FAULT else str(state)


def _summary(checks: Sequence[Check]) -> str:
    counts = {state: sum(check.state is state for check in checks) for state in (CheckState.FAULT, CheckState.NOTE)}
    found = [f"{count} {state}{'' if count == 1 else 's'}" for state, count in counts.items() if count]
    return ", ".join(found) or "everything is good"
