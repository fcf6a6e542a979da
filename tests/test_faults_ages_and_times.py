"""Ages and times as devices write them: what a person can read is read, and nothing else is said of a patient."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pytest
from pydicom import dcmread
from pydicom.datadict import dictionary_VR
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import Tag

from node.dicom.film_header import parse_header
from node.domain import Note, Reason
from node.outputs import report_txt, wording
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.read import prompts, routing
from node.read.film import Answered, answer_film
from tests import films, samples
from tests.fakes import ScriptedReader

PROMPTS = prompts.load("chexpert14")
ADULTS = range(18, 200)
BORN_2019 = {"PatientAge": None, "StudyDate": "20240601"}


class AdultReader(ScriptedReader):
    """Reads films of adults only."""

    ages = ADULTS


def as_written(values: Mapping[str, str | None], source: Dataset | None = None) -> Dataset:
    """A header with values as a device wrote them, whatever the standard says; None: without the attribute."""
    header = samples.cr() if source is None else source
    for keyword, value in values.items():
        if keyword in header:
            del header[keyword]
        if value is not None:
            encoded = value.encode("ascii")
            header[keyword] = RawDataElement(
                Tag(keyword), dictionary_VR(keyword), len(encoded), encoded, 0, False, True
            )
    return header


def age_of(**values: str | None) -> int | None:
    return parse_header(as_written({"PatientAge": None, "PatientBirthDate": None, **values})).age_years


def answered(folder: Path, **values: str | None) -> Answered:
    path = folder / "film.dcm"
    path.write_bytes(films.file_bytes(as_written(values, films.thumbnail())))
    return answer_film(path, AdultReader(), PROMPTS)


def outgoing(**values: str | None) -> Dataset:
    """The report on a film with these values."""
    [dataset] = sr.write(samples.report(samples.film()), samples.sources(as_written(values)), samples.BERLIN)
    return dcmread(BytesIO(save_bytes(dataset)))


@pytest.mark.parametrize(
    ("said", "years", "sent"),
    [
        ("7Y", 7, "007Y"),
        ("07Y", 7, "007Y"),
        ("007Y", 7, "007Y"),
        ("007y", 7, "007Y"),
        (" 7 Y", 7, "007Y"),
        ("7Y ", 7, "007Y"),
        ("18M", 1, "018M"),
        ("3W", 0, "003W"),
        ("10D", 0, "010D"),
        ("3650D", 9, None),
        ("7", 7, None),
        ("007", 7, None),
        ("7 years", 7, None),
        ("18 months", 1, None),
        ("7.5Y", 7, None),
        ("045Y", 45, "045Y"),
        ("131Y", None, None),
        ("999Y", None, None),
        ("-07Y", None, None),
        ("child", None, None),
        ("7Q", None, None),
        ("Y", None, None),
    ],
)
def test_an_age_is_read_as_a_person_would_read_it(said: str, years: int | None, sent: str | None) -> None:
    assert age_of(PatientAge=said) == years
    assert outgoing(PatientAge=said).get("PatientAge") == sent


@pytest.mark.parametrize(
    ("said", "years", "sent"),
    [
        ("20190305", 5, "20190305"),
        ("2019-03-05", 5, "20190305"),
        ("2019.03.05", 5, "20190305"),
        ("2019/03/05", 5, "20190305"),
        ("2019-3-5", 5, "20190305"),
        ("20190305120000", 5, "20190305"),
        ("20190305120000.000000+0100", 5, "20190305"),
        ("2019-03-05 12:00:00", 5, "20190305"),
        ("2019-03-05T12:00:00Z", 5, "20190305"),
        ("25.12.2018", 5, "20181225"),
        ("12/25/2018", 5, "20181225"),
        ("05-MAR-2019", 5, "20190305"),
        ("Mar 5, 2019", 5, "20190305"),
        ("05.05.2019", 5, "20190505"),
        ("05.09.2018", 5, ""),
        ("05.09.2006", 17, ""),
        ("20190000", 4, ""),
        ("20190300", 5, ""),
        ("2019", 4, ""),
        ("2024", 0, ""),
        ("190305", None, ""),
        ("05.03.19", None, ""),
        ("20190230", None, ""),
        ("20250101", None, "20250101"),
        ("18000101", None, "18000101"),
        ("unknown", None, ""),
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
        ({"StudyDate": "", "ContentDate": "2024-06-01"}, 5),
        ({"StudyDate": "20240601", "ContentDate": "20400601"}, 5),
        ({"StudyDate": "", "AcquisitionDate": "20240601", "SeriesDate": "20400601"}, 5),
        ({"StudyDate": "19000101", "SeriesDate": "20240601"}, 5),
        ({"StudyDate": None}, None),
    ],
)
def test_another_date_of_the_film_gives_the_age(dates: Mapping[str, str | None], years: int | None) -> None:
    none = dict.fromkeys(("SeriesDate", "AcquisitionDate", "AcquisitionDateTime", "ContentDate"))

    assert age_of(PatientBirthDate="20190305", **{**none, **dates}) == years


@pytest.mark.parametrize(
    "values",
    [
        {"PatientAge": "7Y"},
        {"PatientAge": "07Y"},
        {"PatientAge": "7"},
        {"PatientAge": "007y"},
        {**BORN_2019, "PatientBirthDate": "2019-03-05"},
        {**BORN_2019, "PatientBirthDate": "2019.03.05"},
        {**BORN_2019, "PatientBirthDate": "20190305120000"},
        {**BORN_2019, "PatientBirthDate": "20190305", "StudyDate": None, "SeriesDate": "20240601"},
    ],
)
def test_no_child_is_read_by_a_model_for_adults(tmp_path: Path, values: Mapping[str, str | None]) -> None:
    result = answered(tmp_path, **{"PatientBirthDate": None, **values})

    assert result.film is not None
    assert (result.film.is_read, result.film.reason) == (False, Reason.AGE)


@pytest.mark.parametrize(
    ("values", "note", "said"),
    [
        ({"PatientAge": "45"}, Note.AGE_WITHOUT_UNIT, "age without a unit; it was taken as years"),
        ({"PatientAge": "grown up"}, Note.AGE_UNKNOWN, "no age that could be read"),
        ({"PatientAge": "999Y"}, Note.AGE_UNKNOWN, "no age that could be read"),
        ({"PatientBirthDate": "05.03.19"}, Note.AGE_UNKNOWN, "no age that could be read"),
    ],
)
def test_what_is_doubtful_about_an_age_stands_in_the_report(
    tmp_path: Path, values: Mapping[str, str | None], note: Note, said: str
) -> None:
    film = answered(tmp_path, **{"PatientBirthDate": None, "PatientAge": None, **values}).film

    assert film is not None
    assert (film.is_read, film.notes) == (True, (note,))
    assert said in wording.looked_at(film)
    assert said in report_txt.render(samples.report(film)).replace("\n", " ")


def test_a_model_for_every_age_notes_nothing_about_ages() -> None:
    for said in ("45", "grown up"):
        header = parse_header(as_written({"PatientAge": said, "PatientBirthDate": None}))

        assert routing.choose(header, routing.rules_for(None)).notes == ()
