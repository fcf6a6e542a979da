"""The outputs of one study as files: written once, and read only while their bytes match their hash.

<UID>~<SHA-256 of the file>.<kind>.dcm      a DICOM object
<UID>~<SHA-256 of the file>.hl7             a message
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from node.domain import MESSAGE_KIND, Delivery, OutputObject
from node.errors import is_of_file
from node.store import files


def exists(folder: Path, output: OutputObject | Delivery) -> bool:
    """Say whether a folder holds an output, damaged or not."""
    return _find(folder, output) is not None


def read(folder: Path, output: OutputObject | Delivery) -> bytes | None:
    """Return the content of an output; None when it is missing or damaged. Raises OSError when the disk fails."""
    path = _find(folder, output)
    return None if path is None else _intact_content(path)


def keep(folder: Path, output: OutputObject | Delivery, content: bytes) -> None:
    """Write an output into an existing folder; an existing file stays, so that one UID never has two contents.

    A damaged file is replaced only by its original bytes.
    """
    path = folder / f"{output.sop_instance_uid}~{hashlib.sha256(content).hexdigest()}.{_ending(output)}"
    known = _find(folder, output)
    if known is None or (known == path and _intact_content(known) is None):
        files.write(path, content)


def _intact_content(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_of_file(error):
            return None
        raise
    return content if path.name.partition("~")[2].startswith(hashlib.sha256(content).hexdigest()) else None


def _find(folder: Path, output: OutputObject | Delivery) -> Path | None:
    return next(iter(files.listed(folder, f"{output.sop_instance_uid}~*.{_ending(output)}")), None)


def _ending(output: OutputObject | Delivery) -> str:
    return "hl7" if output.kind == MESSAGE_KIND else f"{output.kind}.dcm"
