"""Single sign-on: who gets in by a provider and its groups, and that nobody else does, with a page that says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from node import config
from node.commands.doctor import check_single_sign_on
from node.config import Settings, StorageSettings
from node.errors import ConfigError
from node.settings.http import HttpSettings, OidcSettings
from node.web.access import check_files
from tests.support.certificates import Authority
from tests.support.identity_provider import CLIENT, Provider, Spoiled, oidc_of
from tests.support.web_access import ADDRESS, BROWSER, PASSWORD, client_of, opened, sign_in, users_in

WHO = "/api/v1/who"
ALGORITHMS = "id_token_signing_alg_values_supported"
ELSEWHERE = "http://127.0.0.1:9/token"
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
"""What a browser says that the provider sends back."""


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as made:
        yield made


@pytest.fixture
def settings(provider: Provider, tmp_path: Path) -> HttpSettings:
    return HttpSettings(oidc=oidc_of(provider, tmp_path))


@pytest.fixture
def client(settings: HttpSettings, tmp_path: Path) -> Iterator[TestClient]:
    with opened(settings, tmp_path) as access, client_of(access) as made:
        yield made


def come_back(client: TestClient, target: str = "/") -> httpx2.Response:
    """Sign in as a browser does, and return the node's answer to its coming back."""
    left = client.get("/login/oidc", params={"next": target}, headers=BROWSER)
    if left.status_code != 302:
        return left
    signed = httpx2.get(left.headers["location"])
    return client.get(signed.headers["location"].removeprefix(ADDRESS), headers=LINK)


def test_a_group_of_the_provider_is_a_role(client: TestClient, provider: Provider) -> None:
    def entered(groups: object) -> tuple[str, str, str]:
        provider.claims["groups"] = groups
        come_back(client)
        user = client.get(WHO).json()
        client.post("/logout", headers=BROWSER)
        return user["name"], user["role"], user["means"]

    assert client.get("/", headers=BROWSER).headers["location"] == "/login?next=%2F"
    assert '<a href="/login/oidc?next=%2Fx%3Fy%3D1">' in client.get("/login?next=/x?y=1").text
    for target, place in (
        ("/api/v1/who?x=1", "/api/v1/who?x=1"),
        *((target, "/") for target in ("//evil.example", "/login", "/" + "x" * 2000)),
    ):
        back = come_back(client, target)
        assert (back.status_code, back.headers["location"]) == (303, place), "it leads to this server only"
        client.post("/logout", headers=BROWSER)
    with capture_logs() as lines:
        name, *facts = entered(["radiology"])
        assert re.fullmatch(r"ada \([0-9a-f]{10}\)", name)
        assert facts == ["reader", "session"]
        assert entered(["chex-admins", "radiology"]) == (name, "administrator", "session")
        assert entered("radiology") == (name, "reader", "session"), "one group that is no list"
    assert [(line["event"], line["user"]) for line in lines] == [("session.begun", name), ("session.ended", name)] * 3
    provider.claims["sub"] = "f:2:ada"
    assert entered(["radiology"])[0] != name, "another person of the same displayed name"


@pytest.mark.parametrize(
    ("spoiled", "reason"),
    [
        (Spoiled(claims={"aud": "another client"}), "token"),
        (Spoiled(claims={"aud": ["another client"], "azp": CLIENT}), "token"),
        (Spoiled(claims={"aud": None}), "token"),
        (Spoiled(claims={"iss": "https://evil.example"}), "token"),
        (Spoiled(claims={"nonce": "another sign-in"}), "token"),
        (Spoiled(claims={"nonce": None}), "token"),
        (Spoiled(claims={"iat": 1_700_000_000, "exp": 1_700_003_600}), "token"),
        (Spoiled(claims={"sub": None}), "token"),
        (Spoiled(is_forged=True), "token"),
        (Spoiled(is_unsigned=True, metadata={ALGORITHMS: ["none", "RS256"]}), "token"),
        (Spoiled(is_unsigned=True, metadata={ALGORITHMS: ["none"]}), "token"),
        (Spoiled(has_token=False), "token"),
        (Spoiled(claims={"groups": ["staff", "Radiology"]}), "group"),
        (Spoiled(claims={"groups": None}), "group"),
        (Spoiled(claims={"groups": {"radiology": True}}), "group"),
        (Spoiled(metadata={"issuer": "https://evil.example"}), "provider"),
        (Spoiled(metadata={"token_endpoint": ELSEWHERE}), "provider"),
        (Spoiled(metadata={"jwks_uri": "https://evil.example/keys"}), "provider"),
        (Spoiled(metadata={"token_endpoint": "http://[evil"}), "provider"),
        (Spoiled(metadata={"authorization_endpoint": 5}), "provider"),
    ],
)
def test_nobody_enters_by_what_cannot_be_trusted(
    client: TestClient, provider: Provider, spoiled: Spoiled, reason: str
) -> None:
    provider.spoiled = spoiled
    with capture_logs() as lines:
        answer = come_back(client)

    assert answer.status_code == (502 if reason == "provider" else 403)
    assert '<p role="alert">' in answer.text and "Sign in by single sign-on" in answer.text
    assert client.get(WHO).status_code == 401
    ((event, why, message),) = [(line["event"], line["reason"], line["message"]) for line in lines]
    assert (event, why, "evil" in str(lines)) == ("session.refused", reason, False)
    assert ("on another server" in message) is bool(spoiled.metadata.keys() & {"token_endpoint", "jwks_uri"})


