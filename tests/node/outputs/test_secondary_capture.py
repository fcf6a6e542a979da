"""Secondary captures: the film with its boxes, or why it was not read, as an object that any archive takes."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from node.dicom.film_header import parse_header
from node.domain import Film, Reason
from node.outputs import overlay, secondary_capture, wording
from node.outputs.document import save_bytes
from node.outputs.source import Picture
from tests.support import samples, validators
from tests.support.documents import film_of
from tests.support.samples import BERLIN, absent, bare, cr, film, received, report, several, unread

GRAY = np.full((samples.ROWS, samples.COLUMNS), 90, np.uint8)
MADE = wording.made_by(report(several()))


def written(*films: Film, picture: Picture | None = GRAY, header: Dataset | None = None) -> list[Dataset]:
    """Write the captures of films, and read them back from their bytes."""
    headers = [header or cr(1), *(cr(number) for number in range(2, 5))]
    objects = samples.datasets(secondary_capture.write, report(*films), received(*headers, picture=picture), BERLIN)
    return [dcmread(BytesIO(save_bytes(dataset))) for dataset in objects]


@pytest.mark.parametrize("of", [several(), film(findings=(absent(),))], ids=["findings", "none"])
def test_a_read_film_has_one_capture(of: Film) -> None:
    [dataset] = written(of)

    assert dataset.InstanceNumber == 1
    assert dataset.SOPClassUID == "1.2.840.10008.5.1.4.1.1.7"
    assert (dataset.ConversionType, dataset.BurnedInAnnotation) == ("WSD", "NO")
    assert list(dataset.ImageType) == ["DERIVED", "SECONDARY"]
    assert dataset.SeriesDescription == "AI pictures - RESEARCH, NOT FOR DIAGNOSIS"
    assert dataset.DerivationDescription.startswith("AI RESEARCH - NOT FOR DIAGNOSIS")
    [source] = dataset.SourceImageSequence
    assert source.ReferencedSOPInstanceUID == samples.film_uid(1)
    assert (dataset.PatientID, str(dataset.PatientName)) == ("4711", "Müller^Jörg")
    assert validators.dciodvfy(dataset) == []
    assert validators.unknown_warnings(dataset) == []


def test_the_pixels_are_those_that_were_drawn() -> None:
    [drawn], [head] = written(several()), written(unread(1, Reason.LATERAL), picture=None)

    for dataset, image in (
        (drawn, overlay.draw(GRAY, several(), made=MADE)),
        (head, overlay.draw_head(unread(1, Reason.LATERAL), made=MADE)),
    ):
        assert dataset.PhotometricInterpretation == "RGB"
        assert np.array_equal(dataset.pixel_array, np.asarray(image))


@pytest.mark.parametrize("reason", list(Reason))
def test_a_film_that_was_not_read_has_a_capture_too(reason: Reason) -> None:
    [head] = written(unread(1, reason), picture=None)

    assert head.SourceImageSequence[0].ReferencedSOPInstanceUID == samples.film_uid(1)
    assert "BodyPartExamined" not in head
    assert "not drawn" in head.DerivationDescription
    assert validators.dciodvfy(head) == []


def test_a_film_that_cannot_be_decoded_again_has_a_capture_too() -> None:
    [head] = written(several(), picture=None)

    assert np.array_equal(head.pixel_array, np.asarray(overlay.draw_head(several(), made=MADE)))


def test_each_film_has_a_series_of_its_own_that_is_known_again() -> None:
    objects = written(several(), unread(2), film(3))

    assert [film_of(dataset) for dataset in objects] == [samples.film_uid(number) for number in (1, 2, 3)]
    assert len({dataset.SeriesInstanceUID for dataset in objects}) == 3
    assert all(parse_header(dataset).is_own for dataset in objects)


def test_a_film_that_names_no_patient_takes_that_of_another() -> None:
    objects = written(several(), unread(2), header=bare(1))

    assert {str(dataset.PatientID) for dataset in objects} == {"4711"}


def test_what_is_drawn_otherwise_is_another_object() -> None:
    brighter = GRAY.copy()
    brighter[0, 0] = 200
    surer = replace(several(), findings=(replace(several().findings[0], probability=0.9), *several().findings[1:]))

    plain, other_pixels, other_finding = written(several()), written(several(), picture=brighter), written(surer)

    assert [dataset.SOPInstanceUID for dataset in plain] == [dataset.SOPInstanceUID for dataset in written(several())]
    assert plain[0].SOPInstanceUID != other_pixels[0].SOPInstanceUID
    assert plain[0].SOPInstanceUID != other_finding[0].SOPInstanceUID


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(["L", "F"], ["L", "F"]), (["P", "FR"], ["P", "FR"]), (["L"], None), (["left", "F"], None), (None, None)],
)
def test_the_film_keeps_its_directions(sent: list[str] | None, expected: list[str] | None) -> None:
    header = cr(1)
    header.add_new("PatientOrientation", "LO", sent)

    [drawn], [head] = written(several(), header=header), written(several(), header=header, picture=None)

    assert (list(drawn.PatientOrientation) if drawn.PatientOrientation else None) == expected
    assert not head.PatientOrientation
    assert validators.dciodvfy(drawn) == []


def test_a_film_compressed_with_loss_stays_one() -> None:
    header = cr(1)
    header.LossyImageCompression = "01"
    header.LossyImageCompressionRatio = "12.5"
    header.LossyImageCompressionMethod = "ISO_10918_1"

    [drawn], [head] = written(several(), header=header), written(several(), header=header, picture=None)

    assert (drawn.LossyImageCompression, drawn.LossyImageCompressionRatio) == ("01", 12.5)
    assert "LossyImageCompression" not in head
    assert validators.dciodvfy(drawn) == []
