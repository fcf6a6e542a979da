"""Whole results, compared with records in `tests/golden`; `RECORD=1` writes the records anew."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum

import numpy as np

from tests.paths import GOLDEN

TOLERANCE = 1e-5
_DIGITS = 8


def check(name: str, result: object, *, tolerance: float = TOLERANCE) -> None:
    """Compare a result with the record `name`, and tell each difference by its path.

    tolerance: of numbers that are no whole ones, relative to the larger one, and absolute below 1
    """
    path, made = GOLDEN / f"{name}.json", plain(result)
    if os.environ.get("RECORD") == "1" and "CI" not in os.environ:
        path.write_text(_text(made), encoding="utf-8")
    recorded = json.loads(path.read_text(encoding="utf-8"))
    different = list(differences(made, recorded, tolerance=tolerance))
    assert not different, "\n".join([f"{path.name}: {len(different)} differences", *different[:40]])


def plain(value: object) -> object:
    """Return a value as JSON has it: records as objects, sets in order, arrays as lists."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(own) for key, own in value.items()}
    if isinstance(value, Set):
        return sorted((plain(own) for own in value), key=str)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(own) for own in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"{type(value).__name__} has no place in a record")


def differences(made: object, recorded: object, *, tolerance: float, path: str = "") -> Iterator[str]:
    """Yield a line for each value that is not as recorded."""
    if isinstance(made, dict) and isinstance(recorded, dict):
        for key in dict.fromkeys([*recorded, *made]):
            own = f"{path}.{key}" if path else key
            if key not in made:
                yield f"{own}: missing, recorded {_short(recorded[key])}"
            elif key not in recorded:
                yield f"{own}: {_short(made[key])}, not recorded"
            else:
                yield from differences(made[key], recorded[key], tolerance=tolerance, path=own)
    elif isinstance(made, list) and isinstance(recorded, list) and len(made) == len(recorded):
        for place, (one, other) in enumerate(zip(made, recorded, strict=True)):
            yield from differences(one, other, tolerance=tolerance, path=f"{path}[{place}]")
    elif not _is_same(made, recorded, tolerance):
        yield f"{path}: {_short(made)}, recorded {_short(recorded)}"


def _is_same(made: object, recorded: object, tolerance: float) -> bool:
    if isinstance(made, float) and isinstance(recorded, int | float) and not isinstance(recorded, bool):
        return math.isclose(made, recorded, rel_tol=tolerance, abs_tol=tolerance)
    return type(made) is type(recorded) and made == recorded


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _text(value: object, indent: str = "") -> str:
    """Write JSON with a line for each value that is short enough, so that changes can be read."""
    whole = json.dumps(value)
    if len(indent) + len(whole) <= 116 or not isinstance(value, dict | list):
        return whole if indent else whole + "\n"
    deeper = indent + " "
    if isinstance(value, dict):
        parts = [f"{deeper}{json.dumps(key)}: {_text(own, deeper)}" for key, own in value.items()]
        made = "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    else:
        made = "[\n" + ",\n".join(f"{deeper}{_text(own, deeper)}" for own in value) + f"\n{indent}]"
    return made if indent else made + "\n"
