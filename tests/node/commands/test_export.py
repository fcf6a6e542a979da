"""The export for research: what it holds, that it names nobody, and that a stopped one goes on."""

from __future__ import annotations

import csv
import errno
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from pydicom import dcmread
from pydicom._dicom_dict import DicomDictionary
from pydicom.datadict import dictionary_VR, keyword_for_tag
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence

from models.contract import Box
from models.lab.training.films import find_films, read_films
from models.lab.training.runfile import FilmSource
from models.progress import quiet
from models.site_films import list_films
from node.commands.export import deidentified, folder
from node.commands.export.folder import UNFINISHED
from node.commands.export.pseudonyms import KEY_FILE, Pseudonyms
from node.config import Settings
from node.dicom import attributes, header_reading
from node.dicom.film_header import parse_header
from node.errors import InputError, NodeError, Undecodable
from node.outputs.study_parts import divide
from node.read import decoding, routing
from node.read.routing import Action
from node.store.correction import CorrectionKind
from tests.node.jobs.test_corrected_rounds import FILM, KEY, correct
from tests.node.jobs.test_rounds import Bench
from tests.node.outputs.test_rejection import highdicom_note
from tests.support import films, material, recorded, validators
from tests.support.damage import flip
from tests.support.service import settings_for

NAME, NUMBER, DAY = "Zyxwvut", "4711077", "19530708"
SAID = "qwertz uiop"
READER = "annabella"
DAYS_AGO = date(2020, 1, 1)
MAPPED = Pseudonyms(key=b"0" * 64)
PLANTED = {
    **dict.fromkeys("AE LO SH UC PN LT ST UT CS UR".split(), NAME.upper()),
    **dict.fromkeys("IS DS".split(), NUMBER),
    **dict.fromkeys("DA DT".split(), DAY),
    **dict.fromkeys("OB OW UN OL OD OF OV".split(), NAME.upper().encode() + b" "),
    "UI": f"1.2.3.{NUMBER}",
}
# What says which film this is and how it looks: with a planted value it were another film.
NEEDED = frozenset("PixelData TransferSyntaxUID SOPClassUID SpecificCharacterSet".split())


def changed(values: Mapping[str, object]) -> Dataset:
    """Return a copy of the film, which the tests of a process share, with other values."""
    return films.changed(deepcopy(FILM), values)


def planted(film: Dataset, *, step: int = 1) -> Dataset:
    """Give attributes of the standard that a film lacks, those whose tag `step` divides, a value of the patient."""
    item = Dataset()
    with attributes.quiet():
        for tag in (tag for tag in DicomDictionary if tag % step == 0):
            vr, keyword = dictionary_VR(tag), keyword_for_tag(tag)
            if tag >> 16 in (0x0028, 0x0000, 0x0002) or tag >> 16 > 0x5400 or keyword in NEEDED or vr not in PLANTED:
                continue
            for place in (film, item):
                if tag not in place:
                    place.add_new(tag, vr, PLANTED[vr])
        film.PatientName, film.PatientID, film.PatientBirthDate = f"{NAME}^Ed", NUMBER, DAY
        film.private_block(0x0099, NAME, create=True).add_new(1, "LO", NAME)
        for keyword in ("RequestAttributesSequence", "ViewCodeSequence", "AnatomicRegionSequence"):
            setattr(film, keyword, Sequence([item]))
        film.WindowCenterWidthExplanation = NAME
        film.add_new(0x60000022, "LO", NAME)
    return film


def secrets_of(film: Dataset) -> list[bytes]:
    """What must not leave of a film: names, numbers, days and UIDs, planted and its own."""
    own = [str(film[keyword].value) for keyword in ("SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")]
    return [text.encode() for text in (NAME, NAME.upper(), NUMBER, DAY, *own)]


@pytest.fixture
def node(tmp_path: Path) -> Settings:
    return settings_for(tmp_path / "node", archive_port=104)


def read(settings: Settings, film: Dataset) -> Bench:
    bench = Bench(settings.storage.directory)
    bench.receive(film)
    bench.round()
    return bench


def exported(settings: Settings, out: Path, *, since: date = DAYS_AGO) -> Path:
    folder.export(settings, out, since=since, tell=quiet)
    return out


def outputs_of(bench: Bench) -> list[Dataset]:
    """What the node wrote of the film's study in its last round."""
    outputs = bench.spool.rounds(str(FILM.StudyInstanceUID))[-1].outputs
    return [dcmread(BytesIO(bench.spool.output(output) or b"")) for output in outputs]


def deidentified_film(folder: Path, film: Dataset) -> Dataset:
    values, person = decoding.stored_values(films.saved(folder, film)), deidentified.person_of(film, "a")
    return dcmread(BytesIO(deidentified.film(film, values, person, MAPPED)))


