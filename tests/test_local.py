"""Reading and asking without a network, with a scripted reader; test_commands.py runs the real model."""

from __future__ import annotations

import json
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset

from node import local, prompts
from node.domain import Box, JsonObject
from node.errors import InputError
from node.inference import Question
from tests import films
from tests.fakes import ScriptedReader

PROMPTS = prompts.load("chexpert14")


def read(out: Path, *paths: Path, version: str = "1") -> list[JsonObject]:
    return local.read(paths, out, reader=ScriptedReader(version), prompts=PROMPTS, zone=ZoneInfo("Europe/Berlin"))


def saved(folder: Path, name: str, film: Dataset) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.dcm"
    path.write_bytes(films.file_bytes(film))
    return path


def test_a_study_becomes_a_folder_with_everything_in_it(tmp_path: Path) -> None:
    film = films.thumbnail()

    (report,) = read(tmp_path / "out", saved(tmp_path / "in", "film", film))

    folder = tmp_path / "out" / film.StudyInstanceUID
    uid = film.SOPInstanceUID
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["report.json", "report.txt", "sr.dcm", f"{uid}.gsps.dcm", f"{uid}.overlay.png"]
    )
    assert json.loads((folder / "report.json").read_text(encoding="utf-8")) == report
    assert report["version"] == 1
    assert report["outputs"] == ["sr.dcm", f"{uid}.gsps.dcm", f"{uid}.overlay.png"]


def test_the_report_ties_every_finding_to_a_sentence_and_boxes_inside_the_film(tmp_path: Path) -> None:
    (report,) = read(tmp_path / "out", saved(tmp_path / "in", "film", films.thumbnail()))

    film = json.loads(json.dumps(report))["films"][0]
    left, top, right, bottom = film["analyzed"]
    assert [finding["state"] for finding in film["findings"]].count("present") >= 3
    for finding in film["findings"]:
        assert film["sentences"][finding["sentence"]]["text"]
        assert len(finding["code"]) == 3
        for one in finding["boxes"]:
            assert left <= one["box"][0] < one["box"][2] <= right
            assert top <= one["box"][1] < one["box"][3] <= bottom
            assert one["tracking_uid"].startswith("2.25.")


def test_every_film_of_a_folder_gets_an_answer(tmp_path: Path) -> None:
    for name, (make, _) in films.REFUSED.items():
        saved(tmp_path / "in", name, films.as_another(make(), name))
    saved(tmp_path / "in", "readable", films.as_another(films.thumbnail(), "readable"))
    (tmp_path / "in" / "notes.txt").write_text("no film", encoding="utf-8")

    (report,) = read(tmp_path / "out", tmp_path / "in")

    answers = {one["source"]: (one["status"], one["reason"]) for one in json.loads(json.dumps(report))["films"]}
    expected = {
        films.as_another(make(), name).SOPInstanceUID: ("not_processed", str(reason))
        for name, (make, reason) in films.REFUSED.items()
    }
    assert answers == expected | {films.as_another(films.thumbnail(), "readable").SOPInstanceUID: ("read", None)}


def test_own_and_other_objects_are_listed_but_not_answered(tmp_path: Path) -> None:
    (report,) = read(
        tmp_path / "out",
        saved(tmp_path / "in", "own", films.own_object()),
        saved(tmp_path / "in", "dose", films.non_image("dose report")),
    )

    listed = json.loads(json.dumps(report))
    assert [one["reason"] for one in listed["films"]] == ["own_object", "modality"]
    assert listed["outputs"] == []


def test_reading_again_changes_no_byte_of_an_object(tmp_path: Path) -> None:
    film = saved(tmp_path / "in", "film", films.thumbnail())
    read(tmp_path / "out", film)
    objects = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.dcm")}

    read(tmp_path / "out", film)

    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.dcm")} == objects


def test_another_model_makes_other_objects(tmp_path: Path) -> None:
    film = saved(tmp_path / "in", "film", films.thumbnail())
    read(tmp_path / "one", film)
    read(tmp_path / "two", film, version="2")

    first, second = (
        {dcmread(path).SOPInstanceUID for path in (tmp_path / name).rglob("*.dcm")} for name in ("one", "two")
    )
    assert not first & second


def test_a_film_without_preamble_is_read(tmp_path: Path) -> None:
    path = tmp_path / "film"
    path.write_bytes(films.headerless_bytes(films.thumbnail()))

    (report,) = read(tmp_path / "out", path)

    assert json.loads(json.dumps(report))["films"][0]["status"] == "read"


