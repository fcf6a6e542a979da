"""Worklist, studies, pictures and outputs as a program gets them from a running node."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import BytesIO
from typing import cast

import httpx2
import numpy as np
import pytest
from PIL import Image
from pydicom.dataset import Dataset

from node.read import grayscale
from node.read.grayscale import Window
from tests.support import decoded, films, peers
from tests.support.archived import StartNode
from tests.support.peers import ReceivingArchive
from tests.support.service import Service

Content = dict[str, object]

SECRET = "Zyx^Secret"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that has read two studies, of one film and of two, and sent its answers to an archive."""

    service: Service
    archive: ReceivingArchive
    alone: Dataset
    pair: tuple[Dataset, Dataset]

    def get(self, path: str, *, method: str = "GET") -> httpx2.Response:
        return self.service.request(method, path)

    def studies(self, query: str = "") -> list[Content]:
        return cast(list[Content], self.get(f"/api/v1/studies{query}").json()["studies"])

    def study(self, film: Dataset) -> Content:
        return self.get(f"/api/v1/studies/{film.StudyInstanceUID}").json()


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    alone = films.changed(films.as_another(films.thumbnail(), "alone", study="alone"), {"PatientName": SECRET})
    pair = tuple(films.as_another(films.thumbnail(), name, study="pair") for name in ("first", "second"))
    started = start_node()
    started.service.read(alone)
    started.service.read(*pair)
    started.archive.wait_for_kept(6)
    return Node(service=started.service, archive=started.archive, alone=alone, pair=(pair[0], pair[1]))


def test_the_worklist_has_the_newest_study_first(node: Node) -> None:
    peers.wait_until(lambda: all("sent" in str(line["deliveries"]) for line in node.studies()), what="all is sent")
    newest, oldest = node.studies()

    assert [newest["uid"], oldest["uid"]] == [node.pair[0].StudyInstanceUID, node.alone.StudyInstanceUID]
    assert (newest["state"], newest["read"], oldest["read"]) == ("finished", 2, 1)
    assert oldest["deliveries"] == {"archive": {"sent": 2}}


def test_studies_are_found_by_state_and_digits(node: Node) -> None:
    uid = str(node.alone.StudyInstanceUID)

    assert [line["uid"] for line in node.studies(f"?q={uid[3:]}")] == [uid]
    assert len(node.studies("?state=finished&limit=1")) == 1
    assert node.get("/api/v1/studies?limit=1").json()["total"] == 2
    assert node.studies("?state=parked") == []
    assert node.studies("?offset=2") == []


def test_a_study_has_its_films_as_report_json(node: Node) -> None:
    (film,) = cast(list[Content], node.study(node.alone)["films"])
    read = cast(Content, film["film"])

    assert (film["uid"], film["status"], film["round"]) == (str(node.alone.SOPInstanceUID), "read", 1)
    assert (read["columns"], read["rows"]) == (node.alone.Columns, node.alone.Rows)
    assert {"findings", "sentences", "withheld", "impression", "analyzed"} <= read.keys()
    assert "contradiction" not in cast(list[Content], read["findings"])[0]
    assert "searched" not in read


def test_an_output_has_the_bytes_that_were_sent(node: Node) -> None:
    kept = {received.sop_instance_uid: received.dataset for received in node.archive.kept}
    outputs = cast(list[Content], node.study(node.alone)["outputs"])

    assert {output["kind"] for output in outputs} == {"sr", "gsps"}
    for output in outputs:
        answer = node.get(f"/api/v1/outputs/{output['uid']}")
        assert answer.headers["content-type"] == "application/dicom"
        assert films.body_of(answer.content) == films.body_of(films.file_bytes(kept[str(output["uid"])]))


def test_a_picture_is_the_film_as_displayed(node: Node) -> None:
    answer = node.get(f"/api/v1/films/{node.alone.SOPInstanceUID}/picture")
    shown = np.asarray(Image.open(BytesIO(answer.content)))

    assert answer.headers["content-type"] == "image/png"
    assert np.array_equal(shown, decoded.picture_of(node.alone))


def test_a_window_changes_what_is_black_and_white(node: Node) -> None:
    path = f"/api/v1/films/{node.alone.SOPInstanceUID}/picture"
    plain = node.get(path)
    center, width = map(float, plain.headers["x-window"].split())
    narrow = np.asarray(Image.open(BytesIO(node.get(f"{path}?center={center}&width={width / 4}").content)))
    picture = decoded.stored_picture(node.alone)

    assert np.array_equal(narrow, picture.shown(Window(center=center, width=width / 4)))
    assert (narrow == 0).mean() > (np.asarray(Image.open(BytesIO(plain.content))) == 0).mean()


def test_an_inverted_picture_exchanges_black_and_white(node: Node) -> None:
    path = f"/api/v1/films/{node.alone.SOPInstanceUID}/picture"
    plain, inverted = (np.asarray(Image.open(BytesIO(node.get(p).content))) for p in (path, f"{path}?invert=true"))

    assert np.abs(255 - plain.astype(int) - inverted).max() <= 2  # a window on whole values is half a value off


def test_a_small_picture_keeps_the_shape(node: Node) -> None:
    answer = node.get(f"/api/v1/films/{node.alone.SOPInstanceUID}/picture?size=64")

    with Image.open(BytesIO(answer.content)) as small:
        assert max(small.size) == 64
        assert small.size[0] / small.size[1] == pytest.approx(node.alone.Columns / node.alone.Rows, rel=0.02)


@pytest.mark.parametrize(
    "query", ["?limit=0", "?limit=9999", "?state=happy", "?q=abc", "?offset=-1", "?offset=99999999999999999999"]
)
def test_a_wrong_parameter_is_named(node: Node, query: str) -> None:
    answer = node.get(f"/api/v1/studies{query}")

    assert answer.status_code == 422
    assert query[1:].partition("=")[0] in str(answer.json()["detail"])


def test_half_a_window_is_refused(node: Node) -> None:
    assert node.get(f"/api/v1/films/{node.alone.SOPInstanceUID}/picture?center=5").status_code == 422


def test_a_study_without_parked_work_has_nothing_to_retry(node: Node) -> None:
    answer = node.get(f"/api/v1/studies/{node.alone.StudyInstanceUID}/retry", method="POST")

    assert (answer.status_code, answer.json()) == (202, {"queued": 0})
    assert node.get("/api/v1/studies/1.2.3/retry", method="POST").status_code == 404


def test_the_description_names_every_problem(node: Node) -> None:
    schema = node.get("/api/openapi.json").json()
    paths = cast(dict[str, dict[str, Content]], schema["paths"])

    assert cast(Content, schema["info"])["title"] == "ChEX Node"
    assert {
        f"/api/v1/{name}"
        for name in ("studies", "events", "films/{uid}/picture", "studies/{study}/films/{uid}/picture")
    } <= paths.keys()
    for operations in paths.values():
        for operation in operations.values():
            assert "HTTPValidationError" not in json.dumps(operation["responses"])


def test_a_window_needs_a_width() -> None:
    with pytest.raises(ValueError, match="positive width"):
        Window(center=1.0, width=0.0)


def test_the_window_of_a_film_shows_it_as_it_is_displayed() -> None:
    film = films.ramp({"WindowCenter": 2000, "WindowWidth": 3000})
    picture = decoded.stored_picture(film)

    assert picture.window == Window(center=2000, width=3000)
    table = grayscale.windowed(picture.header, picture.levels, picture.window)
    assert np.abs(table - grayscale.displayed(picture.header, picture.levels)).max() < 0.002
