"""The number of the form in which a node's files lie, in the file `format` of its folder and of its bucket.

It is raised when a program could no longer read, or would harm, what another has written. A folder that has studies and
no number, or number 1, was written before the first release; no program reads it any more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node.errors import InputError, takes_nothing
from node.store import files

NAME: Final = "format"
STUDIES: Final = "studies"
"""The folder of the studies, which a node makes with the number, or before it."""
FORMAT: Final = 2
CONTENT: Final = f"{FORMAT}\n".encode()
_UNRELEASED: Final = "1"
_LONGEST: Final = 100


def require_known(directory: Path) -> None:
    """Raise InputError if a folder's files have a form that this program does not know."""
    path = directory / NAME
    try:
        with path.open("rb") as file:
            require_known_content(file.read(_LONGEST), str(directory))
    except (FileNotFoundError, NotADirectoryError):
        _require_empty(directory)
    except OSError as error:
        if takes_nothing(error):
            raise
        raise InputError(f"{path}: cannot be read ({error.strerror}); it says in which form the files lie") from error


def _require_empty(directory: Path) -> None:
    """Raise InputError if a folder without a number has studies."""
    if any(files.listed(directory / STUDIES, "*")):
        raise InputError(unnumbered(str(directory)))


def unnumbered(place: str) -> str:
    """Return what to say of a place that has studies and no number."""
    return _too_old(place, f"it has studies and no file {NAME!r}")


def _too_old(place: str, found: str) -> str:
    return (
        f"{place}: {found}: a program before version 1.0.0 wrote it, and this one cannot read it; choose another place "
        "(docs/operate/upgrade.md says what becomes of what it has)"
    )


def require_known_content(content: bytes, place: str) -> None:
    """Raise InputError for a number that this program does not know; place: where the files lie."""
    number = content.decode("ascii", "replace").strip()
    if number == _UNRELEASED:
        raise InputError(_too_old(place, f"its files have the format {number!r}"))
    if number != str(FORMAT):
        raise InputError(
            f"{place}: its files have the format {number[:20]!r}, and this program knows format {FORMAT} alone; a "
            "newer program wrote them: start that one again, or restore the backup that was made before it "
            "(docs/operate/upgrade.md)"
        )


def mark(directory: Path) -> None:
    """Write the number into a folder that has none, synced. Raises OSError."""
    if not (directory / NAME).exists():
        files.write(directory / NAME, CONTENT)
