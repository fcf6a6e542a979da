"""Signing in by a password: the file of users and its command, too many wrong ones, and how long a session lasts."""

from __future__ import annotations

import asyncio
import getpass
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

from node.__main__ import main
from node.errors import ConfigError, InputError
from node.settings.http import HttpSettings
from node.store import files
from node.web.access import check_files
from node.web.passwords import Busy, Passwords, remove_user, set_password, set_role
from node.web.sign_in import IDLE_SECONDS, LONGEST_SECONDS, Sessions
from node.web.users import Role
from tests.node.web.test_web_questions import Clock
from tests.paths import REPOSITORY
from tests.support.web_access import BROWSER, PASSWORD, client_of, opened, sign_in, users_in

HOST = "10.0.0.7"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    settings = HttpSettings(password_file=users_in(tmp_path, "ada", "bob"))
    with opened(settings, tmp_path) as access, client_of(access) as client:
        yield client


def test_the_login_page_is_plain_and_says_how_the_first_user_is_made(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.touch(mode=0o600)
    with opened(HttpSettings(password_file=users), tmp_path) as access, client_of(access) as client:
        before = client.get("/login", headers=BROWSER).text
        set_password(users, "ada", PASSWORD)
        after = client.get("/login", params={"next": '/x?"><b>'}, headers=BROWSER).text

    command = "<code>python -m node password FILE USER</code>"
    assert (command in before, command in after) == (True, False)
    assert str(tmp_path) not in before
    assert '<form method="post" action="/login">' in after
    assert re.search('<input [^>]*name="password" type="password"', after), "nobody reads it over a shoulder"
    assert "<script" not in after
    assert "<b>" not in after and 'value="/x?&#34;&gt;&lt;b&gt;"' in after


def test_a_login_leads_to_this_server_only(client: TestClient) -> None:
    foreign = ("//evil.example", "/\\evil.example", "https://evil.example/", "javascript:alert(1)", "/\t/evil.example")
    senseless = ("/x\r\nset-cookie: a=b", "/login?next=/login", "")
    for target, place in (
        ("/study/1.2.3?x=1", "/study/1.2.3?x=1"),
        *((target, "/") for target in (*foreign, *senseless)),
    ):
        form = {"user": "ada", "password": PASSWORD, "next": target}
        answer = client.post("/login", data=form, headers=BROWSER)
        again = client.get("/login", params={"next": target}, headers=BROWSER)
        for each in (answer, again):
            assert (each.status_code, each.headers["location"]) == (303, place)


def test_a_wrong_password_is_told_as_an_unknown_user_is_and_no_form_of_a_login_is_refused(client: TestClient) -> None:
    with capture_logs() as lines:
        wrong = client.post("/login", data={"user": "ada", "password": "wrong"}, headers=BROWSER)
        unknown = client.post("/login", data={"user": "my secret password", "password": ""}, headers=BROWSER)

    assert (wrong.status_code, wrong.text, dict(client.cookies)) == (unknown.status_code, unknown.text, {})
    assert wrong.status_code == 401
    assert [(line["event"], line["user"]) for line in lines] == [("session.refused", "ada"), ("session.refused", "")]

    headers = {**BROWSER, "content-type": "application/x-www-form-urlencoded"}
    bodies = (b"user=%ff", b"\xff", b"a=1&" * 9, b"user=" + b"x" * 2_000_000)
    statuses = [client.post("/login", content=content, headers=headers).status_code for content in bodies]
    assert statuses == [401, 401, 400, 400]
    assert client.get("/login").status_code == 200


def test_too_many_wrong_passwords_have_to_wait(client: TestClient) -> None:
    assert [sign_in(client) for _ in range(7)] == [303] * 7, "right ones are not counted"
    assert client.get("/api/v1/who", auth=("ada", PASSWORD)).status_code == 200
    client.cookies.clear()

    statuses = [sign_in(client, password="wrong") for _ in range(6)]

    assert statuses == [401] * 5 + [429]
    right = client.post("/login", data={"user": "ada", "password": PASSWORD}, headers=BROWSER)
    assert (right.status_code, "Too many attempts. Try again in " in right.text) == (429, True)
    program = client.get("/api/v1/who", auth=("ada", PASSWORD))
    assert program.status_code == 429, "though it was right before"
    assert 0 < int(program.headers["retry-after"]) <= 60
    assert sign_in(client, "bob") == 303
    client.cookies.clear()
    statuses = [client.get("/api/v1/who", auth=("bob", "wrong")).status_code for _ in range(6)]
    assert statuses == [401] * 5 + [429]


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


def test_a_program_is_checked_once_until_the_password_changes(tmp_path: Path) -> None:
    path = users_in(tmp_path, "ada")

    async def check() -> list[bool]:
        users = Passwords(path)
        many = await asyncio.gather(*(users.check("ada", PASSWORD, host=HOST) for _ in range(12)))
        assert len(users._remembered) == 1
        set_password(path, "ada", "another password")
        return [found is not None for found in (*many, await users.check("ada", PASSWORD, host=HOST))]

    assert asyncio.run(check()) == [True] * 12 + [False]


def test_only_so_many_passwords_wait_and_an_address_that_guesses_under_many_names_has_to(tmp_path: Path) -> None:
    users = users_in(tmp_path, "ada")

    async def guess_at_once() -> list[object]:
        passwords = Passwords(users)
        many = [passwords.check("ada", "wrong", host=f"10.0.0.{number}") for number in range(18)]
        return await asyncio.gather(*many, return_exceptions=True)

    async def guess_names() -> None:
        passwords = Passwords(users)
        with pytest.raises(Busy):
            for number in range(40):  # twice as many as are taken at once
                assert await passwords.check(f"user {number}", "wrong", host=HOST) is None
        with pytest.raises(Busy):
            await passwords.check("ada", PASSWORD, host=HOST)
        assert await passwords.check("ada", PASSWORD, host="10.0.1.1") is not None

    outcomes = asyncio.run(guess_at_once())
    assert outcomes[:17] == [None] * 17  # one is checked, and sixteen wait
    assert isinstance(outcomes[17], Busy)
    asyncio.run(guess_names())


def begun(sessions: Sessions) -> dict[str, Any]:
    """What is kept of a session that begins."""
    kept = dict[str, Any]()
    sessions.begin(kept, "ada", role=Role.READER, credential="c")
    return kept


def test_a_session_ends_when_it_is_idle_or_old(tmp_path: Path) -> None:
    clock = Clock()
    sessions = Sessions(tmp_path, clock=clock)
    kept = begun(sessions)
    before = sessions.read(kept)
    assert before is not None

    clock.now = IDLE_SECONDS
    assert sessions.read(kept) == before
    clock.now += 1
    assert sessions.read(kept) is None
    seen = []
    for clock.now in (59, 60):  # renewed once a minute
        sessions.renew(kept, before)
        seen.append(sessions.read(kept))
    assert seen == [before, replace(before, seen=60)]
    clock.now = 0
    while clock.now <= LONGEST_SECONDS:
        session = sessions.read(kept)
        assert session is not None
        sessions.renew(kept, session)
        clock.now += IDLE_SECONDS
    assert (sessions.read(kept), IDLE_SECONDS, LONGEST_SECONDS) == (None, 30 * 60, 8 * 3600)


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


def test_only_the_right_password_of_a_known_user_is_taken_and_an_unknown_one_is_refused_as_slowly(path: Path) -> None:
    def seconds(user: str) -> float:
        began = time.process_time()
        assert not users.verify(user, "wrong password")
        return time.process_time() - began

    users = Passwords(path)
    tried = [("ada", PASSWORD), ("ada", PASSWORD + " "), ("ada", ""), ("eve", PASSWORD), ("ada", PASSWORD + "x" * 5000)]

    assert [bool(users.verify(user, password)) for user, password in tried] == [True, False, False, False, False]
    text = path.read_text(encoding="utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert text.startswith("ada:$argon2id$v=19$") and PASSWORD not in text
    set_password(path, "ada", "Zu\u0308rich im Winter")
    assert users.verify("ada", "Z\u00fcrich im Winter"), "composed and decomposed letters are one password"
    assert min(seconds("eve") for _ in range(3)) > 0.5 * min(seconds("ada") for _ in range(3))


def test_a_changed_file_is_read_again_and_a_lost_or_damaged_one_lets_nobody_in(path: Path) -> None:
    users = Passwords(path)
    before = users.users["ada"]
    with capture_logs() as lines:
        set_password(path, "bob", PASSWORD)
        assert users.verify("bob", PASSWORD)
        set_password(path, "ada", PASSWORD)
        assert users.users["ada"] != before
        remove_user(path, "bob")
        assert not users.verify("bob", PASSWORD)
        path.write_bytes(b"\xff\xfe")
        assert not users.users
        path.unlink()
        assert not users.verify("ada", PASSWORD)

    assert [line["event"] for line in lines] == ["passwords.reloaded"] * 3 + ["passwords.refused"] * 2


def test_changes_at_the_same_time_lose_no_user(tmp_path: Path) -> None:
    names = {f"user{number}" for number in range(6)}
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: set_password(tmp_path / "users", name, PASSWORD), names))

    assert {line.partition(":")[0] for line in (tmp_path / "users").read_text(encoding="utf-8").splitlines()} == names


