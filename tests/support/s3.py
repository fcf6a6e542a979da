"""moto and npm's s3rver as S3 servers, and a network before them that can be cut. Neither stands for durability.

moto knows conditional PUT, and keeps objects in memory. s3rver keeps them as files and checks signatures, but replaces
a taken name.

Runnable: `python -m tests.support.s3` fetches both into folders of their own; moto's packages do not go with the node's
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from node.config import Settings
from node.settings.s3 import S3Settings
from tests.paths import REPOSITORY
from tests.support.peers import LOOPBACK, free_port, missing, require, wait_until

MOTO: Final = "5.2.5"
FOLDER: Final = REPOSITORY / ".venv" / f"moto-{MOTO}"
S3RVER: Final = "3.7.1"
S3RVER_FOLDER: Final = FOLDER.with_name(f"s3rver-{S3RVER}")
S3RVER_KEY: Final = "S3RVER"
BUCKET: Final = "films"
_SIGNED: Final = "AWS4-HMAC-SHA256 Credential=k/20300101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server with an empty bucket."""

    port: int

    def settings(
        self, folder: Path, *, port: int = 0, bucket: str = BUCKET, prefix: str = "node-1", key: str = "k"
    ) -> S3Settings:
        """Settings of the bucket, with files of keys in a folder; port: of a network before the server."""
        keys = folder / "access-key", folder / "secret-key"
        for path in keys:
            path.write_text(f"{key}\n")
        return S3Settings(
            endpoint=f"http://{LOOPBACK}:{port or self.port}",
            bucket=bucket,
            prefix=prefix,
            access_key_file=keys[0],
            secret_key_file=keys[1],
        )


@contextmanager
def s3_server(*, is_strict: bool = False) -> Iterator[S3Server]:
    """Run a server until the block ends; is_strict: it knows no access key."""
    if not FOLDER.is_dir():
        missing(f"moto {MOTO} is not here: make viewers")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(port)]
    strict = {"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if is_strict else {}  # the first makes the bucket
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(FOLDER), **strict},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_until(lambda: _makes_bucket(port), what="an S3 server with a bucket", limit_seconds=60)
            yield S3Server(port)
        finally:
            process.kill()


@contextmanager
def s3rver(folder: Path) -> Iterator[S3Server]:
    """Run s3rver, which keeps its objects in a folder, until the block ends."""
    program = S3RVER_FOLDER / "node_modules" / "s3rver" / "bin" / "s3rver.js"
    if not program.exists():
        missing(f"s3rver {S3RVER} is not here: make viewers")
    port = free_port()
    command = [require("node"), str(program), "-d", str(folder), "-a", LOOPBACK, "-p", str(port), "--silent"]
    with subprocess.Popen([*command, "--configure-bucket", BUCKET], stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _listens(port), what="s3rver listens", limit_seconds=60)
            yield S3Server(port)
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def on_bucket(settings: Settings, s3: S3Settings | None) -> Settings:
    """The same settings with a bucket."""
    return replace(settings, storage=replace(settings.storage, s3=s3))


def _makes_bucket(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=30)
    try:
        connection.request("PUT", f"/{BUCKET}", headers={"Content-Length": "0", "Authorization": _SIGNED})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Network:
    """The only way to a server. It can be cut, and it can lose answers."""

    def __init__(self, server: int) -> None:
        self.port = free_port()
        self.loses_answers = False
        self._server, self._open = server, set[socket.socket]()
        self._changing = threading.Lock()
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        self.mend()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()

    def cut(self) -> None:
        """Refuse connections, and end those that are open."""
        with self._changing:
            sockets = [*self._open, *([self._listener] if self._listener else [])]
            self._open, self._listener = set(), None
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def mend(self) -> None:
        """Accept connections again."""
        self._listener = socket.create_server((LOOPBACK, self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                caller, _ = listener.accept()
                server = socket.create_connection((LOOPBACK, self._server), timeout=30)
            except OSError:
                return
            with self._changing:
                self._open |= {caller, server}
            for source, target, is_answer in ((caller, server, False), (server, caller, True)):
                threading.Thread(target=self._carry, args=(source, target, is_answer), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                if is_answer and self.loses_answers:
                    break
                target.sendall(part)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        with self._changing:
            self._open -= {source, target}


def main() -> int:
    """Fetch what is not here."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    pip.append(f"moto[server]=={MOTO}")
    npm = ["npm", "install", "--no-audit", "--no-fund", "--silent", f"s3rver@{S3RVER}"]
    fetched = [_fetch(FOLDER, pip, option="--target"), _fetch(S3RVER_FOLDER, npm, option="--prefix")]
    return 1 if os.environ.get("CI") == "true" and not all(fetched) else 0


def _fetch(folder: Path, command: list[str], *, option: str) -> bool:
    """Fetch packages into a new folder, all of them or nothing; the option names the folder."""
    if folder.is_dir():
        return True
    aside = folder.with_name(f"{folder.name}.{os.getpid()}")
    aside.mkdir()
    is_good = False
    with suppress(OSError):
        is_good = subprocess.run([*command, option, str(aside)], check=False).returncode == 0
    if is_good:
        with suppress(OSError):  # another process may have been faster
            aside.rename(folder)
    else:
        sys.stderr.write(f"not fetched: {folder.name}; tests that need it are skipped\n")
    shutil.rmtree(aside, ignore_errors=True)
    return is_good


if __name__ == "__main__":
    sys.exit(main())
