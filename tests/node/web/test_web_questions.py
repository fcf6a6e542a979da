"""Questions over the interface, about a film of a study or one that is looked at, and how many a user may ask."""

from __future__ import annotations

import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import Message
from structlog.testing import capture_logs

from models.contract import Question
from node.domain import Film, JsonObject, Reason
from node.errors import InputError
from node.jobs import answer_steps
from node.jobs.answer_steps import stored_question
from node.store import questions
from node.store.questions import SentAnswer
from node.web.look_files import MOST, Looks
from node.web.looks import look_at
from node.web.problems import Problem
from node.web.rate_limit import MOST_KEYS, RateLimit, network_of
from tests.node.outputs.test_rejection import highdicom_note
from tests.support import films, peers
from tests.support.archived import StartNode
from tests.support.finished import Finished, pages_of, parts_of
from tests.support.service import settings_for

Content = dict[str, Any]
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
FILM = films.thumbnail()
STUDY = str(FILM.StudyInstanceUID)
OF_FILM = f"/api/v1/studies/{STUDY}/films/{FILM.SOPInstanceUID}"
PATH = f"{OF_FILM}/questions"
BOX = [20.0, 30.0, 60.0, 90.0]
EDEMA = {"questions": [{"prompt": "Edema"}]}
REFUSED: tuple[tuple[Content, int, str], ...] = (
    ({"questions": []}, 422, "questions"),
    ({"questions": [{}]}, 422, "give a prompt, a box, or both"),
    ({"questions": [{"prompt": " "}]}, 422, "give a prompt, a box, or both"),
    ({"questions": [{"prompt": "x" * 301}]}, 422, "prompt"),
    ({"questions": [{"box": [9, 9, 9, 9]}]}, 422, "must not be empty"),
    ({"questions": [{"box": [0, 0, 1]}]}, 422, "box"),
    ({"questions": [{"box": [-1, 0, 9, 9]}]}, 422, "box"),
    ({"questions": [{"box": [0, 0, 1e5, 9]}]}, 409, "leaves the film"),
    ({"questions": [{"prompt": "x"}] * 21}, 422, "questions"),
    ({"questions": [{"prompt": "no pneumonia"}]}, 409, "ask for the finding or the region itself"),
    ({"questions": [{"prompt": "Edema"}, {"prompt": "ignore the left"}]}, 409, "ask for the finding or the region"),
)
"""What every route for questions refuses, with the status and words of its reason."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    made = Finished(tmp_path_factory.mktemp("asked") / "node", rate=RateLimit(burst=1000, seconds=1.0))
    made.read(FILM)
    return made


def ask(asked: Finished, *questions: Content, **headers: str) -> list[Content]:
    answer = asked.client(user="ada").post(PATH, json={"questions": questions}, headers=headers)
    assert answer.status_code == 201, answer.text
    return cast(list[Content], answer.json()["questions"])


def test_questions_stay_with_the_film_and_are_counted_by_source(asked: Finished) -> None:
    registry, ways = asked.bench.metrics.registry, ("page", "api", "dicom")

    def counted() -> list[float]:
        return [registry.get_sample_value("cxr_questions_total", {"source": way}) or 0.0 for way in ways]

    before = counted()
    made = [
        *ask(asked, {"prompt": "Edema"}, {"prompt": "Fracture"}, **{"X-Requested-From": "page"}),
        *ask(asked, {"box": BOX}),
    ]
    said = [(answer["source"], answer["sent"], answer["asked_by"]) for answer in made]
    assert said == [("page", False, "ada"), ("page", False, "ada"), ("api", False, "ada")]
    (film,) = asked.client().get(f"/api/v1/studies/{STUDY}").json()["films"]
    by = ("model", "engine", "prompts")
    assert {tuple(answer[name] for name in by) for answer in made} == {tuple(film[name] for name in by)}
    listed = {answer["id"]: answer for answer in asked.client().get(PATH).json()["questions"]}
    assert [listed[answer["id"]] for answer in made] == made
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [2, 1, 0]
    for answer, why in zip(made, ("", "no such destination"), strict=False):
        questions.keep_answer(asked.spool, STUDY, SentAnswer(question=answer["id"], requested_at=NOON, reason=why))
    told = {answer["id"]: answer for answer in asked.client().get(PATH).json()["questions"]}
    sent = [(told[answer["id"]]["sent"], told[answer["id"]].get("not_sent")) for answer in made]
    assert sent == [(True, None), (False, "no such destination"), (False, None)]


def test_a_question_that_cannot_be_asked_is_refused_also_of_a_film_that_is_looked_at(asked: Finished) -> None:
    pages = asked.client()
    look = taken(pages, picture(PNG), kind=PNG)
    for path in (PATH, f"/api/v1/looks/{look['id']}/questions"):
        for body, status, words in REFUSED:
            answer = pages.post(path, json=body)
            assert (answer.status_code, words in str(answer.json()["detail"])) == (status, True), (path, body)
            assert str(asked.spool.directory) not in answer.text
    unknown = PATH.replace(str(FILM.SOPInstanceUID), "1.2.3.4")
    assert pages.post(unknown, json=EDEMA).status_code == 404
    assert pages.post(f"/api/v1/questions/{'0' * 32}/send").status_code == 404


def test_a_process_without_a_model_asks_nothing_and_says_when_to_come_again(asked: Finished) -> None:
    pages = pages_of(parts_of(asked.settings, asked.spool))
    looked_at = pages.post("/api/v1/looks", content=b"", headers={"Content-Type": "application/dicom"})
    answers = [pages.post(PATH, json=EDEMA), looked_at]
    assert [(answer.status_code, answer.headers.get("Retry-After")) for answer in answers] == [(503, "5")] * 2


def test_a_question_that_the_model_refused_is_not_sent_but_removed(asked: Finished) -> None:
    pages, (known,) = asked.client(), ask(asked, {"prompt": "Pneumonia"})
    refused = "f" * 32
    stored = next(each for each in asked.spool.documents(STUDY, "questions") if each["id"] == known["id"])
    answer: JsonObject = {**cast(JsonObject, stored["answer"]), "never_learned": ["zyx"], "boxes": []}
    own: JsonObject = {"id": refused, "answer": {**answer, "question": {"prompt": "zyx", "box": None}}}
    asked.spool.keep_document(STUDY, "questions", refused, {**stored, **own})
    before = pages.get(f"/api/v1/studies/{STUDY}").json()["line"]["questions"]

    assert pages.post(f"/api/v1/questions/{refused}/send").status_code == 409
    with capture_logs() as lines:
        statuses = [pages.delete(f"/api/v1/questions/{question}").status_code for question in (known["id"], refused)]
    assert statuses == [409, 204]
    assert pages.get(f"/api/v1/studies/{STUDY}").json()["line"]["questions"] == before, "it never counted"
    assert f", {before} asked<" in pages.get("/").text
    assert refused not in str(pages.get(PATH).json())
    assert [(line["event"], line["study"]) for line in lines if "outcome" in line][-1] == ("question.removed", STUDY)


def test_an_answer_is_sent_to_the_archive_once_and_its_objects_are_given_back(start_node: StartNode) -> None:
    node = start_node()
    service = node.service
    service.read(FILM)
    node.archive.wait_for_kept(2)
    _, made = service.ask("POST", PATH, {"questions": [{"prompt": "Fracture", "box": BOX}]})
    (answer,) = cast(list[Content], made["questions"])
    statuses = [service.ask("POST", f"/api/v1/questions/{answer['id']}/send")[0] for _ in range(2)]
    node.archive.wait_for_kept(4)
    assert statuses == [202, 202]
    new = [kept.dataset for kept in node.archive.kept[2:]]
    assert sorted((each.Modality, each.StudyInstanceUID) for each in new) == [("PR", STUDY), ("SR", STUDY)]
    _, listed = service.ask("GET", PATH)
    assert [question["sent"] for question in cast(list[Content], listed["questions"])] == [True]

    outputs = cast(list[Content], service.ask("GET", f"/api/v1/studies/{STUDY}")[1]["outputs"])
    of_answer = {output["uid"]: output for output in outputs if output["question"] == answer["id"]}
    assert of_answer.keys() == {str(dataset.SOPInstanceUID) for dataset in new}
    facts = {(each["film"], each["round"], each["is_there"]) for each in of_answer.values()}
    assert facts == {(str(FILM.SOPInstanceUID), None, True)}
    assert None not in {output["round"] for output in outputs if not output["question"]}
    given = [service.request("GET", f"/api/v1/outputs/{uid}") for uid in of_answer]
    assert [(each.status_code, each.content[128:132]) for each in given] == [(200, b"DICM")] * 2
    page = service.request("GET", f"/studies/{STUDY}").text
    assert page.count("of the answer to &#34;Fracture&#34; on film 1</span>") == 2
    assert "no longer here" not in page
    assert len(node.archive.kept) == 4


@pytest.fixture
def limited(tmp_path: Path) -> Finished:
    """One whose users ask three questions, and then one in an hour."""
    made = Finished(tmp_path / "node", rate=RateLimit(burst=3, seconds=3600.0))
    made.read(FILM)
    return made


@pytest.mark.parametrize("where", ["film", "look"])
def test_each_question_of_a_request_counts(limited: Finished, where: str) -> None:
    client = limited.client()
    path = OF_FILM if where == "film" else address_of_look(client)
    several = client.post(f"{path}/questions", json={"questions": [{"prompt": "Edema"}] * 3})
    refused = [client.post(f"{path}/questions", json=EDEMA), client.post(f"{path}/replies", json={"text": "Edema"})]
    assert several.is_success
    assert [answer.status_code for answer in refused] == [429, 429]
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in refused)


def test_questions_of_one_user_count_wherever_they_are_asked(limited: Finished) -> None:
    client = limited.client()
    look = address_of_look(client)
    asked = [client.post(f"{path}/replies", json={"text": "Edema"}) for path in (OF_FILM, look, OF_FILM, look)]
    assert [answer.status_code for answer in asked] == [200, 200, 200, 429]


def test_a_rejected_film_takes_neither_questions_nor_corrections_and_sends_no_answer(limited: Finished) -> None:
    client = limited.client()
    (made,) = client.post(PATH, json=EDEMA).json()["questions"]  # its encoded film is in memory
    films.keep(limited.spool, highdicom_note(FILM))

    why = "rejected by the archive: Rejected for Quality Reasons (113001 DCM)"
    for what, body in (
        ("questions", EDEMA),
        ("replies", {"text": "List the findings"}),
        ("corrections", {"kind": "reject", "prompt": "pleural_effusion"}),
    ):
        refused = client.post(f"{OF_FILM}/{what}", json=body)
        assert (refused.status_code, why in refused.json()["detail"]) == (409, True)
    assert client.get(f"{OF_FILM}/corrections").json() == {"corrections": []}
    assert len(client.get(PATH).json()["questions"]) == 1
    (film,) = (each for each in limited.spool.instances(STUDY) if each.sop_instance_uid == FILM.SOPInstanceUID)
    answerer = limited.parts.answerer()
    assert answerer is not None
    with pytest.raises(InputError, match="113001"):  # as for an object of a workstation
        answerer.ask(film, [Question(prompt="Edema")], by="", source="dicom")
    stored = stored_question(limited.spool, STUDY, made["id"])
    with pytest.raises(InputError, match="rejected by the archive"):
        answer_steps.take(limited.spool, stored, destinations=limited.parts.settings.destinations)


DICOM, PNG, JPEG = "application/dicom", "image/png", "image/jpeg"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(tmp_path_factory.mktemp("looks") / "node", rate=RateLimit(burst=1000, seconds=1.0))


@pytest.fixture(scope="module")
def client(node: Finished) -> TestClient:
    return node.client()


def taken(client: TestClient, body: bytes, *, kind: str = DICOM) -> Content:
    """Have a film looked at; what the node says of it."""
    answer = client.post("/api/v1/looks", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 201, answer.text
    found: Content = answer.json()
    return found


def shown(client: TestClient, look: Content) -> Image.Image:
    return Image.open(BytesIO(client.get(f"/api/v1/looks/{look['id']}/picture").content))


def address_of_look(client: TestClient) -> str:
    return f"/api/v1/looks/{taken(client, films.file_bytes(FILM))['id']}"


def picture(kind: str) -> bytes:
    """A gray picture with a gradient, 300 columns and 200 rows."""
    content = BytesIO()
    gray = np.tile(np.linspace(0, 255, 300, dtype=np.uint8), (200, 1))
    Image.fromarray(gray).save(content, format=kind.partition("/")[2].upper())
    return content.getvalue()


def test_a_film_is_read_shown_and_asked_about_but_is_in_no_study(node: Finished, client: TestClient) -> None:
    sent = films.thumbnail()
    look = taken(client, films.file_bytes(sent))
    film = look["film"]
    assert (film["status"], film["source"], film["columns"]) == ("read", sent.SOPInstanceUID, sent.Columns)
    assert film["impression"]
    assert look["seconds"] == 900
    page = client.get(f"/upload/{look['id']}").text
    (until,) = re.findall('<time datetime="([^"]*)">', page)
    assert 880 < (datetime.fromisoformat(until) - datetime.now(UTC)).total_seconds() <= 900
    assert "/manage" not in page and "Results" not in page, "it is in no study"
    assert shown(client, look).size == (sent.Columns, sent.Rows)
    questions = {"questions": [{"prompt": "Edema"}, {"box": [20, 20, 60, 60]}]}
    answered = client.post(f"/api/v1/looks/{look['id']}/questions", json=questions)
    answers = answered.json()["questions"]
    assert (answered.status_code, [answer["prompt"] for answer in answers]) == (200, ["Edema", None])
    assert answers[1]["box"] == [20, 20, 60, 60]

    assert (list(node.spool.studies()), node.ledger.open_deliveries()) == ([], [])
    assert client.get("/api/v1/studies").json()["total"] == 0
    folder = node.spool.directory / "looks"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_film_is_asked_in_words(client: TestClient) -> None:
    look = taken(client, films.file_bytes(films.thumbnail()))
    for text, said, asked in (
        ("is there atelectasis?", "telectasis", 0),
        ("Edema", None, 1),
        ("tip of the line?", "the network is asked", 1),
        ("what changed?", "compared with no other film", 0),
    ):
        reply = client.post(f"/api/v1/looks/{look['id']}/replies", json={"text": text}).json()
        assert (reply["film"], len(reply["questions"])) == (films.thumbnail().SOPInstanceUID, asked)
        assert reply["text"] is None if said is None else said in reply["text"]


@pytest.mark.parametrize("kind", [PNG, JPEG])
def test_a_picture_is_read_in_its_own_pixels(client: TestClient, kind: str) -> None:
    look = taken(client, picture(kind), kind=kind)
    film = look["film"]
    assert (film["status"], film["columns"], film["rows"], film["notes"]) == ("read", 300, 200, ["view_unknown"])
    assert shown(client, look).size == (300, 200)


def test_only_the_newest_are_known(node: Finished, client: TestClient) -> None:
    looks = [taken(client, picture(PNG), kind=PNG)["id"] for _ in range(MOST + 1)]
    statuses = [client.get(f"/api/v1/looks/{looks[place]}/picture").status_code for place in (0, -1)]
    assert (statuses, len(list((node.spool.directory / "looks").iterdir()))) == ([404, 200], MOST)


def test_a_film_that_is_not_read_says_why(client: TestClient) -> None:
    for film, reason in ((films.lateral(), "lateral"), (films.color(), "color")):
        look = taken(client, films.file_bytes(film))
        assert (look["film"]["status"], look["film"]["reason"]) == ("not_processed", reason)
        for route, body in (("questions", {"questions": [{"prompt": "Edema"}]}), ("replies", {"text": "effusion?"})):
            assert client.post(f"/api/v1/looks/{look['id']}/{route}", json=body).status_code == 409


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"no film", DICOM, 422),
        (b"no picture", PNG, 422),
        (b"", JPEG, 422),
        (films.file_bytes(films.non_image("SR")), DICOM, 422),
        (b"{}", "application/json", 415),
        (picture(PNG), PNG, 503),
    ],
    ids=["no film", "no picture", "nothing", "a report", "another type", "below the reserve of the disk"],
)
def test_what_is_no_film_or_has_no_room_is_refused_and_not_kept(
    node: Finished, client: TestClient, monkeypatch: pytest.MonkeyPatch, body: bytes, kind: str, status: int
) -> None:
    before = sorted(node.spool.directory.glob("looks/*"))
    if status == 503:
        monkeypatch.setattr(node.spool, "reserve_bytes", 2**60)
    answer = client.post("/api/v1/looks", content=body, headers={"Content-Type": kind})
    assert (answer.status_code, "disk" in answer.json()["detail"]) == (status, status == 503)
    assert str(node.spool.directory) not in answer.text
    assert sorted(node.spool.directory.glob("looks/*")) == before


def test_a_film_whose_upload_is_cancelled_is_not_kept(node: Finished) -> None:
    before = sorted(node.spool.directory.glob("looks/*"))

    async def upload() -> bool:
        with anyio.CancelScope() as uploading:

            async def receive() -> Message:
                uploading.cancel()
                await anyio.sleep_forever()
                return {}

            await look_at(node.parts, Request({"type": "http", "headers": [(b"content-type", PNG.encode())]}, receive))
        return uploading.cancelled_caught

    assert anyio.run(upload)
    assert sorted(node.spool.directory.glob("looks/*")) == before


def test_a_film_is_forgotten_after_its_time_at_the_end_and_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "looks"
    looks = Looks(folder, seconds=0.3, pause_seconds=0.05)
    file, path = looks.create(".png")
    with file:
        file.write(b"film")
    look = looks.add(path, Film(source="1.2", reason=Reason.BLANK))
    assert looks.find(look.id) == look
    peers.wait_until(lambda: not path.exists(), what="the film is removed")
    assert looks.find(look.id) is None
    looks.close()
    assert not folder.exists()
    folder.mkdir()
    (folder / "film.dcm").write_bytes(b"what a killed process left")
    Looks(folder).close()
    assert not folder.exists()


def test_two_have_the_model_eight_wait_and_more_are_sent_away_at_once(tmp_path: Path) -> None:
    looks, leave = Looks(tmp_path / "looks"), threading.Event()
    looks.close()

    def wait() -> str:
        try:
            with looks.turn():
                leave.wait(30)
                return "read"
        except Problem as problem:
            return str(problem.status_code)

    with ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(wait) for _ in range(30)]
        peers.wait_until(lambda: sum(each.done() for each in waiting) == 20, what="all but ten are told to come again")
        leave.set()
        outcomes = sorted(each.result() for each in waiting)
    assert outcomes == ["503"] * 20 + ["read"] * 10


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_for_each_key_the_rest_waits_and_several_pass_together_or_not_at_all() -> None:
    clock = Clock()
    limit = RateLimit(burst=3, seconds=10.0, clock=clock)

    assert [limit.take("ada") for _ in range(4)] == [0, 0, 0, 10.0]
    clock.now = 4.0
    assert [limit.take("ada"), limit.seconds_left("ada"), limit.take("eve")] == pytest.approx([6.0, 6.0, 0])
    clock.now = 10.0
    assert limit.seconds_left("ada") == limit.seconds_left("ada") == 0, "to ask how long to wait takes nothing"
    assert [limit.take("ada") for _ in range(2)] == [0, 10.0]

    several = RateLimit(burst=3, seconds=10.0, clock=clock)
    assert [several.take("ada", 2), several.take("ada", 2), several.take("ada")] == [0, 10.0, 0]
    assert several.take("eve", 5) == 0
    clock.now += 30.0
    assert several.take("eve", 5) == 0


def test_a_user_asks_thirty_questions_at_once_and_two_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = parts_of(settings_for(tmp_path, archive_port=104)).rate
    monkeypatch.setattr(rate, "_clock", lambda: 1000.0)

    assert [rate.take("ada", 29), rate.take("ada"), rate.take("ada")] == [0, 0, 0.5]
    assert rate.take("eve") == 0


def test_the_key_used_longest_ago_is_forgotten_first() -> None:
    limit = RateLimit(burst=1, seconds=10.0, clock=Clock())
    for key in ("a", "b", "a", *range(MOST_KEYS - 1)):
        limit.take(key)

    assert limit.take("a") > 0
    assert limit.take("b") == 0


@given(st.lists(st.floats(0.0, 30.0), max_size=60))
def test_no_more_pass_than_burst_and_rate_allow(pauses: list[float]) -> None:
    clock = Clock()
    limit = RateLimit(burst=5, seconds=10.0, clock=clock)
    passed = 0
    for pause in pauses:
        clock.now += pause
        passed += limit.take("ada") == 0

    assert passed <= 5 + clock.now / 10.0 + 1e-6


def test_one_ipv6_machine_counts_once() -> None:
    networks = {
        "10.0.0.7": "10.0.0.7",
        "2001:db8::1": "2001:db8::/64",
        "2001:db8::ffff:1:2:3": "2001:db8::/64",
        "2001:db8:0:1::1": "2001:db8:0:1::/64",
        "testclient": "testclient",
    }
    assert {host: network_of(host) for host in networks} == networks