@pytest.mark.parametrize("content", [b"", b"no film at all", b"\0" * 128 + b"DICM"])
def test_a_named_file_that_is_no_dicom_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "film.dcm"
    path.write_bytes(content)

    with pytest.raises(InputError, match="name DICOM files"):
        read(tmp_path / "out", path)


def test_a_missing_path_and_an_empty_folder_say_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "out", tmp_path / "nothing")
    with pytest.raises(InputError, match="no DICOM object found"):
        read(tmp_path / "out", tmp_path)


def test_a_uid_with_a_path_in_it_never_becomes_a_folder(tmp_path: Path) -> None:
    path = saved(tmp_path / "in", "film", films.thumbnail({"StudyInstanceUID": "../../escaped"}))

    with pytest.raises(InputError, match="not a valid UID"):
        read(tmp_path / "out", path)

    assert not (tmp_path / "escaped").exists()
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("size", [(300, 200), (1, 1)])
def test_a_blank_or_tiny_picture_cannot_be_asked_about(tmp_path: Path, size: tuple[int, int]) -> None:
    path = tmp_path / "film.png"
    Image.new("L", size).save(path)

    with pytest.raises(InputError, match="name a film"):
        local.ask(path, [Question(prompt="Edema")], reader=ScriptedReader(), prompts=PROMPTS)


def test_results_of_a_film_that_is_no_longer_read_do_not_stay(tmp_path: Path) -> None:
    read(tmp_path / "out", saved(tmp_path / "in", "film", films.thumbnail()))

    (report,) = read(tmp_path / "out", saved(tmp_path / "in", "film", films.constant()))

    folder = tmp_path / "out" / films.thumbnail().StudyInstanceUID
    assert sorted(path.name for path in folder.iterdir()) == ["report.json", "report.txt", "sr.dcm"]
    assert report["outputs"] == ["sr.dcm"]


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_half_written_object_is_written_again(tmp_path: Path, share: float) -> None:
    film = saved(tmp_path / "in", "film", films.thumbnail())
    read(tmp_path / "out", film)
    (report,) = (tmp_path / "out").rglob("sr.dcm")
    whole = report.read_bytes()
    report.write_bytes(whole[: int(len(whole) * share)])

    read(tmp_path / "out", film)

    assert len(report.read_bytes()) == len(whole)


def test_the_order_of_films_does_not_matter(tmp_path: Path) -> None:
    paths = [saved(tmp_path / "in", name, films.as_another(films.thumbnail(), name)) for name in ("a", "b")]
    read(tmp_path / "one", *paths)
    read(tmp_path / "two", *reversed(paths))

    uids = [{dcmread(path).SOPInstanceUID for path in (tmp_path / name).rglob("*.dcm")} for name in ("one", "two")]

    assert uids[0] == uids[1]


def test_a_picture_can_be_asked_about_in_its_own_pixels(tmp_path: Path) -> None:
    path = tmp_path / "film.png"
    Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (300, 1))).save(path)
    box = Box(left=20, top=60, right=90, bottom=200)

    (answer,) = local.ask(path, [Question(box=box)], reader=ScriptedReader(), prompts=PROMPTS)

    assert local.answer_to_json(answer)["box"] == [20, 60, 90, 200]
    for one in answer.boxes:
        assert 0 <= one.box.left < one.box.right <= 200


@pytest.mark.parametrize("name", ["a lateral film", "a CT slice", "cut short", "all zero"])
def test_what_is_no_readable_frontal_film_cannot_be_asked_about(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / "in", "film", films.REFUSED[name][0]())

    with pytest.raises(InputError):
        local.ask(path, [Question(prompt="Edema")], reader=ScriptedReader(), prompts=PROMPTS)


def test_a_box_that_leaves_the_film_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "in", "film", films.thumbnail())

    with pytest.raises(InputError, match="leaves the film"):
        local.ask(
            path,
            [Question(box=Box(left=0, top=0, right=5000, bottom=10))],
            reader=ScriptedReader(),
            prompts=PROMPTS,
        )


@given(st.lists(st.text(min_size=1), max_size=3), st.integers(0, 3))
def test_prompts_and_boxes_pair_up_only_when_there_is_one_of_each(phrases: list[str], count: int) -> None:
    boxes = [Box(left=0, top=0, right=1 + i, bottom=1) for i in range(count)]

    nothing, unclear = not (phrases or boxes), bool(phrases and boxes) and (len(phrases), count) != (1, 1)
    if nothing or unclear:
        with pytest.raises(InputError):
            local.questions_of(phrases, boxes)
        return
    questions = local.questions_of(phrases, boxes)
    combined = bool(phrases) and bool(boxes)
    assert len(questions) == (1 if combined else len(phrases) + count)
    assert all((one.prompt is not None and one.box is not None) == combined for one in questions)
