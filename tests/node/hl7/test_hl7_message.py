"""The message of a report, read back by two readers that the node did not write."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta

import hl7
import pytest
from hl7apy.consts import VALIDATION_LEVEL
from hl7apy.parser import parse_message
from pydicom.dataset import Dataset

from models.contract import FindingState
from node.dicom import identity
from node.domain import Film, OutputObject, Report
from node.hl7.order import Order
from node.hl7.text import Message, Segment, read
from node.outputs import impression, oru
from tests.support import recorded, samples
from tests.support.lasting import lasting

SR = OutputObject(
    kind="sr", study_uid=samples.STUDY, sop_class_uid="1.2", sop_instance_uid="2.25.77", series_instance_uid="1.3"
)
ORDER = Order(accession="A-17", placer_number=("P|1", "RIS"), filler_number=("F-9", "", "1.2.3", "ISO"))


def written(
    *films: Film,
    header: Dataset | None = None,
    order: Order | None = None,
    documents: tuple[OutputObject, ...] = (SR,),
    report: Report | None = None,
) -> tuple[OutputObject, bytes]:
    report = report or samples.report(*(films or (samples.several(),)))
    sources = {film.source: samples.cr(number) for number, film in enumerate(report.films, 1)}
    if header is not None:
        sources[report.films[0].source] = header
    return oru.write(report, sources, samples.BERLIN, order=order, documents=list(documents))


def message(*films: Film, header: Dataset | None = None, order: Order | None = None) -> Message:
    return read(written(*films, header=header, order=order)[1])


def only(whole: Message, name: str) -> Segment:
    (segment,) = whole.named(name)
    return segment


def observations(whole: Message, kind: str) -> list[Segment]:
    return [segment for segment in whole.named("OBX") if segment.text(2) == kind]


def lines(whole: Message, code: str) -> list[str]:
    """Return the lines of a text: one OBX each, numbered from 1."""
    found = [segment for segment in observations(whole, "TX") if segment.text(3) == code]
    assert [segment.text(4) for segment in found] == [str(number) for number in range(1, len(found) + 1)]
    return [segment.text(5) for segment in found]


@pytest.mark.parametrize("films", [(samples.several(), samples.unread(2)), (samples.film(),), (samples.unread(1),)])
def test_two_other_readers_find_nothing_wrong_with_it(films: tuple[Film, ...]) -> None:
    _, content = written(*films, order=ORDER)

    found = parse_message(content.decode(), validation_level=VALIDATION_LEVEL.STRICT)

    assert found.validate()
    assert found.to_er7() + "\r" == content.decode()
    again = hl7.parse(content.decode())
    assert [str(segment[2]) for segment in again.segments("OBX")] == [
        segment.text(2) for segment in read(content).named("OBX")
    ]


def test_a_message_is_as_recorded_but_for_its_texts() -> None:
    header = samples.cr()
    header.PlacerOrderNumberImagingServiceRequest = "PLACER"
    header.PatientName, header.PatientBirthDate = "Adams^John^Robert^Rev.^B.A.=山田^太郎", "19500228"
    film = dataclasses.replace(samples.several(), ratio=samples.ratio())
    others = (samples.uncalibrated(), samples.left_out(samples.DEVICES), samples.finding(samples.PNEUMOTHORAX))
    films = (film, samples.unread(2), samples.film(3, findings=others))

    said = [written(*films, header=header, order=ORDER), written(header=header), written(header=samples.bare())]

    lines = [line for _, content in said for line in lasting(content.decode()).splitlines() if "|TX|" not in line]
    own = re.compile(r"(?<=^OBX\|)\d+|(?<=\|)S?[0-9A-F]{14,20}(?=[|^])")  # numbers of lines, and of what was said
    recorded.check("oru", [own.sub("", line) for line in lines])


def test_the_impression_comes_first_then_square_and_sentences() -> None:
    whole = message(samples.several(), samples.unread(2))
    first = next(iter(whole.named("OBX")))

    assert first.components(3) == ("19005-8", "Impressions", "LN")
    assert first.text(5) == f"{identity.RESEARCH_LABEL}: Film 1 of 2:"
    said, report = (" ".join(map(str.strip, lines(whole, code))) for code in ("19005-8", "18748-4"))
    assert said.endswith(
        " ".join(map(str.strip, impression.of_report(samples.report(samples.several(), samples.unread(2)))))
    )
    assert "Analyzed was the square of columns 120 to 1880, rows 0 to 1760" in report
    assert "Small right pleural effusion." in report
    assert all(0 < len(segment.text(5)) <= 90 for segment in observations(whole, "TX"))
    assert not any("~" in segment.fields[5] for segment in whole.named("OBX"))  # some receivers show the first only
    numbers = [segment.text(1) for segment in whole.named("OBX")]
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]


def test_an_absent_finding_never_reads_as_normal_and_a_possible_one_is_not_flagged() -> None:
    whole = message(samples.film(findings=(samples.absent(),)))
    possible = samples.finding(samples.PNEUMOTHORAX, state=FindingState.INDETERMINATE)

    (coded,) = observations(whole, "CWE")
    assert coded.text(5, 9) == "Not reported (below threshold, may have been missed)"
    said = " ".join(segment.text(5).strip() for segment in observations(whole, "TX"))
    assert "This is not a report of a normal film" in said
    assert said.lower().count("normal") == said.count("not a report of a normal film")
    for each in (whole, message(samples.film(findings=(possible,)))):
        assert not any(segment.text(8) for segment in each.named("OBX"))  # no flag: N would be normal


def test_a_time_is_cut_to_what_hl7_takes_device_and_report_are_named() -> None:
    hour = samples.cr()
    hour.StudyTime = "10"
    assert {segment.text(14) for segment in message(header=hour).named("OBX")} == {"20240131"}, "HL7 asks for minutes"
    device = ("", "", identity.device_uid(samples.MODEL), "ISO")
    assert {segment.components(18) for segment in message().named("OBX")} == {device}
    assert observations(read(written(documents=())[1]), "HD") == []


@pytest.mark.parametrize(
    ("own", "requested", "ordered", "expected"),
    [("", "", "A-17", "A-17"), ("A-18", "", "A-17", "A-18"), ("", "A-18", "", "A-18")],
)
def test_numbers_and_procedure_are_those_of_the_film_its_request_or_the_order(
    own: str, requested: str, ordered: str, expected: str
) -> None:
    header, request, code = samples.cr(), Dataset(), Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "XCHEST", "99LOCAL", "Chest, 1 view"
    request.AccessionNumber, request.RequestedProcedureID = requested, "RP-3"
    request.RequestedProcedureCodeSequence = [code]
    header.AccessionNumber, header.RequestAttributesSequence = own, [request]
    order = Order(accession=ordered, placer_number=("P1",)) if ordered else None

    whole = message(header=header, order=order)

    said = only(whole, "OBR")
    assert (said.text(3), said.text(18), said.text(19)) == (expected, expected, "RP-3")
    assert said.components(4) == ("XCHEST", "Chest, 1 view", "99LOCAL")
    assert only(whole, "ORC").text(3) == expected


def test_a_patient_is_named_as_the_standard_has_it() -> None:
    scripts = only(message(header=samples.named("chrH31.dcm")), "PID").fields[5]
    other = samples.cr()
    other.PatientSex = "X"

    assert scripts.split("~") == ["Yamada^Tarou^^^^^L^A", "山田^太郎^^^^^L^I", "やまだ^たろう^^^^^L^P"]
    assert (only(message(), "PID").text(7), only(message(header=other), "PID").text(8)) == ("", ""), "no such day, sex"


def test_a_film_without_a_patients_number_gets_one_of_its_study() -> None:
    first, again = (written(header=samples.bare())[1] for _ in range(2))

    number, *others = only(read(first), "PID").components(3)
    assert first == again
    assert re.fullmatch(r"S[0-9A-F]{14}", number)
    assert others == ["", "", identity.PROGRAM, "U"]
    assert parse_message(first.decode(), validation_level=VALIDATION_LEVEL.STRICT).validate()


def test_the_same_report_is_the_same_message_at_any_time() -> None:
    report = samples.report(samples.several())
    later = dataclasses.replace(report, created_at=report.created_at + timedelta(hours=1))

    first, again, afterwards = written(report=report), written(report=report), written(report=later)

    assert first == again
    assert afterwards[0] == first[0]
    before, after = (read(content).header for _, content in (first, afterwards))
    assert (after.text(10) == before.text(10), after.text(7) == before.text(7)) == (True, False)


def test_whatever_is_said_otherwise_is_another_message() -> None:
    corrected = samples.cr()
    corrected.PatientName = "Other^Name"
    weaker = samples.film(findings=(samples.finding(probability=0.82),))
    unsure = samples.film(findings=(samples.finding(probability=0.82, state=FindingState.INDETERMINATE),))

    all_of_them = [
        *(written(), written(header=corrected), written(weaker), written(unsure)),
        *(written(order=ORDER), written(documents=())),
    ]

    numbers = [read(content).header.text(10) for _, content in all_of_them]
    assert len({output.sop_instance_uid for output, _ in all_of_them}) == len(set(numbers)) == len(all_of_them)
    assert {len(number) for number in numbers} == {20}
