"""What every command of this folder makes of its errors (DESIGN.md 2)."""

from __future__ import annotations

import sys
from collections.abc import Callable

from models.errors import ModelError


def exit_status(act: Callable[[], int], *, remark: str = "") -> int:
    """Run a command; 2 after a line about wrong input, 1 after one about a disk that failed.

    remark: what else is to be said of the latter
    """
    try:
        return act()
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"failed: {error}{remark}", file=sys.stderr)
        return 1
