"""Worklist, studies, pictures, findings and outputs as a program gets them, of a node that has read three studies."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from pydicom.dataset import Dataset
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from models.contract import Box
from node.read import grayscale
from node.read.grayscale import Window
from node.store.correction import CorrectionKind
from node.web import findings
from tests.node.outputs.test_rejection import highdicom_note
from tests.support import decoded, films, recorded
from tests.support.finished import Finished
from tests.support.lasting import lasting

ACCESSION = "ACC-17"


@dataclass(frozen=True, kw_only=True)
class Node:
    """What it left, and a client of it; alone, pair, mixed: the films of a study each, mixed with a lateral one."""

    finished: Finished
    client: TestClient
    alone: Dataset
    pair: tuple[Dataset, Dataset]
    mixed: tuple[Dataset, Dataset]

    def json(self, path: str) -> dict[str, Any]:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def study(self, film: Dataset) -> dict[str, Any]:
        return self.json(f"/api/v1/studies/{film.StudyInstanceUID}")

    def findings(self, **query: object) -> dict[str, Any]:
        return self.json(f"/api/v1/findings?{urlencode(query)}")

    @property
    def picture(self) -> str:
        return f"/api/v1/films/{self.alone.SOPInstanceUID}/picture"

    def pixels(self, query: str = "") -> npt.NDArray[np.uint8]:
        return np.asarray(Image.open(BytesIO(self.client.get(f"{self.picture}{query}").content)))


def film(name: str, study: str, made: Dataset | None = None) -> Dataset:
    changes = {"PatientName": "Zyx^Secret", "AccessionNumber": ACCESSION, "SeriesInstanceUID": "1.2.3.9"}
    return films.changed(films.as_another(made or films.thumbnail(), name, study=study), changes)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return node_in(tmp_path_factory.mktemp("studies"))


def node_in(folder: Path) -> Node:
    finished = Finished(folder / "node")
    alone, pair = film("alone", "alone"), (film("first", "pair"), film("second", "pair"))
    mixed = (film("frontal", "mixed"), film("lateral", "mixed", films.lateral()))
    for several in ((alone,), pair[:1], pair[1:], mixed):  # those of the pair in two rounds
        finished.read(*several)
    return Node(finished=finished, client=finished.client(), alone=alone, pair=pair, mixed=mixed)


def test_every_answer_in_json_is_as_recorded(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    [_, rejected], film = node.pair, str(node.mixed[0].SOPInstanceUID)
    node.finished.spool.mark_stat(str(node.alone.StudyInstanceUID))
    finished, client = node.finished, node.client
    finished.correct(node.alone, CorrectionKind.REJECT, prompt="atelectasis")
    finished.correct(node.alone, CorrectionKind.ADD, prompt="cardiomegaly", box=Box(left=2, top=3, right=20, bottom=30))
    finished.round(str(node.alone.StudyInstanceUID))
    finished.correct(node.mixed[0], prompt="pleural_effusion")
    films.keep(finished.spool, highdicom_note(rejected))
    finished.ledger.set_study(str(node.mixed[0].StudyInstanceUID), "parked", stage="read", reason="foreseen")
    asked = [
        ("POST", f"films/{film}/questions", {"questions": [{"prompt": "edema", "box": [1, 2, 30, 20]}]}),
        ("POST", f"films/{film}/replies", {"text": "Is there a pneumothorax?"}),
        *(("GET", f"studies/{each.StudyInstanceUID}", None) for each in (node.alone, node.mixed[0])),
        *(("GET", path, None) for path in ("studies", "prompts")),
        *(("GET", f"films/{film}/{path}", None) for path in ("questions", "corrections")),
        ("POST", f"studies/{node.alone.StudyInstanceUID}/finish", None),
        ("GET", "studies/1.2.3", None),
        ("POST", f"films/{film}/questions", {"questions": []}),
    ]
    told = []
    for method, path, body in asked:
        answer = client.request(method, f"/api/v1/{path}", json=body)
        told.append([method, path, answer.status_code, answer.json() if answer.content else None])

    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", "a time", lasting(json.dumps(told)))
    text = re.sub(r"\b[0-9a-f]{32}\b", "an id", text)
    prose = ("text", "impression", "suggestions", "detail")
    recorded.check("api", json.loads(text, object_pairs_hook=lambda at: {key: a for key, a in at if key not in prose}))


def test_studies_come_in_parts_and_a_wrong_parameter_is_named(node: Node) -> None:
    parts = [node.json(f"/api/v1/studies?{query}") for query in ("limit=1", "offset=3")]
    assert [(len(part["studies"]), part["total"]) for part in parts] == [(1, 3), (0, 3)]
    for query in ("limit=0", "limit=9999", "q=abc", "state=happy", "offset=-1", f"offset={10**20}"):
        answer = node.client.get(f"/api/v1/studies?{query}")
        assert (answer.status_code, query.partition("=")[0] in str(answer.json()["detail"])) == (422, True)
    for query in ("since=yesterday", "since=2031-05-04T00:00:00", "cursor=x", "limit=0"):
        assert node.client.get(f"/api/v1/findings?{query}").status_code == 422, query


def test_an_output_that_a_later_round_repeats_stands_once_under_its_film(node: Node) -> None:
    study = node.study(node.pair[0])
    first, second = (
        [each.sop_instance_uid for each in mark.outputs]
        for mark in node.finished.spool.rounds(str(node.pair[0].StudyInstanceUID))
    )
    assert set(first) < set(second)
    assert [output["uid"] for output in study["outputs"]] == second
    assert {(output["round"], output["version"]) for output in study["outputs"]} == {(2, 1)}

    numbers = {film["uid"]: f" of film {number}" for number, film in enumerate(study["films"], 1)}
    for film in numbers:
        page = node.client.get(f"/studies/{study['line']['uid']}?film={film}").text
        offered = dict(re.findall('<a href="/api/v1/outputs/([0-9.]+)" download aria-label="Download ([^",]*)', page))
        assert offered.keys() == set(second)
        for output in study["outputs"]:
            named, _, about = offered[output["uid"]].partition(" of ")
            assert (f" of {about}" if about else "") == numbers.get(output["film"], ""), named
        assert f'data-path="/api/v1/studies/{study["line"]["uid"]}/films/{film}"' in page
        assert re.findall('film=([0-9.]+)" aria-current="page"', page) == [film]
        assert page.count("archive: sent ") == len(offered)


def test_an_output_has_the_bytes_that_were_written_and_one_that_is_gone_is_not_called_unknown(tmp_path: Path) -> None:
    node, written = node_in(tmp_path), dict[str, Path]()
    for output in node.study(node.alone)["outputs"]:
        uid, kind = output["uid"], output["kind"]
        (written[uid],) = node.finished.spool.directory.glob(f"studies/*/outputs/{uid}~*")
        answer = node.client.get(f"/api/v1/outputs/{uid}")
        assert answer.headers["content-type"] == "application/dicom"
        assert answer.headers["content-disposition"] == f'attachment; filename="{uid}.{kind}.dcm"'
        assert answer.content == written[uid].read_bytes()

    gone, kept = written
    written[gone].unlink()
    (stored,) = node.finished.spool.instances(str(node.alone.StudyInstanceUID))
    stored.path.write_bytes(films.file_bytes(films.cut_short()))
    asked = [f"/api/v1/outputs/{uid}" for uid in (gone, kept, "1.2.999")]
    assert [node.client.get(path).status_code for path in (*asked, node.picture)] == [410, 200, 404, 409]
    page = node.client.get(f"/studies/{node.alone.StudyInstanceUID}").text
    assert (page.count("no longer here"), f"/outputs/{kept}" in page, f"/outputs/{gone}" in page) == (1, True, False)


def test_a_picture_is_the_film_as_displayed_also_inverted_small_or_in_another_window(node: Node) -> None:
    whole, inverted = node.pixels(), node.pixels("?invert=true")
    assert node.client.get(node.picture).headers["content-type"] == "image/png"
    assert np.array_equal(whole, decoded.picture_of(node.alone))
    assert np.abs(255 - whole.astype(int) - inverted).max() <= 2  # a window on whole values is half a value off
    for size in (64, 96):
        rows, columns = node.pixels(f"?size={size}").shape
        assert max(rows, columns) == size
        assert columns / rows == pytest.approx(node.alone.Columns / node.alone.Rows, rel=0.02)

    center, width = map(float, node.client.get(node.picture).headers["x-window"].split())
    narrow = node.pixels(f"?center={center}&width={width / 4}")
    told = node.client.get(f"{node.picture}?center={center + 1}&width={width / 4}").headers["x-window"]
    assert [*map(float, told.split())] == [center + 1, width / 4]
    stored = decoded.stored_picture(node.alone)
    assert np.array_equal(narrow, stored.shown(Window(center=center, width=width / 4)))
    assert (narrow == 0).mean() > (node.pixels() == 0).mean()
    assert node.client.get(f"{node.picture}?center=5").status_code == 422, "half a window"
    exposed = stored.levels.values[stored.levels.exposed]
    plain, negative = (node.client.get(f"{node.picture}{query}").headers for query in ("", "?invert=true"))
    assert list(map(float, plain["x-values"].split())) == [exposed.min(), exposed.max()]
    assert (plain["x-dark"], negative["x-dark"]) == ("high", "low"), "a film of MONOCHROME1"


def test_the_window_of_a_film_shows_it_as_it_is_displayed() -> None:
    picture = decoded.stored_picture(films.ramp({"WindowCenter": 2000, "WindowWidth": 3000}))
    assert picture.window == Window(center=2000, width=3000)
    table = grayscale.windowed(picture.header, picture.levels, picture.window)
    assert np.abs(table - grayscale.displayed(picture.header, picture.levels)).max() < 0.002
    with pytest.raises(ValueError, match="positive width"):
        Window(center=1.0, width=0.0)


def test_rows_of_findings_say_what_a_settled_study_says_and_accession_numbers_to_who_may_see_patients(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = str(node.mixed[0].StudyInstanceUID)
    node.finished.ledger.set_study(uid, "finished")
    assert uid not in {row["study"] for row in node.findings()["rows"]}
    monkeypatch.setattr(findings, "_SETTLED_SECONDS", 0.0)
    frontal, lateral = (
        next(f for f in node.study(one)["films"] if f["uid"] == one.SOPInstanceUID) for one in node.mixed
    )
    of_film = {
        "study": uid,
        "series": "1.2.3.9",
        **{name: frontal[name] for name in ("received_at", "model", "engine", "prompts")},
    }
    expected = [
        {
            **of_film,
            "finding": finding["prompt"],
            "code": "^".join(finding["code"][:2]),
            "side": finding["laterality"],
            **{name: finding[name] for name in ("state", "probability")},
            "boxes": [box["box"] for box in finding["boxes"]],
        }
        for finding in frontal["film"]["findings"]
    ]
    rows = node.findings(since="2000-01-01T00:00:00Z")["rows"]
    own = [{name: row[name] for name in expected[0]} for row in rows if row["film"] == frontal["uid"]]
    assert own == expected
    assert frontal["model"]
    (other,) = [row for row in rows if row["film"] == lateral["uid"]]
    assert (other["finding"], other["state"], other["boxes"], other["probability"]) == (None, "not_processed", [], None)

    with capture_logs() as lines:
        shown = node.finished.client(user="ada").get("/api/v1/findings").json()["rows"]
        assert {row["accession"] for row in node.findings()["rows"]} == {None}
    assert {row["accession"] for row in shown} == {ACCESSION}
    assert [(line["event"], line["user"], line["studies"]) for line in lines] == [("worklist.viewed", "ada", 3)]


def test_each_study_comes_once_in_the_findings_and_again_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "_SETTLED_SECONDS", 0.0)
    node = node_in(tmp_path)
    studies, cursor = [], None
    for _ in range(3):
        page = node.findings(limit=1, **({} if cursor is None else {"cursor": cursor}))
        studies.append({row["study"] for row in page["rows"]})
        assert page["is_last"] is False, "another may follow"
        cursor = page["cursor"]
    assert studies == [{str(film.StudyInstanceUID)} for film in (node.alone, node.pair[0], node.mixed[0])]
    rest = node.findings(cursor=cursor)
    assert (rest["rows"], rest["cursor"], rest["is_last"]) == ([], cursor, True)

    node.finished.correct(node.alone, CorrectionKind.REJECT, prompt="pleural_effusion")
    node.finished.round(str(node.alone.StudyInstanceUID))
    shown = node.client.get(f"/studies/{node.alone.StudyInstanceUID}").text
    assert all(shown.count(f", version {version}</span>") == 2 for version in (1, 2)), "an SR and a GSPS of each round"
    monkeypatch.setattr(findings, "_SETTLED_SECONDS", 60.0)
    assert node.findings(cursor=cursor)["rows"] == [], "another study may still be written with an earlier time"
    monkeypatch.setattr(findings, "_SETTLED_SECONDS", 0.0)
    again = node.findings(cursor=cursor)["rows"]
    assert {row["study"] for row in again} == {str(node.alone.StudyInstanceUID)}
    said = [[row[name] for name in ("finding", "state", "said", "by", "at")] for row in again if row["said"]]
    assert said == [["pleural_effusion", "absent", "rejected", "anna", "2026-11-23T12:00:01Z"]]

    node.finished.read(highdicom_note(node.alone))
    rejected = node.findings(cursor=cursor)["rows"]
    of_film = [(row["state"], row["finding"]) for row in rejected if row["film"] == node.alone.SOPInstanceUID]
    assert of_film == [("rejected", None)], "what the archive rejected is no finding"
