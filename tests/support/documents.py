"""The documents that the structured report's writer makes of sample reports, and what stands in them."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import product

from pydicom import dcmread
from pydicom.dataset import Dataset

from node.dicom import attributes, identity
from node.domain import About, OutputObject, Report, Subject
from node.output_kinds import OUTPUTS, Written
from node.outputs.document import save_bytes
from node.outputs.sr.items import FORMS
from node.outputs.writers import output_of, writer_of
from tests.support.samples import BERLIN, bare, cr, datasets, received


def all_written(of: Report, *headers: Dataset, kind: str = "sr") -> list[Dataset]:
    """Write a report on films 1 to 3, and read its documents back from their bytes."""
    documents = datasets(writer_of(kind), of, received(*(headers or (cr(1), bare(2), cr(3)))), BERLIN)
    return [dcmread(BytesIO(save_bytes(dataset))) for dataset in documents]


def contents(item: Dataset, name: str) -> list[Dataset]:
    """Return the children of a content item that have a code as their name."""
    return [child for child in item.get("ContentSequence", ()) if child.ConceptNameCodeSequence[0].CodeValue == name]


def groups(dataset: Dataset) -> list[Dataset]:
    """Return the measurement groups."""
    [measurements] = contents(dataset, "126010")
    return contents(measurements, "125007")


def evidence(dataset: Dataset) -> list[str]:
    """Return the films that a document is made from."""
    [study] = dataset.CurrentRequestedProcedureEvidenceSequence
    [series] = study.ReferencedSeriesSequence
    return [reference.ReferencedSOPInstanceUID for reference in series.ReferencedSOPSequence]


def numbers(item: Dataset) -> list[Dataset]:
    """Return the children of a content item that are numbers."""
    return [child for child in item.get("ContentSequence", ()) if child.ValueType == "NUM"]


def everything(item: Dataset) -> Iterator[Dataset]:
    """Walk the content tree."""
    for child in item.get("ContentSequence", ()):
        yield child
        yield from everything(child)


def said(dataset: Dataset) -> str:
    """Return all text of the content tree, however it is broken into lines."""
    return "\n".join(" ".join(item.TextValue.split()) for item in everything(dataset) if item.ValueType == "TEXT")


def subject_of(dataset: Dataset) -> Subject:
    """Find what an object is about, in the object alone: its references, and the UID of its series."""
    shown = {
        image.ReferencedSOPInstanceUID
        for series in dataset.get("ReferencedSeriesSequence", ())
        for image in series.ReferencedImageSequence
    }
    film = shown.pop() if len(shown) == 1 else _only_evidence(dataset)
    if dataset.Modality == "PR":
        return Subject(about=About.FILM, film=film)
    named = {About.FILM: film, About.RATIO: identity.ratio_of(film)}
    for (about, name), form in product(named.items(), (form.series for form in FORMS.values())):
        series = identity.series_uid(
            study_uid=str(dataset.StudyInstanceUID),
            modality=str(dataset.Modality),
            device=str(dataset.ContributingEquipmentSequence[0].DeviceUID),
            about=name,
            form=form,
        )
        if film and series == dataset.SeriesInstanceUID:
            return Subject(about=about, film=film)
    return Subject()


def _only_evidence(dataset: Dataset) -> str:
    """Return the only film that a report names as its evidence, or a picture as its source; "" of several."""
    level: tuple[Dataset, ...] = (dataset,)
    for keyword in ("CurrentRequestedProcedureEvidenceSequence", "ReferencedSeriesSequence", "ReferencedSOPSequence"):
        level = attributes.items(level[0], keyword) if len(level) == 1 else ()
    level = level or attributes.items(dataset, "SourceImageSequence")
    return attributes.text(level[0], "ReferencedSOPInstanceUID") if len(level) == 1 else ""


def film_of(dataset: Dataset) -> str:
    """Return the film that an object is about, or an empty text."""
    return subject_of(dataset).film


def reference(dataset: Dataset) -> OutputObject:
    """Return the reference of an object that was written, as it is found in the object alone."""
    template = "".join(str(item.TemplateIdentifier) for item in dataset.get("ContentTemplateSequence", ()))
    kind = next(name for name, kind in OUTPUTS.own.items() if kind.sop_class == dataset.SOPClassUID)
    return output_of(Written(kind=kind, dataset=dataset, subject=subject_of(dataset), template=template))


def replaced(dataset: Dataset) -> list[str]:
    """Return what a document names as its predecessors, by SOP Instance UID."""
    return [
        str(reference.ReferencedSOPInstanceUID)
        for study in dataset.get("PredecessorDocumentsSequence", ())
        for series in study.ReferencedSeriesSequence
        for reference in series.ReferencedSOPSequence
    ]
