"""The description of the interface, and its page: valid, and true of who may use each route."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
import schemathesis
from starlette.testclient import TestClient

from node.metrics import Metrics
from node.settings.http import HttpSettings
from node.store.spool import Spool
from node.web import application
from node.web.description import describe
from node.web.look_files import Looks
from node.web.parts import WebParts
from node.web.roles import ROUTES
from node.web.users import Role
from tests.support.service import settings_for
from tests.support.spoken import PROMPTS
from tests.support.web_access import ADDRESS, PASSWORD, opened, users_in

READER: Final = ("bob", PASSWORD)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client at a node with users, behind the real access rules."""
    folder = tmp_path_factory.mktemp("described")
    http = HttpSettings(password_file=users_in(folder, "bob:reader"))
    settings = replace(settings_for(folder / "node", archive_port=104), http=http)
    spool = Spool(settings.storage.directory)
    looks = Looks(spool.directory / "looks")
    parts = WebParts(
        settings=settings, spool=spool, metrics=Metrics(), prompts=lambda: PROMPTS, looks=looks, troubles=tuple
    )
    with opened(http, folder) as access:
        called = access.protected(application.build(parts, access))
        yield TestClient(called, base_url=ADDRESS, client=("127.0.0.1", 50000), raise_server_exceptions=False)
    looks.close()


@pytest.fixture(scope="module")
def described(client: TestClient) -> Mapping[str, Any]:
    found: Mapping[str, Any] = client.get("/api/openapi.json", auth=READER).json()
    return found


def operations(described: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_the_description_is_valid_openapi(described: Mapping[str, Any]) -> None:
    schemathesis.openapi.from_dict(dict(described)).validate()

    assert [server["url"] for server in described["servers"]] == ["/"]


def test_every_route_says_in_a_sentence_what_it_does(described: Mapping[str, Any]) -> None:
    for method, path, operation in operations(described):
        assert re.fullmatch(r"[A-Z][a-z]+ .*[^.]", operation["summary"]), (method, path)


def test_nobody_and_a_reader_get_the_answers_that_are_described(
    client: TestClient, described: Mapping[str, Any]
) -> None:
    schemes = described["components"]["securitySchemes"]
    for method, path, operation in operations(described):
        asked = re.sub(r"\{\w+\}", "1.2.3", path)
        assert client.request(method, asked).status_code == 401
        assert {"401", "403"} <= set(operation["responses"])
        assert all(name in schemes for needed in operation["security"] for name in needed)
        if ROUTES[f"{method} {path}"] is Role.ADMINISTRATOR:
            assert client.request(method, asked, auth=READER).status_code == 403
            assert operation["responses"]["403"]["description"].startswith("for administrators")


def test_behind_a_proxy_alone_no_password_and_no_session_is_asked_for() -> None:
    routes = {method: {"description": "List all.", "responses": {}} for method in ("get", "post")}
    http = HttpSettings(trusted_proxy=("192.0.2.1",), user_header="x-user")

    described = describe(lambda: {"paths": {"/api/v1/studies": routes}}, http)["paths"]["/api/v1/studies"]

    assert (described["get"]["security"], described["post"]["security"]) == ([{}], [{"token": []}])


def test_the_page_shows_every_route_and_fetches_nothing_from_elsewhere(
    client: TestClient, described: Mapping[str, Any]
) -> None:
    page = client.get("/interface", auth=READER).text

    assert [f"<code>{method} {path}</code>" in page for method, path, _ in operations(described)].count(False) == 0
    assert not re.search(r"<script|(?:src|href)=\"(?![/#])", page)
