"""The forms of reports: what each may hold, which are the same object, and who gets which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from highdicom.sr import (
    Comprehensive3DSR,
    ComprehensiveSR,
    MeasurementReport,
    PlanarROIMeasurementsAndQualitativeEvaluations,
    srread,
)
from pydicom.dataset import Dataset
from pydicom.uid import BasicTextSRStorage, Comprehensive3DSRStorage, ComprehensiveSRStorage

from models.contract import Side
from node.dicom.film_header import parse_header
from node.domain import About, Film, OutputObject, Report, Subject
from node.output_kinds import OUTPUTS
from node.outputs import impression, wording
from node.outputs.document import save_bytes
from node.outputs.sr.items import FORMS as SR_FORMS
from node.outputs.writers import classes_wanted, for_destination, output_of, write_objects
from tests.support import samples, validators
from tests.support.documents import FORMS, MEASURED, SEVERAL, all_written, contents, form_of, said
from tests.support.samples import BERLIN, absent, bare, cr, film, received, report, several, unread

NOTHING = film(2, findings=(absent(),))
HEADERS = (cr(1), cr(2), bare(3))
ALL = report(several(), NOTHING, unread(3))

# PS3.3 A.35.1.3.1: the relationships of Basic Text SR that reports use
BASIC = {
    ("CONTAINER", "HAS CONCEPT MOD", "CODE"),
    ("CODE", "HAS CONCEPT MOD", "TEXT"),
    ("CONTAINER", "HAS OBS CONTEXT", "CODE"),
    ("CONTAINER", "HAS OBS CONTEXT", "TEXT"),
    ("CONTAINER", "HAS OBS CONTEXT", "UIDREF"),
    ("CONTAINER", "CONTAINS", "CONTAINER"),
    ("CONTAINER", "CONTAINS", "TEXT"),
    ("TEXT", "INFERRED FROM", "IMAGE"),
    ("TEXT", "INFERRED FROM", "COMPOSITE"),
}


def outputs(of: Report, *kinds: str) -> list[tuple[OutputObject, Dataset]]:
    """Write a report on films of `HEADERS` in several kinds."""
    objects = write_objects(of, received(*HEADERS), zone=BERLIN, kinds=kinds)
    return [(output_of(written), written.dataset) for written in objects]


def relationships(item: Dataset) -> Iterator[tuple[str, str, str]]:
    for child in item.get("ContentSequence", ()):
        yield item.ValueType, child.RelationshipType, child.ValueType
        yield from relationships(child)


@pytest.mark.parametrize("form", FORMS)
def test_a_basic_text_sr_holds_only_what_it_may(form: str) -> None:
    dataset = form_of(form, kind="text")

    assert dataset.SOPClassUID == BasicTextSRStorage
    assert dataset.ContentTemplateSequence[0].TemplateIdentifier == "2000"
    assert set(relationships(dataset)) <= BASIC
    assert validators.dciodvfy(dataset) == []
    assert validators.dsrdump(dataset) == []


@pytest.mark.parametrize("form", MEASURED)
def test_a_comprehensive_3d_sr_has_the_same_content(form: str) -> None:
    plain, other = form_of(form), form_of(form, kind="sr3d")

    assert (plain.SOPClassUID, other.SOPClassUID) == (ComprehensiveSRStorage, Comprehensive3DSRStorage)
    assert plain.ContentSequence == other.ContentSequence
    assert validators.dciodvfy(other) == []
    assert validators.dsrdump(other) == []


def test_a_film_with_findings_is_described_in_words() -> None:
    [dataset] = all_written(SEVERAL, kind="text")

    [section] = contents(dataset, "19005-8")
    first = contents(section, "121073")[0].TextValue
    assert " ".join(first.split()).endswith(" ".join(impression.of_film(SEVERAL.films[0])))
    for expected in (
        "lower zone of the right lung",
        "Not reported (below threshold, may have been missed): Pneumothorax 4 %.",
        "Small right pleural effusion.",
        "Located in 4 boxes. If a viewer draws fewer than that beside this text, open the series again.",
    ):
        assert expected in said(dataset)
    assert "No prompted finding came near" not in said(dataset)
    # OHIF breaks no line of a text with this name
    assert [item.TextValue for item in contents(contents(dataset, "59776-5")[0], "121071")] == [
        "1. Right pleural effusion, 83 % (present).",
        "2. Pulmonary edema, 41 % (possible, please review).",
        "3. Support devices, 50 % (present).",
    ]


def test_every_kind_has_series_of_its_own() -> None:
    objects = outputs(ALL, *SR_FORMS)

    written = [dataset for _, dataset in objects]
    series = {(output.kind, output.subject): output.series_instance_uid for output, _ in objects}
    assert len(set(series.values())) == len(series) == len(written) == 8
    assert {dataset.SeriesNumber for dataset in written} == {9001, 9003, 9011, 9021, 9023}
    assert all(parse_header(dataset).is_own for dataset in written)


def test_no_object_is_stored_under_two_kinds() -> None:
    written = outputs(ALL, *SR_FORMS)

    assert len({output.sop_instance_uid for output, _ in written}) == len(written)
    assert [(output.kind, output.subject.film[-1:], output.template) for output, _ in written] == [
        ("sr", "1", "1500"),
        ("sr", "2", "2000"),
        ("sr", "", "2000"),
        ("sr3d", "1", "1500"),
        ("sr3d", "2", "2000"),
        ("text", "1", "2000"),
        ("text", "2", "2000"),
        ("text", "", "2000"),
    ]


def test_a_studys_report_is_one_object_for_both_forms() -> None:
    plain, other = outputs(ALL, "sr"), outputs(ALL, "sr3d")

    assert [output.kind for output, _ in other] == ["sr3d", "sr3d", "sr"]
    assert save_bytes(other[-1][1]) == save_bytes(plain[-1][1])


@pytest.mark.drill(part="objects")
def test_a_text_on_a_film_has_the_class_of_its_form() -> None:
    """It may follow a report with boxes, or come before one, and OHIF shows the newest of each class in a series."""
    text = outputs(report(NOTHING), "sr3d")[0][1]

    assert text.SOPClassUID == Comprehensive3DSRStorage
    assert text.ContentTemplateSequence[0].TemplateIdentifier == "2000"
    assert validators.dciodvfy(text) == []
    assert validators.dsrdump(text) == []
    assert validators.pixelmed([text]) == [[]]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("sr", "gsps"), ["sr 1", "sr 2", "sr ", "gsps 1", "gsps 2"]),
        (("sr3d",), ["sr ", "sr3d 1", "sr3d 2"]),
        (("text",), ["text 1", "text 2", "text "]),
        (("sr", "text"), ["sr 1", "sr 2", "sr ", "text 1"]),
        (("sr3d", "text", "gsps"), ["sr ", "sr3d 1", "sr3d 2", "text 1", "gsps 1", "gsps 2"]),
        (("sr", "sr3d"), ["sr 1", "sr 2", "sr ", "sr3d 1", "sr3d 2"]),
        (("oru",), []),
    ],
)
def test_a_destination_gets_each_report_in_one_form(wanted: tuple[str, ...], expected: list[str]) -> None:
    written = [output for output, _ in outputs(ALL, *SR_FORMS, "gsps")]

    assert [f"{output.kind} {output.subject.film[-1:]}" for output in for_destination(written, wanted)] == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("sr",), {ComprehensiveSRStorage: "sr"}),
        (("sr3d",), {Comprehensive3DSRStorage: "sr3d", ComprehensiveSRStorage: "sr3d"}),
        (("sr3d", "sr"), {Comprehensive3DSRStorage: "sr3d", ComprehensiveSRStorage: "sr"}),
        (("text",), {BasicTextSRStorage: "text"}),
        (("text", "sr"), {ComprehensiveSRStorage: "sr", BasicTextSRStorage: "text"}),
    ],
)
def test_an_archive_must_accept_the_class_of_all_it_gets(wanted: tuple[str, ...], expected: dict[str, str]) -> None:
    assert classes_wanted(wanted) == expected


def earlier(kind: str, uid: str, film: str = "") -> OutputObject:
    """Name a report of an earlier round."""
    return OutputObject(
        kind=kind, study_uid=samples.STUDY, sop_class_uid=OUTPUTS.own[kind].sop_class, sop_instance_uid=uid,
        series_instance_uid=f"{uid}.1", subject=Subject(about=About.FILM, film=film) if film else Subject(),
    )  # fmt: skip


BEFORE = {
    "1.1": earlier("sr", "1.1", samples.film_uid(1)),
    "1.3": earlier("sr3d", "1.3", samples.film_uid(1)),
    "1.9": earlier("text", "1.9", samples.film_uid(1)),
    "2.1": earlier("sr", "2.1"),
    "2.9": earlier("text", "2.9"),
}


@pytest.mark.parametrize(
    ("kind", "now", "before", "expected"),
    [
        ("sr", several(), "1.1 1.3 1.9", ["1.1"]),
        ("sr3d", several(), "1.1 1.3 1.9", ["1.3"]),
        ("text", several(), "1.1 1.3 1.9", ["1.9"]),
        ("sr3d", several(), "1.1", ["1.1"]),  # the destination's setting was "sr", or the earlier report was a text
        ("text", several(), "1.1", ["1.1"]),
        ("sr", several(), "1.3 1.9", ["1.3", "1.9"]),
        ("sr3d", film(findings=(absent(),)), "1.1 1.3 1.9", ["1.3"]),
        ("sr3d", unread(1), "2.1 2.9", ["2.1"]),  # one report on the study for both
        ("text", film(findings=(absent(),)), "1.1 1.3 1.9", ["1.9"]),
        ("sr3d", several(), "1.3 2.1 2.9", ["1.3", "2.1", "2.9"]),  # the study has no report of its own any more
        ("text", several(), "1.3 1.9 2.1 2.9", ["1.9", "2.9"]),
        ("sr", unread(1), "2.1 2.9", ["2.1"]),
        ("text", unread(1), "2.1 2.9", ["2.9"]),
    ],
)
def test_a_report_replaces_those_its_destinations_have(kind: str, now: Film, before: str, expected: list[str]) -> None:
    of = replace(report(now), predecessors=tuple(BEFORE[uid] for uid in before.split()))

    dataset = all_written(of, kind=kind)[0]

    [study] = dataset.PredecessorDocumentsSequence
    replaced = [item for series in study.ReferencedSeriesSequence for item in series.ReferencedSOPSequence]
    assert [item.ReferencedSOPInstanceUID for item in replaced] == expected
    assert [item.ReferencedSOPClassUID for item in replaced] == [BEFORE[uid].sop_class_uid for uid in expected]


@pytest.mark.parametrize(("kind", "document"), [("sr", ComprehensiveSR), ("sr3d", Comprehensive3DSR)])
def test_highdicom_reads_the_same_findings_back(tmp_path: Path, kind: str, document: type) -> None:
    path = tmp_path / "report.dcm"
    path.write_bytes(save_bytes(form_of("several", kind=kind)))

    read = srread(path)

    assert isinstance(read, document)
    assert isinstance(read.content, MeasurementReport)
    groups = {str(group.tracking_uid): group for group in read.content.get_planar_roi_measurement_groups()}
    expected = {box.tracking_uid: (of, box) for of in wording.reported(SEVERAL.films[0]) for box in of.boxes}
    assert groups.keys() == expected.keys()
    for uid, (of, box) in expected.items():
        group, (left, top, right, bottom) = groups[uid], box.box.edges
        assert group.finding_type is not None and group.roi is not None
        corners = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
        assert (group.finding_type.value, group.roi.value.tolist()) == (of.code.value, corners)
        [number], [state] = group.get_measurements(), group.get_qualitative_evaluations(name=group.finding_type)
        assert (number.value, number.unit.value) == (wording.whole_percent(of.probability or 0.0), "%")
        assert (state.name.value, state[0].ConceptCodeSequence[0].CodeMeaning.lower()) == (of.code.value, of.state)
        sites = [(of.site, box.side), (box.evidence and box.evidence.site, Side.RIGHT)]
        assert list(sites_of(group)) == [(site.value, side) for site, side in sites if site]


def sites_of(group: PlanarROIMeasurementsAndQualitativeEvaluations) -> Iterator[tuple[str, str | None]]:
    """Return code and side of each finding site."""
    for site in group.get_measurements()[0].finding_sites:
        [side] = [child.ConceptCodeSequence[0].CodeMeaning for child in contents(site, "272741003")] or [None]
        yield site.value.value, side and side.lower()
