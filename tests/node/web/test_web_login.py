"""Signing in by a password: the file of users and its command, too many wrong ones, and how long a session lasts."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from node.errors import ConfigError, InputError
from node.settings.http import HttpSettings
from node.store import files
from node.web.access import check_files
from node.web.passwords import Busy, Passwords, remove_user, set_password, set_role
from node.web.sign_in import IDLE_SECONDS, LONGEST_SECONDS, Sessions
from node.web.users import Role
from tests.node.web.test_rate_limit import Clock
from tests.paths import REPOSITORY
from tests.support.web_access import BROWSER, PASSWORD, client_of, opened, sign_in, users_in

HOST = "10.0.0.7"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    settings = HttpSettings(password_file=users_in(tmp_path, "ada", "bob"))
    with opened(settings, tmp_path) as access, client_of(access) as client:
        yield client


def test_the_login_page_is_plain_and_quotes_what_it_repeats(client: TestClient) -> None:
    page = client.get("/login", params={"next": '/x?"><b>'}, headers=BROWSER).text

    assert '<form method="post" action="/login">' in page
    assert re.search('<input [^>]*name="password" type="password"', page), "nobody reads it over a shoulder"
    assert "<script" not in page
    assert "<b>" not in page
    assert 'value="/x?&#34;&gt;&lt;b&gt;"' in page


def test_the_login_page_says_how_the_first_user_is_made(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.touch(mode=0o600)
    with opened(HttpSettings(password_file=users), tmp_path) as access, client_of(access) as client:
        before = client.get("/login", headers=BROWSER).text
        set_password(users, "ada", PASSWORD)
        after = client.get("/login", headers=BROWSER).text

    command = "<code>python -m node password FILE USER</code>"
    assert (command in before, command in after) == (True, False)
    assert str(tmp_path) not in before


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("/study/1.2.3?x=1", "/study/1.2.3?x=1"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/x\r\nset-cookie: a=b", "/"),
        ("/\t/evil.example", "/"),
        ("/login?next=/login", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_this_server_only(client: TestClient, target: str, place: str) -> None:
    form = {"user": "ada", "password": PASSWORD, "next": target}

    answer = client.post("/login", data=form, headers=BROWSER)

    assert (answer.status_code, answer.headers["location"]) == (303, place)
    again = client.get("/login", params={"next": target}, headers=BROWSER)
    assert (again.status_code, again.headers["location"]) == (303, place)


def test_a_wrong_password_is_told_as_an_unknown_user_is(client: TestClient) -> None:
    with capture_logs() as lines:
        wrong = client.post("/login", data={"user": "ada", "password": "wrong"}, headers=BROWSER)
        unknown = client.post("/login", data={"user": "my secret password", "password": ""}, headers=BROWSER)

    assert wrong.status_code == unknown.status_code == 401
    assert wrong.text == unknown.text
    assert not client.cookies
    assert [(line["event"], line["user"]) for line in lines] == [("session.refused", "ada"), ("session.refused", "")]


def test_too_many_wrong_passwords_have_to_wait(client: TestClient) -> None:
    statuses = [sign_in(client, password="wrong") for _ in range(6)]

    assert statuses == [401] * 5 + [429]
    right = client.post("/login", data={"user": "ada", "password": PASSWORD}, headers=BROWSER)
    assert (right.status_code, "Too many attempts. Try again in " in right.text) == (429, True)
    program = client.get("/api/v1/who", auth=("ada", PASSWORD))
    assert program.status_code == 429
    assert 0 < int(program.headers["retry-after"]) <= 60
    assert sign_in(client, "bob") == 303


def test_a_password_that_was_right_before_is_no_way_to_guess_on(client: TestClient) -> None:
    assert client.get("/api/v1/who", auth=("ada", PASSWORD)).status_code == 200

    statuses = [client.get("/api/v1/who", auth=("ada", "wrong")).status_code for _ in range(6)]

    assert statuses == [401] * 5 + [429]
    assert client.get("/api/v1/who", auth=("ada", PASSWORD)).status_code == 429


def test_right_passwords_are_not_counted(client: TestClient) -> None:
    assert [sign_in(client) for _ in range(7)] == [303] * 7


def test_sign_out_ends_a_session_that_lets_nobody_in_for_now(tmp_path: Path) -> None:
    path = users_in(tmp_path, "bob", "ada")
    with opened(HttpSettings(password_file=path), tmp_path) as access, client_of(access) as client:
        assert sign_in(client) == 303
        kept = dict(client.cookies)
        set_role(path, "ada", Role.READER)
        client.post("/logout", headers=BROWSER)
        set_role(path, "ada", Role.ADMINISTRATOR)
        client.cookies.update(kept)

        assert client.get("/api/v1/who").status_code == 401


@pytest.mark.parametrize(
    ("content", "status"), [(b"user=%ff", 401), (b"\xff", 401), (b"a=1&" * 9, 400), (b"user=" + b"x" * 2_000_000, 400)]
)
def test_a_form_that_is_no_login_is_refused(client: TestClient, content: bytes, status: int) -> None:
    headers = {**BROWSER, "content-type": "application/x-www-form-urlencoded"}

    assert client.post("/login", content=content, headers=headers).status_code == status
    assert client.get("/login").status_code == 200


def test_without_passwords_there_is_no_login_page(tmp_path: Path) -> None:
    with opened(HttpSettings(), tmp_path) as access, client_of(access) as client:
        assert client.get("/login").status_code == 404


def test_a_program_is_checked_once_until_the_password_changes(tmp_path: Path) -> None:
    path = users_in(tmp_path, "ada")

    async def check() -> list[bool]:
        users = Passwords(path)
        many = [users.check("ada", PASSWORD, host=HOST) for _ in range(12)]
        right = [found is not None for found in await asyncio.gather(*many)]
        assert len(users._remembered) == 1
        set_password(path, "ada", "another password")
        return [*right, await users.check("ada", PASSWORD, host=HOST) is not None]

    assert asyncio.run(check()) == [True] * 12 + [False]


def test_only_so_many_passwords_wait_to_be_checked(tmp_path: Path) -> None:
    async def check() -> list[object]:
        users = Passwords(users_in(tmp_path, "ada"))
        many = [users.check("ada", "wrong", host=f"10.0.0.{number}") for number in range(18)]
        return await asyncio.gather(*many, return_exceptions=True)

    outcomes = asyncio.run(check())

    assert outcomes[:17] == [None] * 17  # one is checked, and sixteen wait
    assert isinstance(outcomes[17], Busy)


def test_an_address_that_guesses_under_many_names_has_to_wait(tmp_path: Path) -> None:
    async def check() -> None:
        users = Passwords(users_in(tmp_path, "ada"))
        with pytest.raises(Busy):
            for number in range(40):  # twice as many as are taken at once
                assert await users.check(f"user {number}", "wrong", host=HOST) is None
        with pytest.raises(Busy):
            await users.check("ada", PASSWORD, host=HOST)
        assert await users.check("ada", PASSWORD, host="10.0.1.1") is not None

    asyncio.run(check())


def begun(sessions: Sessions) -> dict[str, Any]:
    """What is kept of a session that begins."""
    kept = dict[str, Any]()
    sessions.begin(kept, "ada", role=Role.READER, credential="c")
    return kept


def test_a_session_ends_when_it_is_idle_or_old(tmp_path: Path) -> None:
    clock = Clock()
    sessions = Sessions(tmp_path, clock=clock)
    kept = begun(sessions)

    clock.now = IDLE_SECONDS
    assert sessions.read(kept) is not None
    clock.now += 1
    assert sessions.read(kept) is None
    clock.now = 0
    while clock.now <= LONGEST_SECONDS:
        session = sessions.read(kept)
        assert session is not None
        sessions.renew(kept, session)
        clock.now += IDLE_SECONDS
    assert (sessions.read(kept), IDLE_SECONDS, LONGEST_SECONDS) == (None, 30 * 60, 8 * 3600)


def test_a_session_is_renewed_once_a_minute(tmp_path: Path) -> None:
    clock = Clock()
    sessions = Sessions(tmp_path, clock=clock)
    kept = begun(sessions)
    before = sessions.read(kept)
    assert before is not None

    clock.now = 59
    sessions.renew(kept, before)
    assert sessions.read(kept) == before
    clock.now = 60
    sessions.renew(kept, before)
    assert sessions.read(kept) == replace(before, seen=60)


def test_an_ended_session_stays_ended_with_every_cookie(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path, clock=Clock())
    kept, other = begun(sessions), begun(sessions)
    session = sessions.read(kept)
    assert session is not None

    sessions.end(session)

    assert sessions.read(kept) is None
    assert Sessions(tmp_path, clock=Clock()).read(kept) is None  # another process
    assert sessions.read(other) is not None
    (mark,) = (tmp_path / "ended-sessions").iterdir()
    for seconds, is_over in ((LONGEST_SECONDS - 60, True), (LONGEST_SECONDS + 60, False)):
        os.utime(mark, (time.time() - seconds,) * 2)
        begun_later = begun(sessions)
        ending = sessions.read(begun_later)
        assert ending is not None
        sessions.end(ending)
        assert mark.exists() is is_over, "as long as a cookie of the session would count"


def test_the_key_is_private_kept_and_made_anew_if_damaged(tmp_path: Path) -> None:
    token, path = Sessions(tmp_path).token("ada"), tmp_path / "session-key"

    assert len(path.read_bytes()) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Sessions(tmp_path).token("ada") == token
    files.write(path, b"short")
    assert Sessions(tmp_path).token("ada") != token
    assert len(path.read_bytes()) == 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "users"
    set_password(made, "ada", PASSWORD)
    return made


def command(*arguments: object, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "node", "password", *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, input=said, capture_output=True, text=True, timeout=60)


def test_only_the_right_password_of_a_known_user_is_taken(path: Path) -> None:
    users = Passwords(path)

    assert users.verify("ada", PASSWORD)
    assert not users.verify("ada", PASSWORD + " ")
    assert not users.verify("ada", "")
    assert not users.verify("eve", PASSWORD)
    assert not users.verify("ada", PASSWORD + "x" * 5000)


def test_an_unknown_user_takes_as_long_as_a_known_one(path: Path) -> None:
    def seconds(user: str) -> float:
        began = time.process_time()
        assert not users.verify(user, "wrong password")
        return time.process_time() - began

    users = Passwords(path)

    assert min(seconds("eve") for _ in range(3)) > 0.5 * min(seconds("ada") for _ in range(3))


def test_the_file_is_private_and_holds_hashes_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert text.startswith("ada:$argon2id$v=19$")
    assert PASSWORD not in text


def test_composed_and_decomposed_letters_are_one_password(path: Path) -> None:
    set_password(path, "ada", "Zu\u0308rich im Winter")

    assert Passwords(path).verify("ada", "Z\u00fcrich im Winter")


def test_a_changed_file_is_read_again(path: Path) -> None:
    users = Passwords(path)
    before = users.users["ada"]
    with capture_logs() as lines:
        set_password(path, "bob", PASSWORD)
        assert users.verify("bob", PASSWORD)
        set_password(path, "ada", PASSWORD)
        assert users.users["ada"] != before
        remove_user(path, "bob")
        assert not users.verify("bob", PASSWORD)

    assert {line["event"] for line in lines} == {"passwords.reloaded"}


def test_a_lost_or_damaged_file_lets_nobody_in(path: Path) -> None:
    users = Passwords(path)
    with capture_logs() as lines:
        path.write_bytes(b"\xff\xfe")
        assert not users.users
        path.unlink()
        assert not users.verify("ada", PASSWORD)

    assert [line["event"] for line in lines] == ["passwords.refused"] * 2


def test_changes_at_the_same_time_lose_no_user(tmp_path: Path) -> None:
    names = {f"user{number}" for number in range(6)}
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: set_password(tmp_path / "users", name, PASSWORD), names))

    assert {line.partition(":")[0] for line in (tmp_path / "users").read_text(encoding="utf-8").splitlines()} == names


@pytest.mark.parametrize("user", ["", " ada", "a:b", "a\nb", "x" * 129])
def test_a_name_that_http_cannot_carry_is_refused(path: Path, user: str) -> None:
    with pytest.raises(InputError, match="no user name"):
        set_password(path, user, PASSWORD)


def test_settings_name_a_file_that_can_be_used(path: Path, tmp_path: Path) -> None:
    check_files(HttpSettings(password_file=path))

    with pytest.raises(ConfigError, match="no such file"):
        check_files(HttpSettings(password_file=tmp_path / "nothing"))
    path.write_text("ada\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1"):
        check_files(HttpSettings(password_file=path))


def test_the_command_adds_changes_and_removes_a_user(tmp_path: Path) -> None:
    path = tmp_path / "users"

    added = command(path, "ada", said=f"{PASSWORD}\n")
    assert (added.returncode, added.stdout) == (0, f"{path}: ada has a new password, and is an administrator\n")
    assert Passwords(path).verify("ada", PASSWORD)
    assert set_password(path, "ada", PASSWORD) is Role.ADMINISTRATOR, "as before"
    assert command(path, "ada", said="short\n").returncode == 2
    assert Passwords(path).verify("ada", PASSWORD)
    assert command(path, "ada", "--remove").returncode == 0
    again = command(path, "ada", "--remove")
    assert (again.returncode, "there is no user" in again.stderr) == (2, True)
    assert command(tmp_path / "nowhere" / "users", "ada", said=f"{PASSWORD}\n").returncode == 2


def test_the_command_gives_and_lists_roles(tmp_path: Path) -> None:
    path, typed = tmp_path / "users", f"{PASSWORD}\n"
    said = [
        command(path, *arguments, said=typed).stdout.removeprefix(f"{path}: ").strip()
        for arguments in (("ada",), ("bob",), ("eve", "--role", "administrator"), ("bob", "--role", "administrator"))
    ]

    assert said == [
        "ada has a new password, and is an administrator",
        "bob has a new password, and is a reader",
        "eve has a new password, and is an administrator",
        "bob is an administrator now",
    ]
    assert command(path, "ada", "--role", "reader").returncode == command(path, "ada", said=typed).returncode == 0
    assert command(path, "--list").stdout == "ada: reader\nbob: administrator\neve: administrator\n"
    assert command(path).returncode == command(path, "ada", "--list").returncode == 2
    assert Passwords(path).verify("bob", PASSWORD)


def test_a_line_that_is_damaged_or_has_no_known_role_locks_out_its_own_user_only(path: Path) -> None:
    hashed = path.read_text(encoding="utf-8").strip().split(":")[1]
    known = f"bob:{hashed}:reader\neve:{hashed}:administrator\n"
    path.write_text(
        f"joe:plain password\n\nada:{hashed}\n{known}mal:{hashed}:root\nbob:{hashed}:administrator\n", "utf-8"
    )
    with capture_logs() as lines:
        passwords = Passwords(path)
    assert {name: user.role for name, user in passwords.users.items()} == {
        "bob": Role.READER,
        "eve": Role.ADMINISTRATOR,
    }
    assert [line["reason"] for line in lines] == ["line 1, line 3, line 6, line 7"]
    assert passwords.verify("bob", PASSWORD) and not passwords.verify("joe", "plain password")


def test_the_command_asks_twice_on_a_terminal(tmp_path: Path) -> None:
    def typed(*lines: str) -> int:
        process, terminal = os.forkpty()
        if process == 0:
            os.chdir(REPOSITORY)
            os.execv(sys.executable, [sys.executable, "-m", "node", "password", str(tmp_path / "users"), "ada"])
        for line in lines:
            said = b""
            while not said.endswith(b": "):
                said += os.read(terminal, 1)
            os.write(terminal, f"{line}\n".encode())
        _, status = os.waitpid(process, 0)
        os.close(terminal)
        return os.waitstatus_to_exitcode(status)

    assert typed(PASSWORD, "another password") == 2
    assert not (tmp_path / "users").exists()
    assert typed(PASSWORD, PASSWORD) == 0
    assert Passwords(tmp_path / "users").verify("ada", PASSWORD)
