"""Who may use pages and API, and as which role what: by this machine, password, session and proxy; not other sites."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx2
import pytest
from anyio import Semaphore
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from node import config
from node.config import Settings
from node.domain import Delivery, DeliveryState
from node.errors import ConfigError
from node.health.checks import Trouble
from node.settings.http import HttpSettings, OidcSettings
from node.store.ledger import open_ledger
from node.store.spool import Spool
from node.web import application
from node.web.dependencies import WebParts
from node.web.passwords import remove_user, set_password, set_role
from node.web.users import FOR_READERS, Role
from tests.support import films
from tests.support.finished import pages_of, parts_of
from tests.support.service import settings_for
from tests.support.web_access import (
    ADDRESS,
    BROWSER,
    PASSWORD,
    PEER,
    PROXY,
    as_user,
    client_of,
    opened,
    routes_of,
    sign_in,
    users_in,
)

WHO = "/api/v1/who"
JSON = "application/problem+json"
FOREIGN = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:8042"},
    {"origin": "https://127.0.0.1:8080"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "same-origin", "origin": "http://evil.example"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[TestClient]:
    """A client on this machine of a node without users."""
    with opened(HttpSettings(), tmp_path) as access, client_of(access) as client:
        yield client


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[TestClient]:
    """A client on this machine of a node with passwords."""
    settings = HttpSettings(password_file=users_in(tmp_path, "ada"))
    with opened(settings, tmp_path) as access, client_of(access) as client:
        yield client


@pytest.fixture
def behind_proxy(tmp_path: Path) -> Iterator[TestClient]:
    """A client whose requests come from the trusted proxy."""
    settings = HttpSettings(
        host="0.0.0.0", trusted_proxy=(PROXY,), user_header="X-Remote-User", hosts=("chex.example",)
    )
    with opened(settings, tmp_path) as access, client_of(access, address="http://chex.example", peer=PROXY) as client:
        yield client


def test_every_page_forbids_what_a_page_does_not_need(local: TestClient) -> None:
    page, missing, style = local.get("/"), local.get("/nothing"), local.get("/static/page.css")
    interface = local.get("/api/v1/studies/1.2/films/1.3/picture")

    for answer in (page, missing, interface, style):
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert {policy[name] for name in ("default-src", "frame-ancestors", "base-uri")} == {"'none'"}
        assert {policy[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {"'self'"}
        assert "unsafe" not in answer.headers["content-security-policy"]
        said = [answer.headers[name] for name in ("x-content-type-options", "referrer-policy")]
        origins = [answer.headers[f"cross-origin-{name}-policy"] for name in ("opener", "resource")]
        assert (said, origins) == (["nosniff", "no-referrer"], ["same-origin"] * 2)
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert {answer.headers["cache-control"] for answer in (page, missing, interface)} == {"no-store"}
    assert style.headers["cache-control"] == "max-age=60"


def test_a_loopback_node_has_the_names_of_loopback_and_no_others(local: TestClient) -> None:
    for host in ("localhost", "localhost:8080", "LOCALHOST", "127.0.0.1", "[::1]:8080"):
        assert local.get(WHO, headers={"host": host}).status_code == 200, host
    elsewhere = ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "0.0.0.0:8080", "127.0.0.1@evil")
    for host in (*elsewhere, "x/login?", ""):
        answer = local.get(WHO, headers={"host": host})
        assert (answer.status_code, answer.headers["content-type"], answer.json()["title"]) == (400, JSON, "host"), host


def test_only_named_hosts_are_served_beside_the_address(tmp_path: Path) -> None:
    settings = HttpSettings(hosts=("chex.example", "10.0.0.1"))
    hosts = ("chex.example", "CHEX.example:443", "chex.example.", "10.0.0.1", "sub.chex.example", "10.0.0.3")
    with opened(settings, tmp_path) as access, client_of(access, local="127.0.0.1") as client:
        answers = [client.get(WHO, headers={"host": host}).status_code for host in hosts]

    assert answers == [200, 200, 200, 200, 400, 400]


@pytest.mark.parametrize("headers", FOREIGN)
def test_another_site_reads_and_changes_nothing_and_signs_nobody_in_or_out(
    local: TestClient, guarded: TestClient, headers: dict[str, str]
) -> None:
    token = local.get(WHO).json()["token"]
    own = {"x-csrf-token": token, "sec-fetch-site": "same-origin", "origin": ADDRESS}

    refused = local.post(WHO, headers={"x-csrf-token": token, **headers})

    assert (refused.status_code, refused.json()["title"]) == (403, "other_site")
    assert local.post(WHO, headers=own).status_code == 200
    is_link = headers == FOREIGN[-1]
    assert local.get("/" if is_link else WHO, headers=headers).status_code == (200 if is_link else 403)
    assert guarded.post("/login", data={"user": "ada", "password": PASSWORD}, headers=headers).status_code == 403
    assert guarded.post("/logout", headers=headers).status_code == 403


def test_this_machine_may_do_all_but_a_browser_without_a_token_or_a_proxy_on_it_may_not(local: TestClient) -> None:
    user = local.get(WHO).json()
    browser = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}

    assert (user["name"], user["means"], user["role"]) == ("", "local", "administrator"), "this machine may do all"
    assert local.post(WHO).status_code == 200
    assert local.post(WHO, headers=browser).json()["title"] == "token"
    assert local.post(WHO, headers={**browser, "x-csrf-token": "wrong"}).status_code == 403
    assert local.post(WHO, headers={"cookie": "a=b"}).status_code == 403
    assert local.post(WHO, headers={**browser, "x-csrf-token": user["token"]}).status_code == 200
    for header in ("x-forwarded-for", "forwarded", "via", "x-real-ip", "x-forwarded-proto", "x-forwarded-port"):
        assert local.get(WHO, headers={header: "10.0.0.9"}).json()["title"] == "proxy"


def test_without_users_another_address_serves_machine_pages_only(tmp_path: Path) -> None:
    with capture_logs() as lines, opened(HttpSettings(host="0.0.0.0"), tmp_path) as access:
        with client_of(access, address="http://10.0.0.1:8080", peer=PEER) as client:
            statuses = [client.get(path).status_code for path in ("/live", "/", WHO, "/login", "/static/page.css")]
        with client_of(access) as client:
            statuses.append(client.get(WHO).status_code)

    assert statuses == [200, 403, 403, 403, 403, 403]
    assert [line["event"] for line in lines].count("access.closed") == 1


def test_a_page_without_a_user_leads_to_the_login_page_and_one_of_a_machine_needs_none(guarded: TestClient) -> None:
    page = guarded.get("/?state=parked&q=1", headers=BROWSER)
    call = guarded.get(WHO, headers={"sec-fetch-site": "same-origin"})

    assert (page.status_code, page.headers["location"]) == (303, "/login?next=%2F%3Fstate%3Dparked%26q%3D1")
    assert (call.status_code, call.headers["content-type"]) == (401, JSON)
    assert call.headers["www-authenticate"].startswith("Session ")
    assert guarded.get(WHO).headers["www-authenticate"].startswith("Basic ")
    assert guarded.get("/live", headers={"host": "10.2.3.4:8080"}).status_code == 200
    assert guarded.get("/live/").status_code == 401


def test_a_session_is_begun_used_and_ended(guarded: TestClient) -> None:
    link = {**FOREIGN[-1], "accept": "text/html"}  # from another site
    assert guarded.get("/?q=1", headers=link).headers["location"] == "/login?next=%2F%3Fq%3D1"
    with capture_logs() as lines:
        assert sign_in(guarded, target="/api/v1/who") == 303
        user = guarded.get(WHO).json()
        assert guarded.get("/?q=1", headers=link).status_code == 200
        stolen = "; ".join(f"{name}={value}" for name, value in guarded.cookies.items())
        assert guarded.post("/logout", headers=BROWSER).headers["location"] == "/login"

    assert (user["name"], user["means"], dict(guarded.cookies)) == ("ada", "session", {})
    assert guarded.get(WHO, headers={"cookie": stolen}).status_code == 401
    assert [(line["event"], line["user"]) for line in lines] == [("session.begun", "ada"), ("session.ended", "ada")]


def test_the_cookie_of_a_session_is_hidden_and_cannot_be_forged_and_changes_need_the_token_too(
    guarded: TestClient,
) -> None:
    answer = guarded.post("/login", data={"user": "ada", "password": PASSWORD}, headers=BROWSER)

    attributes = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
    assert {"httponly", "samesite=lax", "path=/"} <= attributes
    assert "secure" not in attributes
    assert "vary" not in guarded.get("/static/page.css").headers, "a style is cached for every session"
    token = guarded.get(WHO).json()["token"]
    assert guarded.post(WHO).json()["title"] == "token"
    assert guarded.post(WHO, headers={"x-csrf-token": token, "origin": ADDRESS}).status_code == 200
    sign_in(guarded)
    assert guarded.post(WHO, headers={"x-csrf-token": token}).json()["title"] == "token"

    ((name, value),) = guarded.cookies.items()
    guarded.cookies.clear()
    for forged in (value[:-2], f"x{value[1:]}", "", "x" * 5000):
        assert guarded.get(WHO, headers={"cookie": f"{name}={forged}"}).status_code == 401
    assert guarded.get(WHO, headers={"cookie": f"{name}={value}"}).status_code == 200


def test_a_changed_user_has_no_session_any_more(guarded: TestClient, tmp_path: Path) -> None:
    users = tmp_path / "users"
    for role in (Role.READER, Role.ADMINISTRATOR):
        sign_in(guarded)
        set_role(users, "ada", role)
        assert guarded.get(WHO).status_code == 401
    sign_in(guarded)
    set_password(users, "ada", "another password")
    assert guarded.get(WHO).status_code == 401
    assert sign_in(guarded, password="another password") == 303
    remove_user(users, "ada")
    assert guarded.get(WHO).status_code == 401


def test_programs_send_user_and_password_with_each_request(guarded: TestClient) -> None:
    first, again = (guarded.post(WHO, auth=("ada", PASSWORD)) for _ in range(2))

    assert first.json()["means"] == again.json()["means"] == "password"
    assert "set-cookie" not in first.headers
    assert guarded.get(WHO, auth=("ada", "wrong")).json()["title"] == "password"
    assert guarded.get(WHO, headers={"authorization": "Bearer x"}).status_code == 401
    assert guarded.get(WHO, headers={"authorization": "Basic ///"}).status_code == 401
    assert guarded.post(WHO, auth=("ada", PASSWORD), headers={"origin": ADDRESS}).json()["title"] == "token"


def test_a_proxy_names_its_user_who_may_change_what_a_page_shows(behind_proxy: TestClient) -> None:
    named = [(b"x-remote-user", "J\u00fcrgen".encode()), (b"x-forwarded-for", b"1.1.1.1, 10.0.0.9")]

    user = behind_proxy.get(WHO, headers=named).json()

    assert (user["name"], user["means"], user["host"]) == ("J\u00fcrgen", "proxy", "10.0.0.9")
    assert user["role"] == "administrator", "no header tells of roles"
    assert behind_proxy.get(WHO).status_code == 401
    for refused in ([("x-remote-user", "a"), ("x-remote-user", "b")], [("x-remote-user", "a:b")]):
        assert behind_proxy.get(WHO, headers=refused).json()["title"] == "proxy"

    async def in_latin_1() -> int:
        there = httpx2.ASGITransport(app=behind_proxy.app, client=(PROXY, 50000))  # the test client sends UTF-8 alone
        async with httpx2.AsyncClient(transport=there, base_url=behind_proxy.base_url) as client:
            return (await client.get(WHO, headers=[(b"x-remote-user", "J\u00fcrgen".encode("latin-1"))])).status_code

    assert asyncio.run(in_latin_1()) == 401

    headers = {"x-remote-user": "ada", "origin": "https://chex.example", "sec-fetch-site": "same-origin"}
    token = behind_proxy.get(WHO, headers={"x-remote-user": "ada"}).json()["token"]

    assert behind_proxy.post(WHO, headers={**headers, "x-csrf-token": token}).status_code == 200
    assert behind_proxy.post(WHO, headers={**headers, "x-csrf-token": token, "x-remote-user": "eve"}).status_code == 403
    assert behind_proxy.post(WHO, headers={**headers, "origin": "https://evil.example"}).status_code == 403
    assert behind_proxy.post(WHO, headers={"x-remote-user": "ada"}).json()["title"] == "token"


def test_only_the_trusted_proxy_names_users(tmp_path: Path) -> None:
    settings = HttpSettings(host="0.0.0.0", trusted_proxy=(PROXY,), user_header="X-Remote-User")
    with opened(settings, tmp_path) as access:
        with client_of(access, address="https://10.0.0.1:8080", peer=PEER) as client:
            forged = client.get(WHO, headers={"x-remote-user": "ada", "x-forwarded-for": PROXY})
        with client_of(access, address="http://10.0.0.1:8080", peer=f"::ffff:{PROXY}") as client:
            mapped = client.get(WHO, headers={"x-remote-user": "ada"})

    assert (forged.status_code, mapped.status_code) == (401, 200)


def test_passwords_are_taken_by_https_or_through_the_proxy_only(tmp_path: Path) -> None:
    settings = HttpSettings(host="0.0.0.0", trusted_proxy=(PROXY,), password_file=users_in(tmp_path, "ada"))
    with opened(settings, tmp_path) as access:
        plain, proxy = "http://10.0.0.1:8080", {"x-forwarded-proto": "https"}
        with client_of(access, address=plain, peer=PEER) as client:
            assert client.get(WHO, auth=("ada", PASSWORD)).json()["title"] == "unencrypted"
        with client_of(access, address="https://10.0.0.1:8080", peer=PEER) as client:
            assert sign_in(client) == 303
            assert list(client.cookies) == ["__Host-chex-session"]
        with client_of(access, address=plain, peer=PROXY) as client:
            answer = client.post("/login", data={"user": "ada", "password": PASSWORD}, headers=proxy)
            assert "secure" in answer.headers["set-cookie"].lower()


def test_an_audit_event_has_user_and_uids_and_nothing_else_and_a_refusal_not_what_was_asked(
    guarded: TestClient,
) -> None:
    sign_in(guarded)
    with capture_logs() as lines:
        guarded.get("/api/v1/studies/1.2.3/film")
        guarded.get("/api/v1/studies/DOE^JOHN/film")
        for _ in range(3):
            guarded.get("/patients/DOE^JOHN?name=DOE", headers={"host": "DOE.example"})

    seen = {"event": "film.viewed", "log_level": "info", "user": "ada", "host": "127.0.0.1", "outcome": "done"}
    refused = {"event": "access.refused", "log_level": "warning", "reason": "host", "host": "127.0.0.1"}
    assert lines == [{**seen, "study": "1.2.3"}, seen, refused]


STUDY, BROKEN = "1.2.826.0.1.77", "1.2.826.0.1.78"
PUBLIC: Final = {"GET /login", "POST /login", "POST /logout", "GET /login/oidc", "GET /login/callback"}
"""Routes that need no user."""
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
    oidc = OidcSettings(
        issuer="https://sso.example", client_id="x", client_secret_file=tmp_path / "secret", reader_groups=("a",)
    )
    with opened(HttpSettings(password_file=users_in(tmp_path, "ada"), oidc=oidc), tmp_path) as access:
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


def test_a_browser_gets_a_page_and_a_program_a_document(parts: WebParts) -> None:
    reader = client_as(parts, Role.READER)
    for path, status, said in (
        ("/nope", 404, "There is no such page"),
        ("/system", 403, "This is for administrators"),
    ):
        page = reader.get(path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        answers = [reader.get(path), reader.get(f"/api/v1{path}", headers={"Accept": "text/html"})]

        assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert said in page.text and "To the worklist" in page.text
        assert "Not now" not in page.text and "openapi" not in page.text, "a person reads it"
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


def test_the_header_of_a_proxy_gives_a_role_and_that_of_another_machine_none(tmp_path: Path) -> None:
    settings = HttpSettings(
        password_file=users_in(tmp_path, "bob:reader"),
        trusted_proxy=(PROXY,),
        user_header="X-Remote-User",
        role_header="X-Remote-Groups",
        administrator_roles=("chex-admins", "CN=Admins,OU=Radiology"),
    )
    of_administrators = (
        *(["chex-admins"], ["staff,chex-admins"], ["staff | chex-admins"], ["staff", "chex-admins"]),
        ["CN=Admins,OU=Radiology"],
    )
    of_readers: tuple[list[str], ...] = (["chex-admins2"], ["Chex-Admins"], [""], [])
    expected = [*((sent, "administrator") for sent in of_administrators), *((sent, "reader") for sent in of_readers)]
    with opened(settings, tmp_path) as access:
        for sent, role in expected:
            groups = [("X-Remote-Groups", line) for line in sent]
            with client_of(access, peer=PROXY) as client:
                assert client.get(WHO, headers=[("X-Remote-User", "ada"), *groups]).json()["role"] == role
            with client_of(access) as client:
                assert client.get(WHO, auth=("bob", PASSWORD), headers=groups).json()["role"] == "reader"


@pytest.mark.parametrize(
    ("lacking", "complaint"),
    [
        (("trusted_proxy", "user_header"), "http.role_header: has the roles of the user"),
        (("administrator_roles",), "set both or neither"),
        (("role_header",), "set both or neither"),
    ],
)
def test_settings_of_roles_that_go_nowhere_are_refused(lacking: tuple[str, ...], complaint: str) -> None:
    of_proxy = {"user_header": "X-User", "trusted_proxy": ["192.0.2.1"]}
    whole = {**of_proxy, "role_header": "X-Groups", "administrator_roles": ["a"]}
    http = {name: value for name, value in whole.items() if name not in lacking}
    listener = {"callers": [{"ae_title": "A", "hosts": ["192.0.2.1"]}]}

    with pytest.raises(ConfigError, match=complaint):
        config.parse({"storage": {"directory": "x"}, "listener": listener, "http": http})
