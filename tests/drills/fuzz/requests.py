"""Requests that schemathesis makes of the description of a running node's own interface, good and bad ones.

A scripted reader answers. No answer may be an error of the program, and each must be one that the description names:
its status, its media type and its content. 503 counts as an answer only where it is described.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from models.progress import ProgressReport
from tests.drills.fuzz import Tally
from tests.support import films, peers
from tests.support.peers import LOOPBACK
from tests.support.service import Service, settings_for

AnyCase: TypeAlias = "schemathesis.Case[Any]"  # what its library makes of a route
Known: TypeAlias = Mapping[str, Sequence[str]]
"""What a running node knows, by the name of the parameter of a path."""
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
ENDLESS = "/api/v1/events"
LIMIT_SECONDS = 20.0


@schemathesis.serializer("application/dicom", "multipart/related", "image/png", "image/jpeg")
def as_bytes(_context: object, value: object) -> bytes:
    """Send a binary body as it is."""
    content = getattr(value, "data", value)
    return content if isinstance(content, bytes) else str(content).encode()


@contextmanager
def running(folder: Path) -> Iterator[tuple[Service, Known]]:
    """A node that has read a film, and looked at another, and sends nothing; with what it knows."""
    film = films.thumbnail()
    settings = replace(settings_for(folder / "node", archive_port=104), destinations=())
    with Service(settings) as service:
        if peers.send(film, port=service.dicom_port) != 0:
            raise AssertionError("the node took no film")
        service.wait_for("study.finished")
        url = f"http://{LOOPBACK}:{service.http_port}/api/v1/looks"
        request = urllib.request.Request(url, films.file_bytes(film), {"Content-Type": "application/dicom"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            look = str(json.loads(answer.read())["id"])
        study, uid = str(film.StudyInstanceUID), str(film.SOPInstanceUID)
        yield service, {"study": [study], "uid": [study, uid], "look_id": [look]}


def run(node: Service, known: Known, *, cases: int, seed: int, say: ProgressReport) -> Tally:
    """Try every route, with so many cases in all; known: values that are taken for some parameters."""
    schema = schemathesis.openapi.from_url(f"http://{LOOPBACK}:{node.http_port}/api/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    tried = [operation for operation in operations if operation.path != ENDLESS]
    tally, each = Tally(), max(1, cases // (2 * len(tried)))
    for operation in tried:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            name = f"{operation.method.upper()} {operation.path} {mode.value}"
            say(name)
            try:
                _try(operation.as_strategy(generation_mode=mode), known, tally, name=name, count=each, seed=seed)
            except Unsatisfiable:  # any body fits, so there are no bad ones: other good ones
                _try(operation.as_strategy(), known, tally, name=name, count=each, seed=seed + 1)
    tally.lacks("200")
    if node.logged("page.failed"):
        tally.faults["log"] = "page.failed"
    return tally


def _try(strategy: st.SearchStrategy[AnyCase], known: Known, tally: Tally, *, name: str, count: int, seed: int) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=strategy, choice=st.integers(min_value=0, max_value=2))
    def attempt(case: AnyCase, choice: int) -> None:
        for name, values in known.items():
            if choice < len(values) and name in (case.path_parameters or {}):
                case.path_parameters[name] = values[choice]
        answer = case.call(timeout=LIMIT_SECONDS)
        tally.counts[str(answer.status_code)] += 1
        try:
            case.validate_response(answer, checks=list(CHECKS))
            if answer.status_code >= 500 and answer.status_code != 503:
                raise AssertionError(f"an error of the program: {answer.status_code}")
        except (AssertionError, FailureGroup) as error:
            tally.faults.setdefault(f"{name} {answer.status_code}", str(error)[:400])

    attempt()
