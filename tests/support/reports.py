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


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
