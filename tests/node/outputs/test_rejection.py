"""Rejection notes (IHE RAD-66): what the node then reads, rejects of its own, sends and shows."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Final

import highdicom
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.sr.coding import Code
from pydicom.uid import ExplicitVRLittleEndian, KeyObjectSelectionDocumentStorage

from node.commands.explain.study import explain_uid
from node.dicom import rejection_note
from node.dicom.question_object import class_of
from node.domain import Delivery, DeliveryState, OutputObject
from node.hl7.text import read
from node.outputs import rejection
from node.outputs.study_parts import divide
from node.service.worker import deliveries_of_study
from node.settings.destinations import DicomDestination
from node.store.spool import Spool
from node.store.study_facts import rejections_of
from tests.node.jobs.test_rounds import STUDY, Bench, film
from tests.node.test_metrics import samples as metrics_in
from tests.support import films, peers, validators
from tests.support.documents import replaced
from tests.support.finished import pages_of, parts_of
from tests.support.orthanc import beside_node
from tests.support.service import Service, settings_for

Changes = Mapping[str, object]
"""What is changed in a header, by keyword; None removes it."""

_DUMP = """
(0008,0016) UI [1.2.840.10008.5.1.4.1.1.88.59]
(0008,0018) UI [{uid}]
(0008,0060) CS [KO]
(0010,0010) PN [WRONG^PATIENT]
(0010,0020) LO [{patient}]
(0020,000d) UI [{study}]
(0020,000e) UI [1.2.3.4.5]
(0020,0013) IS [1]
(0040,a040) CS [CONTAINER]
(0040,a043) SQ
(fffe,e000) na
(0008,0100) SH [{title}]
(0008,0102) SH [DCM]
(0008,0104) LO [rejected]
(fffe,e00d) na
(fffe,e0dd) na
(0040,a375) SQ
(fffe,e000) na
(0008,1115) SQ
(fffe,e000) na
(0008,1199) SQ
(fffe,e000) na
(0008,1150) UI [1.2.840.10008.5.1.4.1.1.1]
(0008,1155) UI [{film}]
(fffe,e00d) na
(fffe,e0dd) na
(0020,000e) UI [1.2.3.4.6]
(fffe,e00d) na
(fffe,e0dd) na
(0020,000d) UI [{study}]
(fffe,e00d) na
(fffe,e0dd) na
"""


def dcmtk_note(
    folder: Path, rejected: Dataset, *, title: str = "113038", uid: str = "1.2.3.4.7", patient: str = "WRONG"
) -> Dataset:
    """A note that dcmtk wrote."""
    text, file = folder / "note.txt", folder / "note.dcm"
    facts = {"study": rejected.StudyInstanceUID, "film": rejected.SOPInstanceUID}
    text.write_text(_DUMP.format(uid=uid, title=title, patient=patient, **facts))
    subprocess.run([peers.require("dump2dcm"), "+te", text, file], check=True)
    return dcmread(file)


def highdicom_note(*rejected: Dataset, uid: str = "1.2.3.4.8") -> Dataset:
    """A note that highdicom wrote."""
    title = Code("113001", "DCM", "Rejected for Quality Reasons")
    content = highdicom.ko.KeyObjectSelection(document_title=title, referenced_objects=rejected)
    return highdicom.ko.KeyObjectSelectionDocument(
        evidence=rejected,
        content=content,
        series_instance_uid="1.2.3.4.9",
        series_number=1,
        sop_instance_uid=uid,
        instance_number=1,
        manufacturer="archive",
        transfer_syntax_uid=ExplicitVRLittleEndian,
    )


def rejected_uids(note: Dataset) -> set[str]:
    [study] = note.CurrentRequestedProcedureEvidenceSequence
    return {
        str(item.ReferencedSOPInstanceUID)
        for series in study.ReferencedSeriesSequence
        for item in series.ReferencedSOPSequence
    }


def requested(**values: str) -> list[Dataset]:
    """Make the request items of a film."""
    return [films.changed(Dataset(), values)]


def uids(deliveries: list[Delivery]) -> set[str]:
    return {delivery.sop_instance_uid for delivery in deliveries}


X: Final[Changes] = {
    "PatientID": "P-1",
    "IssuerOfPatientID": "CLINIC",
    "PatientName": "Xiang^Xu",
    "PatientBirthDate": "19500101",
    "AccessionNumber": "A-1",
}
REASONS = {"113001": "quality", "113037": "patient_safety", "113038": "worklist", "113039": "retention"}


@pytest.mark.parametrize("title", REASONS)
def test_a_note_of_dcmtk_rejects_what_the_node_wrote_of_its_films_alone(tmp_path: Path, title: str) -> None:
    bench, wrong, right = Bench(tmp_path, outputs=("sr", "gsps", "sc", "oru")), film("wrong"), film("right")
    bench.receive(right)
    kept = uids(bench.round())
    bench.receive(wrong)
    written = [delivery for delivery in bench.round() if delivery.kind != "oru"]
    bench.receive(dcmtk_note(tmp_path, wrong, title=title))

    answered = bench.round()

    assert sorted(delivery.kind for delivery in answered) == ["oru", "rejection"]
    [message] = [read(bench.spool.output(delivery) or b"") for delivery in answered if delivery.kind == "oru"]
    assert next(message.named("OBR")).text(25) == "P", "a message is withdrawn if all its films are rejected"
    [note] = bench.objects(answered, "rejection")
    assert note.SOPClassUID == KeyObjectSelectionDocumentStorage
    assert note.ConceptNameCodeSequence[0].CodeValue == title
    counted = metrics_in(bench.steps.metrics.registry, "cxr_films_rejected_total")
    assert [reason for (reason,), count in counted.items() if count] == [REASONS[title]]
    assert rejected_uids(note) == uids(written)
    assert not kept & uids(written)
    assert all(bench.spool.has_output(delivery) for delivery in written)
    assert str(note.PatientID) == "WRONG"
    assert validators.dciodvfy(note) == []


def test_the_same_rejection_is_noted_and_counted_once_and_the_nodes_own_note_rejects_nothing(tmp_path: Path) -> None:
    bench, wrong = Bench(tmp_path), film("wrong")
    bench.receive(wrong)
    bench.round()
    note = highdicom_note(wrong)
    for again in (note, note, highdicom_note(wrong, uid="1.2.3.4.10")):
        bench.receive(again)
    sent = bench.round()
    [own] = (dcmread(BytesIO(films.file_bytes(each))) for each in bench.objects(sent, "rejection"))
    assert rejection_note.parse(own) is None
    for later_object in (dcmtk_note(tmp_path, wrong), own, film("late")):
        bench.receive(later_object)

    later = bench.round()

    assert [delivery.kind for delivery in sent] == ["rejection"]
    assert sorted(delivery.kind for delivery in later) == ["gsps", "sr"]
    counted = metrics_in(bench.steps.metrics.registry, "cxr_films_rejected_total")
    assert {reason: count for (reason,), count in counted.items() if count} == {"quality": 1.0}


@pytest.mark.parametrize("why", ["a note", "another patient"])
def test_objects_of_a_sent_answer_are_rejected_with_the_report(why: str, tmp_path: Path) -> None:
    bench, wrong = Bench(tmp_path), film("wrong", None, **X)
    again = film("wrong", None, **{**X, "PatientID": "P-2"})
    bench.receive(film("right", None, **X))
    bench.receive(wrong)
    bench.round()
    answered = uids(bench.answer(str(wrong.SOPInstanceUID)))
    bench.receive(dcmtk_note(tmp_path, wrong) if why == "a note" else again)

    first = bench.round()
    bench.receive(dcmtk_note(tmp_path, wrong, uid="1.2.3.4.11") if why == "a note" else film("late", None, **X))

    [note] = bench.objects(first, "rejection")
    assert len(answered) == 2
    assert answered < rejected_uids(note)
    assert "rejection" not in {delivery.kind for delivery in bench.round()}, "once"
    if why == "another patient":
        later = bench.objects(bench.answer(str(wrong.SOPInstanceUID), 2), "sr")
        assert [str(answer.PatientID) for answer in later] == ["P-2"]


def test_an_object_is_about_a_film_if_it_has_its_whole_uid() -> None:
    output = OutputObject(
        kind="sr", study_uid=STUDY, sop_class_uid="1.2", sop_instance_uid="1.3", series_instance_uid="1.4"
    )
    for content in (b"UI\x06\x001.2.30", b"1.2.30\0"):
        assert rejection.outputs_about(["1.2.30"], [output], {output: content}.get) == [output]
    for other in (b"1.2.301", b"1.2.30.1", b"11.2.30", b"1.1.2.30", b"1.2030"):
        assert rejection.outputs_about(["1.2.30"], [output], {output: other}.get) == []


def test_what_was_removed_is_rejected_without_a_name_if_no_note_says_one(tmp_path: Path) -> None:
    for why in ("a note", "another patient"):
        bench, wrong = Bench(tmp_path / why), film("film", None, **X)
        bench.receive(wrong)
        first = uids(bench.round())
        bench.ledger.forget(STUDY)
        assert bench.spool.remove_study(STUDY)
        another = film("film", None, **{**X, "PatientID": "P-2"})
        bench.receive(dcmtk_note(tmp_path, wrong) if why == "a note" else another)

        second = bench.round()

        [note] = bench.objects(second, "rejection")
        assert rejected_uids(note) == first
        assert (str(note.PatientID), str(note.PatientName)) == (
            ("WRONG", "WRONG^PATIENT") if why == "a note" else ("", "")
        )
        assert not any("PredecessorDocumentsSequence" in report for report in bench.objects(second, "sr"))


def test_a_film_rejected_before_it_comes_is_not_read(tmp_path: Path) -> None:
    bench, wrong = Bench(tmp_path), film("wrong")
    bench.receive(highdicom_note(wrong))
    first = bench.round()
    bench.receive(wrong)

    assert bench.round() == first == []
    assert bench.reader.count == 0
    [file] = [item.path.name for item in bench.spool.instances(STUDY) if item.sop_instance_uid != "1.2.3.4.8"]
    assert bench.steps.read(STUDY, file) == "left:rejected"


def test_a_note_rejects_what_its_content_names_and_the_evidence_of_its_own_study_by_known_titles_alone() -> None:
    wrong = film("wrong")
    note, other = highdicom_note(wrong), highdicom_note(wrong)
    del note.ContentSequence, other.CurrentRequestedProcedureEvidenceSequence

    rejected = [parsed and parsed.rejected for parsed in map(rejection_note.parse, (note, other))]

    assert rejected == [{wrong.SOPInstanceUID}] * 2
    assert rejection_note.parse(films.changed(note, {"StudyInstanceUID": "1.2.3"})) is None
    for value, scheme in (("113001", "99LOCAL"), ("113000", "DCM")):  # "Of Interest"
        [title] = other.ConceptNameCodeSequence
        films.changed(title, {"CodeValue": value, "CodingSchemeDesignator": scheme})
        assert rejection_note.parse(other) is None


def test_a_file_that_was_replaced_is_looked_at_anew(tmp_path: Path) -> None:
    path, fresh = tmp_path / "object.dcm", tmp_path / "fresh.dcm"
    assert class_of(path) != KeyObjectSelectionDocumentStorage
    path.write_bytes(films.file_bytes(highdicom_note(film("wrong"))))
    assert class_of(path) == KeyObjectSelectionDocumentStorage

    fresh.write_bytes(films.file_bytes(film("wrong")))
    fresh.replace(path)

    assert class_of(path) != KeyObjectSelectionDocumentStorage


NOBODY: Final[Changes] = {**X, "PatientID": None, "IssuerOfPatientID": None}
# what the header says first, what is corrected, whether that is another patient or request
CORRECTED: Final[dict[str, tuple[Changes, Changes, bool]]] = {
    "another number": (X, {"PatientID": "P-2"}, True),
    "another issuer": (X, {"IssuerOfPatientID": "OTHER"}, True),
    "an issuer that was missing": ({**X, "IssuerOfPatientID": None}, {"IssuerOfPatientID": "CLINIC"}, False),
    "an issuer that is gone": (X, {"IssuerOfPatientID": None}, False),
    "another accession number": (X, {"AccessionNumber": "A-2"}, True),
    "another accession number in its request": (
        {**X, "AccessionNumber": "", "RequestAttributesSequence": requested(AccessionNumber="A-1")},
        {"RequestAttributesSequence": requested(AccessionNumber="A-2")},
        True,
    ),
    "an accession number that was missing": ({**X, "AccessionNumber": ""}, {"AccessionNumber": "A-1"}, False),
    "another name": (X, {"PatientName": "Xiang^X", "PatientBirthDate": "19500102"}, False),
    "a number that was missing": (NOBODY, {"PatientID": "P-1"}, False),
    "a number that was missing, another name": (NOBODY, {"PatientID": "P-1", "PatientName": "Yilmaz^Yasar"}, True),
    "a number that is gone": (X, {"PatientID": None}, False),
    "a number that is gone, another date of birth": (X, {"PatientID": None, "PatientBirthDate": "19600101"}, True),
    "no number, another name": (NOBODY, {"PatientName": "Yilmaz^Yasar"}, True),
}


def identity_of(dataset: Dataset) -> tuple[str, ...]:
    return tuple(str(dataset.get(keyword, "")) for keyword in X)


@pytest.mark.parametrize(("said", "corrected", "is_another"), CORRECTED.values(), ids=CORRECTED)
def test_a_header_may_say_another_patient_or_request_than_before(
    said: Changes, corrected: Changes, is_another: bool
) -> None:
    before, after = (
        divide(STUDY, {"film": film("film", None, **changes)}, nobodys=()).identities["film"]
        for changes in (said, {**said, **corrected})
    )

    assert before.contradicts(after) is is_another


@pytest.mark.parametrize(
    "of", ["another number", "another issuer", "an issuer that is gone", "another accession number", "another name"]
)
def test_a_film_of_another_patient_voids_what_was_written_before(tmp_path: Path, of: str) -> None:
    said, corrected, is_another = CORRECTED[of]
    bench = Bench(tmp_path)
    bench.receive(film("film", None, **said))
    first = bench.round()
    bench.receive(film("film", None, **{**said, **corrected}))

    second = bench.round()

    [report] = bench.objects(second, "sr")
    notes = bench.objects(second, "rejection")
    void = uids(first) - {output.sop_instance_uid for output in bench.spool.rounds(STUDY)[-1].outputs}
    assert ("PredecessorDocumentsSequence" in report) is not is_another
    assert [note.ConceptNameCodeSequence[0].CodeValue for note in notes] == ["113037"] * is_another
    assert [rejected_uids(note) for note in notes] == [void] * is_another
    assert bench.objects(first, "sr")[0].SOPInstanceUID in void
    assert [identity_of(note) for note in notes] == [identity_of(bench.objects(first, "sr")[0])] * is_another


def test_a_film_that_goes_back_to_its_first_patient_gets_new_objects(tmp_path: Path) -> None:
    bench, written = Bench(tmp_path), list[list[Delivery]]()
    for patient in ("P-1", "P-2", "P-1"):
        bench.receive(film("film", PatientID=patient))
        written.append(bench.round())

    notes = [bench.objects(deliveries, "rejection") for deliveries in written]
    assert [[str(note.PatientID) for note in found] for found in notes] == [[], ["P-1"], ["P-2"]]
    assert [int(note.InstanceNumber) for [note] in notes[1:]] == [1, 2]
    assert len({note.SeriesInstanceUID for [note] in notes[1:]}) == 1
    results = [uids([item for item in found if item.kind != "rejection"]) for found in written]
    assert [rejected_uids(note) for [note] in notes[1:]] == results[:2]
    assert not results[0] & results[2]
    assert not any("PredecessorDocumentsSequence" in bench.objects(found, "sr")[0] for found in written)


def test_a_film_that_leaves_the_patient_of_others_leaves_their_objects(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in ("a", "b"):
        bench.receive(film(name, None, **X))
    first = bench.round()
    bench.receive(film("b", None, **{**X, "PatientID": "P-2"}))
    plan = bench.steps.plan(STUDY)
    assert plan is not None
    once, again = bench.steps.write(plan), bench.steps.write(plan)  # as after a crash in the step
    assert once is not None and again is not None
    assert (once.mark.outputs, once.queued.deliveries) == (again.mark.outputs, again.queued.deliveries)

    second = bench.round()

    [note] = bench.objects(second, "rejection")
    kept = {output.sop_instance_uid for output in bench.spool.rounds(STUDY)[-1].outputs} & uids(first)
    assert rejected_uids(note) == uids(first) - kept
    assert len(kept) == 2, "report and presentation state of the other film"
    assert len(bench.objects(second, "sr")) == 1
    bench.receive(film("late", None, **X))
    assert not bench.objects(bench.round(), "rejection"), "once"


SITE: Final[dict[str, tuple[str, ...]]] = {
    "archive": ("sr", "gsps"),
    "texts": ("text",),
    "both": ("sr", "text", "sc"),
    "forms": ("sr3d", "gsps"),
    "ris": ("oru",),
}
ADDED: Final[dict[str, tuple[str, ...]]] = {"added": ("sr", "text", "gsps")}


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize(
    ("corrected", "added"),
    [({"PatientName": "Xiang^X"}, {}), ({"PatientName": "Xiang^X"}, ADDED), ({"PatientID": "P-2"}, ADDED)],
    ids=["name", "name and a destination", "number and a destination"],
)
def test_no_object_names_what_its_receiver_did_not_get(
    tmp_path: Path, corrected: Changes, added: dict[str, tuple[str, ...]]
) -> None:
    bench = Bench(tmp_path, outputs=tuple({kind for outputs in SITE.values() for kind in outputs}))
    rounds = []
    for changes, site in (({}, SITE), (corrected, {**SITE, **added})):
        bench.steps.destinations = {
            name: DicomDestination(name=name, ae_title="ARCHIVE", host=peers.LOOPBACK, port=104, outputs=wanted)
            for name, wanted in site.items()
        }
        for name in ("a", "b"):
            bench.receive(film(name, None, **{**X, **changes}))
        rounds.append(bench.round())

    first, second = rounds
    for name in bench.steps.destinations:
        before, after = ([item for item in found if item.destination == name] for found in rounds)
        rejected = [uid for note in bench.objects(after, "rejection") for uid in rejected_uids(note)]
        objects = uids([item for item in before if item.kind != "oru"])
        assert sorted(rejected) == sorted(objects if "PatientID" in corrected else ())
        reports = [report for kind in ("sr", "sr3d", "text") for report in bench.objects(after, kind)]
        predecessors = {uid for report in reports for uid in replaced(report)}
        assert predecessors <= uids(before)
        if not added:
            assert bool(predecessors) == (name != "ris")
    messages = [read(bench.spool.output(item) or b"") for item in second if item.kind == "oru"]
    named = {
        segment.text(5)
        for message in messages
        for segment in message.named("OBX")
        if segment.text(3, 2) == "SR Instance UID"
    }
    assert named <= uids([item for item in (*first, *second) if item.kind != "oru"])


@pytest.mark.parametrize("attempts", [0, 1])
def test_what_is_void_is_not_sent_any_more(tmp_path: Path, attempts: int) -> None:
    """A note goes to a destination that may have got something: `attempts` of one object were made."""
    bench = Bench(tmp_path)
    bench.receive(film("film", None, **X))
    waiting = bench.round(is_sent=False)
    if attempts:
        bench.ledger.set_delivery(waiting[0], DeliveryState.WAITING, attempts=attempts, reason="down")
    bench.receive(film("film", None, **{**X, "PatientID": "P-2"}))

    second = bench.round(is_sent=False)

    assert [bench.ledger.delivery_state(delivery) for delivery in waiting] == [DeliveryState.ABANDONED] * 2
    assert sorted(delivery.kind for delivery in second) == ["gsps", *["rejection"] * attempts, "sr"]
    assert not bench.ledger.set_delivery(waiting[0], DeliveryState.SENDING, attempts=1)


def test_what_is_void_is_not_sent_after_the_database_is_lost(tmp_path: Path) -> None:
    bench, wrong, another = Bench(tmp_path), film("film", None, **X), {**X, "PatientID": "P-2"}
    bench.receive(wrong)
    bench.round()
    bench.answer(str(wrong.SOPInstanceUID))
    bench.receive(film("film", None, **another))
    written = bench.round()
    bench.receive(film("late", None, **another))
    written += bench.round()
    written += bench.answer(str(wrong.SOPInstanceUID), 2)

    added = DicomDestination(name="added", ae_title="ADDED", host=peers.LOOPBACK, port=104, outputs=("sr",))
    destinations = [*bench.steps.destinations.values(), added]
    restored = deliveries_of_study(bench.spool, destinations, STUDY)

    assert "rejection" in {delivery.kind for delivery in restored}
    assert sorted(delivery.id for delivery in restored) == sorted(delivery.id for delivery in written)
    assert bench.spool.remove_study(STUDY)
    assert deliveries_of_study(bench.spool, destinations, STUDY) == []


@pytest.mark.drill(part="peers")
def test_a_note_in_orthanc_is_answered_by_a_note_in_orthanc(tmp_path: Path) -> None:
    wrong = films.thumbnail()
    with beside_node(tmp_path) as (orthanc, settings), Service(settings) as node:
        orthanc.upload(wrong)
        orthanc.wait_for_count(3, study_uid=STUDY)
        theirs = dcmtk_note(tmp_path, wrong, patient=str(wrong.PatientID))

        orthanc.upload(tmp_path / "note.dcm")

        orthanc.wait_for_count(5, study_uid=STUDY)
        node.wait_for("delivery.sent", count=3)
        orthanc.wait_until_idle()
        files = orthanc.files()
        assert node.stop() == 0
    found = {str(item.SOPInstanceUID): item for item in (dcmread(BytesIO(content)) for content in files)}
    spool = Spool(tmp_path / "node")
    [note] = [output for mark in spool.rounds(STUDY) for output in mark.outputs if output.kind == rejection.KIND]
    assert found[note.sop_instance_uid] == dcmread(BytesIO(spool.output(note) or b""))
    results = {uid for uid, item in found.items() if item.Modality in ("SR", "PR")}
    assert (len(results), rejected_uids(found[note.sop_instance_uid])) == (2, results)
    sent = [arrival.sop_instance_uid for arrival in orthanc.arrivals(calling_ae="CHEX")]
    assert sorted(sent) == sorted([*results, note.sop_instance_uid])
    assert str(theirs.SOPInstanceUID) in {item.sop_instance_uid for item in spool.instances(STUDY)}
    assert note.sop_instance_uid not in {item.sop_instance_uid for item in spool.instances(STUDY)}


def test_a_rejected_film_is_shown_with_the_title_of_its_note(tmp_path: Path) -> None:
    settings, wrong = settings_for(tmp_path / "node", archive_port=104), film("wrong")
    bench, uid = Bench(settings.storage.directory), str(wrong.SOPInstanceUID)
    browser = pages_of(parts_of(settings, bench.spool), user="reader")
    bench.receive(wrong)
    bench.round()
    bench.receive(highdicom_note(wrong))
    bench.round()

    assert "Rejected for Quality Reasons (113001 DCM)" in browser.get(f"/studies/{STUDY}?film={uid}").text
    assert "rejected" in str({found.film: found.outcome for found in explain_uid(str(STUDY), settings).received}[uid])
    [rejected] = rejections_of(bench.spool.instances(str(STUDY))).values()
    note = next(item for item in bench.spool.instances(STUDY) if item.sop_instance_uid == "1.2.3.4.8")
    assert (rejected.code, rejected.at) == ("113001", note.received_at)
