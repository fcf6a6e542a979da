"""What each role may do, over all routes; where a role comes from; and that pages show nothing that it may not use."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from anyio import Semaphore
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from node import config
from node.config import Settings
from node.domain import Delivery, DeliveryState
from node.errors import ConfigError
from node.health.checks import Trouble
from node.settings.http import HttpSettings
from node.store.ledger import open_ledger
from node.store.spool import Spool
from node.web import application
from node.web.dependencies import WebParts
from node.web.users import FOR_READERS, Role
from tests.support import films
from tests.support.finished import pages_of, parts_of
from tests.support.service import settings_for
from tests.support.web_access import PASSWORD, PROXY, as_user, client_of, opened, routes_of, sign_in, users_in

STUDY, BROKEN = "1.2.826.0.1.77", "1.2.826.0.1.78"
PUBLIC: Final = {"GET /login", "POST /login", "POST /logout"}
"""Routes that need no user."""
WHO: Final = "/api/v1/who"
DOWN: Final = Trouble(kind="destination", name="archive", title="archive is down", message="no connection")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return settings_for(tmp_path_factory.mktemp("roles") / "node", archive_port=104)


@pytest.fixture(scope="module")
def parts(settings: Settings) -> WebParts:
    """A node with a parked study, and a study with a parked delivery."""
    spool = Spool(settings.storage.directory)
    films.keep(spool, films.thumbnail(), study_uid=STUDY)
    with open_ledger(settings.storage) as ledger:
        ledger.set_study(STUDY, "parked", stage="read", reason="why")
        ledger.set_study(BROKEN, "finished")
        output = Delivery(destination="archive", study_uid=BROKEN, sop_instance_uid="1.2.3", kind="sr")
        ledger.set_delivery(output, DeliveryState.PARKED, attempts=1, reason="refused")
    full = Semaphore(0)  # a stream of events would not end
    return parts_of(settings, spool, troubles=lambda: (DOWN,), streams=full)


FOR_ADMINISTRATORS: Final = {
    *("GET /system", "GET /system/settings", "GET /users", "POST /api/v1/destinations/{name}/echo"),
    *("POST /api/v1/instances", "POST /api/v1/dicomweb/studies", "GET /studies/{uid}/manage"),
    *(f"POST /api/v1/studies/{{uid}}/{action}" for action in ("delete", "read", "retry")),
}
OF_FILMS: Final = {
    route.replace("/films/", "/studies/{study}/films/") for route in FOR_READERS if "/films/{uid}/" in route
}
"""The routes on a film, by its long address."""
ROUTES: Final = sorted(FOR_READERS | OF_FILMS | FOR_ADMINISTRATORS)


def client_as(parts: WebParts, role: Role) -> TestClient:
    return pages_of(parts, user="ada", host="192.0.2.1", role=role)


def test_every_route_has_a_role_and_one_that_is_in_no_table_is_for_administrators(
    parts: WebParts, tmp_path: Path
) -> None:
    with opened(HttpSettings(password_file=users_in(tmp_path, "ada")), tmp_path) as access:
        routes = set(routes_of(application.build(parts, access).routes))
    built = application.build(parts)
    built.add_api_route("/new", lambda: "done", methods=["GET"])

    assert routes == PUBLIC | FOR_READERS | OF_FILMS | FOR_ADMINISTRATORS
    assert FOR_READERS.isdisjoint(FOR_ADMINISTRATORS)
    statuses = [TestClient(as_user(built, name="ada", role=role)).get("/new").status_code for role in Role]
    assert statuses == [403, 200]


@pytest.mark.parametrize("route", ROUTES)
def test_a_role_may_do_what_the_table_says_and_nobody_may_where_nothing_protects(parts: WebParts, route: str) -> None:
    method, _, path = route.partition(" ")
    asked = re.sub(r"\{\w+\}", "1.2.3", path).replace("/static", "/static/page.css")

    with capture_logs() as lines:
        answers = {role: client_as(parts, role).request(method, asked) for role in Role}
    unprotected = TestClient(application.build(parts), raise_server_exceptions=False).request(method, asked)

    refused = [role for role, answer in answers.items() if answer.status_code == 403]
    denied = [(line["user"], line["host"], line["reason"]) for line in lines if line["event"] == "access.denied"]
    if route in FOR_ADMINISTRATORS:
        assert (refused, denied) == ([Role.READER], [("ada", "192.0.2.1", route)])
        assert answers[Role.READER].headers["content-type"] == "application/problem+json"
        assert answers[Role.READER].json()["detail"].startswith("this is for administrators")
    else:
        assert (refused, denied) == ([], [])
    assert unprotected.status_code == 403 or route in ("GET /static", "GET /api/openapi.json"), unprotected.text


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [("/nope", 404, "There is no such page"), ("/system", 403, "this is for administrators")],
)
def test_a_browser_gets_a_page_and_a_program_a_document(parts: WebParts, path: str, status: int, said: str) -> None:
    reader = client_as(parts, Role.READER)

    page = reader.get(path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    answers = [reader.get(path), reader.get(f"/api/v1{path}", headers={"Accept": "text/html"})]

    assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert said.lower() in page.text.lower()
    assert "To the worklist" in page.text
    assert "Not now" not in page.text
    assert "openapi" not in page.text, "a person reads it"
    assert {answer.headers["content-type"] for answer in answers} == {"application/problem+json"}


@pytest.mark.parametrize("path", ["/", f"/studies/{STUDY}", "/?state=parked", "/review", "/upload"])
def test_a_page_has_no_button_that_its_user_may_not_use(parts: WebParts, path: str) -> None:
    for role in Role:
        page, may = client_as(parts, role).get(path).text, role is Role.ADMINISTRATOR
        assert ('href="/system"' in page, 'href="/users"' in page) == (may, may)
        assert ("data-retry" in page) is (may and path not in ("/review", "/upload"))
        assert (f'href="/studies/{STUDY}/manage"' in page) is (may and path == f"/studies/{STUDY}")
        assert "archive is down" in page


def test_users_are_listed_with_their_roles(parts: WebParts, tmp_path: Path) -> None:
    http = HttpSettings(password_file=users_in(tmp_path, "ada", "bob:reader", "<eve>:administrator"))
    settings = replace(parts.settings, http=http)
    shown = client_as(replace(parts, in_force=lambda: settings), Role.ADMINISTRATOR).get("/users")

    rows = re.findall(r"<tr><td>([^<]*)(?: <span[^/]*/span>)?</td><td>(\w+)</td></tr>", shown.text)
    assert rows == [("&lt;eve&gt;", "administrator"), ("ada", "administrator"), ("bob", "reader")]
    assert "$argon2id" not in shown.text


def test_the_password_file_gives_a_role(tmp_path: Path) -> None:
    path = users_in(tmp_path, "ada", "bob:reader")
    with opened(HttpSettings(password_file=path), tmp_path) as access, client_of(access) as client:
        for user, role in (("ada", "administrator"), ("bob", "reader")):
            assert client.get(WHO, auth=(user, PASSWORD)).json()["role"] == role
            assert sign_in(client, user) == 303
            assert client.get(WHO).json()["role"] == role
            client.cookies.clear()


@pytest.mark.parametrize(
    ("sent", "role"),
    [
        (["chex-admins"], "administrator"),
        (["staff,chex-admins"], "administrator"),
        (["staff | chex-admins"], "administrator"),
        (["staff", "chex-admins"], "administrator"),
        (["CN=Admins,OU=Radiology"], "administrator"),
        (["chex-admins2"], "reader"),
        (["Chex-Admins"], "reader"),
        ([""], "reader"),
        ([], "reader"),
    ],
)
def test_the_header_of_a_proxy_gives_a_role_and_that_of_another_machine_none(
    tmp_path: Path, sent: list[str], role: str
) -> None:
    settings = HttpSettings(
        password_file=users_in(tmp_path, "bob:reader"),
        trusted_proxy=(PROXY,),
        user_header="X-Remote-User",
        role_header="X-Remote-Groups",
        administrator_roles=("chex-admins", "CN=Admins,OU=Radiology"),
    )
    groups = [("X-Remote-Groups", line) for line in sent]
    with opened(settings, tmp_path) as access:
        with client_of(access, peer=PROXY) as client:
            assert client.get(WHO, headers=[("X-Remote-User", "ada"), *groups]).json()["role"] == role
        with client_of(access) as client:
            assert client.get(WHO, auth=("bob", PASSWORD), headers=groups).json()["role"] == "reader"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"trusted_proxy": [], "user_header": ""}, "http.role_header: has the roles of the user"),
        ({"administrator_roles": []}, "set both or neither"),
        ({"role_header": ""}, "set both or neither"),
    ],
)
def test_settings_of_roles_that_go_nowhere_are_refused(changes: dict[str, object], complaint: str) -> None:
    whole = {
        "user_header": "X-User",
        "trusted_proxy": ["192.0.2.1"],
        "role_header": "X-G",
        "administrator_roles": ["a"],
    }
    http = {name: value for name, value in {**whole, **changes}.items() if value}
    listener = {"callers": [{"ae_title": "A", "hosts": ["192.0.2.1"]}]}

    with pytest.raises(ConfigError, match=complaint):
        config.parse({"storage": {"directory": "x"}, "listener": listener, "http": http})
