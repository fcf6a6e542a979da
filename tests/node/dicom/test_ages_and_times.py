"""Ages and times as devices write them: what a person can read is read, and nothing else is said of a patient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Question
from node import config
from node.commands.doctor import passed
from node.config import Settings, SiteSettings, StorageSettings
from node.dicom.dates import read_date, years_of
from node.dicom.film_header import parse_header
from node.dicom.rejection_note import TITLES, RejectionNote
from node.domain import Assessment, ReaderMark, Reason, Report
from node.errors import InputError
from node.health.checks import check_clock
from node.hl7.text import read
from node.outputs import answers, oru, rejection, wording
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.outputs.writers import write_objects
from node.read import open_film, prompts
from node.read.film import Answered, answer_film
from tests.node.outputs.test_answer_objects import asked
from tests.support import films, samples
from tests.support.documents import everything, reference
from tests.support.fakes import ScriptedReader

PROMPTS = prompts.load("chexpert14")
ADULTS = range(18, 200)


class AdultReader(ScriptedReader):
    """Reads films of adults only."""

    ages = ADULTS


def as_written(values: Mapping[str, str | None], source: Dataset | None = None) -> Dataset:
    """A header with values as a device wrote them, whatever the standard says; None: without the attribute."""
    encoded = {keyword: None if value is None else value.encode("ascii") for keyword, value in values.items()}
    return films.as_written(samples.cr() if source is None else source, encoded)


def age_of(**values: str | None) -> int | None:
    return parse_header(as_written({"PatientAge": None, "PatientBirthDate": None, **values})).age_years


def answered(folder: Path, **values: str | None) -> Answered:
    path = films.saved(folder, as_written(values, films.thumbnail()))
    return answer_film(path, AdultReader(), PROMPTS)


def outgoing(**values: str | None) -> Dataset:
    """The report on a film with these values."""
    return dcmread(BytesIO(save_bytes(report_on(as_written(values)))))


@pytest.mark.parametrize(
    ("said", "years", "sent"),
    [
        ("7Y", 7, "007Y"),
        ("007y", 7, "007Y"),
        ("18M", 1, "018M"),
        ("10D", 0, "010D"),
        ("3650D", 9, None),
        ("7", 7, None),
        ("7 years", 7, None),
        ("130Y", 130, "130Y"),
        ("131Y", None, None),
        ("-07Y", None, None),
        ("child", None, None),
    ],
)
def test_an_age_is_read_as_a_person_would_read_it(said: str, years: int | None, sent: str | None) -> None:
    assert age_of(PatientAge=said) == years
    assert outgoing(PatientAge=said).get("PatientAge") == sent
    assert parse_header(as_written({"PatientAge": said})).age_has_unit is not said.isdecimal()


def test_every_unit_of_an_age_and_every_month_is_known_by_its_names() -> None:
    assert [parse_header(as_written({"PatientAge": age})).has_age for age in (None, "", "x")] == [False, True, True]
    for number, units in (
        (366, "D DAY days"),
        (53, "W WK wks WEEK weeks"),
        (12, "M MO mos MTH mths MONTH months"),
        (1, "Y YR yrs YO YEAR years"),
    ):
        assert {years_of(f"{number} {unit}") for unit in units.split()} == {1}
        assert {years_of(f"{number - 1} {unit}") for unit in units.split()} == {0}
    months = "January February March April May June July August September October November December"
    for month, name in enumerate(months.split(), 1):
        for spelled in (name, name[:3], name.upper()):
            written = read_date(f"5 {spelled} 2019")
            assert written is not None
            assert written.only == date(2019, month, 5)


@pytest.mark.parametrize(
    ("said", "years", "sent"),
    [
        ("20190305", 5, "20190305"),
        ("2019-03-05", 5, "20190305"),
        ("2019-03-05T12:00:00Z", 5, "20190305"),
        ("12/25/2018", 5, "20181225"),
        ("05-MAR-2019", 5, "20190305"),
        ("Mar 5, 2019", 5, "20190305"),
        ("05.09.2006", 17, ""),
        ("20190000", 4, ""),
        ("2024", 0, ""),
        ("190305", None, ""),
        ("20190230", None, ""),
        ("20250101", None, "20250101"),
        ("18000101", None, "18000101"),
    ],
)
def test_a_date_of_birth_is_read_as_a_person_would(said: str, years: int | None, sent: str) -> None:
    assert age_of(PatientBirthDate=said, StudyDate="20240601") == years
    assert outgoing(PatientBirthDate=said).PatientBirthDate == sent


@pytest.mark.parametrize(
    ("dates", "years"),
    [
        ({"StudyDate": None, "SeriesDate": "20240601"}, 5),
        ({"StudyDate": "", "AcquisitionDate": "20240601"}, 5),
        ({"StudyDate": "", "AcquisitionDateTime": "20240601120000.000+0100"}, 5),
        *(
            ({"StudyDate": None, better: "20240601", worse: "20400601"}, 5)
            for better, worse in pairwise(
                ("StudyDate", "AcquisitionDate", "AcquisitionDateTime", "SeriesDate", "ContentDate")
            )
        ),
        ({"StudyDate": "19000101", "SeriesDate": "20240601"}, 5),
        ({"StudyDate": None}, None),
        # the day before a birthday; a day that is none; the lower of two ages or of a whole year's
        ({"StudyDate": "20240305"}, 5),
        ({"StudyDate": "20240304"}, 4),
        ({"StudyDate": "2024"}, 4),
        ({"StudyDate": "20240601", "PatientBirthDate": "20190229"}, None),
        ({"StudyDate": "20240601", "PatientAge": "002Y"}, 2),
        ({"StudyDate": "20240601", "PatientAge": "045Y"}, 5),
    ],
)
def test_a_date_of_the_film_gives_the_age(dates: Mapping[str, str | None], years: int | None) -> None:
    none = dict.fromkeys(("SeriesDate", "AcquisitionDate", "AcquisitionDateTime", "ContentDate"))

    assert age_of(**{"PatientBirthDate": "20190305", **none, **dates}) == years


@pytest.mark.parametrize(
    "values",
    [
        {"PatientAge": "7"},
        {"PatientAge": None, "PatientBirthDate": "2019-03-05", "StudyDate": None, "SeriesDate": "20240601"},
    ],
)
def test_no_child_is_read_and_no_question_about_one_answered_by_a_model_for_adults(
    tmp_path: Path, values: Mapping[str, str | None]
) -> None:
    result = answered(tmp_path, **{"PatientBirthDate": None, **values})

    assert result.film is not None
    assert (result.film.is_read, result.film.reason) == (False, Reason.AGE)
    assert "age lies outside" in wording.not_processed(result.film)
    path, question = tmp_path / "film.dcm", Question(prompt="Edema")
    assert open_film.ask(path, [question], reader=ScriptedReader(), prompts=PROMPTS)
    with pytest.raises(InputError, match="age"):
        open_film.ask(path, [question], reader=AdultReader(), prompts=PROMPTS)


UTC_ZONE = ZoneInfo("UTC")


JUDGED = replace(
    samples.finding(sentence=None),
    reader=ReaderMark(what=Assessment.ACCEPTED, by="anna", at=datetime(2024, 2, 1, 0, 30, tzinfo=UTC)),
)


def report_on(source: Dataset, report: Report | None = None) -> Dataset:
    """The structured report on a film."""
    [dataset] = samples.datasets(
        sr.write, report or samples.report(samples.film()), samples.sources(source), samples.BERLIN
    )
    return dataset


def moments(dataset: Dataset) -> set[str]:
    """When the object was made, by every pair of attributes that says so."""
    kinds = ("InstanceCreation", "Content", "PresentationCreation")
    return {f"{dataset.get(f'{kind}Date')} {dataset.get(f'{kind}Time')}" for kind in kinds if f"{kind}Date" in dataset}


def test_every_object_has_the_offset_of_its_film() -> None:
    source = as_written({"TimezoneOffsetFromUTC": "-0500"})
    received = samples.received(source, picture=np.zeros((samples.ROWS, samples.COLUMNS), np.uint8))
    report, zone = samples.report(replace(samples.several(), ratio=samples.ratio())), samples.BERLIN
    of_film = write_objects(report, received, zone=zone, kinds=("sr", "sr3d", "text", "gsps", "sc"))
    question = replace(asked(), asked_at=report.created_at)
    of_answer = answers.write_objects(question, report, *received.values(), zone=zone, kinds=("sr", "gsps"))
    made = [written.dataset for written in (*of_film, *of_answer)]
    note = RejectionNote(title=TITLES["113001"], rejected=frozenset((samples.film_uid(1),)), header=source)
    made.append(rejection.write(note, [reference(made[0])], report, zone=zone).dataset)

    found = [dcmread(BytesIO(save_bytes(dataset))) for dataset in made]

    assert len(found) >= 9
    said = {(dataset.StudyTime, dataset.TimezoneOffsetFromUTC, *moments(dataset)) for dataset in found}
    assert said == {("101530.5", "-0500", "20240131 183015")}


NO_OFFSETS = ("", "-500", "+1430", "-1230", "-0000", "+01:00", "EST")


@pytest.mark.parametrize(
    ("values", "offset", "made_at"),
    [
        *(({"TimezoneOffsetFromUTC": none}, "+0100", "20240201 003015") for none in NO_OFFSETS),
        ({"TimezoneOffsetFromUTC": "+0545"}, "+0545", "20240201 051515"),
        ({"TimezoneOffsetFromUTC": "+1400"}, "+1400", "20240201 133015"),
        ({"TimezoneOffsetFromUTC": "-1200"}, "-1200", "20240131 113015"),
        ({"StudyDate": "20230731"}, "+0200", "20240201 013015"),
        ({"StudyDate": "20230326", "StudyTime": "015959"}, "+0100", "20240201 003015"),
        ({"StudyDate": "20230326", "StudyTime": "03"}, "+0200", "20240201 013015"),
        ({"StudyDate": "20230326", "StudyTime": None}, "+0200", "20240201 013015"),
        ({"StudyDate": None}, "+0100", "20240201 003015"),
        ({"StudyDate": "18500731"}, "+0053", "20240201 002315"),
    ],
)
def test_an_object_has_the_offset_of_its_film_or_that_of_the_site_when_it_was_taken(
    values: Mapping[str, str | None], offset: str, made_at: str
) -> None:
    dataset = report_on(as_written(values))

    assert (dataset.TimezoneOffsetFromUTC, moments(dataset)) == (offset, {made_at})


@pytest.mark.parametrize(
    ("values", "at"),
    [({"TimezoneOffsetFromUTC": "-0500"}, "20240131193000-0500"), ({"StudyDate": "20230731"}, "20240201023000+0200")],
)
def test_what_a_reader_said_has_the_offset_too(values: Mapping[str, str | None], at: str) -> None:
    dataset = report_on(as_written(values), samples.report(samples.film(findings=(JUDGED,))))

    assert {item.ObservationDateTime for item in everything(dataset) if "ObservationDateTime" in item} == {at}


def test_an_offset_is_part_of_an_object_and_its_time_is_not() -> None:
    now = samples.report(samples.film())
    later = replace(now, created_at=datetime(2024, 7, 1, tzinfo=UTC))
    uids = {
        report_on(as_written({"TimezoneOffsetFromUTC": offset}), of).SOPInstanceUID
        for of in (now, later)
        for offset in ("-0500", "+0100", None)
    }
    assert len(uids) == 3


@pytest.mark.parametrize(
    ("values", "zone", "at"),
    [
        ({"TimezoneOffsetFromUTC": "-0500"}, samples.BERLIN, "20240131101530-0500"),
        ({"TimezoneOffsetFromUTC": "-0500"}, UTC_ZONE, "20240131101530-0500"),
        ({}, samples.BERLIN, "20240131101530+0100"),
        ({"StudyDate": "20240731"}, samples.BERLIN, "20240731101530+0200"),
        ({"StudyTime": None}, samples.BERLIN, "20240131"),
        ({"StudyDate": None, "TimezoneOffsetFromUTC": "-0500"}, samples.BERLIN, ""),
        ({}, UTC_ZONE, "20240131101530"),
        ({}, ZoneInfo("Etc/UTC"), "20240131101530+0000"),
    ],
)
def test_a_message_says_at_which_offset_a_film_was_taken(
    values: Mapping[str, str | None], zone: ZoneInfo, at: str
) -> None:
    headers, report = samples.sources(as_written(values)), samples.report(samples.several())

    message = read(oru.write(report, headers, zone, order=None, documents=[])[1])

    assert {segment.text(7) for segment in message.named("OBR")} == {at}
    assert {segment.text(14) for segment in message.named("OBX")} == {at}


def test_a_site_whose_zone_was_left_at_utc_is_warned(tmp_path: Path) -> None:
    for zone, is_warned in (("UTC", True), ("Europe/Berlin", False), ("Etc/UTC", False)):
        [check] = check_clock(Settings(storage=StorageSettings(directory=tmp_path), site=SiteSettings(timezone=zone)))
        assert check.message.endswith(config.ZONE_IS_LEFT) is is_warned
        assert passed([check])
