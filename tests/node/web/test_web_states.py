"""What the pages say of studies in every state, without a browser; and to whom they name a patient."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from fastapi import FastAPI
from pydicom.dataset import Dataset
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from models.contract import FindingState
from models.documents import encode
from node import metrics
from node.answers.questions import Topic, understand
from node.cardiothoracic_ratio import MeasuredLine
from node.commands import operate
from node.config import Settings, SiteSettings
from node.domain import Delivery, DeliveryState, Film, StudyState
from node.output_kinds import OUTPUTS
from node.outputs import impression, rejection, wording
from node.outputs.corrected_film import CORRECTED
from node.read import prompts
from node.store.correction import Correction, CorrectionKind
from node.store.rounds import RoundMark
from node.store.worklist import ReviewRow
from node.web import problems, shown_film, words
from node.web.problems import Problem
from node.web.studies import WaitingCorrections
from tests.node.outputs.test_rejection import highdicom_note
from tests.paths import REPOSITORY
from tests.support import films, samples
from tests.support.finished import Finished
from tests.support.spoken import PROMPTS

STUDY = "1.2.3"
PATIENT = {
    "PatientName": "Zyx^Secret^^Dr",
    "PatientID": "SECRET-7",
    "PatientBirthDate": "19610203",
    "StudyDate": "20240131",
}


@pytest.fixture
def node(tmp_path: Path) -> Finished:
    return Finished(tmp_path / "node")


def test_what_is_unknown_or_was_removed_is_told_apart(tmp_path: Path) -> None:
    def listening(settings: Settings) -> Settings:
        return replace(settings, listener=replace(settings.listener, port=11112))

    node = Finished(tmp_path / "node", change=listening)
    pages, unknown = node.client(), "This node knows no such study."
    empty = pages.get("/").text
    assert "Nothing received yet: send a film to AE <b>CHEX</b>" in empty and "at port <b>11112</b>" in empty
    films.keep(node.spool, films.thumbnail(), study_uid=STUDY)
    node.ledger.set_study("1.2.4", "finished")
    for path, status, said in (
        *((f"/studies/{uid}", 404, unknown) for uid in ("1.2.9", "nothing", "1" * 65)),
        (f"/studies/{STUDY}?film=1.9.9", 404, f'href="/studies/{STUDY}"'),
        ("/studies/1.2.4", 410, "The films of this study are no longer on this node"),
    ):
        page = pages.get(path)
        assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert (said in page.text, "film.js" in page.text) == (True, False)


def test_a_page_says_when_to_come_again_and_a_client_that_goes_within_a_body_is_no_failure_of_the_program() -> None:
    made = FastAPI()
    problems.install(made, lambda _request, status, text: HTMLResponse(text, status_code=status))

    @made.get("/busy")
    def busy() -> None:
        raise Problem(503, "the model is busy; try again", headers={"Retry-After": "5"})

    @made.post("/form")
    async def take() -> None:
        raise ClientDisconnect

    answer = TestClient(made).get("/busy", headers={"Accept": "text/html"})
    told = (answer.status_code, answer.headers["retry-after"], answer.headers["content-type"])
    assert told == (503, "5", "text/html; charset=utf-8")
    with capture_logs() as lines:
        assert TestClient(made).post("/form").status_code == 400
    assert lines == []


def test_a_parked_study_says_why_and_offers_a_retry(node: Finished) -> None:
    films.keep(node.spool, films.thumbnail(), study_uid=STUDY)
    pages = node.client()

    def films_of_the_page() -> str:
        (found,) = re.findall('data-films="([^"]*)"', pages.get(f"/studies/{STUDY}").text)
        return found

    node.ledger.set_study(STUDY, "reading")
    while_read = films_of_the_page()
    node.ledger.set_study(STUDY, "finished")
    assert films_of_the_page() == while_read, "only a new answer or a stop changes the page of a film"
    node.ledger.set_study(STUDY, "parked", stage="read", reason="the disk <broke>")
    assert films_of_the_page() != while_read
    for path in ("/", f"/studies/{STUDY}"):
        page = pages.get(path)
        assert page.status_code == 200
        assert "Stopped at read: the disk &lt;broke&gt;" in page.text
        assert f'data-retry="{STUDY}"' in page.text


def test_a_film_shows_its_sides_as_its_header_says(node: Finished) -> None:
    for study, (orientation, edges) in {
        "1.1": (["L", "F"], ["R", "L"]),
        "1.2": (["A", "F"], ["P", "A"]),
        "1.3": (None, []),
    }.items():
        films.keep(node.spool, films.thumbnail({"PatientOrientation": orientation}), study_uid=study)
        page = node.client().get(f"/studies/{study}").text
        assert re.findall(r"edge of the film: </span>(.)</p>", page) == edges


def test_only_a_known_user_sees_the_patient_and_can_log_out(node: Finished) -> None:
    films.keep(node.spool, films.thumbnail(PATIENT), study_uid=STUDY)
    known, unknown = node.client(user="reader <1>"), node.client()
    seen, others = known.get(f"/studies/{STUDY}").text, (unknown.get(f"/studies/{STUDY}"), known.get("/"))

    assert [text in seen for text in ("Zyx, Secret, Dr", "SECRET-7", "1961-02-03", "2024-01-31")] == [True] * 4
    for page in (*others, known.get(f"/api/v1/studies/{STUDY}")):
        assert [word for word in ("Zyx", "SECRET", "1961") if word in page.text] == []
    assert "reader &lt;1&gt;" in seen and 'action="/logout"' in seen
    assert '<meta name="csrf-token" content="a token">' in seen
    assert "/logout" not in others[0].text


LONG_STUDY = f"1.2.{'3' * 60}"


def keep_read(node: Finished, film: Dataset, answer: Film, *, study_uid: str) -> str:
    """Keep a film with what was read on it; returns its UID."""
    kept = films.keep(node.spool, film, study_uid=study_uid).instance
    reading = encode(replace(answer, source=kept.sop_instance_uid))
    node.spool.keep_reading(study_uid, kept.sop_instance_uid, {**reading, "file": kept.path.name})
    return kept.sop_instance_uid


def test_the_lists_say_what_is_to_be_reviewed_and_name_patients_to_who_may_see_them(node: Finished) -> None:
    uids = []  # of a study of two patients' films, each with a finding that is present and one to be reviewed
    for number, patient in enumerate((PATIENT, {**PATIENT, "PatientName": "Abc^Other", "PatientID": "OTHER-8"})):
        taken = {"AcquisitionDate": "20240131", "AcquisitionTime": f"09{number}500", "PatientAge": f"06{number}Y"}
        film = films.as_another(films.thumbnail({**patient, **taken}), f"to review {number}", study="two")
        uids.append(keep_read(node, film, samples.several(), study_uid=LONG_STUDY))
    node.ledger.set_study(LONG_STUDY, "finished")
    waiting = ReviewRow(study_uid=LONG_STUDY, film="", reason="near_threshold", is_stat=False, urgency=1, received_at=0)
    node.ledger.set_reviews(LONG_STUDY, [replace(waiting, film=uid, received_at=n) for n, uid in enumerate(uids)])

    with capture_logs() as lines:
        page, unnamed = (node.client(user=user).get("/review").text for user in ("reader", ""))

    assert [(line["user"], line["studies"]) for line in lines if line["event"] == "worklist.viewed"] == [("reader", 1)]
    rows = {uid: row for uid in uids for row in page.split("<tr ") if f'data-uid="{uid}"' in row}
    first, second = (re.sub("<[^>]*>", " ", rows[uid]) for uid in uids)
    of_first = ("Zyx, Secret, Dr", "SECRET-7", "60 y", "2024-01-31 09:05")
    of_second = ("Abc, Other", "OTHER-8", "61 y", "2024-01-31 09:15")
    for row, own, other in ((first, of_first, of_second), (second, of_second, of_first)):
        assert [[word in row for word in words] for words in (own, other)] == [[True] * 4, [False] * 4]
    (said,) = node.client().get("/api/v1/review").json()["films"][0]["findings"]
    assert said["reasons"], "which both rows repeat"
    assert all(" ".join(said["reasons"]) in row for row in rows.values())

    assert [word for word in ("Zyx", "SECRET", "OTHER", "60 y", "2024-01-31") if word in unnamed] == []
    assert unnamed.count(">Study …333333333333</a>") == len(uids)
    listed = node.client(user="reader").get("/api/v1/review").text
    assert [word for word in ("Zyx", "SECRET", "OTHER") if word in listed] == []

    (line,) = node.client().get("/api/v1/studies").json()["studies"]
    assert [(mark["text"], mark["state"], mark["is_critical"]) for mark in line["marks"]] == [
        ("Pleural effusion 83 %", "present", False),
        ("Pulmonary edema 41 %", "possible", False),
        ("Support devices 50 %", "present", False),
    ]
    worklist = node.client().get("/").text
    assert '<span class="found possible">? ' in worklist and "? marks what is possible" in worklist


def test_a_line_says_the_worst_of_its_films_and_nothing_of_a_rejected_one(node: Finished) -> None:
    wide = replace(samples.ratio(), heart=MeasuredLine(start=(500.0, 1100.0), end=(1600.0, 1100.0)))
    present = samples.finding(samples.PNEUMOTHORAX, probability=0.9)
    answers = (
        samples.film(findings=(replace(present, state=FindingState.INDETERMINATE, probability=0.41),)),
        samples.film(findings=(present,)),
        replace(samples.film(), notes=(), ratio=wide),
        samples.film(findings=(samples.finding(samples.EDEMA, site=samples.LUNG, side=None),)),
    )
    made = [films.as_another(films.thumbnail(), f"line {number}", study="line") for number in range(len(answers))]
    for film, answer in zip(made, answers, strict=True):
        keep_read(node, film, answer, study_uid=STUDY)
    rejected = films.changed(highdicom_note(made[-1]), {"StudyInstanceUID": STUDY})
    films.keep(node.spool, rejected, study_uid=STUDY)
    node.ledger.set_study(STUDY, "finished")

    told, page = node.client().get(f"/api/v1/studies/{STUDY}").json(), node.client().get("/").text
    line = told["line"]
    assert (line["read"], line["rejected"]) == (3, 1)
    assert line["marks"] == [{"text": "Pneumothorax 90 %", "state": "present", "is_critical": True}]
    assert [caution for caution in line["cautions"] if caution.startswith("Wide heart: cardiothoracic ratio 0.73")]
    assert line["received_at"] == min(film["received_at"] for film in told["films"])
    assert "‼ critical" in page and "1 rejected" in page


def test_a_page_says_of_a_film_what_every_output_says() -> None:
    film = samples.several()

    page = shown_film.show(film)

    assert page.impression == tuple(impression.of_film(film))
    assert [(finding.number, finding.state) for finding in page.findings] == [
        (1, "present"),
        (2, "review"),
        (3, "present"),
    ]
    labels = {wording.label(finding, box) for finding in wording.reported(film) for box in finding.boxes}
    assert {box.label for finding in page.findings for box in finding.boxes} == labels
    not_reported = "Not reported (below threshold, may have been missed)"
    assert page.unreported == ((not_reported, ["Pneumothorax 4 %"]),)
    left_out = samples.film(findings=(samples.left_out(), samples.absent(samples.EDEMA)))
    assert shown_film.show(left_out).unreported == (
        (not_reported, ["Pulmonary edema 4 %"]),
        ("Not evaluated by this model", ["Pneumothorax"]),
    )


def test_the_page_of_a_study_draws_and_says_what_its_answer_says(tmp_path: Path) -> None:
    tokyo, label = ZoneInfo("Asia/Tokyo"), "AI RESEARCH - NOT FOR DIAGNOSIS"
    node = Finished(tmp_path / "node", change=lambda settings: replace(settings, site=SiteSettings(timezone=tokyo.key)))
    film = films.thumbnail()
    node.read(film)
    path, pages = f"/studies/{film.StudyInstanceUID}", node.client()
    (told,) = pages.get(f"/api/v1{path}").json()["films"]

    page = html.unescape(pages.get(path).text).replace("\xa0", " ")

    received = datetime.fromisoformat(told["received_at"]).astimezone(tokyo)
    assert f"received {received:%Y-%m-%d %H:%M} Asia/Tokyo" in page
    assert page.count(label) == 3, "above the film, on it and below"
    assert all(label in pages.get(other).text for other in ("/", "/review", "/upload", "/statistics"))
    rect = r'<rect class="box (?:present|review)" x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"'
    boxes = [box["box"] for finding in told["film"]["findings"] for box in finding["boxes"]]
    drawn = sorted(tuple(map(float, found)) for found in re.findall(rect, page))
    assert drawn == sorted((left, top, right - left, bottom - top) for left, top, right, bottom in boxes)
    assert drawn and [line for line in told["film"]["impression"] if line not in page] == []
    assert shown_film.glossary().caution in page

    node.read(highdicom_note(film))
    rejected = pages.get(path).text
    assert "The archive rejected this film" in rejected
    assert not [word for word in ('<rect class="box', 'class="finding ', 'id="version"') if word in rejected]


NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
REJECTED = Correction(
    id="a" * 32,
    study_uid=STUDY,
    film="1.2",
    kind=CorrectionKind.REJECT,
    at=NOON,
    by="anna",
    source="page",
    prompt=samples.several().findings[0].prompt,
)
LATER = replace(REJECTED, id="b" * 32, prompt=samples.several().findings[1].prompt)


@pytest.mark.parametrize(
    ("made", "followed", "leaves_in", "state", "seconds"),
    [
        ([], (), None, "", 0),
        ([], (), 42.5, "waiting", 43),
        ([REJECTED], (), 42.5, "waiting", 43),
        ([REJECTED], (), None, "pending", 0),
        ([REJECTED, LATER], (REJECTED.id,), None, "pending", 0),
        ([REJECTED, LATER], (REJECTED.id, LATER.id), None, "written", 0),
    ],
)
def test_a_page_says_whether_the_report_follows_what_a_reader_corrected(
    made: list[Correction], followed: tuple[str, ...], leaves_in: float | None, state: str, seconds: int
) -> None:
    leave_at = None if leaves_in is None else NOON + timedelta(seconds=leaves_in)
    mark = RoundMark(number=3, created_at=NOON, files=(), outputs=(), corrections=followed)
    waiting = WaitingCorrections(changes=1, leave_at=leave_at)

    page = shown_film.show_corrections(samples.several(), made, [mark], waiting=waiting, now=NOON)

    assert (page.state, page.seconds, page.round, [*reversed(page.counting)]) == (state, seconds, 3, made)
    assert page.texts.get(REJECTED.id) == ("Rejected: pleural effusion" if made else None)


def test_findings_with_their_sides_are_suggested_and_understood(node: Finished) -> None:
    known = node.client().get("/api/v1/prompts").json()

    phrases = [prompt.phrases[0] for prompt in PROMPTS.prompts]
    sided = known["suggestions"][len(phrases) :]
    asked = [understand(text, prompts.load("chexpert14")) for text in sided]
    assert known["suggestions"][: len(phrases)] == phrases
    assert "Left pleural effusion" in sided
    assert not [text for text in sided if "cardiomegaly" in text]
    assert {(query.topic, len(query.findings)) for query in asked} == {(Topic.PRESENCE, 1)}
    assert [query.side for query in asked] == [text.split()[0].lower() for text in sided]


def test_the_pages_have_words_for_everything() -> None:
    assert words.WITHHELD.keys() == {*metrics.WITHHELD, CORRECTED}
    table = (REPOSITORY / "docs" / "integrate" / "dicom.md").read_text(encoding="utf-8")
    assert not [reason for reason, said in words.WITHHELD.items() if f"| `{reason}` | {said}" not in table]
    assert not [kind for kind in (*OUTPUTS.own, "oru", rejection.KIND) if words.output_kind(kind) == kind]
    assert words.ANSWERS.keys() == {*FindingState, ""}
    assert "normal" not in " ".join(words.ANSWERS.values()).lower()


SENT, PARKED, WAITING, ABANDONED = (
    DeliveryState.SENT,
    DeliveryState.PARKED,
    DeliveryState.WAITING,
    DeliveryState.ABANDONED,
)


def delivered(node: Finished, *states: DeliveryState, study: str = STUDY, state: StudyState = "finished") -> TestClient:
    """Record a study and a delivery in each of these states; returns a client."""
    node.ledger.set_study(study, state)
    for number, each in enumerate(states):
        delivery = Delivery(destination="archive", study_uid=study, sop_instance_uid=f"{study}.{number}", kind="sr")
        node.ledger.add_delivery(delivery)
        node.ledger.set_delivery(delivery, each, attempts=1, reason="no room <there>")
    return node.client()


@pytest.mark.parametrize(
    ("states", "state", "chip", "delivered_to"),
    [
        ((SENT, SENT), "finished", "finished", "all"),
        ((DeliveryState.COMMITTED,), "finished", "finished", "all"),
        ((), "finished", "finished", "nothing"),
        ((PARKED, PARKED), "finished", "not delivered", "none"),
        ((WAITING,), "finished", "not delivered", "none"),
        ((ABANDONED,), "finished", "not delivered", "none"),
        ((SENT, PARKED), "finished", "partly delivered", "some"),
        ((SENT, WAITING), "finished", "partly delivered", "some"),
        ((PARKED,), "reading", "being read", "none"),
        ((PARKED,), "parked", "parked", "none"),
    ],
)
def test_a_study_is_finished_where_it_was_delivered_and_else_says_why_not(
    node: Finished, states: tuple[DeliveryState, ...], state: StudyState, chip: str, delivered_to: str
) -> None:
    pages = delivered(node, *states, state=state)

    shown = {path: pages.get(path).text for path in ("/", f"/studies/{STUDY}")}
    told = pages.get(f"/api/v1/studies/{STUDY}").json()["line"]

    assert all(f'<span class="chip">{chip}</span>' in page for page in shown.values())
    assert all(('class="state finished"' in page) == (chip == "finished") for page in shown.values())
    assert "none reported" not in shown["/"], "no film was read"
    waits = {"archive": "no room <there>"} if WAITING in states or PARKED in states else {}
    assert (told["state"], told["delivered"], told["waits"]) == (state, delivered_to, waits)
    assert ('<small class="dim">no room &lt;there&gt;</small>' in shown["/"]) is bool(waits)


def test_the_filter_shows_what_it_names_and_status_counts_it(node: Finished) -> None:
    delivered(node, SENT, study="1.1")
    delivered(node, PARKED, study="1.2")
    delivered(node, SENT, PARKED, study="1.3")
    node.ledger.set_study("1.4", "parked", stage="read", reason="damaged")
    pages = node.client()
    expected = {
        "": {"1.1", "1.2", "1.3", "1.4"},
        "parked": {"1.2", "1.3", "1.4"},
        "not_delivered": {"1.2"},
        "finished": {"1.1", "1.2", "1.3"},
        "reading": set[str](),
    }

    shown = {state: pages.get("/", params={"state": state}).text for state in expected}
    answers = {state: pages.get("/api/v1/studies", params={"state": state}).json() for state in expected}

    assert {state: set(re.findall('data-uid="([^"]*)"', page)) for state, page in shown.items()} == expected
    assert {state: {line["uid"] for line in answer["studies"]} for state, answer in answers.items()} == expected
    assert [answer["total"] for answer in answers.values()] == [4, 3, 1, 3, 0]
    assert "no room &lt;there&gt;" in shown["parked"] and "Retry" in shown["parked"]
    told = operate.status(node.settings)
    assert (told["not_delivered"], told["studies"]) == (1, {"receiving": 0, "reading": 0, "finished": 3, "parked": 1})
    assert "finished, with nothing delivered: 1" in operate.render(told, zone=node.settings.site.zone)


def test_digits_are_searched_as_they_are_typed_and_what_cannot_be_is_refused_in_words(node: Finished) -> None:
    delivered(node, SENT)
    pages = delivered(node, SENT, study="9")
    for typed in ("1.2.3", " 1.2.3 ", "2", "1.2.", "."):
        page = pages.get("/", params={"q": typed}).text
        assert re.findall('data-uid="([^"]*)"', page) == [STUDY], typed
    digits_alone = "Studies are found by digits of their UID alone"
    for name, typed, said in (
        *(("q", typed, digits_alone) for typed in ("Meier", "1.2.3a", "1.2%", "<b>", "1" * 65, "胸部")),
        ("state", "lost", "There is no such state"),
    ):
        refused = pages.get("/", params={name: typed})
        assert (refused.status_code, said in refused.text, "data-uid" in refused.text) == (200, True, False), typed
        assert "<b>&" not in refused.text and "'<b>" not in refused.text
        assert pages.get("/api/v1/studies", params={name: typed}).status_code == 422


def test_the_worklist_has_pages_of_fifty_studies(node: Finished) -> None:
    for number in range(51):
        node.ledger.set_study(f"1.2.{number}", "finished")
    pages = node.client()

    first = pages.get("/?state=finished").text
    (following,) = re.findall('rel="next" href="([^"]*)"', first)
    second = pages.get(html.unescape(following)).text

    shown = [set(re.findall('data-uid="([^"]*)"', page)) for page in (first, second)]
    assert (len(shown[0]), shown[1]) == (50, {"1.2.0"})
    assert "page 2 of 2" in second and 'rel="next"' not in second and 'rel="prev"' in second
    assert [pages.get("/", params={"page": page}).status_code for page in ("-1", "9e9", "99999999999")] == [200] * 3
