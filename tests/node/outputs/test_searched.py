"""Where the network looked for what it does not report: kept with a film's answer, and told by report.json if asked."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from models.contract import Box, FindingState, PromptReading, ScoredBox
from node.commands import demo, read_files
from node.domain import Assessment, Film, JsonObject, ReaderMark, Searched
from node.output_kinds import OUTPUTS
from node.outputs import impression, oru, report_json, wording
from node.outputs.folder import write_folder
from node.outputs.source import from_files
from node.outputs.writers import write_objects
from node.read import findings, open_film, prompts
from node.read.film import film_of
from node.read.model import Reading, open_reader
from tests.support import films, samples
from tests.support.fakes import ScriptedReader
from tests.support.samples import BERLIN, absent, finding, report, uncalibrated

PROMPTS = prompts.load("chexpert14")
LOOKED = (ScoredBox(box=Box(left=1100.5, top=200, right=1500, bottom=640.25), score=0.125),)


def searching() -> Film:
    """A film with a finding, one to be reviewed, and one that is not reported, for which the network looked."""
    shown = samples.film(findings=(finding(), uncalibrated(), absent()))
    return replace(shown, searched=(Searched(prompt="pneumothorax", boxes=LOOKED),))


def entry(film: Film, *, with_searched: bool) -> JsonObject:
    content: JsonObject = json.loads(json.dumps(report_json.film_for_programs(film, with_searched=with_searched)))
    return content


def test_the_boxes_are_those_of_the_network_for_the_finding(phantom_model: Path) -> None:
    reader = open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1, trusted="any")
    image = open_film.load(demo.FILMS[0], reader)
    reading = reader.read(image, PROMPTS)

    film = film_of(reading, image, PROMPTS, source="1.2.3", model=reader.identity)

    given = {answer.key: answer.boxes for answer in reading.pathologies}
    silent = [found.prompt for found in film.in_state(FindingState.ABSENT)]
    assert len(silent) > 3
    assert {place.prompt: place.boxes for place in film.searched} == {key: given[key] for key in silent}
    assert all(place.boxes for place in film.searched)


@pytest.mark.parametrize(
    ("state", "boxes"),
    [
        (FindingState.PRESENT, LOOKED),
        (FindingState.INDETERMINATE, LOOKED),
        (FindingState.UNCALIBRATED, LOOKED),
        (FindingState.LEFT_OUT, LOOKED),
        (FindingState.ABSENT, ()),
    ],
)
def test_what_is_reported_or_left_out_is_not_searched(state: FindingState, boxes: tuple[ScoredBox, ...]) -> None:
    answer = PromptReading(key="edema", probability=0.4, state=state, boxes=boxes)

    assert findings.searched(Reading(prompts=(answer,))) == ()


def test_report_json_has_them_only_if_asked_and_apart() -> None:
    film, plain = searching(), replace(searching(), searched=())

    off, on = entry(film, with_searched=False), entry(film, with_searched=True)

    assert json.dumps(off) == json.dumps(entry(plain, with_searched=False))
    assert on.pop("searched") == {
        "note": report_json.SEARCHED_NOTE,
        "prompts": [{"prompt": "pneumothorax", "boxes": [{"box": [1100.5, 200, 1500, 640.25], "score": 0.125}]}],
    }
    assert json.dumps(on) == json.dumps(off)
    assert "not findings" in report_json.SEARCHED_NOTE
    assert "searched" not in entry(samples.unread(1), with_searched=True)


def test_no_file_of_a_study_but_report_json_has_them(tmp_path: Path) -> None:
    source = films.thumbnail()
    source.save_as(tmp_path / "film.dcm", enforce_file_format=True)
    [before, off, on] = [
        written(tmp_path / name, film, with_searched=with_searched)
        for name, film, with_searched in (
            ("before", replace(on_thumbnail(), searched=()), False),
            ("off", on_thumbnail(), False),
            ("on", on_thumbnail(), True),
        )
    ]

    assert off == before
    assert {name for name in on if on[name] != before[name]} == {"report.json"}
    assert {name.split(".")[-2] for name in before if name.endswith(".dcm")} == {*("sr", "sr3d", "text", "gsps", "sc")}


def test_no_message_and_no_impression_has_them() -> None:
    film, plain = searching(), replace(searching(), searched=())
    headers = samples.sources(samples.cr())

    sent = [oru.write(report(each), headers, BERLIN, order=None, documents=[])[1] for each in (film, plain)]

    assert sent[0] == sent[1]
    assert impression.of_film(film) == impression.of_film(plain)
    assert wording.reported(film) == wording.reported(plain)


@pytest.mark.parametrize("what", [Assessment.REJECTED, Assessment.ADDED, Assessment.ACCEPTED])
def test_what_a_reader_judged_is_not_among_them(what: Assessment) -> None:
    mark = ReaderMark(what=what, by="anna", at=datetime(2024, 2, 1, tzinfo=UTC))
    state = FindingState.ABSENT if what is Assessment.REJECTED else FindingState.PRESENT
    judged = replace(absent(), state=state, reader=mark)
    film = replace(searching(), findings=(finding(), judged))

    assert wording.searched(film) == []
    assert entry(film, with_searched=True)["searched"] == {"note": report_json.SEARCHED_NOTE, "prompts": []}


def test_reading_a_folder_again_follows_the_option(tmp_path: Path) -> None:
    films.thumbnail().save_as(tmp_path / "film.dcm", enforce_file_format=True)
    outcomes = []

    def read(*, with_searched: bool) -> JsonObject:
        [made] = read_files.read(
            read_files.collect([tmp_path / "film.dcm"]),
            tmp_path / "out",
            reader=ScriptedReader(),
            prompts=PROMPTS,
            zone=ZoneInfo("UTC"),
            with_searched=with_searched,
            on_file=lambda _, outcome: outcomes.append(outcome),
        )
        [film] = json.loads(json.dumps(made))["films"]
        return {"searched": film.get("searched")}

    told = [read(with_searched=with_searched) for with_searched in (False, True, True)]

    assert told[0] == {"searched": None}
    assert told[1] == told[2] != told[0]
    assert outcomes == ["read", "read", read_files.DONE_BEFORE]


def on_thumbnail() -> Film:
    """The answer of the scripted reader to a real film."""
    source = films.thumbnail()
    box = ScoredBox(box=Box(left=10, top=12, right=40.5, bottom=51), score=0.3)
    return replace(
        searching(),
        source=str(source.SOPInstanceUID),
        columns=source.Columns,
        rows=source.Rows,
        analyzed=Box(left=0, top=0, right=min(source.Columns, source.Rows), bottom=min(source.Columns, source.Rows)),
        sentences=(),
        findings=(finding(boxes=(Box(left=20, top=30, right=60, bottom=90),), sentence=None), absent()),
        searched=(Searched(prompt="pneumothorax", boxes=(box,)),),
    )


def written(out: Path, film: Film, *, with_searched: bool) -> dict[str, bytes]:
    """Write all outputs of a film into a folder, and return its files."""
    header, of = films.thumbnail(), report(film)
    of = replace(of, study_uid=str(header.StudyInstanceUID))
    sources = from_files({film.source: header}, {film.source: out.parent / "film.dcm"})
    out.mkdir()
    objects = write_objects(of, sources, zone=BERLIN, kinds=tuple(OUTPUTS.own))
    write_folder(out, of, objects, sources, with_searched=with_searched)
    return {path.name: path.read_bytes() for path in (out / of.study_uid).iterdir()}