def test_a_name_that_http_cannot_carry_is_refused(path: Path) -> None:
    for user in ("", " ada", "a:b", "a\nb", "x" * 129):
        with pytest.raises(InputError, match="no user name"):
            set_password(path, user, PASSWORD)


def test_settings_name_a_file_that_can_be_used(path: Path, tmp_path: Path) -> None:
    check_files(HttpSettings(password_file=path))

    with pytest.raises(ConfigError, match="no such file"):
        check_files(HttpSettings(password_file=tmp_path / "nothing"))
    path.write_text("ada\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1"):
        check_files(HttpSettings(password_file=path))
    with opened(HttpSettings(), tmp_path) as access, client_of(access) as client:
        assert client.get("/login").status_code == 404, "without passwords"


def test_the_command_adds_changes_removes_and_lists_users(tmp_path: Path) -> None:
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
    assert command(path, "ada", said="short\n").returncode == 2
    users = Passwords(path)
    assert users.verify("ada", PASSWORD) and users.verify("bob", PASSWORD)
    assert command(path, "ada", "--remove").returncode == 0
    again = command(path, "ada", "--remove")
    assert (again.returncode, "there is no user" in again.stderr) == (2, True)
    assert command(tmp_path / "nowhere" / "users", "ada", said=typed).returncode == 2


def test_the_command_asks_twice_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for again, code in (("another password", 2), (PASSWORD, 0)):
        typed = iter((PASSWORD, again))
        monkeypatch.setattr(getpass, "getpass", lambda _asked, typed=typed: next(typed))
        assert main(["password", str(path), "ada"]) == code
        assert path.exists() is (code == 0)
    assert Passwords(path).verify("ada", PASSWORD)


def test_a_line_that_is_damaged_or_has_no_known_role_locks_out_its_own_user_only(path: Path) -> None:
    hashed = path.read_text(encoding="utf-8").strip().split(":")[1]
    lines = ["joe:plain password", "", f"ada:{hashed}", f"bob:{hashed}:reader", f"eve:{hashed}:administrator"]
    lines += [f"mal:{hashed}:root", f"bob:{hashed}:administrator"]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    with capture_logs() as logged:
        passwords = Passwords(path)
    roles = {name: user.role for name, user in passwords.users.items()}
    assert roles == {"bob": Role.READER, "eve": Role.ADMINISTRATOR}
    assert [line["reason"] for line in logged] == ["line 1, line 3, line 6, line 7"]
    assert passwords.verify("bob", PASSWORD) and not passwords.verify("joe", "plain password")
