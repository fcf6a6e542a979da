"""The films that `read` has read as a table: one line a film, for a spreadsheet or a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from node import csv_table
from node.domain import FindingState, JsonObject
from node.errors import NodeError

_ABOUT: Final = ("study", "film", "status", "reason", "cardiothoracic_ratio", "impression")


def write(path: Path, reports: Sequence[JsonObject]) -> None:
    """Write a line for each film of some `report.json`, with the state and the probability of each finding.

    Raises NodeError if the file cannot be written.
    """
    lines = [line for report in reports for line in _lines(report)]
    names = dict.fromkeys((*_ABOUT, *(name for line in lines for name in line)))
    try:
        path.write_text(csv_table.write(names, lines), encoding="utf-8", newline="")
    except OSError as error:
        raise NodeError(f"{path}: cannot be written ({error.strerror}); name another file") from error


def _lines(report: JsonObject) -> Iterator[dict[str, object]]:
    for film in cast(list[JsonObject], report["films"]):
        ratios = [item["value"] for item in _items(film, "measurements") if item["name"] == "cardiothoracic_ratio"]
        line: dict[str, object] = {
            "study": report["study"],
            "film": film["source"],
            "status": film["status"],
            "reason": film["reason"],
            "cardiothoracic_ratio": next(iter(ratios), None),
            "impression": " ".join(cast(list[str], film.get("impression", []))),
        }
        for finding in _items(film, "findings"):
            line[str(finding["prompt"])] = _state(finding)
            line[f"{finding['prompt']}_probability"] = finding["probability"]
        yield line


def _items(film: Mapping[str, object], key: str) -> list[JsonObject]:
    return cast(list[JsonObject], film.get(key, []))


def _state(finding: JsonObject) -> str:
    """Name a state as every output does: what is below its threshold may have been missed, and is not called absent."""
    names = {FindingState.ABSENT: "not_reported", FindingState.LEFT_OUT: "not_assessed"}
    state = FindingState(str(finding["state"]))
    return names.get(state, str(state))
