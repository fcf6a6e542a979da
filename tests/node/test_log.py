from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest

from node import log
from node.config import REMOVED
from tests.paths import REPOSITORY


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_is_json_with_event_level_and_time_and_the_listed_fields_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.configure(level="warning")

    log.get().info("study.finished")
    log.get().warning("study.delayed", study="1.2.3", outputs=3, patient_name="Doe^Jane", accession="A1", text="said")

    (line,) = lines(capsys)
    assert line.pop("timestamp")
    assert line == {"event": "study.delayed", "level": "warning", "study": "1.2.3", "outputs": 3}
    assert set(log.FIELDS).isdisjoint({"patient_name", "patient_id", "accession", "birth_date", "text", "sentence"})


def test_what_a_library_says_is_named_once_but_not_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(form="json")

    for number in range(1000):
        logging.getLogger("urllib3.connectionpool").warning("Doe^Jane %s", number)
    for library in ("PIL", "pydicom", "pynetdicom.acse"):
        logging.getLogger(library).error("Doe^Jane")
    logging.getLogger("dbos").warning("a queue is late")

    told = lines(capsys)
    assert [line["library"] for line in told] == ["urllib3.connectionpool", "PIL", "dbos"]
    assert [line.get("message") for line in told] == [None, None, "a queue is late"]
    assert "Doe" not in json.dumps(told)


def test_a_thread_that_is_lost_says_where_and_not_what(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure()

    def lose() -> None:
        raise ValueError("Doe^Jane")

    thread = threading.Thread(target=lose, name="a thread")
    thread.start()
    thread.join()

    (line,) = lines(capsys)
    assert (line["event"], line["library"]) == ("library.warned", "a thread")
    assert str(line["where"]).startswith("ValueError at test_log.py")
    assert "Doe" not in json.dumps(line)


def test_a_line_for_people_is_one_line_without_patient_data(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(form="console")

    log.get().info("study.finished", study="1.2.3", outputs=3, patient_name="Doe^Jane")
    log.get().warning("library.warned", message="red \x1b[31m\nforged line")
    logging.getLogger("PIL").warning("value Doe^Jane is odd")

    first, second, third = capsys.readouterr().out.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[info +\] study.finished +outputs=3 study=1.2.3$", first)
    assert "\x1b" not in second
    assert "Doe" not in first + third


@pytest.mark.parametrize(("form", "is_json"), [("auto", False), ("json", True)])
def test_a_terminal_gets_lines_for_people_unless_told(
    monkeypatch: pytest.MonkeyPatch, form: str, is_json: bool
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    log.configure(form=form)

    log.get().info("service.ready")

    assert terminal.getvalue().startswith("{") == is_json


def test_a_log_that_cannot_be_written_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    full = mock.Mock(wraps=io.StringIO(), write=mock.Mock(side_effect=OSError("no space left")))
    monkeypatch.setattr(sys, "stdout", full)
    log.configure()

    log.get().info("study.finished", study="1.2.3")

    full.write.assert_called()


def documented_events() -> set[str]:
    """The events in the first column of the tables of log events."""
    _, _, document = (
        (REPOSITORY / "docs" / "operate" / "monitoring.md").read_text(encoding="utf-8").partition("\n## Logs")
    )
    first_cells = re.findall(r"^\| (`[^|]*`) \|", document, re.MULTILINE)
    return {event for cell in first_cells for event in re.findall(r"`(\w+\.\w+)`", cell)}


def test_the_document_says_what_each_event_means() -> None:
    documented = documented_events()
    roots = "|".join(sorted({event.split(".")[0] for event in documented}))
    sources = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "node").rglob("*.py"))
    said = {event for source in sources for event in re.findall(rf'"((?:{roots})\.\w+)"', source)}

    said -= {"engine.sqlite", "retention.lock", "study.html", "worklist.html"}  # files
    said -= {"model.prompts", "model.uncompared", *REMOVED}  # settings
    formatted = {"instance.kept", "instance.repeated", "delivery.sent", "delivery.delayed", "delivery.parked"}
    assert said | formatted == documented


def test_lines_of_two_threads_never_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            time.sleep(0.001)  # print() writes a line and its end apart: whoever comes between spoils both
            return super().write(text)

    said = Slow()
    monkeypatch.setattr(sys, "stdout", said)
    log.configure()

    def speak() -> None:
        for _ in range(20):
            log.get().info("instance.kept")

    speakers = [threading.Thread(target=speak) for _ in range(3)]
    for speaker in speakers:
        speaker.start()
    for speaker in speakers:
        speaker.join()

    assert [json.loads(line)["event"] for line in said.getvalue().splitlines()] == ["instance.kept"] * 60


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