def objects_in(out: Path) -> Iterator[Dataset]:
    yield from (dcmread(path) for path in sorted(out.glob("*/*/*.dcm")))


def files_of(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_an_export_holds_films_objects_and_labels_and_names_nobody(tmp_path: Path, node: Settings) -> None:
    film = planted(changed({}), step=9)
    bench = read(node, film)
    correct(bench, 1, CorrectionKind.REJECT, prompt=KEY, by=READER)
    correct(bench, 2, CorrectionKind.ADD, prompt="cardiomegaly", box=Box(left=2, top=3, right=20, bottom=30), by=READER)
    bench.round()
    before = files_of(node.storage.directory)

    out = exported(node, tmp_path / "out")

    assert {name: content for name, content in files_of(node.storage.directory).items() if name != KEY_FILE} == before
    assert (node.storage.directory / KEY_FILE).stat().st_mode & 0o777 == 0o600
    written = files_of(out)
    secrets = [*secrets_of(film), READER.encode()]
    assert {
        (name, secret) for name in written for secret in secrets if secret in name.encode() + written[name]
    } == set()
    by_modality = {found.Modality: found for found in objects_in(out)}
    assert sorted(by_modality) == ["CR", "PR", "SR"]
    image = by_modality["CR"]
    assert {found.PatientID for found in by_modality.values()} == {image.PatientID}
    assert {found.StudyInstanceUID for found in by_modality.values()} == {image.StudyInstanceUID}
    for keyword in ("PR", "SR"):
        named = {str(at.value) for at in by_modality[keyword].iterall() if at.keyword == "ReferencedSOPInstanceUID"}
        assert image.SOPInstanceUID in named
    [listed], left_out = list_films(out / "films.csv")
    assert not left_out
    assert listed.truth.labels == {KEY: False, "cardiomegaly": True}
    assert listed.truth.patient == image.PatientID
    (line,) = read_films(out / "films.jsonl", find_films(FilmSource(file=str(out / "films.jsonl"))), side=64)
    assert line.line["present"] == {KEY: False, "cardiomegaly": True}
    assert "burned into the pixels" in (out / "README.md").read_text(encoding="utf-8")
    with (out / "findings.csv").open(encoding="utf-8", newline="") as table:
        judged = {row["finding"]: (row["state"], row["reader"]) for row in csv.DictReader(table) if row["reader"]}
    assert judged == {KEY: ("absent", "rejected"), "cardiomegaly": ("present", "added")}


@pytest.mark.parametrize(("age", "told"), [("089Y", "089Y"), ("090Y", "090Y"), ("103Y", "090Y")])
def test_nobody_is_older_than_ninety_and_no_time_of_day_leaves(tmp_path: Path, age: str, told: str) -> None:
    made = deidentified_film(tmp_path, changed({"PatientAge": age, "PatientBirthDate": "", "StudyTime": "101530"}))

    assert (made.PatientAge, made.StudyTime or "", made.PatientBirthDate or "") == (told, "", "")
    assert (made.PatientIdentityRemoved, made.LongitudinalTemporalInformationModified) == ("YES", "MODIFIED")
    assert [code.CodeValue for code in made.DeidentificationMethodCodeSequence] == [*deidentified.OPTIONS]


def test_what_becomes_of_each_attribute_is_as_recorded(tmp_path: Path, node: Settings) -> None:
    bench = read(node, planted(changed({"PatientAge": "103Y", "RescaleType": "OD"}), step=17))
    [instance] = bench.spool.instances(str(FILM.StudyInstanceUID))
    before = {found.Modality: found for found in (dcmread(instance.path), *outputs_of(bench))}

    out = exported(node, tmp_path / "out")

    recorded.check("deidentified", {found.Modality: fates(before[found.Modality], found) for found in objects_in(out)})


def fates(before: Dataset, after: Dataset) -> dict[str, str]:
    """Name the attributes that left by what became of each; what was removed is not told."""
    found: dict[str, list[str]] = {}
    with attributes.quiet():
        for element in after:
            is_kept = element.tag in before and before[element.tag].value == element.value
            fate = "empty" if element.is_empty else "kept" if is_kept else "replaced"
            found.setdefault(fate, []).append(element.keyword)
    return {fate: " ".join(keywords) for fate, keywords in found.items()}


def test_what_cannot_leave_is_counted_with_its_reason(tmp_path: Path, node: Settings) -> None:
    bench, study = read(node, FILM), str(FILM.StudyInstanceUID)
    damaged, lateral, unread, rejected = (
        changed({"SOPInstanceUID": f"2.25.{number}{NUMBER}"}) for number in range(1, 5)
    )
    bench.receive(damaged)
    bench.receive(films.changed(lateral, {"ViewPosition": "LL"}))
    bench.receive(rejected)
    bench.receive(highdicom_note(rejected))
    bench.round()
    bench.receive(unread)
    kept = {instance.sop_instance_uid: instance.path for instance in bench.spool.instances(study)}
    flip(kept[damaged.SOPInstanceUID], -1)

    out = exported(node, tmp_path / "out")

    [_film] = out.glob("films/*/*.dcm")
    _, _, said = (out / "README.md").read_text(encoding="utf-8").partition("## Left out\n\n")
    assert sorted(said.splitlines()) == [
        "- 1 damaged",
        "- 1 no answer yet",
        "- 1 not read by the network (lateral)",
        "- 1 rejected by the archive",
    ]


@pytest.mark.parametrize(
    ("keyword", "value", "stays"),
    [
        ("DetectorType", "DIRECT", True),
        ("DetectorType", f"{NAME.upper()}_ED", False),
        ("ExposureTime", "25", True),
        ("ExposureTime", NUMBER, False),
        ("KVP", "120.5", True),
        ("KVP", NUMBER, False),
        ("RescaleType", "HU", True),
        ("RescaleType", NAME, False),
        ("Manufacturer", "Siemens", False),
    ],
)
def test_a_value_that_names_the_patient_leaves_in_no_field(
    tmp_path: Path, keyword: str, value: str, *, stays: bool
) -> None:
    film = changed({"PatientName": f"{NAME}^Ed", "PatientID": NUMBER})
    film.add_new(keyword, dictionary_VR(keyword), value)

    made = deidentified_film(tmp_path, film)

    assert (made[keyword].value or None) == (film[keyword].value if stays else None)


def test_a_film_looks_as_before_and_no_object_has_more_errors(tmp_path: Path, node: Settings) -> None:
    bench = read(node, FILM)
    [instance] = bench.spool.instances(str(FILM.StudyInstanceUID))
    originals = {"CR": FILM, **{found.Modality: found for found in outputs_of(bench)}}

    out = exported(node, tmp_path / "out")

    [path] = out.glob("films/*/*.dcm")
    assert np.array_equal(decoding.stored_picture(path).film(), decoding.stored_picture(instance.path).film())
    for found in objects_in(out):
        original = originals[found.Modality]
        assert len(validators.dciodvfy(found)) <= len(validators.dciodvfy(original)), found.Modality
        if found.Modality == "SR":
            assert validators.dsrdump(found) == []
            assert texts_of(found) == texts_of(original)
            assert ("ReferencedRequestSequence" in original, "ReferencedRequestSequence" in found) == (True, False)


@pytest.mark.parametrize(("bits", "signed"), [(8, False), (12, True), (16, True)])
def test_a_film_keeps_its_values_at_any_depth(tmp_path: Path, bits: int, signed: bool) -> None:
    film = films.at_depth(bits, signed=signed)

    assert np.array_equal(deidentified_film(tmp_path, film).pixel_array, film.pixel_array)


def test_the_texts_of_a_report_name_no_film(tmp_path: Path, node: Settings) -> None:
    bench, uids = Bench(node.storage.directory), [f"2.25.{number}{NUMBER * 4}" for number in (1, 2)]
    for uid in uids:
        bench.receive(changed({"SOPInstanceUID": uid}))
    bench.round()

    written = files_of(exported(node, tmp_path / "out"))

    texts = "".join(text for report in outputs_of(bench) for text in texts_of(report))
    assert all(uid in texts for uid in uids), "the node's own report names its films"
    assert [name for name, content in written.items() for uid in uids if uid in name or uid.encode() in content] == []


def texts_of(report: Dataset) -> list[str]:
    return [str(item.value) for item in report.iterall() if item.keyword == "TextValue"]


def test_a_disk_that_fails_ends_the_export(tmp_path: Path, node: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    read(node, FILM)
    monkeypatch.setattr(decoding, "stored_values", mock.Mock(side_effect=OSError(errno.EIO, "input/output error")))

    with pytest.raises(NodeError, match="input/output error"):
        exported(node, tmp_path / "out")


def test_words_of_readers_stay_out(tmp_path: Path, node: Settings) -> None:
    bench = read(node, FILM)
    correct(bench, 1, CorrectionKind.REWORD, prompt=KEY, text=SAID, by=READER)
    bench.round()

    out = exported(node, tmp_path / "out")

    assert [name for name, content in files_of(out).items() if SAID.encode() in content] == []
    [report] = [found for found in objects_in(out) if found.Modality == "SR"]
    assert set(texts_of(report)) == {deidentified.REMOVED}


def test_the_same_film_is_mapped_alike_and_a_stopped_export_goes_on(tmp_path: Path, node: Settings) -> None:
    read(node, FILM)
    first = files_of(exported(node, tmp_path / "first"))

    def stop(_stage: str, _done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.export(node, tmp_path / "second", since=DAYS_AGO, tell=stop)
    assert not (tmp_path / "second" / "README.md").exists()
    [film] = (tmp_path / "second").glob("films/*/*.dcm")
    film.rename(film.with_name(".incoming-1"))  # what a killed process leaves
    (film.parent / "old.dcm").touch()
    with pytest.raises(InputError, match="another node or day"):
        exported(node, tmp_path / "second", since=DAYS_AGO + timedelta(days=1))

    assert files_of(exported(node, tmp_path / "second")) == first
    with pytest.raises(InputError, match="no unfinished export"):
        exported(node, tmp_path / "second")
    assert files_of(tmp_path / "second") == first


def test_what_came_before_a_day_and_folders_of_others_are_left_alone(tmp_path: Path, node: Settings) -> None:
    read(node, FILM)
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)

    out = exported(node, tmp_path / "out", since=tomorrow)

    assert sorted(files_of(out)) == ["README.md", "films.csv", "films.jsonl", "findings.csv"]
    with pytest.raises(InputError, match="node's own folder"):
        exported(node, node.storage.directory / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(InputError, match="is not empty"):
        exported(node, tmp_path / "mine")
    assert not (tmp_path / "mine" / UNFINISHED).exists()


def test_a_uid_in_a_text_is_mapped_and_a_number_stays() -> None:
    for uid in ("1.2.840.113619.2.5", "2.25.99", "2.25.99.4"):
        assert MAPPED.text(f"film {uid}, 3.7") == f"film {MAPPED.uid(uid)}, 3.7"
    for number in ("12.25.3", "0.36.0"):
        assert MAPPED.text(f"film {number}, 3.7") == f"film {number}, 3.7"


def test_a_patient_with_a_number_is_one_in_all_studies_and_without_one_in_each() -> None:
    def pseudonym(number: str, study: str) -> str:
        [part] = divide(study, {"1.2": films.thumbnail({"PatientID": number})}, nobodys=()).parts
        return MAPPED.patient(part, study)

    assert pseudonym(NUMBER, "1.3") == pseudonym(NUMBER, "1.4") != pseudonym("4", "1.3")
    assert pseudonym("", "1.3") != pseudonym("", "1.4")


def test_a_patient_keeps_the_distance_of_days() -> None:
    days = [datetime.strptime(MAPPED.day(day, "a"), "%Y%m%d") for day in ("20240228", "20240301", "20240301101112.5")]

    assert days[1] - days[0] == timedelta(days=2)
    assert days[2] == days[1] < datetime(2024, 3, 1)
    assert MAPPED.day("20240228", "b") != MAPPED.day("20240228", "a")
    assert [MAPPED.day(text, "a") for text in ("", "soon", "2024")] == [""] * 3


@pytest.mark.drill(part="objects")
def test_no_public_header_leaves_with_a_name_number_day_or_uid() -> None:
    tried = 0
    for path in sorted(material.material("data/dicom").rglob("*")):
        header = header_reading.header_of(path, character_set="") if path.is_file() else None
        if header is None or routing.choose(parse_header(header), routing.rules_for(None)).action is not Action.READ:
            continue
        try:
            values = decoding.stored_values(path)
        except Undecodable:
            continue
        tried += 1
        person = deidentified.person_of(header, "0123456789abcdef")
        for is_planted in (False, True):
            source = planted(header) if is_planted else header
            secrets = {*secrets_of(source), *own_secrets(source)}
            made = deidentified.film(source, values, person, MAPPED)
            found = dcmread(BytesIO(made))
            del found.PixelData
            said = json.dumps(found.to_json_dict()).encode()
            assert [secret for secret in secrets if secret in said] == [], path
            if not is_planted:
                complaints = validators.dciodvfy(dcmread(BytesIO(made)))
                assert len(complaints) <= len(validators.dciodvfy(dcmread(path, force=True))), path
    assert tried > 3


def own_secrets(header: Dataset) -> Iterator[bytes]:
    """Names, numbers, days and UIDs of a header, at its top."""
    for element in header:
        for value in attributes.values(header, element.tag):
            text = str(value).strip(" \0")
            is_naming = element.VR in ("PN", "DA", "LT", "ST") or (element.VR in ("LO", "SH") and text[-1:].isdigit())
            is_own_uid = element.VR == "UI" and not text.startswith("1.2.840.10008.")
            if len(text) > 4 and (is_naming or is_own_uid):
                yield text.encode()
