"""A transaction bundle to a FHIR server (R5, http.html#transaction), and the meaning of its answer.

A server does all of a bundle or nothing. The status says whether it took it; beside an error the codes of its
OperationOutcome say whether to send the bundle again. The codes are of a closed list (value set issue-type). The texts
beside them may quote a patient's data, so they are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from node.check_result import Check, fault, note, ok
from node.deliver.kinds import Calling, Sender
from node.deliver.web_request import PROBE_SECONDS, WRONG_ADDRESS, WebAnswer, ask, parsed, require_open
from node.domain import Json
from node.errors import GiveUp, RetryLater
from node.settings.destinations import FhirDestination

_JSON: Final = "application/fhir+json"
_TAKEN: Final = frozenset((200, 201))
_HOPELESS: Final = frozenset((400, 406, 410, 412, 413, 415, 422))
_TRANSIENT: Final = frozenset(
    ("transient", "lock-error", "no-store", "exception", "timeout", "incomplete", "throttled", "conflict")
)
_ISSUES: Final = _TRANSIENT | frozenset(
    """
    invalid structure required value invariant security login unknown expired forbidden suppressed processing
    not-supported duplicate multiple-matches not-found deleted too-long code-invalid extension too-costly business-rule
    limited-filter informational success
    """.split()
)
_VERSION: Final = "5."


def send(content: bytes, destination: FhirDestination, _calling: Calling) -> None:
    """Send one bundle. Raises RetryLater, DestinationDown or GiveUp."""
    answer = ask(destination, "POST", "", content=address(content, destination), kind=_JSON, accept=_JSON)
    judge(answer, destination.name)


def address(content: bytes, destination: FhirDestination) -> bytes:
    """Write the systems of patient and accession numbers, which differ by server, into a bundle."""
    systems = {"MR": destination.patient_system, "ACSN": destination.accession_system}
    if not any(systems.values()):
        return content

    def with_system(found: dict[str, Json]) -> dict[str, Json]:
        match found:
            case {"value": str(), "type": {"coding": [{"code": str(code)}]}} if system := systems.get(code):
                found["system"] = system
        return found

    return json.dumps(json.loads(content, object_hook=with_system)).encode()


def judge(answer: WebAnswer, name: str) -> None:
    """Turn the answer to a transaction into an outcome. Raises DestinationDown, RetryLater or GiveUp."""
    require_open(answer, name)
    if answer.status in _TAKEN:
        return
    if answer.status in WRONG_ADDRESS:
        raise GiveUp(
            f"{name} has no FHIR service at this address ({answer.status}); correct destinations.url, then retry"
        )
    issues = sorted(set(_issues(parsed(answer.body))))
    said = f" ({', '.join(issues)})" if issues else ""
    if answer.status in _HOPELESS and not _TRANSIENT.intersection(issues):
        raise GiveUp(f"{name} refused the bundle with status {answer.status}{said}; see its log, then retry")
    raise RetryLater(f"{name} answered {answer.status}{said}")


def _issues(outcome: Json) -> Iterator[str]:
    """Yield the known codes of the errors of an OperationOutcome."""
    issues = outcome.get("issue") if isinstance(outcome, dict) else None
    for issue in issues if isinstance(issues, list) else []:
        match issue:
            case {"severity": "error" | "fatal", "code": str(code)} if code in _ISSUES:
                yield code


def probe(destination: FhirDestination, _calling: Calling) -> None:
    """Check that a server answers and admits the node. Raises DestinationDown."""
    _capabilities(destination)


def _capabilities(destination: FhirDestination) -> WebAnswer:
    answer = ask(destination, "GET", "/metadata?_summary=true", seconds=PROBE_SECONDS, accept=_JSON)
    require_open(answer, destination.name)
    return answer


def examine(destination: FhirDestination, _calling: Calling) -> Iterator[Check]:
    """Ask what the server can do; no bundle is sent."""
    name = f"destination {destination.name}"
    try:
        answer = _capabilities(destination)
    except RetryLater as error:
        yield fault(name, f"{error}; start it, or correct url, token_file, login_file and tls of this destination")
        return
    statement = parsed(answer.body)
    version = statement.get("fhirVersion") if isinstance(statement, dict) else None
    if answer.status != 200 or not isinstance(version, str):
        yield fault(name, f"{destination.url}/metadata answers {answer.status} and no statement; correct url")
    elif not version.startswith(_VERSION):
        yield fault(name, f"{destination.url} is not of FHIR release 5, in which bundles are written")
    else:
        yield ok(name, f"{destination.url} speaks FHIR release 5; no bundle was sent")
        if not destination.patient_system:
            yield note(name, "patient_system is empty: the server cannot match patients by number")


SENDER: Final[Sender[FhirDestination]] = Sender(send=send, probe=probe, examine=examine)
