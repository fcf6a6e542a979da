"""The kinds of outputs in the schema of the chart's values."""

from __future__ import annotations

import json
import re
from typing import Final

from node.output_kinds import OUTPUTS
from tests.paths import REPOSITORY

PATH: Final = REPOSITORY / "helm" / "values.schema.json"
_PLACE: Final = re.compile(r'(?<="output": {"anyOf": \[{"enum": )\[[^]]*\]')


def with_kinds(text: str) -> str:
    """Return the schema with the kinds that the node has. Raises ValueError if it has no place for them."""
    made, count = _PLACE.subn(json.dumps(list(OUTPUTS.own)), text)
    if count != 1:
        raise ValueError("the schema has no definition of an output")
    return made
