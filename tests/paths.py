"""Where things of the repository lie, for tests of any folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[1]
TESTS: Final = REPOSITORY / "tests"
FIXTURES: Final = TESTS / "fixtures"
GOLDEN: Final = TESTS / "golden"
