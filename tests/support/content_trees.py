"""Compares what two versions of the program write: `python -m tests.support.content_trees FOLDER`, once with each.

The first run stores the tree of every kind of output, of a fixed set of films, corrections, answers and a rejection
note, as JSON below FOLDER. Each later run compares with it: each line that is gone or new is shown once, with the
number of places. UIDs of objects are left out, for another content has another UID.
"""

from __future__ import annotations

import argparse
import difflib
import json
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import cast

import numpy as np
from pydicom import dcmread
from pydicom.dataset import Dataset

from docs.statement import written
from node.dicom.rejection_note import TITLES, RejectionNote
from node.domain import About, OutputObject, Subject, derive_uid
from node.outputs import document, rejection
from node.outputs.writers import sop_class_of
from tests.node.outputs.test_answer_objects import QUESTIONS
from tests.node.outputs.test_answer_objects import written as written_answer
from tests.support import samples

_LONGEST = 160
_LEFT_OUT = frozenset(("SOPInstanceUID",))


def main() -> None:
    """Store the trees, or compare them with those that are stored; ends with 1 if they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = cast(Path, parser.parse_args().folder)
    stored = folder / "trees.json"
    now = {name: list(lines(dataset)) for name, dataset in objects()}
    if not stored.exists():
        folder.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps(now, indent=0))
        print(f"stored {len(now)} trees of {sum(map(len, now.values()))} lines")
        return
    changes = differences(json.loads(stored.read_text()), now)
    for change, count in sorted(changes.items()):
        print(f"{count:5} {change}")
    raise SystemExit(bool(changes))


def objects() -> Iterator[tuple[str, Dataset]]:
    """Yield a name and each object, read back from its bytes."""
    for of, study in (("full", written.study()), ("bare", written.from_bare_films())):
        for number, (kind, dataset) in enumerate(study.objects()):
            yield f"{of} {number} {kind}", dataset
    for number, (kind, dataset) in enumerate(written.after_another_version().objects()):
        yield f"version {number} {kind}", dataset
    for name, question in QUESTIONS.items():
        for header in (samples.cr(1), samples.bare(1)):
            for number, (kind, dataset) in enumerate(written_answer(question, "sr", "sr3d", "gsps", header=header)):
                yield f"answer {name} {'PatientID' in header} {number} {kind}", dataset
    yield "rejection note", dcmread(BytesIO(document.save_bytes(note())))


def note() -> Dataset:
    """Write a note that rejects a report, a presentation state and a capture."""
    received = RejectionNote(title=TITLES["113001"], rejected=frozenset((samples.film_uid(1),)), header=samples.cr(1))
    own = [
        OutputObject(
            kind=kind,
            study_uid=samples.STUDY,
            sop_class_uid=sop_class_of(kind),
            sop_instance_uid=derive_uid("written", kind),
            series_instance_uid=derive_uid("series", kind),
            subject=Subject(about=About.FILM, film=samples.film_uid(1)),
        )
        for kind in ("sr", "gsps", "sc")
    ]
    return rejection.write(received, own, samples.report(samples.several()), zone=samples.BERLIN).dataset


def lines(dataset: Dataset, indent: str = "") -> Iterator[str]:
    """Yield a line for each element and for each beginning of an item; long values are cut."""
    for element in dataset:
        name = element.keyword or str(element.tag)
        if element.VR == "SQ":
            for item in element.value:
                yield f"{indent}{name}"
                yield from lines(item, f"{indent}  ")
            if not element.value:
                yield f"{indent}{name} (no item)"
        elif name not in _LEFT_OUT:
            yield f"{indent}{name} {element.VR} {_shown(element.value)[:_LONGEST]}"


def _shown(value: object) -> str:
    return f"{len(value)} bytes, sum {np.frombuffer(value, 'u1').sum()}" if isinstance(value, bytes) else repr(value)


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> Counter[str]:
    """Count the lines that are gone (-) and new (+), by kind of object."""
    found: Counter[str] = Counter()
    for name in before.keys() ^ after.keys():
        found[f"{'-' if name in before else '+'} object {name}"] += 1
    for name in before.keys() & after.keys():
        kind = name.split()[-1]
        for line in difflib.unified_diff(before[name], after[name], n=0, lineterm=""):
            if line[0] in "+-" and not line.startswith(("+++", "---")):
                found[f"{kind:5} {line[0]} {line[1:].rstrip()}"] += 1
    return found


if __name__ == "__main__":
    main()
