"""Reports of failed tests that always reach the process that prints them.

pytest-xdist sends each from a worker to the first process. One that cannot be sent (a text with half of a surrogate
pair is enough) ends the whole run by an internal error that names neither the test's failure nor its cause.
"""

from __future__ import annotations

import execnet
import pytest


def make_sendable(report: pytest.TestReport, config: pytest.Config) -> None:
    """Turn what was raised and captured into plain text where it could not be sent as it is."""
    try:
        execnet.dumps(config.hook.pytest_report_to_serializable(config=config, report=report))
    except execnet.DumpError:
        report.longrepr = _escaped(str(report.longrepr))
        report.sections = [(name, _escaped(text)) for name, text in report.sections]
        report.user_properties = []


class FirstInternalError:
    """Says at the very end what went wrong first in pytest itself; what follows from it hides it."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def pytest_internalerror(self, excrepr: object) -> None:
        """Keep the end of the first one."""
        self._lines = self._lines or str(excrepr).splitlines()[-12:]

    def pytest_unconfigure(self) -> None:
        """Print it."""
        if self._lines:
            print("\nthe first internal error:", *self._lines, sep="\n")


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
