"""`make digests` and `make audit`, against a stand-in for registry, package index and service of faults."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import cv2
import httpx
import imagecodecs
import PIL
import pytest
from PIL import features

from deploy.supply import NotLookedUp, audit, digests
from deploy.supply.audit import Audited
from deploy.supply.packages import hashed, hashed_backend
from tests.deploy.test_containers import IMAGES, images_of, resolved
from tests.paths import REPOSITORY
from tests.support.peers import LOOPBACK, free_port

pytestmark = pytest.mark.drill(part="packaging")

MANIFEST = json.dumps({"schemaVersion": 2, "manifests": []}, indent=3).encode()
DIGEST = "sha256:" + hashlib.sha256(MANIFEST).hexdigest()
PROJECT = """
[build-system]
requires = ["tiny==1.0"]
[project]
name = "mini"
version = "1"
dependencies = ["tiny"]
[project.optional-dependencies]
cpu = []
gpu = []
"""


@dataclass
class Page:
    """What a server answers under one path."""

    content: bytes = MANIFEST
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Server:
    """A server that stands in for a registry, an index or a service; a path may need a token first."""

    port: int
    pages: dict[str, Page]
    closed: set[str] = field(default_factory=set)
    accepted: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def page(self, path: str, authorization: str) -> Page:
        if path.startswith("/token?") and "scope=repository" in path and "service=stand-in" in path:
            return Page(b'{"token": "everybody"}')
        if path in self.closed and authorization != "Bearer everybody":
            challenge = f'Bearer realm="http://{self.host}/token",service="stand-in",scope="repository:a:pull"'
            return Page(b"{}", 401, {"WWW-Authenticate": challenge})
        return self.pages.get(path, Page(b"{}", 404))


@pytest.fixture
def server() -> Iterator[Server]:
    stand_in = Server(port=0, pages={})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stand_in.accepted.append(self.headers.get("Accept", ""))
            page = stand_in.page(self.path, self.headers.get("Authorization", ""))
            self.send_response(page.status)
            for name, value in {"Content-Length": str(len(page.content)), **page.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(page.content)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as http:
        stand_in.port = http.server_port
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield stand_in
        http.shutdown()
        thread.join()


HTML = {"Content-Type": "text/html"}
TINY = "tiny-1.0-py3-none-any.whl"
METADATA = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"


def tiny_wheel() -> bytes:
    """A wheel with nothing in it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as wheel:
        about = "tiny-1.0.dist-info"
        wheel.writestr(zipfile.ZipInfo(f"{about}/METADATA"), METADATA)
        wheel.writestr(zipfile.ZipInfo(f"{about}/WHEEL"), "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(zipfile.ZipInfo(f"{about}/RECORD"), "")
    return content.getvalue()


@pytest.fixture
def project(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose images and whose one package are the server's; PyPI is nowhere to be found."""
    link = f'<a href="/{TINY}#sha256={hashlib.sha256(tiny_wheel()).hexdigest()}" data-core-metadata="true">{TINY}</a>'
    server.pages["/simple/tiny/"] = Page(f"<html><body>{link}</body></html>".encode(), 200, HTML)
    server.pages[f"/{TINY}.metadata"] = Page(METADATA)
    folder = tmp_path / "project"
    shutil.copytree(REPOSITORY / "deploy" / "compose", folder / "deploy" / "compose")
    (folder / "deploy" / "image").mkdir()
    compose = (
        (REPOSITORY / "deploy" / "compose.yaml")
        .read_text(encoding="utf-8")
        .replace("image: ", f"image: {server.host}/")
    )
    (folder / "deploy" / "compose.yaml").write_text(compose, encoding="utf-8")
    shutil.copy(REPOSITORY / "Dockerfile", folder)
    shutil.copy(REPOSITORY / "deploy" / "image" / "install.sh", folder / "deploy" / "image")
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (folder / "constraints.txt").write_text("tiny==1.0\n", encoding="utf-8")
    for variable, value in {
        "UV_DEFAULT_INDEX": f"http://{server.host}/simple",
        "UV_NO_CACHE": "1",
        "NO_PROXY": LOOPBACK,
        "UV_HTTP_RETRIES": "0",
        "BASE_IMAGE": f"{server.host}/library/python:3.11",
        "DEBIAN_IMAGE": f"{server.host}/debian",
        "GRAFANA_TAG": "12",
    }.items():
        monkeypatch.setenv(variable, value)
    for path in ("library/python/manifests/3.11", "debian/manifests/latest"):
        server.pages[f"/v2/{path}"] = Page()
    for path in ("prom/prometheus/manifests/v3.5.0", "grafana/grafana/manifests/12"):
        server.pages[f"/v2/{path}"] = Page(headers={"Docker-Content-Digest": DIGEST})
        server.closed.add(f"/v2/{path}")
    return folder


def test_digests_are_arguments_that_compose_takes(
    project: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert digests.main(["--project", str(project)]) == 0

    written = project / "deploy" / "image" / "digests.env"
    assert capsys.readouterr().out.startswith(written.read_text(encoding="utf-8"))
    assert images_of(resolved("--env-file", str(written))["services"]) == {
        "BASE_IMAGE": f"{server.host}/library/python:3.11@{DIGEST}",
        "DEBIAN_IMAGE": f"{server.host}/debian@{DIGEST}",
        "PROMETHEUS_TAG": f"prom/prometheus:v3.5.0@{DIGEST}",
        "GRAFANA_TAG": f"grafana/grafana:12@{DIGEST}",
    }
    assert all("image.index" in accept for accept in server.accepted if "manifest" in accept)


def test_packages_are_written_with_the_hashes_of_the_index(project: Path) -> None:
    entry = f"tiny==1.0 \\\n    --hash=sha256:{hashlib.sha256(tiny_wheel()).hexdigest()}\n"

    assert digests.main(["--project", str(project)]) == 0

    for name in ("cpu.txt", "gpu.txt", "build.txt"):
        text = (project / "deploy" / "image" / name).read_text(encoding="utf-8")
        assert text.partition("\n")[2] == entry
        assert LOOPBACK not in text
    assert hashed_backend(project) == hashed(project, "cpu") == entry


def test_arguments_and_defaults_are_those_of_the_files() -> None:
    found = digests.images(REPOSITORY, {"GRAFANA_TAG": f"12@{DIGEST}", "BASE_IMAGE": ""})

    assert [(image.argument, image.before + image.value) for image in found] == [
        ("BASE_IMAGE", "python:3.11-slim-bookworm"),
        ("DEBIAN_IMAGE", "debian:bookworm-slim"),
        ("PROMETHEUS_TAG", "prom/prometheus:v3.5.0"),
        ("GRAFANA_TAG", "grafana/grafana:12"),
    ]
    assert {image.argument for image in found} == set(IMAGES)


BASIC = {"WWW-Authenticate": 'Basic realm="hospital"'}
NO_TOKEN = {"WWW-Authenticate": 'Bearer realm="http://%s/nothing",service="x",scope="y"'}


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (Page(b"{}", 404), "answered 404 and no manifest"),
        (Page(b"{}", 503), "answered 503 and no manifest"),
        (Page(b"<html>Log in to the hospital's network</html>"), "answered 200 and no manifest"),
        (Page(b"[]"), "answered 200 and no manifest"),
        (Page(b'{"schemaVersion": 1}'), "answered 200 and no manifest"),
        (Page(headers={"Docker-Content-Digest": "sha256:" + 64 * "0"}), "and its bytes have sha256:"),
        (Page(b"{}", 401, BASIC), "asks for a login"),
        (Page(b"{}", 401, NO_TOKEN), "gives no token"),
        (None, "cannot be reached"),
    ],
)
def test_no_digest_is_made_up(
    page: Page | None, said: str, project: Path, server: Server, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if page is None:
        monkeypatch.setenv("BASE_IMAGE", f"{LOOPBACK}:{free_port()}/python:3.11")
    else:
        headers = {name: value.replace("%s", server.host) for name, value in page.headers.items()}
        server.pages["/v2/library/python/manifests/3.11"] = Page(page.content, page.status, headers)

    assert digests.main(["--project", str(project)]) == 2

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("nothing was written: ")
    assert said in err
    assert [path.name for path in (project / "deploy" / "image").iterdir()] == ["install.sh"]


def test_without_an_index_nothing_is_written_or_audited(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://{LOOPBACK}:{free_port()}/simple")

    assert digests.main(["--project", str(project)]) == 2
    assert audit.main([], project=project) == 2

    written, audited = capsys.readouterr().err.splitlines()
    assert written.startswith("nothing was written: the package index did not give the packages")
    assert audited.startswith("nothing was looked up: the package index did not give the packages")
    assert [path.name for path in (project / "deploy" / "image").iterdir()] == ["install.sh"]


@pytest.mark.parametrize(
    ("reference", "address"),
    [
        ("python", "https://registry-1.docker.io/v2/library/python/manifests/latest"),
        ("grafana/grafana:11.6.0", "https://registry-1.docker.io/v2/grafana/grafana/manifests/11.6.0"),
        ("docker.io/library/python:3", "https://registry-1.docker.io/v2/library/python/manifests/3"),
        ("mirror.example.org/hub/python:3", "https://mirror.example.org/v2/hub/python/manifests/3"),
        ("mirror:5000/python", "https://mirror:5000/v2/python/manifests/latest"),
        ("localhost:5000/a/b:c", "http://localhost:5000/v2/a/b/manifests/c"),
    ],
)
def test_an_image_is_asked_for_where_docker_asks(reference: str, address: str) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, content=MANIFEST)

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        assert digests.digest_of(reference, client) == DIGEST

    assert asked == [address]


@pytest.mark.parametrize("reference", ["", "a b", "python:3:4", "http://a/b", "python@sha256:0", "python:"])
def test_what_names_no_image_is_refused(reference: str) -> None:
    with httpx.Client() as client, pytest.raises(NotLookedUp, match="names no image"):
        digests.digest_of(reference, client)


def installed(project: Path, environment: Path, python_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of the Dockerfile, with the python3 of a folder."""
    return subprocess.run(
        ["sh", "deploy/image/install.sh", "cpu", str(environment)],
        cwd=project,
        env={"PATH": f"{python_path}:{os.environ['PATH']}", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_image_takes_what_has_a_hash_and_nothing_else(project: Path, tmp_path: Path) -> None:
    recorder = tmp_path / "recorder"
    recorder.mkdir()
    (recorder / "python3").write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    (recorder / "python3").chmod(0o755)

    plain = installed(project, Path("/opt/venv"), recorder).stdout.splitlines()
    (project / "deploy" / "image" / "cpu.txt").touch()
    pinned = installed(project, Path("/opt/venv"), recorder).stdout.splitlines()

    pip = "-m pip --python /opt/venv/bin/python install --no-cache-dir"
    assert plain == [f"{pip} --constraint constraints.txt --editable .[cpu]"]
    libraries, backend, program, checked = pinned
    assert libraries == f"{pip} --require-hashes --constraint constraints.txt --requirement deploy/image/cpu.txt"
    assert backend.startswith(f"{pip} --require-hashes --target ")
    assert backend.endswith(" --requirement deploy/image/build.txt")
    assert program == f"{pip} --no-deps --no-build-isolation --editable ."
    assert checked == "-m pip --python /opt/venv/bin/python check"


@pytest.mark.parametrize(
    ("digest", "constraint", "said"),
    [
        ("0" * 64, "tiny==1.0", "DO NOT MATCH THE HASHES"),
        (hashlib.sha256(tiny_wheel()).hexdigest(), "tiny==2.0", "conflict"),
    ],
)
def test_a_build_ends_where_bytes_or_versions_differ(
    digest: str, constraint: str, said: str, project: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "environment", with_pip=False)
    (project / TINY).write_bytes(tiny_wheel())
    (project / "constraints.txt").write_text(f"{constraint}\n", encoding="utf-8")
    (project / "deploy" / "image" / "cpu.txt").write_text(f"tiny==1.0 --hash=sha256:{digest}\n", encoding="utf-8")

    done = installed(project, tmp_path / "environment", Path(sys.executable).parent)

    assert done.returncode != 0
    assert said in done.stderr


FAULT = {"id": "GHSA-0000", "aliases": [], "affected": [
    {"package": {"name": "tiny", "ecosystem": "PyPI"}, "ranges": [
        {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}
    ]}
]}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ({}, 0, "packages looked up: 1, known faults: 0\n"),
        ({"vulns": [FAULT]}, 1, "tiny 1.0: GHSA-0000, fixed in 1.1\npackages looked up: 1, known faults: 1\n"),
    ],
)
def test_an_audit_says_what_is_known_of_each_package(
    answer: object, status: int, said: str, project: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.pages["/v1/query"] = Page(json.dumps(answer).encode())

    assert audit.main(["-s", "osv", "--osv-url", f"http://{server.host}/v1/query"], project=project) == status

    assert capsys.readouterr().out == said


def test_an_audit_without_its_service_says_nothing_was_looked_up(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = f"http://{LOOPBACK}:{free_port()}/v1/query"

    assert audit.main(["-s", "osv", "--osv-url", nowhere], project=project) == 2

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("nothing was looked up: pip-audit ended with ")


@pytest.mark.parametrize(
    ("packages", "status", "said"),
    [
        ([("a", False, ())], 2, "nothing was looked up: the service knows none of the 1 packages"),
        ([("a", False, ()), ("b", True, ())], 2, "not looked up: a"),
        ([("a", False, ()), ("b", True, ("F",))], 1, "not looked up: a"),
        ([], 2, "nothing was looked up"),
    ],
)
def test_a_package_that_was_skipped_is_not_called_good(
    packages: list[tuple[str, bool, tuple[str, ...]]], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Audited(name=name, is_known=known, faults=faults) for name, known, faults in packages]

    assert audit.told(found) == status

    assert said in capsys.readouterr().err


def test_the_document_names_the_decoders_that_are_installed() -> None:
    rows = (REPOSITORY / "docs" / "operate" / "install.md").read_text(encoding="utf-8").splitlines()
    (films,) = (row for row in rows if row.startswith("| OpenJPEG") and "imagecodecs" in row)
    (others,) = (row for row in rows if row.startswith("| OpenJPEG") and "Pillow" in row)

    build = re.search(r"JPEG 2000: +build \(ver ([\d.]+)\)", cv2.getBuildInformation())
    assert build is not None
    codecs = (imagecodecs.jpeg2k_version(), imagecodecs.jpegls_version(), imagecodecs.jpeg8_version().partition("/")[0])
    named = dict(codec.rsplit(" ", 1) for codec in codecs)
    expected = "OpenJPEG {openjpeg}, CharLS {charls} and libjpeg-turbo {libjpeg_turbo} | imagecodecs ".format(**named)
    assert f"{expected}{metadata.version('imagecodecs')}" in films
    assert f"OpenJPEG {features.version('jpg_2000')} and {build[1]} | Pillow {PIL.__version__} and OpenCV" in others


def test_an_audit_whose_service_does_not_answer_ends_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip_audit.py").write_text("import time; time.sleep(60)", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(NotLookedUp, match=r"has not ended after 0\.5 s"):
        audit.audited("", [], patience_seconds=0.5)
