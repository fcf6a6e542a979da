"""Who may use pages and API: by this machine, password, session and proxy; and what other sites cannot do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from node.settings.http import HttpSettings
from node.web.passwords import remove_user, set_password, set_role
from node.web.users import Role
from tests.support.web_access import ADDRESS, BROWSER, PASSWORD, PEER, PROXY, client_of, opened, sign_in, users_in

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


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "0.0.0.0:8080", "127.0.0.1@evil", "x/login?", ""],
)
def test_a_foreign_host_header_is_refused(local: TestClient, host: str) -> None:
    answer = local.get(WHO, headers={"host": host})

    assert (answer.status_code, answer.headers["content-type"], answer.json()["title"]) == (400, JSON, "host")


def test_a_loopback_node_has_the_names_of_loopback(local: TestClient) -> None:
    names = ("localhost", "localhost:8080", "LOCALHOST", "127.0.0.1", "[::1]:8080")
    assert [local.get(WHO, headers={"host": host}).status_code for host in names] == [200] * 5


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


def test_a_browser_needs_the_token_and_a_program_does_not(local: TestClient) -> None:
    user = local.get(WHO).json()
    browser = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}

    assert (user["name"], user["means"], user["role"]) == ("", "local", "administrator"), "this machine may do all"
    assert local.post(WHO).status_code == 200
    assert local.post(WHO, headers=browser).json()["title"] == "token"
    assert local.post(WHO, headers={**browser, "x-csrf-token": "wrong"}).status_code == 403
    assert local.post(WHO, headers={"cookie": "a=b"}).status_code == 403
    assert local.post(WHO, headers={**browser, "x-csrf-token": user["token"]}).status_code == 200


def test_an_unlisted_proxy_on_this_machine_is_not_this_machine(local: TestClient) -> None:
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


def test_the_cookie_is_hidden_from_scripts_and_other_sites(guarded: TestClient) -> None:
    answer = guarded.post("/login", data={"user": "ada", "password": PASSWORD}, headers=BROWSER)

    attributes = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
    assert {"httponly", "samesite=lax", "path=/"} <= attributes
    assert "secure" not in attributes
    assert "vary" not in guarded.get("/static/page.css").headers, "a style is cached for every session"


def test_a_session_needs_its_token_for_changes(guarded: TestClient) -> None:
    sign_in(guarded)
    token = guarded.get(WHO).json()["token"]

    assert guarded.post(WHO).json()["title"] == "token"
    assert guarded.post(WHO, headers={"x-csrf-token": token, "origin": ADDRESS}).status_code == 200
    sign_in(guarded)
    assert guarded.post(WHO, headers={"x-csrf-token": token}).json()["title"] == "token"


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


def test_a_forged_cookie_is_no_session(guarded: TestClient) -> None:
    sign_in(guarded)
    ((name, value),) = guarded.cookies.items()
    guarded.cookies.clear()

    for forged in (value[:-2], f"x{value[1:]}", "", "x" * 5000):
        assert guarded.get(WHO, headers={"cookie": f"{name}={forged}"}).status_code == 401
    assert guarded.get(WHO, headers={"cookie": f"{name}={value}"}).status_code == 200


def test_programs_send_user_and_password_with_each_request(guarded: TestClient) -> None:
    first, again = (guarded.post(WHO, auth=("ada", PASSWORD)) for _ in range(2))

    assert first.json()["means"] == again.json()["means"] == "password"
    assert "set-cookie" not in first.headers
    assert guarded.get(WHO, auth=("ada", "wrong")).json()["title"] == "password"
    assert guarded.get(WHO, headers={"authorization": "Bearer x"}).status_code == 401
    assert guarded.get(WHO, headers={"authorization": "Basic ///"}).status_code == 401
    assert guarded.post(WHO, auth=("ada", PASSWORD), headers={"origin": ADDRESS}).json()["title"] == "token"


def test_a_proxy_names_its_user(behind_proxy: TestClient) -> None:
    headers = [(b"x-remote-user", "J\u00fcrgen".encode()), (b"x-forwarded-for", b"1.1.1.1, 10.0.0.9")]

    user = behind_proxy.get(WHO, headers=headers).json()

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


def test_a_page_behind_a_proxy_may_change_what_it_shows(behind_proxy: TestClient) -> None:
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