def test_the_log_says_what_is_wrong_with_group_secret_or_provider(
    client: TestClient, settings: HttpSettings, provider: Provider
) -> None:
    assert settings.oidc is not None
    provider.claims["groups"] = ["staff"]
    with capture_logs() as lines:
        answers = [come_back(client)]
        settings.oidc.client_secret_file.write_text("old", encoding="utf-8")
        answers.append(come_back(client))
        provider.stop()
        answers.append(client.get("/login/oidc", headers=BROWSER))

    assert [answer.status_code for answer in answers] == [403, 502, 502]
    assert "gives no usable answer" in answers[-1].text
    of_group, of_secret, of_provider = lines
    assert (of_group["user"][:5], of_group["message"]) == ("ada (", "1 groups in groups, none with a role")
    assert "client_secret_file" in of_secret["message"]
    assert (of_provider["reason"], of_provider["message"][:19]) == ("provider", "Connect call failed")


def test_another_browser_cannot_finish_a_sign_in_who_is_denied_reads_our_words_and_a_used_code_is_of_no_use(
    client: TestClient, provider: Provider
) -> None:
    left = client.get("/login/oidc", headers=BROWSER)
    provider.asked.clear()

    for query in ("", "?code=x&state=y", "?code=x"):
        answer = client.get(f"/login/callback{query}", headers=LINK)
        assert (answer.status_code, client.get(WHO).status_code) == (400, 401)
    (state,) = parse_qs(urlsplit(left.headers["location"]).query)["state"]
    denied = f"/login/callback?error=access_denied&error_description=call+evil&state={state}"
    answer = client.get(denied, headers=LINK)
    assert (answer.status_code, "evil" in answer.text) == (403, False)
    assert "/token" not in provider.asked

    left = client.get("/login/oidc", headers=BROWSER)
    back = httpx2.get(left.headers["location"]).headers["location"].removeprefix(ADDRESS)
    kept = dict(client.cookies)

    assert client.get(back, headers=LINK).status_code == 303
    client.cookies.clear()
    client.cookies.update(kept)
    assert client.get(back, headers=LINK).status_code == 502
    assert client.get(WHO).status_code == 401


def test_strangers_reach_neither_provider_nor_log_without_limit(client: TestClient, provider: Provider) -> None:
    with capture_logs() as lines:
        statuses = [
            client.get(f"/login/callback?code=x&state={number}", headers=LINK).status_code for number in range(70)
        ]

    assert (statuses[0], statuses[-1]) == (400, 429)
    assert provider.asked == []
    assert [line["reason"] for line in lines] == ["state", "busy"]


def test_other_groups_in_the_settings_end_every_session(
    client: TestClient, settings: HttpSettings, tmp_path: Path
) -> None:
    come_back(client)
    assert settings.oidc is not None
    cookies = dict(client.cookies)

    def status(oidc: OidcSettings) -> int:
        with opened(replace(settings, oidc=oidc), tmp_path) as access, client_of(access) as other:
            other.cookies.update(cookies)
            return other.get(WHO).status_code

    assert status(settings.oidc) == 200
    assert status(replace(settings.oidc, administrator_groups=("others",))) == 401


