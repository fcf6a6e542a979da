"""Reading and asking without a network, with a scripted reader; test_commands.py runs the real model.

The words of `ask` for the person at the terminal: each state, each place, and what was not asked.
"""

from __future__ import annotations

import csv
import json
import re
import struct
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from unittest import mock
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, Question
from node.commands import ask, read_files
from node.domain import JsonObject
from node.errors import InputError, NodeError
from node.output_kinds import DEFAULT_OUTPUTS
from node.outputs.asked_question import answer_to_json
from node.read import open_film, prompts
from tests.support import films
from tests.support.documents import evidence
from tests.support.fakes import ScriptedReader
from tests.support.output_texts import DrawnTexts

PROMPTS = prompts.load("chexpert14")
Report = dict[str, Any]


def read(out: Path, *paths: Path, version: str = "1", kinds: tuple[str, ...] = DEFAULT_OUTPUTS) -> list[Report]:
    """Read files as the command does; the reports, as they are written as JSON."""
    studies = read_files.collect(paths)
    read_files.check_folder(out)
    reader, zone = ScriptedReader(version), ZoneInfo("Europe/Berlin")
    command = read_files.FileReader(reader=reader, prompts=PROMPTS, zone=zone, kinds=kinds)
    reports = list(command.read(studies, out))
    return cast(list[Report], json.loads(json.dumps(reports)))


def saved(folder: Path, name: str, film: Dataset) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.dcm"
    path.write_bytes(films.file_bytes(film))
    return path


def test_a_study_becomes_a_folder_whose_report_ties_findings_to_sentences_and_boxes(tmp_path: Path) -> None:
    film = films.thumbnail()
    uid = film.SOPInstanceUID

    (report,) = read(tmp_path / "out", saved(tmp_path / "in", "film", film))

    folder = tmp_path / "out" / film.StudyInstanceUID
    outputs = ["sr.dcm", f"{uid}.gsps.dcm", f"{uid}.overlay.png"]
    assert {path.name for path in folder.iterdir()} == {"report.json", "report.txt", *outputs}
    assert json.loads((folder / "report.json").read_text(encoding="utf-8")) == report
    assert (report["version"], report["outputs"]) == (1, outputs)
    (read_film,) = report["films"]
    left, top, right, bottom = read_film["analyzed"]
    states = {finding["prompt"]: finding["state"] for finding in read_film["findings"]}
    assert [*states.values()].count("present") >= 3
    for finding in read_film["findings"]:
        assert read_film["sentences"][finding["sentence"]]["text"]
        assert len(finding["code"]) == 3
        assert finding["state"] != "absent" or not finding["boxes"]
        for box in finding["boxes"]:
            assert left <= box["box"][0] < box["box"][2] <= right
            assert top <= box["box"][1] < box["box"][3] <= bottom
            assert box["tracking_uid"].startswith("2.25.")
    assert [said for said in read_film["sentences"] if said["boxes"] and states.get(said["prompt"]) == "absent"] == []


def test_captures_are_written_where_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    film, lateral = films.thumbnail(), films.as_another(films.lateral(), "lateral")
    uid, other = film.SOPInstanceUID, lateral.SOPInstanceUID
    paths = [saved(tmp_path / "in", "film", film), saved(tmp_path / "in", "lateral", lateral)]
    texts = DrawnTexts(monkeypatch)

    (report,) = read(tmp_path / "out", *paths, kinds=("sc",))

    assert sorted(report["outputs"]) == sorted([f"{uid}.sc.dcm", f"{other}.sc.dcm", f"{uid}.overlay.png"])
    folder = tmp_path / "out" / film.StudyInstanceUID
    drawn, picture = dcmread(folder / f"{uid}.sc.dcm"), np.asarray(Image.open(folder / f"{uid}.overlay.png"))
    upper = drawn.Rows // 2
    assert np.array_equal(drawn.pixel_array[:upper], picture[:upper])
    written_by = r"ChEX Node \S+, model \S+ 1 \(weights \w+\), 20\d\d-\d\d-\d\d \d\d:\d\d UTC$"
    assert re.search(written_by, " ".join(texts.lines))
    (again,) = read(tmp_path / "out", *paths)
    assert not list(folder.glob("*.sc*.dcm"))
    assert "study.sr.dcm" in again["outputs"]


