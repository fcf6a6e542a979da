"""The objects that the node creates: their attributes, content, templates and codes, read from written objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final

from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.uid import UID, Comprehensive3DSRStorage

from docs.statement import written
from docs.statement.network import Rows, named
from node.deliver import dicom
from node.output_kinds import OUTPUTS
from node.outputs.sr.findings import PRIVATE_SCHEME

_LONGEST_VALUE: Final = 100
_ROLES: Final = {
    "ConceptNameCodeSequence": "concept name",
    "ConceptCodeSequence": "value",
    "MeasurementUnitsCodeSequence": "unit",
    "PurposeOfReferenceCodeSequence": "purpose of reference",
}


@cache
def _objects() -> list[tuple[str, Dataset]]:
    return written.study().objects()


def kinds() -> Rows:
    """Return the kinds of objects with their SOP classes."""
    return [
        ("output", "SOP class", "UID"),
        *((f"`{kind}`", *named(UID(output.sop_class))) for kind, output in OUTPUTS.own.items()),
    ]


def root_templates() -> Rows:
    """Return the root templates of the structured reports by kind."""
    found = {(kind, _template(dataset)) for kind, dataset in _objects() if "ContentTemplateSequence" in dataset}
    return [("output", "root template"), *((f"`{kind}`", f"TID {template}") for kind, template in sorted(found))]


def proposed_contexts() -> Rows:
    """Return the presentation contexts that the node proposes, by what it wants to do."""
    rows: Rows = [("to send", "SOP class", "UID", "transfer syntax", "role")]
    sent = {kind: dataset for kind, dataset in reversed(_objects())}
    for kind in OUTPUTS.own:
        contexts = dicom.storage_contexts(sent[kind])
        rows += [
            (f"`{kind}`", *named(sent[kind].SOPClassUID), context.transfer_syntax[0].name, "SCU")
            for context in contexts
        ]
    native = ", ".join(syntax.name for syntax in dicom.NATIVE)
    rows.append(("a probe, `node doctor`", *named(dicom.VERIFICATION), native, "SCU"))
    rows.append(("requests for commitment", *named(dicom.STORAGE_COMMITMENT), native, "SCU"))
    return rows


def attributes() -> Rows:
    """Return every attribute of the created objects: which kinds have it when, and what its value is made from."""
    whole, bare = _objects(), written.from_bare_films().objects()
    names: dict[int, tuple[str, ...]] = {}
    elements: dict[tuple[str, int], list[DataElement]] = {}
    for kind, dataset in whole:
        for element in dataset:
            names[int(element.tag)] = (f"`{element.tag}`", element.name, element.VR)
            elements.setdefault((kind, int(element.tag)), []).append(element)
    every = [*whole, *bare]
    always = {(kind, tag) for kind, tag in elements if all(tag in found for name, found in every if name == kind)}
    origins = _origins()
    rows: Rows = [("tag", "attribute", "VR", *(f"`{kind}`" for kind in OUTPUTS.own))]
    for tag, about in sorted(names.items()):
        cells = []
        for place in ((kind, tag) for kind in OUTPUTS.own):
            presence = "always" if place in always else "sometimes"
            cells.append(f"{presence}: {_value_of(elements[place], origins[place])}" if place in elements else "")
        rows.append((*about, *cells))
    return rows


def _value_of(elements: Sequence[DataElement], origin: str) -> str:
    """Return what a value is made from, or the values themselves, if nothing changes them."""
    if all(element.is_empty for element in elements):
        return "empty"
    values = sorted({str(element.value) for element in elements})
    if origin or elements[0].VR == "SQ" or len(" ".join(values)) > _LONGEST_VALUE:
        return origin or ("fixed" if len(values) == 1 else "findings")
    return " or ".join(f"`{value}`" for value in values)


def _origins() -> dict[tuple[str, int], str]:
    """Return by kind and tag what the value is made from: that which changes it; "" if nothing does."""
    others = {
        "film": written.from_other_films(),
        "findings": written.with_other_findings(),
        "program": written.by_another_program(),
        "version": written.after_another_version(),
    }
    headers = list(others["film"].sources.values())
    causes: dict[tuple[str, int], list[str]] = {}
    originals: set[tuple[str, int]] = set()
    for name, other in others.items():
        for (kind, before), (_, after) in zip(_objects(), other.objects(), strict=True):
            for element in before:
                place, now = (kind, int(element.tag)), after.get(element.tag)
                found = causes.setdefault(place, [])
                if now == element:
                    continue
                if name not in found:
                    found.append(name)
                if not any(header.get(element.tag) == now for header in headers):
                    originals.add(place)
    return {
        place: "copied" if found == ["film"] and place not in originals else ", ".join(found)
        for place, found in causes.items()
    }


def content() -> Rows:
    """Return the content tree of the structured reports, indented by its levels; what repeats stands once."""
    roots: _Tree = {}
    for kind, dataset in _objects():
        if "ContentSequence" in dataset:
            _merge(roots, (f"`{kind}`, TID {_template(dataset)}",), [dataset])
    rows: Rows = [("report", "content item", "value type", "relationship", "template")]
    for root, tree in roots.items():
        rows += ((*root, f"{'- ' * level}{item[0]}", *item[1:]) for level, item in _flat(tree))
    return rows


_Tree = dict[tuple[str, ...], "_Tree"]


def _merge(tree: _Tree, key: tuple[str, ...], items: Iterable[Dataset]) -> None:
    """Add items and all below them to a branch, where they are not there already."""
    branch = tree.setdefault(key, {})
    for item in items:
        about = (_name(item), str(item.ValueType), str(item.get("RelationshipType", "")), _tid(item))
        _merge(branch, about, item.get("ContentSequence", ()))


def _flat(tree: _Tree, level: int = 0) -> Iterator[tuple[int, tuple[str, ...]]]:
    for key, branch in tree.items():
        yield level, key
        yield from _flat(branch, level + 1)


def _name(item: Dataset) -> str:
    """Return the name of a content item; findings and their probabilities count as one name each."""
    code = item.ConceptNameCodeSequence[0]
    value = _value(code)
    if (code.CodingSchemeDesignator, value) in _finding_codes():
        return "the finding's code"
    if code.CodingSchemeDesignator == PRIVATE_SCHEME and value[:1] in "PRCMA" and value[1:] in _finding_values():
        return f"`{value[0]}` and the finding's code, `{PRIVATE_SCHEME}`"
    return f"{code.CodeMeaning} (`{value}`, {code.CodingSchemeDesignator})"


def _finding_codes() -> set[tuple[str, str]]:
    codes = [prompt.finding for prompt in written.PATHOLOGIES if prompt.finding]
    return {(code.scheme, code.value) for code in codes}


def _finding_values() -> set[str]:
    return {value for _, value in _finding_codes()}


def _value(code: Dataset) -> str:
    return str(code.get("CodeValue") or code.get("LongCodeValue") or code.URNCodeValue)


def _tid(item: Dataset) -> str:
    return f"TID {_template(item)}" if "ContentTemplateSequence" in item else ""


def _template(item: Dataset) -> str:
    return str(item.ContentTemplateSequence[0].TemplateIdentifier)


def private_codes() -> Rows:
    """Return every code of the private scheme with its meaning and its use."""
    rows = [row[1:] for row in _codes() if row[0] == PRIVATE_SCHEME]
    return [("code", "meaning", "used as"), *rows]


def standard_codes() -> Rows:
    """Return every other code with its meaning and its use."""
    return [("scheme", "code", "meaning", "used as"), *(row for row in _codes() if row[0] != PRIVATE_SCHEME)]


@cache
def _codes() -> list[tuple[str, str, str, str]]:
    uses: dict[tuple[str, str, str], set[str]] = {}
    for _, dataset in _objects():
        for keyword, code in _coded(dataset):
            found = (str(code.CodingSchemeDesignator), f"`{_value(code)}`", str(code.CodeMeaning))
            uses.setdefault(found, set()).add(_ROLES.get(keyword, keyword))
    return sorted((*code, ", ".join(sorted(roles))) for code, roles in uses.items())


def _coded(dataset: Dataset) -> Iterator[tuple[str, Dataset]]:
    """Yield every code of a dataset, at any depth, with the keyword of its sequence."""
    for element in dataset:
        if element.VR == "SQ":
            for item in _items(element):
                if "CodeMeaning" in item:
                    yield element.keyword, item
                yield from _coded(item)


def _items(element: DataElement) -> Iterable[Dataset]:
    return element.value or ()


def for_ai_results() -> Rows:
    """Return which outputs have the class that the profile AI Results asks for."""
    kinds = [f"`{kind}`" for kind, output in OUTPUTS.own.items() if output.sop_class == Comprehensive3DSRStorage]
    return [
        ("SOP class that AIR asks for", "UID", "written by the output"),
        (*named(Comprehensive3DSRStorage), ", ".join(kinds) or "none: this version writes no such report"),
    ]
