"""Send a film to a node over HTTP, wait for its answer, print it, and correct a finding.

It uses the interface for programs, pydicom for the UIDs of the film, and nothing of the node.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydicom import dcmread
from pydicom.errors import InvalidDicomError

COLUMNS: Final = ("finding", "state", "probability", "reader", "box: left, top, right, bottom")
POLL_SECONDS: Final = 0.5
REQUEST_SECONDS: Final = 60.0


class Failed(Exception):
    """What went wrong, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that answers at `url`; login: `USER:PASSWORD`, or blank on a node without users."""

    url: str
    login: str = ""

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> dict[str, Any]:
        """Send a request, and return its answer. Raises Failed with the `detail` of the problem document."""
        headers = {"Content-Type": kind, "Accept": "application/json, application/dicom+json"}
        if self.login:
            headers["Authorization"] = f"Basic {base64.b64encode(self.login.encode()).decode()}"
        request = urllib.request.Request(f"{self.url}/api/v1{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            raise Failed(f"{method} {path}: {error.code}, {_detail(error.read())}") from error
        except OSError as error:
            raise Failed(f"{self.url} does not answer ({error}); start the node, or give --url") from error
        return found

    def send(self, content: bytes) -> None:
        """Send a DICOM file. The node has it on its disk when this returns."""
        self.ask("POST", "/instances", content, kind="application/dicom")

    def wait(self, study: str, film: str, *, after_round: int, seconds: float) -> dict[str, Any]:
        """Wait until a round later than another has answered a film, and return the film."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            for found in self.ask("GET", f"/studies/{study}")["films"]:
                if found["uid"] == film and (found["round"] or 0) > after_round and found["film"] is not None:
                    answered: dict[str, Any] = found
                    return answered
            time.sleep(POLL_SECONDS)
        raise Failed(f"no answer in {seconds:g} s; the worklist at {self.url} says how far the study is")

    def correct(self, study: str, film: str, *, kind: str, prompt: str) -> None:
        """Accept or reject a finding, and let the corrected report leave at once."""
        body = json.dumps({"kind": kind, "prompt": prompt, "finish": True}).encode()
        self.ask("POST", f"/studies/{study}/films/{film}/corrections", body)


def main(arguments: Sequence[str] | None = None) -> int:
    """Send a film, print its answer, and correct it if asked to; returns the exit code."""
    options = _options(arguments)
    try:
        login = "" if options.login_file is None else options.login_file.read_text(encoding="utf-8").strip()
        header = dcmread(options.film, stop_before_pixels=True)
        study, film = str(header.StudyInstanceUID), str(header.SOPInstanceUID)
        node = Node(url=options.url.rstrip("/"), login=login)
        node.send(options.film.read_bytes())
        answered = node.wait(study, film, after_round=0, seconds=options.wait)
        _print(answered)
        for kind in ("accept", "reject"):
            if (prompt := getattr(options, kind)) is not None:
                node.correct(study, film, kind=kind, prompt=prompt)
                answered = node.wait(study, film, after_round=answered["round"], seconds=options.wait)
                _print(answered)
    except (Failed, OSError, InvalidDicomError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("film", type=Path, help="a DICOM file")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of the node")
    parser.add_argument("--login-file", type=Path, help="a file with USER:PASSWORD of an administrator, in one line")
    parser.add_argument("--accept", metavar="FINDING", help="say that a finding is there, such as pleural_effusion")
    parser.add_argument("--reject", metavar="FINDING", help="say that a finding is not there")
    parser.add_argument("--wait", type=float, default=120.0, help="seconds to wait for an answer")
    return parser.parse_args(arguments)


def _print(answered: Mapping[str, Any]) -> None:
    """Print the impression, and a row a finding; absent means not reported, which may have been missed."""
    film = answered["film"]
    print(*film["impression"], sep="\n")
    rows = [COLUMNS, *_rows(film["findings"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rows(findings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for finding in findings:
        probability, reader = finding["probability"], finding.get("reader")
        state = "not reported" if finding["state"] == "absent" else finding["state"]
        boxes = "; ".join(", ".join(f"{edge:.0f}" for edge in found["box"]) for found in finding["boxes"])
        percent = "-" if probability is None else f"{probability:.0%}"
        yield finding["prompt"], state, percent, "-" if reader is None else reader["what"], boxes or "-"


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return "no reason given"


if __name__ == "__main__":
    sys.exit(main())
