"""A web server on loopback for viewers that run in a browser: their files, pages of ours, and an archive behind it.

Viewer and archive have one origin, so the browser asks for no permission across origins.
"""

from __future__ import annotations

import http.client
import mimetypes
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from tests.support.peers import LOOPBACK, free_port

_PASSED_ON: Final = ("Accept", "Content-Type")


class Site:
    """Serves while its block runs.

    folders: folders of files by the path they are served under
    pages: content by its path; comes before the folders
    archive_port: where requests below /dicom-web go; None for no archive
    start: the page that is answered for a path that nothing else has, as an application with routes of its own wants
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        *,
        pages: Mapping[str, str | bytes],
        archive_port: int | None = None,
        start: str | None = None,
    ) -> None:
        self.port = free_port()
        self._server = ThreadingHTTPServer((LOOPBACK, self.port), _handler(folders, pages, archive_port, start))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return f"http://{LOOPBACK}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)


def _handler(
    folders: Mapping[str, Path], pages: Mapping[str, str | bytes], archive_port: int | None, start: str | None
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if archive_port is not None and path.startswith("/dicom-web/"):
                self._pass_on(archive_port)
            elif path in pages:
                page = pages[path]
                self._answer(200, _type_of(path), page.encode() if isinstance(page, str) else page)
            elif (file := _file(folders, path)) is not None:
                self._answer(200, _type_of(path), file.read_bytes())
            elif start is not None and "." not in PurePosixPath(path).name:
                self._answer(200, "text/html", (folders["/"] / start).read_bytes())
            else:
                self._answer(404, "text/plain", b"not found")

        def do_POST(self) -> None:
            if archive_port is not None and self.path.startswith("/dicom-web/"):
                self._pass_on(archive_port, self.rfile.read(int(self.headers["Content-Length"])))
            else:
                self._answer(404, "text/plain", b"not found")

        def log_message(self, format: str, *_arguments: object) -> None:
            pass

        def _pass_on(self, port: int, content: bytes | None = None) -> None:
            headers = {name: self.headers[name] for name in _PASSED_ON}
            self._answer(*_asked(port, self.path, headers, content=content))

        def _answer(self, status: int, content_type: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            if content_type == "text/javascript":
                self.send_header("Cache-Control", "max-age=3600")  # so that the browser keeps it compiled, too
            self.end_headers()
            self.wfile.write(content)

    return Handler


def _asked(port: int, path: str, headers: Mapping[str, str | None], *, content: bytes | None) -> tuple[int, str, bytes]:
    """Ask the archive, or send it content. Returns status, content type and content."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    try:
        method = "GET" if content is None else "POST"
        connection.request(method, path, body=content, headers={k: v for k, v in headers.items() if v})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", "application/octet-stream"), answer.read()
    finally:
        connection.close()


def _file(folders: Mapping[str, Path], path: str) -> Path | None:
    for below in sorted(folders, key=len, reverse=True):
        if path.startswith(below):
            root = folders[below].resolve()
            file = (root / path.removeprefix(below).lstrip("/")).resolve()
            if file.is_relative_to(root) and file.is_file():
                return file
    return None


def _type_of(path: str) -> str:
    if path.endswith("/"):
        return "text/html"
    if path.endswith((".wasm", ".mjs")):
        return "application/wasm" if path.endswith(".wasm") else "text/javascript"
    return mimetypes.guess_type(path)[0] or "application/octet-stream"