READ: dict[str, dict[str, object]] = {
    "a whole header": {},
    "a NaN window": {"WindowCenter": float("nan"), "WindowWidth": float("nan")},
    "no date": {"StudyDate": None, "StudyTime": None},
    "no patient": dict.fromkeys(("PatientID", "PatientName", "PatientBirthDate", "PatientSex")),
    "a broken date": {"StudyDate": "20041399", "PatientBirthDate": "soon"},
    "no series": {"SeriesInstanceUID": None, "SeriesNumber": None},
}


def test_every_film_of_a_folder_gets_an_answer_and_own_and_other_objects_none(tmp_path: Path) -> None:
    made: dict[str, tuple[Dataset, tuple[str, str | None]]] = {
        name: (make(), ("not_processed", str(reason))) for name, (make, reason) in films.REFUSED.items()
    }
    made |= {name: (films.thumbnail(changes), ("read", None)) for name, changes in READ.items()}
    expected = {}
    for name, (film, answer) in made.items():
        expected[films.as_another(film, name).SOPInstanceUID] = answer
        saved(tmp_path / "in", name, film)
    (tmp_path / "in" / "notes.txt").write_text("no film", encoding="utf-8")
    saved(tmp_path / "others", "own", films.own_object())
    saved(tmp_path / "others", "dose", films.non_image("dose report"))

    (report,) = read(tmp_path / "out", tmp_path / "in")
    (others,) = read(tmp_path / "out of others", tmp_path / "others")

    assert {film["source"]: (film["status"], film["reason"]) for film in report["films"]} == expected
    assert sorted(film["reason"] for film in others["films"]) == ["modality", "own_object"]
    assert others["outputs"] == []


def test_each_read_film_has_a_report_and_the_study_too(tmp_path: Path) -> None:
    paths = [saved(tmp_path / "in", name, films.as_another(films.thumbnail(), name)) for name in ("a", "b")]
    paths.append(saved(tmp_path / "in", "lateral", films.as_another(films.lateral(), "lateral")))
    (one_read,) = read(tmp_path / "one", paths[0], paths[2])

    (report,) = read(tmp_path / "out", *paths)

    uids = sorted(films.as_another(films.thumbnail(), name).SOPInstanceUID for name in ("a", "b"))
    assert report["outputs"][:3] == [*(f"{uid}.sr.dcm" for uid in uids), "study.sr.dcm"]
    assert one_read["outputs"][:2] == ["sr.dcm", "study.sr.dcm"]
    folder = tmp_path / "out" / films.thumbnail().StudyInstanceUID
    assert [evidence(dcmread(folder / f"{uid}.sr.dcm")) for uid in uids] == [[uid] for uid in uids]
    read(tmp_path / "out", paths[0])
    assert [path.name for path in folder.glob("*sr.dcm")] == ["sr.dcm"]


def test_what_cannot_be_read_or_written_says_so(tmp_path: Path) -> None:
    path, out = tmp_path / "film.dcm", tmp_path / "out"
    for content in (b"", b"no film at all", b"\0" * 128 + b"DICM"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="name DICOM files"):
            read(out, path)
    with pytest.raises(InputError, match="does not exist"):
        read(out, tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no DICOM object found"):
        read(out, tmp_path / "empty")
    with pytest.raises(NodeError, match=r"cannot be written \(Is a directory\)"):
        read_files.write_table(tmp_path, [])
    escaping = saved(tmp_path / "in", "film", films.thumbnail({"StudyInstanceUID": "../../escaped"}))
    with pytest.raises(InputError, match="not a valid UID"):
        read(out, escaping)
    assert not (tmp_path / "escaped").exists()
    assert not out.exists()


def test_a_picture_can_be_asked_about_in_its_own_pixels(tmp_path: Path) -> None:
    path = tmp_path / "film.png"
    Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (300, 1))).save(path)
    box = Box(left=20, top=60, right=90, bottom=200)

    (answer,) = open_film.ask(path, [Question(box=box)], reader=ScriptedReader(), prompts=PROMPTS)

    assert answer_to_json(answer)["box"] == [20, 60, 90, 200]
    for scored in answer.boxes:
        assert 0 <= scored.box.left < scored.box.right <= 200


