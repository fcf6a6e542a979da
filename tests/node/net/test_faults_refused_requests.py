"""Each refused request has a line in the log, many have few; no library writes there in its own words."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from node import log
from tests.support import pdus
from tests.support.listening import connect, listening
from tests.support.pdus import request
from tests.support.peers import wait_until
from tests.support.serving import read_to_end, serving

LIVE = b"GET /live HTTP/1.1\r\nHost: node\r\n\r\n"


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3",
        b"transfer-encoding: Chunked\r\nCONTENT-LENGTH: 0",
        b"Content-Length: 3\r\nTransfer-Encoding : chunked",
        b"Content-Length: 3\r\nContent-Length: 5",
    ],
)
@pytest.mark.parametrize("before", [b"", LIVE], ids=["first", "on a kept connection"])
def test_a_request_of_two_lengths_closes_the_connection(fields: bytes, before: bytes) -> None:
    head = b"POST /live HTTP/1.1\r\nHost: node\r\n" + fields + b"\r\n\r\n"
    with serving() as served, served.connect(before + head + b"0\r\n\r\n" + LIVE) as connection:
        answers = read_to_end(connection)

    assert answers.count(b"HTTP/1.1 200") == (1 if before else 0)
    assert answers.count(b"HTTP/1.1 400") == 1


def test_aborted_associations_have_one_line_and_a_count(tmp_path: Path) -> None:
    with capture_logs() as said:
        with listening(tmp_path) as node:
            for _ in range(10):
                with connect(node.listener.port) as peer:
                    peer.sendall(request())
                    pdus.read_pdu(peer)
                    peer.sendall(b"\x63\0\0\0\0\4abcd")
                    pdus.read_pdu(peer)
            wait_until(lambda: node.count("cxr_associations_aborted_total", reason="protocol") == 10, what="all ended")
        lines = [line for line in said if line["event"] == "association.aborted"]

    assert [(line["calling_aet"], line.get("times", 1)) for line in lines] == [("TESTER", 1), ("TESTER", 9)]


def test_a_library_that_repeats_itself_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(form="json")
    for number in range(1000):
        logging.getLogger("urllib3.connectionpool").warning("Doe^Jane %s", number)
    logging.getLogger("h11").error("Doe^Jane")

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["library"] for line in lines] == ["urllib3.connectionpool", "h11"]
    assert "Doe" not in json.dumps(lines)


COMMAND = """
import argparse, logging, sys
from node import __main__ as program

def run(_options):
    logging.getLogger(sys.argv[1]).error("Doe^Jane")
    print("{}")
    return 0

class Parser:
    def parse_args(self, _arguments):
        return argparse.Namespace(run=run)

program._parser = Parser
sys.exit(program.main([]))
"""


@pytest.mark.parametrize("library", ["PIL.Image", "urllib3.connectionpool", "pydicom", "pynetdicom.acse"])
def test_no_library_speaks_beside_the_result_of_a_command(library: str) -> None:
    command = [sys.executable, "-c", COMMAND, library]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    assert (done.returncode, done.stdout) == (0, "{}\n")
    assert "Doe" not in done.stderr
    for line in done.stderr.splitlines():
        assert (json.loads(line)["event"], json.loads(line)["library"]) == ("library.warned", library)