def test_passwords_serve_beside_single_sign_on_and_without_them_nobody_is_asked_for_one(
    settings: HttpSettings, client: TestClient, tmp_path: Path
) -> None:
    assert client.get(WHO).headers["www-authenticate"].startswith("Session ")
    assert 'name="password"' not in client.get("/login").text
    assert client.post("/login", headers=BROWSER).status_code == 405

    both = replace(settings, password_file=users_in(tmp_path, "bob"))
    with opened(both, tmp_path) as access, client_of(access) as client:
        assert client.get(WHO, auth=("bob", PASSWORD)).json()["name"] == "bob"
        assert sign_in(client, "bob") == 303
        client.post("/logout", headers=BROWSER)
        come_back(client)
        assert client.get(WHO).json()["name"].startswith("ada (")
        assert client.get(WHO, auth=("ada", PASSWORD)).status_code == 401


def test_the_callback_has_the_address_that_the_browser_uses(settings: HttpSettings, tmp_path: Path) -> None:
    behind = replace(settings, hosts=("chex.example",), trusted_proxy=("10.0.0.2",))
    with (
        opened(behind, tmp_path) as access,
        client_of(access, address="http://chex.example", peer="10.0.0.2") as client,
    ):
        left = client.get("/login/oidc", headers={**BROWSER, "x-forwarded-proto": "https"})

    asked = parse_qs(urlsplit(left.headers["location"]).query)
    assert asked["redirect_uri"] == ["https://chex.example/login/callback"]
    assert left.headers["set-cookie"].startswith("__Host-chex-session=")
    assert {"httponly", "samesite=lax", "secure"} <= {part.strip() for part in left.headers["set-cookie"].split(";")}


def test_the_provider_needs_a_certificate_of_a_known_authority(settings: HttpSettings, tmp_path: Path) -> None:
    authority = Authority.found(tmp_path / "authority")
    with Provider(authority.issue("provider")) as provider:
        assert settings.oidc is not None
        unknown = replace(settings.oidc, issuer=provider.issuer)
        for oidc, status in ((unknown, 502), (replace(unknown, ca=authority.certificate), 302)):
            with opened(replace(settings, oidc=oidc), tmp_path) as access, client_of(access) as client:
                assert client.get("/login/oidc", headers=BROWSER).status_code == status


def test_the_files_of_the_settings_must_be_usable(settings: HttpSettings, tmp_path: Path) -> None:
    check_files(settings)
    assert settings.oidc is not None
    empty = tmp_path / "empty"
    empty.touch()
    oidc = replace(settings.oidc, client_secret_file=empty, ca=tmp_path / "nothing")

    with pytest.raises(ConfigError, match=r"(?s)client_secret_file.*http\.oidc\.ca"):
        check_files(replace(settings, oidc=oidc))


def test_doctor_asks_the_provider(
    settings: HttpSettings, provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # no proxy of the environment is used
    whole = Settings(storage=StorageSettings(directory=tmp_path), http=settings)

    (good,) = check_single_sign_on(whole)
    provider.stop()
    (bad,) = check_single_sign_on(whole)

    assert (str(good.state), str(bad.state)) == ("ok", "fault")
    assert provider.issuer in bad.message and "Connect call failed" in bad.message


OIDC = {"issuer": "https://sso.example/realms/x", "client_id": "chex", "client_secret_file": "secret"}
READERS = {**OIDC, "reader_groups": ["a"]}


@pytest.mark.parametrize(
    ("http", "complaint"),
    [
        ({"oidc": OIDC}, "http.oidc.administrator_groups: nobody could sign in"),
        ({"oidc": {**READERS, "issuer": "http://sso.example"}}, "http.oidc.issuer: secret and tokens"),
        ({"oidc": {**READERS, "issuer": "sso.example"}}, "http.oidc.issuer: must be https:"),
        ({"oidc": {**OIDC, "reader_group": ["a"]}}, "did you mean reader_groups?"),
        ({"oidc": {**READERS, "client_id": ""}}, "http.oidc.client_id: "),
        ({"oidc": READERS, "host": "0.0.0.0"}, "http.oidc: sessions would cross the network in clear"),
        ({"oidc": {**READERS, "issuer": "http://keycloak.localhost:8081"}}, ""),
    ],
)
def test_settings_that_let_nobody_or_anybody_in_are_refused(http: dict[str, Any], complaint: str) -> None:
    listener = {"callers": [{"ae_title": "A", "hosts": ["192.0.2.1"]}]}
    said = ""
    try:
        assert config.parse({"storage": {"directory": "x"}, "listener": listener, "http": http}).http.knows_users
    except ConfigError as refused:
        said = str(refused)

    assert complaint in said and bool(complaint) is bool(said)
