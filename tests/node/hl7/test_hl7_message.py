"""The message of a report, read back by two readers that the node did not write."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta

import hl7
import pytest
from hl7apy.consts import VALIDATION_LEVEL
from hl7apy.parser import parse_message
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from models.contract import FindingState
from node.dicom import identity
from node.domain import Code, Film, Finding, OutputObject, Report
from node.hl7.order import Order
from node.hl7.text import Message, Segment, printable, read
from node.outputs import impression, oru, vocabulary
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
def test_hl7apy_finds_nothing_wrong_with_it(films: tuple[Film, ...]) -> None:
    _, content = written(*films, order=ORDER)

    found = parse_message(content.decode(), validation_level=VALIDATION_LEVEL.STRICT)

    assert found.validate()
    assert found.to_er7() + "\r" == content.decode()


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


def test_another_reader_finds_the_same() -> None:
    _, content = written(header=samples.cr())

    found = hl7.parse(content.decode())

    assert str(found.segment("MSH")[9]) == "ORU^R01^ORU_R01"
    assert str(found.segment("PID")[3]) == "4711^^^CLINIC^PI"
    assert [str(segment[2]) for segment in found.segments("OBX")] == [
        segment.text(2) for segment in read(content).named("OBX")
    ]


def test_the_header_says_version_character_set_and_local_time() -> None:
    header = message().header

    assert [header.text(field) for field in (7, 11, 12, 18)] == [
        "20240201003015+0100", "P", "2.5.1", "UNICODE UTF-8"
    ]  # fmt: skip


def test_the_impression_comes_first_and_all_is_preliminary() -> None:
    whole = message(samples.several(), samples.unread(2))
    all_of_them = list(whole.named("OBX"))

    assert all_of_them[0].components(3) == ("19005-8", "Impressions", "LN")
    assert all_of_them[0].text(5) == f"{identity.RESEARCH_LABEL}: Film 1 of 2:"
    said = " ".join(line.strip() for line in lines(whole, "19005-8"))
    assert said.endswith(
        " ".join(map(str.strip, impression.of_report(samples.report(samples.several(), samples.unread(2)))))
    )
    assert [segment.text(1) for segment in all_of_them] == [str(number) for number in range(1, len(all_of_them) + 1)]
    assert {segment.text(11) for segment in all_of_them} == {"P"}
    assert only(whole, "OBR").text(25) == "P"


def test_every_finding_names_its_state_probability_and_film() -> None:
    whole = message(samples.unread(1), samples.several())
    findings = samples.several().findings

    coded, numbers = observations(whole, "CWE"), observations(whole, "NM")
    states = {
        FindingState.PRESENT: "Present",
        FindingState.INDETERMINATE: "Indeterminate",
        FindingState.ABSENT: "Not reported, may have been missed",
    }
    by_urgency = vocabulary.by_urgency(findings)
    assert [segment.text(3) for segment in coded] == [finding.code.value for finding in by_urgency]
    assert [segment.text(5, 2) for segment in coded] == [states[finding.state] for finding in by_urgency]
    assert [segment.text(5) for segment in numbers] == ["4", "83", "41", "50"]
    assert {segment.components(6) for segment in numbers} == {("%", "percent", "UCUM")}
    assert {segment.text(4) for segment in (*coded, *numbers)} == {"2"}


@pytest.mark.parametrize(
    ("code", "state", "flag"),
    [
        (samples.PNEUMOTHORAX, FindingState.PRESENT, "AA"),
        (samples.EFFUSION, FindingState.PRESENT, "A"),
        (samples.DEVICES, FindingState.PRESENT, ""),
        (samples.PNEUMOTHORAX, FindingState.INDETERMINATE, ""),
    ],
)
def test_only_the_state_of_a_present_finding_is_flagged(code: Code, state: FindingState, flag: str) -> None:
    whole = message(samples.film(findings=(samples.finding(code, state=state),)))

    flags = [(segment.text(2), segment.text(8)) for segment in whole.named("OBX")]
    assert [found for kind, found in flags if kind == "CWE"] == [flag]
    assert {found for kind, found in flags if kind != "CWE"} == {""}


def test_an_absent_finding_never_reads_as_normal() -> None:
    whole = message(samples.film(findings=(samples.absent(),)))

    (coded,) = observations(whole, "CWE")
    assert coded.text(5, 9) == "Not reported (below threshold, may have been missed)"
    assert not any(segment.text(8) for segment in whole.named("OBX"))  # no flag: N would be normal
    said = " ".join(segment.text(5).strip() for segment in observations(whole, "TX"))
    assert "This is not a report of a normal film" in said
    assert said.lower().count("normal") == said.count("not a report of a normal film")


@pytest.mark.parametrize(
    ("found", "said", "words"),
    [
        (samples.left_out(), ("NOTASSESSED",), "Not evaluated by this model"),
        (samples.uncalibrated(), ("NOTCALIBRATED", "Review, not calibrated", "99CHEX"), "Possible, please review"),
    ],
)
def test_what_the_model_leaves_out_or_nobody_measured_says_so(
    found: Finding, said: tuple[str, ...], words: str
) -> None:
    whole = message(samples.film(findings=(found,)))

    (coded,) = observations(whole, "CWE")
    assert tuple(coded.text(5, part) for part in range(1, len(said) + 1)) == said
    assert coded.text(5, 9).startswith(words)
    assert bool(observations(whole, "NM")) is (found.state is not FindingState.LEFT_OUT)


def test_the_analyzed_square_and_the_sentences_are_told() -> None:
    whole = message()

    report = lines(whole, "18748-4")
    assert "Analyzed was the square of columns 120 to 1880, rows 0 to 1760" in " ".join(map(str.strip, report))
    assert any("Small right pleural effusion." in line for line in report)
    assert all(0 < len(segment.text(5)) <= 90 for segment in observations(whole, "TX"))
    assert not any("~" in segment.fields[5] for segment in whole.named("OBX"))  # some receivers show the first only


def test_no_two_observations_have_the_same_code_and_sub_id() -> None:
    whole = message(samples.several(), samples.unread(2), samples.film(3, findings=(samples.finding(),)))

    named = [(segment.fields[3], segment.text(4)) for segment in whole.named("OBX")]

    assert len(set(named)) == len(named)
    films = [segment for segment in observations(whole, "ST") if segment.text(3, 2) == "Film SOP Instance UID"]
    assert [(segment.text(4), segment.text(5)) for segment in films] == [
        (str(number), samples.film_uid(number)) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("state", FindingState)
def test_a_probability_has_the_same_code_in_every_state(state: FindingState) -> None:
    (number,) = observations(message(samples.film(findings=(samples.finding(state=state),))), "NM")

    assert number.components(3) == ("P60046008", "Pleural effusion, AI probability", "99CHEX")
    assert (number.text(5), number.text(6)) == ("83", "%")


def test_each_observation_has_the_time_of_the_films_and_the_report_is_named() -> None:
    (reference,) = observations(message(), "HD")

    assert {segment.text(14) for segment in message().named("OBX")} == {"20240131101530+0100"}
    assert {segment.text(14) for segment in message(header=samples.bare()).named("OBX")} == {""}
    hour = samples.cr()
    hour.StudyTime = "10"
    assert {segment.text(14) for segment in message(header=hour).named("OBX")} == {"20240131"}, "HL7 asks for minutes"
    device = ("", "", identity.device_uid(samples.MODEL), "ISO")
    assert {segment.components(18) for segment in message().named("OBX")} == {device}
    assert (reference.text(3, 2), reference.text(5)) == ("SR Instance UID", "2.25.77")
    assert observations(read(written(documents=())[1]), "HD") == []


def test_order_numbers_come_from_the_order_or_else_the_film() -> None:
    header = samples.cr()
    request = Dataset()
    request.RequestedProcedureID = "RP-3"
    request.RequestedProcedureCodeSequence = [Dataset()]
    code = request.RequestedProcedureCodeSequence[0]
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "XCHEST", "99LOCAL", "Chest, 1 view"
    header.RequestAttributesSequence = [request]
    header.PlacerOrderNumberImagingServiceRequest = "PLACER"

    own, ordered = message(header=header), message(header=header, order=ORDER)

    for name in ("ORC", "OBR"):
        assert (only(own, name).text(2), only(own, name).text(3)) == ("PLACER", "A-17")
        assert only(ordered, name).components(2) == ("P|1", "RIS")
        assert only(ordered, name).components(3) == ("F-9", "", "1.2.3", "ISO")
    request_said = only(own, "OBR")
    assert request_said.components(4) == ("XCHEST", "Chest, 1 view", "99LOCAL")
    assert (request_said.text(18), request_said.text(19)) == ("A-17", "RP-3")
    assert request_said.text(7) == "20240131101530+0100"


def test_a_patient_is_named_as_the_standard_has_it() -> None:
    scripts = only(message(header=samples.named("chrH31.dcm")), "PID").fields[5]
    titled = samples.cr()
    titled.PatientName, titled.PatientBirthDate = "Adams^John^Robert^Rev.^B.A.", "19500228"
    unknown, other = only(message(header=samples.bare()), "PID"), samples.cr()
    other.PatientSex = "X"

    assert scripts.split("~") == ["Yamada^Tarou^^^^^L^A", "山田^太郎^^^^^L^I", "やまだ^たろう^^^^^L^P"]
    known = only(message(header=titled), "PID")
    assert (known.text(7), known.text(8)) == ("19500228", "M")
    assert known.components(5) == (
        "Adams",
        "John",
        "Robert",
        "B.A.",
        "Rev.",
        "",
        "L",
        "A",
    )
    assert (unknown.text(7), unknown.text(8), unknown.components(5)[6]) == ("", "", "U")
    assert only(message(header=other), "PID").text(8) == ""


def test_a_film_without_a_patients_number_gets_one_of_its_study() -> None:
    first, again = (only(message(header=header), "PID").components(3) for header in (samples.bare(), samples.bare()))

    number, *others = first
    assert first == again
    assert re.fullmatch(r"S[0-9A-F]{14}", number)
    assert others == ["", "", identity.PROGRAM, "U"]
    (_, content) = written(header=samples.bare())
    assert parse_message(content.decode(), validation_level=VALIDATION_LEVEL.STRICT).validate()


def test_the_same_report_is_the_same_message_at_any_time() -> None:
    report = samples.report(samples.several())
    later = dataclasses.replace(report, created_at=report.created_at + timedelta(hours=1))

    first, again, afterwards = written(report=report), written(report=report), written(report=later)

    assert first == again
    assert afterwards[0] == first[0]
    assert read(afterwards[1]).header.text(10) == read(first[1]).header.text(10)
    assert read(afterwards[1]).header.text(7) != read(first[1]).header.text(7)


def test_whatever_is_said_otherwise_is_another_message() -> None:
    corrected = samples.cr()
    corrected.PatientName = "Other^Name"
    weaker = samples.film(findings=(samples.finding(probability=0.82),))
    unsure = samples.film(findings=(samples.finding(probability=0.82, state=FindingState.INDETERMINATE),))

    all_of_them = [
        written(), written(header=corrected), written(weaker), written(unsure), written(order=ORDER),
        written(documents=()),
    ]  # fmt: skip

    assert len({output.sop_instance_uid for output, _ in all_of_them}) == len(all_of_them)
    assert len({read(content).header.text(10) for _, content in all_of_them}) == len(all_of_them)
    assert all(len(read(content).header.text(10)) == 20 for _, content in all_of_them)


@settings(max_examples=25)
@given(st.text(min_size=1, max_size=30))
def test_any_text_arrives_as_it_was_said(text: str) -> None:
    order = Order(accession="A-17", placer_number=(text, "RIS"))

    whole = message(samples.unread(1), order=order)

    assert only(whole, "ORC").components(2) == (printable(text).strip(), "RIS")
    assert only(whole, "OBR").components(2) == (printable(text).strip(), "RIS")


@pytest.mark.parametrize(
    ("own", "requested", "ordered", "expected"),
    [("", None, "A-17", "A-17"), ("A-18", None, "A-17", "A-18"), ("", "A-18", None, "A-18")],
)
def test_the_accession_number_is_that_of_the_film_its_request_or_the_order(
    own: str, requested: str | None, ordered: str | None, expected: str
) -> None:
    header = samples.cr()
    header.AccessionNumber = own
    if requested is not None:
        request = Dataset()
        request.AccessionNumber = requested
        header.RequestAttributesSequence = [request]
    order = None if ordered is None else Order(accession=ordered, placer_number=("P1",))

    whole = message(header=header, order=order)

    assert only(whole, "OBR").text(18) == expected
    assert only(whole, "ORC").text(3) == only(whole, "OBR").text(3)
