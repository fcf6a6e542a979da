"""The password file: written by a command, read again when it changes, and closed to whoever is not in it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from node.errors import ConfigError, InputError
from node.settings.http import HttpSettings
from node.web.access import check_files
from node.web.passwords import Passwords, remove_user, set_password
from node.web.users import Role
from tests.paths import REPOSITORY

PASSWORD = "correct horse battery"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "users"
    set_password(made, "ada", PASSWORD)
    return made


def run(*arguments: object, said: str = "") -> subprocess.CompletedProcess[str]:
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


def test_a_damaged_line_locks_out_its_own_user_only(path: Path) -> None:
    path.write_text(f"bob:plain password\n\n{path.read_text(encoding='utf-8')}", encoding="utf-8")

    with capture_logs() as lines:
        users = Passwords(path)

    assert users.verify("ada", PASSWORD)
    assert not users.verify("bob", "plain password")
    assert [line["reason"] for line in lines] == ["line 1"]


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

    added = run(path, "ada", said=f"{PASSWORD}\n")
    assert (added.returncode, added.stdout) == (0, f"{path}: ada has a new password, and is an administrator\n")
    assert Passwords(path).verify("ada", PASSWORD)
    assert run(path, "ada", said="short\n").returncode == 2
    assert Passwords(path).verify("ada", PASSWORD)
    assert run(path, "ada", "--remove").returncode == 0
    again = run(path, "ada", "--remove")
    assert (again.returncode, "there is no user" in again.stderr) == (2, True)
    assert run(tmp_path / "nowhere" / "users", "ada", said=f"{PASSWORD}\n").returncode == 2


def test_the_command_gives_and_lists_roles(tmp_path: Path) -> None:
    path, typed = tmp_path / "users", f"{PASSWORD}\n"
    said = [
        run(path, *arguments, said=typed).stdout.removeprefix(f"{path}: ").strip()
        for arguments in (("ada",), ("bob",), ("eve", "--role", "administrator"), ("bob", "--role", "administrator"))
    ]

    assert said == [
        "ada has a new password, and is an administrator",
        "bob has a new password, and is a reader",
        "eve has a new password, and is an administrator",
        "bob is an administrator now",
    ]
    assert run(path, "ada", "--role", "reader").returncode == run(path, "ada", said=typed).returncode == 0
    assert run(path, "--list").stdout == "ada: reader\nbob: administrator\neve: administrator\n"
    assert run(path).returncode == run(path, "ada", "--list").returncode == 2
    assert Passwords(path).verify("bob", PASSWORD)


def test_a_line_needs_a_known_role(path: Path) -> None:
    hashed = path.read_text(encoding="utf-8").strip().split(":")[1]
    path.write_text(f"ada:{hashed}\nbob:{hashed}:reader\neve:{hashed}:administrator\nmal:{hashed}:root\n", "utf-8")

    with capture_logs() as lines:
        users = Passwords(path).users

    assert {name: entry.role for name, entry in users.items()} == {"bob": Role.READER, "eve": Role.ADMINISTRATOR}
    assert [line["reason"] for line in lines] == ["line 1, line 4"]


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