def png(size: tuple[int, int]) -> bytes:
    content = BytesIO()
    Image.new("L", size).save(content, format="PNG")
    return content.getvalue()


def test_what_is_no_readable_frontal_film_cannot_be_asked_about(tmp_path: Path) -> None:
    whole, beside = Question(prompt="Edema"), Question(box=Box(left=0, top=0, right=5000, bottom=10))
    unread = [films.REFUSED[name][0]() for name in ("a lateral film", "a CT slice", "cut short", "all zero")]
    for name, content, question, said in (
        ("blank.png", png((300, 200)), whole, "name a film"),
        ("tiny.png", png((1, 1)), whole, "name a film"),
        *((f"{number}.dcm", films.file_bytes(film), whole, None) for number, film in enumerate(unread)),
        ("film.dcm", films.file_bytes(films.thumbnail()), beside, "leaves the film"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=said):
            open_film.ask(tmp_path / name, [question], reader=ScriptedReader(), prompts=PROMPTS)


@pytest.mark.parametrize(
    ("phrases", "count", "expected"),
    [
        ([], 0, None),
        ([" "], 0, [(" ", False)]),
        (["\u200b"], 1, [("", True)]),
        (["Edema", "Fracture"], 1, None),
        (["Edema"], 2, None),
        (["Edema", "Fracture"], 0, [("Edema", False), ("Fracture", False)]),
        ([], 2, [(None, True), (None, True)]),
        (["Edema"], 1, [("Edema", True)]),
    ],
)
def test_prompts_and_boxes_pair_up_only_if_there_is_one_each(
    phrases: list[str], count: int, expected: list[tuple[str | None, bool]] | None
) -> None:
    boxes = [Box(left=0, top=0, right=1 + number, bottom=1) for number in range(count)]

    if expected is None:
        with pytest.raises(InputError):
            ask.questions_of(phrases, boxes)
    else:
        questions = ask.questions_of(phrases, boxes)
        assert [(question.prompt, question.box is not None) for question in questions] == expected


def read_counted(folder: Path, out: Path, reader: ScriptedReader, zone: str = "UTC") -> list[str]:
    """Read a folder; the outcome of each file."""
    outcomes = list[str]()
    read_files.check_folder(out)
    command = read_files.FileReader(
        reader=reader,
        prompts=PROMPTS,
        zone=ZoneInfo(zone),
        on_file=lambda _path, outcome: outcomes.append(outcome),
    )
    list(command.read(read_files.collect([folder]), out))
    return outcomes


def test_what_was_read_before_a_stop_is_not_read_again(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    for name in "abcde":
        saved(folder, name, films.as_another(films.thumbnail(), name, study=name))

    reader = ScriptedReader()
    with mock.patch.object(reader, "read", wraps=reader.read) as reading:
        reading.side_effect = [*[mock.DEFAULT] * 3, KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            read_counted(folder, out, reader)
    assert len(list(out.rglob("report.json"))) == 3

    with mock.patch.object(reader, "read", wraps=reader.read) as reading:
        assert sorted(read_counted(folder, out, reader)) == ["done before"] * 3 + ["read"] * 2
    assert reading.call_count == 2
    assert len(list(out.rglob("report.json"))) == 5


def test_a_study_whose_results_were_changed_or_that_is_to_be_read_otherwise_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"

    def outcome(zone: str = "Europe/Berlin") -> str:
        (found,) = read_counted(folder, out, ScriptedReader(), zone)
        return found

    saved(folder, "film", films.thumbnail())
    outcome()
    for name in ("sr.dcm", "report.txt", "report.json", "*.overlay.png"):
        next(out.rglob(name)).write_bytes(b"changed")
        assert (outcome(), outcome()) == ("read", "done before"), name
    assert (outcome(zone="UTC"), outcome(zone="UTC")) == ("read", "done before")
    saved(folder, "film", films.thumbnail({"PatientName": "Another"}))
    assert (outcome(zone="UTC"), outcome(zone="UTC")) == ("read", "done before")
    monkeypatch.setattr(read_files, "VERSION", "another")
    assert outcome(zone="UTC") == "read"


def test_a_film_with_an_endless_header_is_answered(tmp_path: Path) -> None:
    content = films.file_bytes(films.thumbnail())
    path = tmp_path / "film.dcm"
    elements = b"".join(struct.pack("<HH2sH", 0x0021, number, b"LO", 0) for number in range(0x10, 30_000))
    place = content.index(b"\x28\0\x02\0US")
    path.write_bytes(content[:place] + elements + content[place:])

    (report,) = read(tmp_path / "out", path)

    assert [film["reason"] for film in report["films"]] == ["undecodable"]
    assert "sr.dcm" in report["outputs"]


def test_the_table_has_a_line_for_each_film(tmp_path: Path) -> None:
    first = films.thumbnail()
    lateral = films.as_another(films.thumbnail({"ViewPosition": "LL"}), "lateral")
    paths = [saved(tmp_path / "in", name, film) for name, film in (("first", first), ("lateral", lateral))]

    read_files.write_table(tmp_path / "films.csv", read(tmp_path / "out", *paths))

    text = (tmp_path / "films.csv").read_text(encoding="utf-8")
    found, other = sorted(csv.DictReader(text.splitlines()), key=lambda line: line["film"] != first.SOPInstanceUID)
    assert (found["study"], found["status"], found["reason"]) == (first.StudyInstanceUID, "read", "")
    assert (found["atelectasis"], found["pneumothorax"]) == ("present", "not_reported")
    assert float(found["atelectasis_probability"]) > float(found["pneumothorax_probability"])
    assert found["impression"]
    assert (other["film"], other["status"]) == (lateral.SOPInstanceUID, "not_processed")
    assert (other["reason"], other["atelectasis"]) == ("lateral", "")
    assert str(first.PatientID) not in text


QUESTION: JsonObject = {
    "prompt": "Edema",
    "box": None,
    "sentence": "There is edema.",
    "by": "network",
    "said": '"There is edema."',
    "score": 0.523,
    "state": "present",
    "positive": True,
    "reason": None,
    "boxes": [{"box": [10.2, 20.6, 300.0, 400.0], "score": 0.61}],
    "notes": [],
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "Edema: present, AI probability 52 %"),
        ({"state": "indeterminate"}, "Edema: possible, please review, AI probability 52 %"),
        ({"state": "uncalibrated"}, "Edema: possible, please review, AI probability 52 %"),
        ({"state": "absent"}, "Edema: not reported (below threshold, may have been missed), AI probability 52 %"),
        ({"state": "left_out", "score": None}, "Edema: not evaluated by this model"),
        ({"prompt": "abdomen", "state": None}, "abdomen: score 0.52"),
        (
            {"state": None, "score": None, "message": "this model never learned: zebra"},
            "Edema: this model never learned",
        ),
        ({"prompt": None, "box": [1, 2, 3, 4], "state": None, "score": None}, "the box 1, 2, 3, 4"),
        ({"box": [1, 2, 3, 4]}, "Edema in the box 1, 2, 3, 4: present"),
    ],
)
def test_an_answer_is_told_in_the_words_of_the_outputs(changes: JsonObject, expected: str) -> None:
    question: JsonObject = {**QUESTION, "reason": "The whole film is normal.", "notes": ["rotated"], **changes}
    document: JsonObject = {"film": "a.dcm", "questions": [question]}

    film, first, *rest = filter(None, ask.in_words(document).splitlines())

    assert film == "a.dcm"
    assert first.startswith(expected)
    assert rest == [
        '    "There is edema."',
        "    The whole film is normal.",
        "    at 10, 21, 300, 400, score 0.61",
        "    The picture looks rotated.",
        "For research use; not for diagnosis.",
    ]
