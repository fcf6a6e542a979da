"""The number of the form in which a node's files lie, in the file `format` of its folder.

It is raised when a program could no longer read, or would harm, what another has written. A folder that has studies and
no number, or number 1 or 2, was written before the first release; no program reads it any more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node.errors import InputError, takes_nothing
from node.store import files

NAME: Final = "format"
STUDIES: Final = "studies"
"""The folder of the studies, which a node makes with the number, or before it."""
FORMAT: Final = 3
CONTENT: Final = f"{FORMAT}\n".encode()
_UNRELEASED: Final = ("1", "2")
_LONGEST: Final = 100


def require_known(directory: Path) -> None:
    """Raise InputError if a folder's files have a form that this program does not know."""
    path = directory / NAME
    try:
        with path.open("rb") as file:
            number = file.read(_LONGEST).decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        if any(files.listed(directory / STUDIES, "*")):
            raise InputError(_too_old(directory, f"it has studies and no file {NAME!r}")) from None
        return
    except OSError as error:
        if takes_nothing(error):
            raise
        raise InputError(f"{path}: cannot be read ({error.strerror}); it says in which form the files lie") from error
    if number in _UNRELEASED:
        raise InputError(_too_old(directory, f"its files have the format {number!r}"))
    if number != str(FORMAT):
        raise InputError(
            f"{directory}: its files have the format {number[:20]!r}, and this program knows format {FORMAT} alone; a "
            "newer program wrote them: start that one again, or restore the backup that was made before it "
            "(docs/operate/upgrade.md)"
        )


def _too_old(directory: Path, found: str) -> str:
    return (
        f"{directory}: {found}: a program before version 1.0.0 wrote it, and this one cannot read it; choose another "
        "place (docs/operate/upgrade.md says what becomes of what it has)"
    )


def mark(directory: Path) -> None:
    """Write the number into a folder that has none, synced. Raises OSError."""
    if not (directory / NAME).exists():
        files.write(directory / NAME, CONTENT)
