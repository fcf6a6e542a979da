"""Runnable: requests that schemathesis makes of the description of a running node's own interface, good and bad ones.

    python -m tests.drills.web_fuzz [--cases 10000] [--seed N]

A scripted reader answers. No answer may be an error of the program, and each must be one that the description names:
its status, its media type and its content. 503 counts as an answer only where it is described. The last line is one
JSON object with `passed`, and how many answers of each status came.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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

from tests.support import films, peers
from tests.support.peers import LOOPBACK
from tests.support.service import Service, settings_for

AnyCase: TypeAlias = "schemathesis.Case[Any]"  # what its library makes of a route
Known: TypeAlias = Mapping[str, Sequence[str]]
"""What a running node knows, by the name of the parameter of a path."""
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
ENDLESS = "/api/v1/events"
LIMIT_SECONDS = 20.0


@dataclass(kw_only=True)
class Tally:
    """What came back: cases by route, answers by status, and the first line of every fault."""

    cases: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, object]:
        """The figures for the last line."""
        return {
            "passed": not self.faults and self.cases > 0 and self.statuses[200] > 0,
            "cases": self.cases,
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "faults": self.faults,
        }


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


def run(port: int, known: Known, *, cases: int, seed: int, say: Callable[[str], None]) -> Tally:
    """Try every route, with so many cases in all; known: values that are taken for some parameters."""
    schema = schemathesis.openapi.from_url(f"http://{LOOPBACK}:{port}/api/openapi.json")
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
        tally.cases += 1
        tally.statuses[answer.status_code] += 1
        try:
            case.validate_response(answer, checks=list(CHECKS))
            if answer.status_code >= 500 and answer.status_code != 503:
                raise AssertionError(f"an error of the program: {answer.status_code}")
        except (AssertionError, FailureGroup) as error:
            tally.faults.setdefault(f"{name} {answer.status_code}", str(error)[:400])

    attempt()


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="tests.drills.web_fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as (service, known):
        tally = run(service.http_port, known, cases=arguments.cases, seed=arguments.seed, say=_say)
        is_alive = not service.logged("page.failed")
    figures = {"seed": arguments.seed, **tally.figures, "page_failed": not is_alive}
    _say(json.dumps({**figures, "passed": tally.figures["passed"] is True and is_alive}))
    return 0 if tally.figures["passed"] is True and is_alive else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
