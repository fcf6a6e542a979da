"""Who a result is of: identifiers whole or left out, orders of their own patient, studies with films of several."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from node.commands import read_files
from node.commands.explain.film import explain_file
from node.commands.explain.study import explain_uid
from node.config import SiteSettings
from node.deliver.hl7 import check_identifiers
from node.dicom.film_header import parse_header
from node.domain import OutputObject
from node.errors import GiveUp
from node.hl7.text import Message, read
from node.jobs.queue_places import queue_place, study_place
from node.orders.messages import read_orders
from node.orders.store import OrderStore
from node.outputs import oru
from node.outputs.patient import name_different, said_of_request
from node.outputs.sr import report as sr
from node.outputs.study_parts import divide, patients_of
from node.pipeline import Pipeline
from node.read import prompts
from node.rounds.films import FilmReader
from node.settings.destinations import Hl7Destination
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.spool import Spool
from node.web import studies
from tests.node.outputs.test_rejection import highdicom_note, rejected_uids, requested
from tests.node.test_metrics import samples as samples_of
from tests.support import films, samples, senders
from tests.support.documents import replaced
from tests.support.fakes import ScriptedReader
from tests.support.finished import pages_of, parts_of
from tests.support.service import settings_for

Changes = Mapping[str, object]
"""What is changed in a header, by keyword; None removes it."""

Place = tuple[str, int, int]
"""Segment, field and component of a message."""

STUDY: Final = str(films.thumbnail().StudyInstanceUID)
LONG: Final = "ACC-2026-1234567890"  # 19 characters, and SH holds 16
PROMPTS: Final = replace(prompts.load("chexpert14"), prompts=(prompts.load("chexpert14")["pneumothorax"],))


def header(changes: Changes) -> Dataset:
    return films.changed(samples.cr(1), changes)


def as_sr(source: Dataset) -> Dataset:
    [dataset] = samples.datasets(sr.write, samples.report(samples.film()), samples.sources(source), samples.BERLIN)
    return dataset


def as_message(source: Dataset) -> Message:
    report = samples.report(samples.film())
    _, content = oru.write(report, samples.sources(source), samples.BERLIN, order=None, documents=[])
    return read(content)


def said_in(message: Message, segment: str, field: int, component: int = 1) -> str:
    return next(message.named(segment)).text(field, component)


IN_MESSAGE: Final[dict[str, Place]] = {
    "PatientID": ("PID", 3, 1),
    "IssuerOfPatientID": ("PID", 3, 4),
    "PatientName": ("PID", 5, 1),
    "AccessionNumber": ("OBR", 18, 1),
    "StudyID": ("OBR", 19, 1),
}
# what a header says, what an object says then, and what a message says
COPIED: Final[dict[str, tuple[str, object, str, str]]] = {
    # character by character
    "two blanks after a letter": ("PatientID", "A  77", "A  77", "A  77"),
    "padding is none": ("PatientID", " A 77 ", "A 77", "A 77"),
    "small letters": ("PatientID", "a77", "a77", "a77"),
    "64 characters": ("PatientID", "9" * 64, "9" * 64, "9" * 64),
    "HL7 delimiters": ("PatientID", "A|7^7&~", "A|7^7&~", "A|7^7&~"),
    "blanks of an issuer": ("IssuerOfPatientID", "ST  JAMES", "ST  JAMES", "ST  JAMES"),
    "16 characters": ("AccessionNumber", "A" * 16, "A" * 16, "A" * 16),
    "blanks of a study id": ("StudyID", "S  1", "S  1", "S  1"),
    "blanks of a name": ("PatientName", "van  der  Meer^Jan", "van  der  Meer^Jan", "van  der  Meer"),
    # too long: whole in HL7 or nowhere
    "a long patient id": ("PatientID", "7" * 70, "", "7" * 70),
    "a long issuer": ("IssuerOfPatientID", "I" * 65, "", "I" * 65),
    "a long accession number": ("AccessionNumber", LONG, "", LONG),
    "a long study id": ("StudyID", "S" * 17, "", "S" * 17),
    "a long name": ("PatientName", "N" * 65, "", "N" * 65),
    # unusable: no part leaves
    "two patient ids": ("PatientID", ["P-1", "P-2"], "", ""),
    "a backslash at the end": ("PatientID", ["P-1", ""], "", ""),
    "a tab": ("PatientID", "A\t77", "", ""),
    "two issuers": ("IssuerOfPatientID", ["X", "Y"], "", ""),
    "two accession numbers": ("AccessionNumber", ["A-1", "A-2"], "", ""),
    "two names": ("PatientName", ["Doe^Jane", "Roe^Richard"], "", ""),
    "a name of six parts": ("PatientName", "a^b^c^d^e^f", "", ""),
    "a control character in a name": ("PatientName", "Doe\x07^Jane", "", ""),
}


@pytest.mark.parametrize(("keyword", "value", "in_sr", "in_hl7"), COPIED.values(), ids=COPIED)
def test_an_identifier_is_copied_character_by_character_or_left_out(
    keyword: str, value: object, in_sr: str, in_hl7: str
) -> None:
    source = header({keyword: value})

    assert str(as_sr(source).get(keyword, "")) == in_sr
    message = as_message(source)
    is_made_up = keyword == "PatientID" and said_in(message, "PID", 3, 4) == "ChEX Node"
    assert ("" if is_made_up else said_in(message, *IN_MESSAGE[keyword])) == in_hl7


def test_a_leaked_null_of_hl7_names_no_patient() -> None:
    message = as_message(header({"PatientID": '""', "PatientName": '""'}))

    assert next(message.named("PID")).fields[3].startswith("S")
    assert '""' not in next(message.named("PID")).fields[5]


# the number of a film, those of its requests, that in HL7, those in the objects
REQUESTS: Final = {
    "a long number of the film is not replaced": (LONG, ["B-2"], LONG, "B-2"),
    "that of the request": ("", ["B  2"], "B  2", "B  2"),
    "a long one of the request": ("", [LONG], LONG, ""),
    "a long one beside the film's": ("A-1", [LONG], "A-1", ""),
    "two are not chosen from": ("", ["A-1", "A-2"], "", "A-1 A-2"),
}


@pytest.mark.parametrize(("film", "of_requests", "in_hl7", "in_sr"), REQUESTS.values(), ids=REQUESTS)
def test_no_number_stands_in_for_one_that_is_too_long(
    film: str, of_requests: list[str], in_hl7: str, in_sr: str
) -> None:
    requests = [item for number in of_requests for item in requested(AccessionNumber=number)]
    source = header({"AccessionNumber": film, "RequestAttributesSequence": requests})

    assert said_in(as_message(source), "OBR", 18) == in_hl7
    found = as_sr(source).get("ReferencedRequestSequence", [])
    assert " ".join(str(item.AccessionNumber) for item in found) == in_sr


NOBODYS: Final = SiteSettings().nobodys


class Node:
    """One study on a spool, its orders, and the steps of its rounds."""

    def __init__(self, folder: Path, *kinds: str) -> None:
        self.spool, self.orders = Spool(folder), OrderStore(folder, nobodys=NOBODYS)
        self.ledger = Ledger(connect(folder / "ledger.sqlite"))
        pipeline = Pipeline(
            films=FilmReader(spool=self.spool, reader=ScriptedReader(), prompts=PROMPTS),
            orders=self.orders,
            zone=ZoneInfo("UTC"),
            kinds=kinds or ("sr", "gsps", "oru"),
        )
        destinations = [Hl7Destination(name=kind, host="127.0.0.1", port=1, outputs=(kind,)) for kind in pipeline.kinds]
        self.steps = senders.steps(pipeline, self.ledger, *destinations)

    def receive(self, name: str, **changes: object) -> str:
        """Receive a film; its SOP Instance UID."""
        film = films.as_another(films.thumbnail(changes), name)
        films.keep(self.spool, film, study_uid=STUDY)
        return str(film.SOPInstanceUID)

    def order(self, text: str) -> None:
        take(text, self.orders)

    def round(self) -> list[OutputObject]:
        senders.run_round(self.steps, STUDY)
        return list(self.spool.rounds(STUDY)[-1].outputs)

    def content(self, output: OutputObject) -> bytes:
        content = self.spool.output(output)
        assert content is not None
        return content

    def messages(self, outputs: Iterable[OutputObject]) -> list[Message]:
        return [read(self.content(output)) for output in outputs if output.kind == "oru"]

    def objects(self, outputs: Iterable[OutputObject], *kinds: str) -> list[Dataset]:
        return [dcmread(BytesIO(self.content(output))) for output in outputs if output.kind in kinds]


def take(text: str, orders: OrderStore) -> None:
    """Take a message of an information system, as the listener for orders does."""
    for change in read_orders(read(text.encode())):
        (orders.forget if change.is_cancelled else orders.keep)(change.order)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def order(
    accession: str = "A-17",
    patient: str = "P-1",
    *,
    placer: str = "PL1",
    study: str = "",
    priority: str = "R",
    control: str = "NW",
) -> str:
    """An ORM^O01; patient: PID-3."""
    segments = [
        r"MSH|^~\&|RIS|CLINIC|CHEX|XRAY|20240131||ORM^O01|C1|P|2.3.1",
        f"PID|1||{patient}",
        f"ORC|{control}|{placer}^RIS|F{placer}^RIS||||^^^^^{priority}",
        f"OBR|1|{placer}^RIS|F{placer}^RIS|XCHEST^Chest^L||||||||||||||{accession}|RP-3",
        *([f"ZDS|{study}^RIS^Application^DICOM"] if study else []),
    ]
    return "\r".join(segments)


# film, orders, the placer number of the order that its result answers
MATCHES: Final[dict[str, tuple[Changes, list[str], str]]] = {
    "cut at 16 another's": ({"AccessionNumber": LONG}, [order(LONG[:16], "P-2", placer="PL2"), order(LONG)], "PL1"),
    "cut at 16 alone": ({"AccessionNumber": LONG}, [order(LONG[:16])], ""),
    "blanks merged": ({"AccessionNumber": "A  17"}, [order("A 17")], ""),
    "another case": ({}, [order("a-17")], ""),
    "another patient": ({}, [order(patient="P-2")], ""),
    "another patient by study": ({}, [order("", "P-2", study=STUDY)], ""),
    "another patient after its own": ({}, [order(), order(patient="P-2", placer="PL2")], "PL1"),
    "another patient before its own": ({}, [order(patient="P-2", placer="PL2"), order()], "PL1"),
    "by study": ({}, [order("", study=STUDY)], "PL1"),
    "by study with another number": ({}, [order("A-18", study=STUDY)], ""),
    "patient with one blank less": ({"PatientID": "12  34"}, [order(patient="12 34")], ""),
    "a long patient id": ({"PatientID": "7" * 70}, [order(patient="7" * 70)], "PL1"),
    "one of several identifiers": ({}, [order(patient="X-9^^^OTHER~P-1^^^CLINIC")], "PL1"),
    "same authority": ({"IssuerOfPatientID": "CLINIC"}, [order(patient="P-1^^^CLINIC")], "PL1"),
    "its universal id": ({"IssuerOfPatientID": "1.2.3"}, [order(patient="P-1^^^CLINIC&1.2.3&ISO")], "PL1"),
    "another authority": ({"IssuerOfPatientID": "CLINIC"}, [order(patient="P-1^^^OTHER")], ""),
    "no authority in the order": ({"IssuerOfPatientID": "CLINIC"}, [order()], "PL1"),
    "no patient on the film": ({"PatientID": None}, [order()], ""),
    "no patient on the film by study": ({"PatientID": None}, [order("", study=STUDY)], ""),
    "two patient ids": ({"PatientID": ["P-1", "P-2"]}, [order()], ""),
    "cancelled": ({}, [order(), order(control="CA")], ""),
    "cancelled for another patient": ({}, [order(), order(patient="P-2", placer="PL2", control="CA")], "PL1"),
    "moved to another patient": ({}, [order(), order(patient="P-2")], ""),
    "changed": ({}, [order(), order(placer="PL3")], "PL3"),
    "two studies of one number": ({}, [order(study="1.2.3"), order(study="1.2.4", placer="PL2")], ""),
}


@pytest.mark.parametrize(("changes", "orders", "placer"), MATCHES.values(), ids=MATCHES)
def test_only_an_order_of_the_same_patient_is_answered(
    tmp_path: Path, changes: Changes, orders: list[str], placer: str
) -> None:
    store = OrderStore(tmp_path, nobodys=NOBODYS)
    for text in orders:
        take(text, store)
    film = header({"IssuerOfPatientID": None, "PatientID": "P-1", "AccessionNumber": "A-17", **changes})

    accession, patients = said_of_request(film, "AccessionNumber"), patients_of([film])
    found = store.find(study_uid=STUDY, accession=accession, patients=patients)

    assert (found.placer_number[0] if found else "") == placer


@pytest.mark.parametrize(("patient", "is_stat"), [("P-1", True), ("P-2", False), ("p-1", False)])
@pytest.mark.parametrize(("accession", "study"), [("A-17", ""), ("", STUDY)])
def test_a_stat_order_of_another_patient_hurries_nobody(
    tmp_path: Path, patient: str, is_stat: bool, accession: str, study: str
) -> None:
    node = Node(tmp_path)
    node.order(order(accession, patient, study=study, priority="S"))
    node.receive("film", PatientID="P-1", AccessionNumber="A-17")

    [film] = node.spool.instances(STUDY)
    place = study_place(node.spool, node.steps.pipeline.orders, STUDY, stat_seconds=60.0)
    assert place == queue_place(film.received_at, is_stat=is_stat, stat_seconds=60.0)


X: Final[Changes] = {
    "PatientID": "P-1",
    "PatientName": "Xiang^Xu",
    "PatientBirthDate": "19500101",
    "AccessionNumber": "A-1",
}
Y: Final[Changes] = {
    "PatientID": "P-2",
    "PatientName": "Yilmaz^Yasar",
    "PatientBirthDate": "19600101",
    "AccessionNumber": "A-2",
}
NOBODY: Final[Changes] = {**X, "PatientID": None, "PatientName": None, "PatientBirthDate": None}


def film_names(message: Message, uids: Mapping[str, str]) -> set[str]:
    """Name the films that a message is about, by their UIDs."""
    return {uids[segment.text(5)] for segment in message.named("OBX") if segment.text(3, 2) == oru.FILM[1]}


ROE: Final[Changes] = {**X, "PatientID": "UNKNOWN", "PatientName": "Roe^Jane"}
DOE: Final[Changes] = {**X, "PatientID": "UNKNOWN", "PatientName": "Doe^John", "PatientBirthDate": "19900101"}
X2: Final[Changes] = {**X, "AccessionNumber": "A-2"}
XIANG, YILMAZ = ({**NOBODY, "PatientName": name} for name in ("Xiang^Xu", "Yilmaz^Yasar"))
OF_G, OF_H = ({**X, "IssuerOfPatientID": issuer} for issuer in ("G", "H"))
UNREQUESTED, NOBODY_UNREQUESTED = ({**film, "AccessionNumber": ""} for film in (X, NOBODY))
LONG_1, LONG_2 = ({**X, "PatientID": f"{'7' * 70}{end}"} for end in "12")
BY_REQUEST_1, BY_REQUEST_2 = (
    {**UNREQUESTED, "RequestAttributesSequence": requested(AccessionNumber=number)} for number in ("A-1", "A-2")
)
# films; the parts, by their films; the films that belong to none
RULES: Final[dict[str, tuple[Mapping[str, Changes], str, str]]] = {
    "names do not count": ({"a": X, "b": {**X, "PatientName": "Xiang^X", "PatientBirthDate": ""}}, "ab", ""),
    "the case of a number counts": ({"a": X, "b": {**X, "PatientID": "p-1"}}, "a b", ""),
    "blanks inside count": ({"a": {**X, "PatientID": "12  3"}, "b": {**X, "PatientID": "12 3"}}, "a b", ""),
    "an issuer on one": ({"a": X, "b": OF_H}, "ab", ""),
    "another issuer": ({"a": OF_G, "b": OF_H}, "a b", ""),
    "no issuer beside two": ({"a": OF_G, "b": OF_H, "c": X}, "a b", "c"),
    "long numbers that differ at the end": ({"a": LONG_1, "b": LONG_2}, "a b", ""),
    "two values are another than the first": ({"a": X, "b": {**X, "PatientID": ["P-1", "P-2"]}}, "a b", ""),
    "a number that is null in HL7": ({"a": X, "b": {**NOBODY, "PatientID": '""'}}, "ab", ""),
    "nobody beside one": ({"a": X, "b": NOBODY}, "ab", ""),
    "nobody, with the name in capitals": ({"a": X, "b": {**NOBODY, "PatientName": "XIANG^XU^^"}}, "ab", ""),
    "nobody, with another name": ({"a": X, "b": YILMAZ}, "a", "b"),
    "nobody, with another date of birth": ({"a": X, "b": {**NOBODY, "PatientBirthDate": "19600101"}}, "a", "b"),
    "nobody, with another number": ({"a": X, "b": {**NOBODY, "AccessionNumber": "A-2"}}, "a", "b"),
    "nobody, with one of two numbers": ({"a": X, "b": X2, "c": NOBODY}, "ac b", ""),
    "nobody, without a number": ({"a": X, "b": NOBODY_UNREQUESTED}, "ab", ""),
    "nobody beside two numbers": ({"a": X, "b": X2, "c": NOBODY_UNREQUESTED}, "a b", "c"),
    "nobody, with the name of one of two": ({"a": X, "b": Y, "c": XIANG}, "a b", "c"),
    "another accession number": ({"a": X, "b": X2}, "a b", ""),
    "another patient, the same accession number": ({"a": X, "b": {**Y, "AccessionNumber": "A-1"}}, "a b", ""),
    "no number beside one": ({"a": X, "b": UNREQUESTED}, "ab", ""),
    "no number beside two": ({"a": X, "b": X2, "c": UNREQUESTED}, "a b c", ""),
    "no number of the other patient": ({"a": X, "b": {**Y, "AccessionNumber": ""}}, "a b", ""),
    "numbers in the requests": ({"a": BY_REQUEST_1, "b": BY_REQUEST_2}, "a b", ""),
    "nobody at all": ({"a": NOBODY, "b": NOBODY}, "ab", ""),
    "names alone": ({"a": XIANG, "b": YILMAZ}, "a b", ""),
    "names alone, and nobody": ({"a": XIANG, "b": YILMAZ, "c": NOBODY}, "a b", "c"),
    "a number that is nobody's, twice": ({"a": ROE, "b": {**DOE, "PatientID": "unknown "}}, "a b", ""),
    "a number that is nobody's beside one": ({"a": X, "b": {**X, "PatientID": "UNKNOWN"}}, "ab", ""),
    "a number that is nobody's beside another": ({"a": X, "b": ROE}, "a", "b"),
}


@pytest.mark.parametrize(("headers", "parts", "unclear"), RULES.values(), ids=RULES)
def test_films_are_divided_by_patient_and_number(headers: Mapping[str, Changes], parts: str, unclear: str) -> None:
    found = divide(
        STUDY,
        {name: header({"IssuerOfPatientID": None, **changes}) for name, changes in headers.items()},
        nobodys=NOBODYS,
    )

    assert " ".join(sorted("".join(part.films) for part in found.parts)) == parts
    assert "".join(sorted(found.unclear)) == unclear
    names = {part.name for part in found.parts}
    assert len(names) == len(found.parts) and ("" in names) == (len(names) == 1)


def patient_of(dataset: Dataset) -> tuple[str, str, str]:
    return str(dataset.PatientID), str(dataset.PatientName), str(dataset.AccessionNumber)


def test_no_object_of_a_patient_names_or_shows_another_also_when_it_is_written_again(tmp_path: Path) -> None:
    node = Node(tmp_path, "sr", "sr3d", "text", "gsps", "sc", "oru")
    own = {node.receive("x1", **X): "P-1", node.receive("x2", **X): "P-1", node.receive("y1", **Y): "P-2"}
    node.order(order("A-1", "P-9"))
    node.order(order("A-2", "P-2", placer="PL2"))
    outputs = node.round()
    for counter in ("cxr_orders_unmatched_total", "cxr_studies_divided_total"):
        assert samples_of(node.steps.metrics.registry, counter) == {(): 1.0}

    objects = node.objects(outputs, "sr", "sr3d", "text", "gsps", "sc")

    assert {patient_of(dataset) for dataset in objects} == {("P-1", "Xiang^Xu", "A-1"), ("P-2", "Yilmaz^Yasar", "A-2")}
    for dataset in objects:
        shown = {patient for uid, patient in own.items() if uid.encode() in films.file_bytes(dataset)}
        assert shown == {dataset.PatientID}
    for message in node.messages(outputs):
        assert said_in(message, "ORC", 2) == {"P-1": "", "P-2": "PL2"}[said_in(message, "PID", 3)]
        assert {own[name] for name in film_names(message, dict(zip(own, own, strict=True)))} == {
            said_in(message, "PID", 3)
        }
        reports = {segment.text(5) for segment in message.named("OBX") if segment.text(2) == "HD"}
        assert reports == {
            str(dataset.SOPInstanceUID)
            for dataset in objects
            if dataset.Modality == "SR" and dataset.PatientID == said_in(message, "PID", 3)
        }

    before = {output: node.content(output) for output in outputs}
    for path in (node.spool.received_path(STUDY, "").parent / "outputs").iterdir():
        path.unlink()
    node.steps.pipeline.rewrite(STUDY)
    assert {output: node.content(output) for output in before} == before


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({**X, "PatientBirthDate": ""}, {**X, "PatientID": "UNKNOWN"}, [("Xiang", "A-1")]),
        ({**UNREQUESTED, "IssuerOfPatientID": "CLINIC"}, X, [("Xiang", "A-1")]),
        ({**X, "PatientID": None}, {**Y, "PatientID": None}, [("Xiang", "A-1"), ("Yilmaz", "A-2")]),
    ],
    ids=["not the number of nobody", "the film with the accession number", "nameless patients are not one"],
)
def test_the_film_that_names_most_describes_the_patient(
    tmp_path: Path, first: Changes, second: Changes, expected: list[tuple[str, str]]
) -> None:
    node = Node(tmp_path, "oru")
    node.receive("a", **first)
    node.receive("b", **second)

    messages = node.messages(node.round())

    assert sorted((said_in(message, "PID", 5), said_in(message, "OBR", 18)) for message in messages) == expected
    numbers = {said_in(message, "PID", 3) for message in messages}
    assert numbers == {"P-1"} if first["PatientID"] else len(numbers) == 2


def test_a_film_of_either_patient_is_parked_and_read_again_by_retry_alone_or_when_it_is_corrected(node: Node) -> None:
    for name, changes in (("x", X), ("y", Y), ("nobody", NOBODY)):
        node.receive(name, **changes)
    first = node.round()
    assert sorted(said_in(message, "PID", 3) for message in node.messages(first)) == ["P-1", "P-2"]
    assert node.ledger.study_state(STUDY) == "parked"
    [work] = node.ledger.parked()
    assert work.reason.startswith("patient_unclear: ") and received("nobody", NOBODY).SOPInstanceUID in work.reason
    assert [instance.path.name for instance in node.spool.unread(STUDY)] == list(node.spool.rounds(STUDY)[-1].parked)
    assert node.round() == first
    assert node.ledger.study_state(STUDY) == "parked"
    node.receive("nobody", **X)

    second = node.round()

    assert node.ledger.study_state(STUDY) == "finished"
    assert len(node.messages(first)) == len(node.messages(second)) == 2
    new = [output for output in second if output not in first]
    assert {patient_of(dataset)[0] for dataset in node.objects(new, "sr", "gsps", "sc")} == {"P-1"}


def test_a_report_replaces_only_reports_on_its_own_patient(node: Node) -> None:
    for name, changes in (("x1", X), ("x2", X), ("y1", Y), ("y2", Y)):
        node.receive(name, **changes)
    first = {str(dataset.SOPInstanceUID): dataset for dataset in node.objects(node.round(), "sr")}
    for name, changes in (("x3", X), ("y3", Y)):
        node.receive(name, **changes)

    second = node.objects(node.round(), "sr")

    before = [dataset for dataset in first.values() if dataset.SeriesNumber == 9003]
    assert len({dataset.SeriesInstanceUID for dataset in before}) == len(before) == 2
    assert all(parse_header(dataset).is_own for dataset in before)
    of_study = [dataset for dataset in second if dataset.SeriesNumber == 9003]
    assert {dataset.SeriesInstanceUID for dataset in of_study} == {dataset.SeriesInstanceUID for dataset in before}
    assert [len(replaced(dataset)) for dataset in of_study] == [1] * 4  # each twice: `writers.first_of_series`
    for dataset in second:
        assert {patient_of(first[uid]) for uid in replaced(dataset)} <= {patient_of(dataset)}


def received(name: str, changes: Changes) -> Dataset:
    return films.as_another(films.thumbnail(changes), name)


def test_a_second_patient_changes_nothing_and_stays_while_the_first_is_withdrawn(node: Node) -> None:
    node.receive("x", **X)
    first = node.round()
    node.receive("y", **Y)
    second = node.round()
    assert set(first) < set(second)
    before = {said_in(message, "PID", 3): message for message in node.messages(second)}
    films.keep(node.spool, highdicom_note(received("x", X)), study_uid=STUDY)

    after = {said_in(message, "PID", 3): message for message in node.messages(node.round())}

    assert {patient: said_in(message, "OBR", 25) for patient, message in after.items()} == {"P-1": "X", "P-2": "P"}
    result, withdrawn = before["P-1"], after["P-1"]
    assert {item.text(11) for item in withdrawn.named("OBX")} == {"W"}
    observed = [[(item.text(3), item.text(4)) for item in message.named("OBX")] for message in (result, withdrawn)]
    assert observed[0] == observed[1]
    for segment, field in (("PID", 5), ("OBR", 2), ("OBR", 3), ("OBR", 4), ("OBR", 18)):
        assert said_in(withdrawn, segment, field) == said_in(result, segment, field)


def test_a_rejected_patient_is_withdrawn_beside_one_with_the_number_of_another_issuer(node: Node) -> None:
    ward, clinic = ({**UNREQUESTED, "IssuerOfPatientID": issuer} for issuer in ("WARD", "CLINIC"))
    for name, changes in (("clinic", clinic), ("ward", ward), ("no issuer", X)):
        node.receive(name, **changes)
    node.round()
    films.keep(node.spool, highdicom_note(received("ward", ward)), study_uid=STUDY)

    withdrawn, result = node.messages(node.round())

    assert [said_in(message, "OBR", 25) for message in (withdrawn, result)] == ["X", "P"]
    assert said_in(withdrawn, "PID", 3, 4) == "WARD"


@pytest.mark.parametrize(
    ("sent", "late"),
    [({"wrong": Y}, {"right": X}), ({"wrong": Y, "right": X, "unclear": NOBODY}, {})],
    ids=["it comes again under the right patient", "a parked film may be of the right patient alone by now"],
)
def test_films_of_the_right_patient_are_reported_once_the_wrong_one_is_rejected(
    node: Node, sent: Mapping[str, Changes], late: Mapping[str, Changes]
) -> None:
    for name, changes in sent.items():
        node.receive(name, **changes)
    wrong = {str(each.SOPInstanceUID) for each in node.objects(node.round(), "sr") if each.PatientID == "P-2"}
    films.keep(node.spool, highdicom_note(received("wrong", Y)), study_uid=STUDY)
    for name, changes in late.items():
        node.receive(name, **changes)

    outputs = node.round()

    messages = [(said_in(message, "PID", 3), said_in(message, "OBR", 25)) for message in node.messages(outputs)]
    assert messages == [("P-2", "X"), ("P-1", "P")]
    assert node.ledger.study_state(STUDY) == "finished"
    reports = node.objects(outputs, "sr")
    assert {report.PatientID for report in reports} == {"P-1"}
    assert wrong and wrong.isdisjoint(uid for report in reports for uid in replaced(report))


def test_a_film_of_nobodys_number_that_is_anothers_by_now_replaces_no_report(node: Node) -> None:
    node.receive("film", **ROE)
    first = node.round()
    node.receive("film", **{**DOE, "AccessionNumber": ""})

    second = node.round()

    new = [output for output in second if output not in first]
    assert [replaced(dataset) for dataset in node.objects(new, "sr")] == [[]]
    old = {str(dataset.SOPInstanceUID) for dataset in node.objects(first, "sr", "gsps")}
    assert set[str]().union(*map(rejected_uids, node.objects(new, "rejection"))) == old
    messages = [(said_in(message, "PID", 5), said_in(message, "OBR", 25)) for message in node.messages(new)]
    assert messages == [("Doe", "P")], "it takes the place of the other: a receiver has both under the same number"


def test_a_note_about_two_patients_is_answered_by_two(node: Node) -> None:
    node.receive("x", **X)
    node.receive("y", **Y)
    written = node.objects(node.round(), "sr", "gsps", "sc")
    films.keep(node.spool, highdicom_note(received("x", X), received("y", Y)), study_uid=STUDY)

    outputs = node.round()

    notes = node.objects(outputs, "rejection")
    assert {patient_of(dataset)[0] for dataset in notes} == {"P-1", "P-2"}
    for patient in ("P-1", "P-2"):  # each receiver has a note of its own
        own = {str(other.SOPInstanceUID) for other in written if other.PatientID == patient}
        of_patient = [dataset for dataset in notes if dataset.PatientID == patient]
        assert set[str]().union(*map(rejected_uids, of_patient)) == own
    assert {said_in(message, "OBR", 25) for message in node.messages(outputs)} == {"X"}


def test_files_of_two_patients_are_read_into_two_reports(tmp_path: Path) -> None:
    names = {"x1": X, "x2": X, "y1": Y, "y2": Y, "nobody": NOBODY}
    for name, changes in names.items():
        (tmp_path / name).write_bytes(films.file_bytes(received(name, changes)))
    reader = read_files.FileReader(reader=ScriptedReader(), prompts=PROMPTS, zone=ZoneInfo("UTC"))

    [content] = reader.read(read_files.collect([tmp_path / name for name in names]), tmp_path / "out")

    reports = [dcmread(path) for path in (tmp_path / "out" / STUDY).glob("study.*.sr.dcm")]
    assert sorted(map(patient_of, reports)) == [("P-1", "Xiang^Xu", "A-1"), ("P-2", "Yilmaz^Yasar", "A-2")]
    found = json.loads(json.dumps(content))
    assert [film["reason"] for film in found["films"] if film["status"] == "not_processed"] == ["patient_unclear"]
    assert [len(part) for part in found["parts"]] == [2, 2, 1]


def test_pages_and_explain_tell_the_parts_of_a_study(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=104)
    node = Node(settings.storage.directory)
    uids = {name: node.receive(name, **of) for name, of in {"x1": X, "x2": X, "y": Y, "nobody": NOBODY}.items()}
    node.round()
    parts = parts_of(settings, node.spool)
    browser = pages_of(parts, user="reader")

    found = studies.study(parts, STUDY)
    told = explain_uid(STUDY, settings)
    pages = {name: browser.get(f"/studies/{STUDY}?film={uid}").text for name, uid in uids.items()}

    assert found is not None
    known, _films = found
    assert {frozenset(part) for part in known.parts} == {frozenset((uids["x1"], uids["x2"])), frozenset((uids["y"],))}
    assert {film.uid: film.status for film in known.films}[uids["nobody"]] == "not_processed"
    of_parts = {(output.kind, output.films) for output in known.outputs if output.films}
    both = tuple(sorted((uids["x1"], uids["x2"])))
    assert of_parts == {("oru", both), ("oru", (uids["y"],)), ("sr", both)}
    assert {film.film: film.outcome for film in told.received}[uids["nobody"]] == "read, not reported (patient_unclear)"
    assert [len(finished.parts) for finished in told.rounds] == [2]
    named = [{patient for patient in ("P-1", "P-2") if patient in pages[name]} for name in ("x1", "x2", "y")]
    assert named == [{"P-1"}, {"P-1"}, {"P-2"}]
    assert all("The films of this study name 2 patients or accession numbers" in page for page in pages.values())
    assert len(browser.get(f"/api/v1/studies/{STUDY}").json()["parts"]) == 2


@pytest.mark.parametrize(
    ("changes", "character_set", "is_sent"),
    [
        ({"PatientID": "Ä-1"}, "ASCII", False),
        ({"PatientID": "Ä-1"}, "8859/1", True),
        ({"PatientID": "Ł-1"}, "8859/1", False),
        ({"AccessionNumber": "Ä-1"}, "ASCII", False),
        ({"PatientName": "Müller"}, "ASCII", True),  # a name with a question mark is no other patient's number
        ({"PatientID": "Ä-1"}, "UNICODE UTF-8", True),
    ],
)
def test_no_character_of_an_identifier_becomes_another(
    changes: dict[str, str], character_set: str, is_sent: bool
) -> None:
    source, report = header({"SpecificCharacterSet": "ISO_IR 192", **changes}), samples.report(samples.film())
    _, content = oru.write(report, samples.sources(source), samples.BERLIN, order=None, documents=[])
    destination = Hl7Destination(name="ris", host="127.0.0.1", port=1, character_set=character_set)

    with nullcontext() if is_sent else pytest.raises(GiveUp, match="a character that the character_set of ris lacks"):
        check_identifiers(content, destination)


# what the second of two films says at first, and what its next version says; the messages then
STAYS: Final = ("P-1", "A-1", "P")
MOVED: Final[dict[str, tuple[Changes, Changes, list[tuple[str, str, str]]]]] = {
    "another patient": (X, Y, [STAYS, ("P-2", "A-2", "P")]),
    "a third patient": (Y, {**Y, "PatientID": "P-3"}, [("P-2", "A-2", "X"), STAYS, ("P-3", "A-2", "P")]),
    "the patient of the other": (Y, X, [("P-2", "A-2", "X"), STAYS]),
    "another request": (
        X2,
        {**X, "AccessionNumber": "A-3"},
        [("P-1", "A-2", "X"), STAYS, ("P-1", "A-3", "P")],
    ),
    "another name": (Y, {**Y, "PatientName": "Yilmaz^Y"}, [STAYS, ("P-2", "A-2", "P")]),
    "unclear by now": (X2, YILMAZ, [("P-1", "A-2", "X"), STAYS]),
}


@pytest.mark.parametrize(("first", "corrected", "messages"), MOVED.values(), ids=MOVED)
def test_a_result_of_another_patient_is_withdrawn(
    tmp_path: Path, first: Changes, corrected: Changes, messages: list[tuple[str, str, str]]
) -> None:
    node = Node(tmp_path, "oru")
    node.order(order("A-2", "P-2"))
    for name, changes in (("stays", X), ("moves", first)):
        node.receive(name, **changes)
    node.round()
    node.receive("moves", **corrected)

    written = node.messages(node.round())
    node.receive("late", **corrected)
    later = node.messages(node.round())

    fields = (("PID", 3), ("OBR", 18), ("OBR", 25))
    said = [tuple(said_in(message, *field) for field in fields) for message in written]
    assert sorted(said, key=lambda found: (found[2] == "P", found)) == messages
    statuses = [status for *_, status in said]
    assert statuses == sorted(statuses, reverse=True), "first what is void"
    placers = {said_in(message, "ORC", 2) for message in written if said_in(message, "PID", 3) != "P-2"}
    assert placers <= {""}, "no other patient's order"
    assert all(said_in(message, "OBR", 25) == "P" for message in later), "once"


def test_a_number_that_is_left_out_is_noted_everywhere(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", "sr", "gsps", "oru")
    uid = node.receive("film", PatientID="7" * 70)
    path = films.saved(tmp_path, received("film", {"PatientID": "7" * 70}))

    outputs = node.round()

    objects = [*map(films.file_bytes, node.objects(outputs, "sr", "gsps")), *map(node.content, outputs)]
    assert all(b"DICOM objects leave an identifier empty" in said.replace(b"\r\n", b" ") for said in objects)
    assert not any(b"7777" in films.file_bytes(dataset) for dataset in node.objects(outputs, "sr", "gsps"))
    [film] = studies.received_films(STUDY, node.spool, PROMPTS)
    assert film.instance.sop_instance_uid == uid
    assert film.film is not None and "identifier_left_out" in film.film.notes
    assert "identifier_left_out" in explain_file(path, model=tmp_path / "no model").notes


def test_of_two_numbers_each_needs_an_order_that_names_it(node: Node) -> None:
    for text in (order("", "P-1", study=STUDY), order("A-2", "P-1", placer="PL2", study="1.2.3")):
        node.order(text)
    for name, changes in (("a", X), ("b", {**X, "AccessionNumber": "A-2"}), ("c", {**X, "AccessionNumber": ""})):
        node.receive(name, **changes)

    messages = node.messages(node.round())

    assert {(said_in(message, "OBR", 18), said_in(message, "ORC", 2)) for message in messages} == {
        ("A-1", ""),
        ("A-2", "PL2"),
        ("", ""),
    }


def test_films_name_different_patients_only_by_what_both_state() -> None:
    film = films.thumbnail({"PatientSex": "F", "PatientBirthDate": "19900101"})
    unknown = {"PatientID": None, "PatientName": "", "PatientBirthDate": "unknown", "PatientSex": "?"}
    assert not name_different(film, film) and not name_different(film, films.changed(deepcopy(film), unknown))
    for keyword, value in (
        ("PatientID", "another"),
        ("PatientName", "Another^Name"),
        ("PatientBirthDate", "19010101"),
        ("PatientSex", "O"),
    ):
        assert name_different(film, films.changed(deepcopy(film), {keyword: value}))
