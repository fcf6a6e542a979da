"""One object of every kind of output, of a fixed set of films, corrections and answers, and a rejection note."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

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
