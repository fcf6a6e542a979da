"""Films that were read, without a network: one finding with a chosen probability, and the header of a scanner."""

from __future__ import annotations

from pydicom.dataset import Dataset

from node.domain import Box, Code, Film, Finding, FindingState


def film(probability: float) -> Film:
    """A film with one finding."""
    finding = Finding(
        prompt="edema",
        code=Code(value="1", scheme="X", meaning="Edema"),
        site=None,
        side=None,
        probability=probability,
        state=FindingState.PRESENT if probability >= 0.5 else FindingState.ABSENT,
        boxes=(),
        sentence=None,
    )
    square = Box(left=0, top=0, right=9, bottom=9)
    return Film(source="1.2.3", columns=9, rows=9, analyzed=square, findings=(finding,))


def header(manufacturer: str = "Philips", model: str = "DigitalDiagnost") -> Dataset:
    """What a film says of its scanner."""
    dataset = Dataset()
    dataset.Manufacturer, dataset.ManufacturerModelName = manufacturer, model
    return dataset
