"""Progress: plain lines for a file or a pipe, a bar for a terminal."""

from __future__ import annotations

import io

from models import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_a_stage_ends_in_a_line() -> None:
    stream = io.StringIO()

    with progress.on(stream) as report:
        report("taking a.pth")
        for done in range(1, 4):
            report("write", done, 3)

    assert stream.getvalue() == "taking a.pth\nwrite: 100 %\n"


def test_a_terminal_shows_a_bar() -> None:
    stream = Terminal()

    with progress.on(stream) as report:
        report("taking [a].pth")
        report("write", 3, 3)

    assert "taking [a].pth" in stream.getvalue()
    assert "100 %" in stream.getvalue()
