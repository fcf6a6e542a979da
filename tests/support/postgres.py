"""A real PostgreSQL for tests, with syncing on: started, stopped, killed and started again; gone with its test.

Its programs come from the Debian package. The server refuses to run as root, so there it runs as another user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psycopg

from tests.support.peers import LOOPBACK, free_port, missing, wait_until

_LIMIT_SECONDS = 60.0


class Postgres:
    """One server on a free port of the loopback interface; it runs while the block does."""

    def __init__(self) -> None:
        self._programs = _programs()
        self._user = _user()
        self._directory = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._data = self._directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        """The address of its database `chex`, as `storage.database_url` wants it."""
        return f"postgresql://node@{LOOPBACK}:{self.port}/chex"

    def __enter__(self) -> Self:
        if self._user is not None:
            os.chown(self._directory, self._user.pw_uid, self._user.pw_gid)
        try:
            self._run("initdb", "--pgdata", str(self._data), "--username=node", "--auth=trust", "--encoding=UTF8")
            self.start()
            self.execute("CREATE DATABASE chex", database="postgres")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {
            "listen_addresses": LOOPBACK,
            "port": self.port,
            "unix_socket_directories": str(self._directory),
            "fsync": "on",
            "max_connections": 200,
            "shared_buffers": "16MB",
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self._directory / "log").open("ab") as log:
            self._process = self._start("postgres", "-D", str(self._data), *settings, log=log.fileno())
        wait_until(self._answers, what="PostgreSQL answers", limit_seconds=_LIMIT_SECONDS)

    def stop(self) -> None:
        """Stop it as a restart of the machine does: sessions are cut, everything is written."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Cut its power: without a word to its clients, and its own recovery at the next start."""
        self._end(signal.SIGQUIT)

    def execute(self, statement: str, *, database: str = "chex") -> list[tuple[object, ...]]:
        """Run one statement; the rows it returns."""
        address = f"postgresql://node@{LOOPBACK}:{self.port}/{database}"
        with psycopg.connect(address, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode())
            return list(cursor.fetchall()) if cursor.description is not None else []

    def empty(self) -> None:
        """Forget everything, so that the next test finds a new database."""
        self.execute("DROP DATABASE IF EXISTS chex WITH (FORCE)", database="postgres")
        self.execute("CREATE DATABASE chex", database="postgres")

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"PostgreSQL ended: {(self._directory / 'log').read_text(encoding='utf-8')[-2000:]}")
        try:
            self.execute("SELECT 1", database="postgres")
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(timeout=_LIMIT_SECONDS)
        self._process = None

    def _remove(self) -> None:
        self._end(signal.SIGQUIT)
        shutil.rmtree(self._directory)

    def _run(self, program: str, *arguments: str) -> None:
        with (self._directory / "log").open("ab") as log:
            ended = self._start(program, *arguments, log=log.fileno()).wait(timeout=_LIMIT_SECONDS)
        if ended != 0:
            raise AssertionError(f"{program}: {(self._directory / 'log').read_text(encoding='utf-8')[-2000:]}")

    def _start(self, program: str, *arguments: str, log: int) -> subprocess.Popen[bytes]:
        """Start a program of the package as a user it runs as, in a folder that this user may enter."""
        command: Sequence[str] = [str(self._programs / program), *arguments]
        user = None if self._user is None else self._user.pw_uid
        return subprocess.Popen(
            command, user=user, group=None if self._user is None else self._user.pw_gid,
            extra_groups=None if self._user is None else [], cwd=self._directory,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}, stdout=log, stderr=log,
        )  # fmt: skip


def _programs() -> Path:
    """Where the newest PostgreSQL of this machine lies; without one the test skips at home and fails where CI=true."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    missing("PostgreSQL is not installed: make system-packages")


def _user() -> pwd.struct_passwd | None:
    """Who shall run it; None: whoever runs the tests."""
    return pwd.getpwnam("postgres") if os.geteuid() == 0 else None
