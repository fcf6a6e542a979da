"""The table of writers: pictures are decoded when needed, one at a time, and the loss of one costs no report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pydicom.dataset import Dataset

from node.domain import About, Film, is_uid
from node.output_kinds import OUTPUTS, Written
from node.outputs import answers, writers
from node.outputs.source import Picture, from_files
from node.read import decoding
from tests.node.outputs.test_answer_objects import asked
from tests.support import films, samples
from tests.support.documents import reference
from tests.support.samples import BERLIN, cr, film, report, several, sources, unread

GRAY = np.full((samples.ROWS, samples.COLUMNS), 90, np.uint8)


def written(
    *of: Film, kinds: tuple[str, ...], picture: Callable[[str], Picture | None] = lambda _uid: GRAY
) -> list[Written]:
    """Write objects of films; picture: what is asked for the picture of each."""
    received = {
        uid: samples.source(header, partial(picture, uid)) for uid, header in sources(cr(1), cr(2), cr(3)).items()
    }
    return list(writers.write_objects(report(*of), received, zone=BERLIN, kinds=kinds))


def saved(folder: Path, *objects: Dataset) -> tuple[Mapping[str, Dataset], Mapping[str, Path]]:
    """Save films; returns headers and paths by SOP Instance UID."""
    paths = {str(dataset.SOPInstanceUID): folder / f"{number}.dcm" for number, dataset in enumerate(objects)}
    for path, dataset in zip(paths.values(), objects, strict=True):
        path.write_bytes(films.file_bytes(dataset))
    return sources(*objects), paths


@pytest.mark.parametrize("kind", OUTPUTS.own)
def test_objects_have_the_class_of_their_kind(kind: str) -> None:
    objects = written(several(), unread(2), kinds=(kind,))

    # Reports that are texts are Comprehensive SR for destinations with Comprehensive 3D SR too.
    assert {made.kind for made in objects} == ({kind, "sr"} if kind == "sr3d" else {kind})
    assert all(made.dataset.SOPClassUID == OUTPUTS.own[made.kind].sop_class for made in objects)


def test_what_a_writer_says_of_an_object_stands_in_it() -> None:
    objects = written(replace(several(), ratio=samples.ratio()), unread(2), film(3), kinds=tuple(OUTPUTS.own))

    said = [(made.kind, made.subject, made.template) for made in objects]
    found = [reference(made.dataset) for made in objects]
    assert said == [(output.kind, output.subject, output.template) for output in found]
    assert {subject.about for _, subject, _ in said} == {About.FILM, About.RATIO, About.STUDY}


def test_a_report_needs_no_picture() -> None:
    asked: list[str] = []

    written(several(), film(3), kinds=("sr",), picture=lambda uid: asked.append(uid))

    assert asked == []


def test_pictures_are_asked_for_film_by_film() -> None:
    asked: list[str] = []

    objects = written(several(), unread(2), film(3), kinds=tuple(OUTPUTS.own), picture=lambda uid: asked.append(uid))

    assert asked == sorted(asked)
    assert set(asked) == {samples.film_uid(1), samples.film_uid(3)}
    assert {made.kind for made in objects} == set(OUTPUTS.own)


def test_films_that_cannot_be_decoded_lose_their_picture_alone() -> None:
    wanted = ("sr", "gsps", "sc")

    kinds = [made.kind for made in written(several(), film(3), kinds=wanted, picture=lambda _uid: None)]

    assert kinds == ["sr", "sr", "sr", "gsps", "sc", "gsps", "sc"]


def test_one_picture_is_kept_at_a_time(tmp_path: Path) -> None:
    first, second = films.thumbnail(), films.as_another(films.thumbnail(), "second")
    received = from_files(*saved(tmp_path, first, second))
    ask_first, ask_second = (received[str(dataset.SOPInstanceUID)].picture for dataset in (first, second))

    kept = ask_first()

    assert kept is not None
    assert kept is ask_first()
    assert ask_second() is not None
    assert kept is not ask_first()


def test_the_picture_of_a_file_is_the_film_as_displayed(tmp_path: Path) -> None:
    headers, paths = saved(tmp_path, films.rg1())
    [source] = from_files(headers, paths).values()

    picture = source.picture()

    read = next(iter(paths.values()))
    upright = decoding.load(read, gray="voi", square=lambda columns, rows: (0.0, 0.0, columns, rows)).gray
    assert picture is not None
    assert np.array_equal(picture, np.rint(upright * 255).astype(np.uint8))


@pytest.mark.parametrize("content", [b"", b"no film", None], ids=["empty", "nothing", "cut short"])
def test_a_file_that_cannot_be_decoded_has_no_picture(tmp_path: Path, content: bytes | None) -> None:
    headers, paths = saved(tmp_path, films.thumbnail())
    [path] = paths.values()
    path.write_bytes(path.read_bytes()[:-5000] if content is None else content)

    [source] = from_files(headers, paths).values()

    assert source.picture() is None


def test_an_error_of_the_disk_is_no_fault_of_a_film(tmp_path: Path) -> None:
    headers, paths = saved(tmp_path, films.thumbnail())
    [source] = from_files(headers, paths).values()
    for path in paths.values():
        path.unlink()

    with pytest.raises(OSError, match="No such file"):
        source.picture()


@pytest.mark.parametrize("series", [None, "", "1.2.3\\1.2.4", "1.2..3", "none", f"1.{'2' * 64}"])
def test_what_is_no_single_valid_series_is_none(series: str | None) -> None:
    header = films.as_written(cr(1), {"SeriesInstanceUID": None if series is None else series.encode()})
    received = {str(header.SOPInstanceUID): samples.source(header, lambda: GRAY)}

    kinds = ("sr", "text", "gsps")

    objects = [made.dataset for made in writers.write_objects(report(film()), received, zone=BERLIN, kinds=kinds)]
    answered = answers.write_objects(asked(), report(film()), *received.values(), zone=BERLIN, kinds=kinds)
    objects += [made.dataset for made in answered]

    named = {str(element.value) for made in objects for element in made.iterall() if element.VR == "UI"}
    assert len(objects) == 5
    assert all(map(is_uid, named))


def test_writing_changes_no_received_header() -> None:
    header = cr(1)
    del header.SeriesInstanceUID
    before = header.to_json()

    received = {str(header.SOPInstanceUID): samples.source(header, lambda: GRAY)}

    assert list(writers.write_objects(report(film()), received, zone=BERLIN, kinds=tuple(OUTPUTS.own)))
    assert header.to_json() == before
