"""Phantoms as DICOM: valid objects, and films that the node reads, or leaves alone, for the right reason."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from models.lab.phantoms.dicom import DicomFilm, Format, film, other
from models.phantoms import truth_line
from node.dicom import header_reading
from node.dicom.film_header import parse_header
from node.domain import Reason
from node.read import decoding, routing
from node.read.routing import Action
from tests.support.validators import dciodvfy

SEED = 2_000_000


def stored(
    modality: Literal["CR", "DX"] = "CR",
    photometric: Literal["MONOCHROME1", "MONOCHROME2"] = "MONOCHROME2",
    *,
    bits: int = 12,
    columns: int = 240,
    rows: int = 300,
) -> Format:
    return Format(modality=modality, photometric=photometric, bits=bits, columns=columns, rows=rows)


def kept(made: DicomFilm, folder: Path) -> Path:
    path = folder / "film.dcm"
    made.dataset.save_as(path, enforce_file_format=True)
    return path


@pytest.mark.parametrize("modality", ["CR", "DX"])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_films_are_valid(modality: Literal["CR", "DX"], photometric: Literal["MONOCHROME1", "MONOCHROME2"]) -> None:
    made = film(SEED, stored(modality, photometric))

    assert dciodvfy(made.dataset) == []


@pytest.mark.parametrize("modality", ["CR", "DX"])
@pytest.mark.parametrize("kind", ["lateral", "hand"])
def test_other_films_are_valid(modality: Literal["CR", "DX"], kind: Literal["lateral", "hand"]) -> None:
    assert dciodvfy(other(SEED, kind, stored(modality)).dataset) == []


@pytest.mark.parametrize("modality", ["CR", "DX"])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("bits", [12, 16])
def test_the_node_reads_a_film_as_the_frontal_that_it_is(
    modality: Literal["CR", "DX"], photometric: Literal["MONOCHROME1", "MONOCHROME2"], bits: int, tmp_path: Path
) -> None:
    made = film(SEED, stored(modality, photometric, bits=bits))

    path = kept(made, tmp_path)
    decision = routing.choose(parse_header(header_reading.read_header(path)), routing.RULES)
    read = decoding.load(path, gray="voi", square=lambda columns, rows: (0, 0, columns, rows))

    assert decision.action is Action.READ
    assert decision.notes == ()
    assert read.gray.shape == (300, 240)
    square = read.gray[30:270]
    shown = made.phantom.pixels.astype(np.float32) / 255
    assert shown.shape == square.shape
    assert np.abs(square - shown).max() < 0.02
    assert decoding.sides_known(parse_header(made.dataset))


@pytest.mark.parametrize(("kind", "reason"), [("lateral", Reason.LATERAL), ("hand", Reason.NOT_CHEST)])
@pytest.mark.parametrize("modality", ["CR", "DX"])
def test_the_node_leaves_other_films_alone(
    kind: Literal["lateral", "hand"], reason: Reason, modality: Literal["CR", "DX"], tmp_path: Path
) -> None:
    path = kept(other(SEED, kind, stored(modality)), tmp_path)

    assert routing.choose(parse_header(header_reading.read_header(path)), routing.RULES).reason is reason


def test_truth_lies_in_pixels_of_the_whole_film() -> None:
    made = film(SEED, stored(columns=240, rows=480))

    line = truth_line(made.phantom, "film.dcm", columns=made.columns, rows=made.rows)
    boxes = line["boxes"]

    assert isinstance(boxes, list)
    for box in boxes:
        left, top, right, bottom = box["xyxy"]
        assert 0 <= left < right <= 240
        assert 120 <= top < bottom <= 360
