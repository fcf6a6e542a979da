from __future__ import annotations

import execnet
import pytest

from tests.support.reports import FirstInternalError, make_sendable


def failed(longrepr: str) -> pytest.TestReport:
    return pytest.TestReport(
        "test_film.py::test_film",
        ("test_film.py", 1, "test_film"),
        {},
        "failed",
        longrepr,
        "call",
        sections=[("Captured stdout call", "said \udcff")],
    )


def test_a_failure_beyond_utf_8_is_still_reported(request: pytest.FixtureRequest) -> None:
    report = failed("ValueError: half a pair \udcff")
    make_sendable(report, request.config)

    execnet.dumps(request.config.hook.pytest_report_to_serializable(config=request.config, report=report))
    assert report.longreprtext == "ValueError: half a pair \\udcff"
    assert report.capstdout == "said \\udcff"


def test_the_first_internal_error_is_said_last(capsys: pytest.CaptureFixture[str]) -> None:
    errors = FirstInternalError()
    errors.pytest_internalerror("first\ncause")
    errors.pytest_internalerror("what follows")
    errors.pytest_unconfigure()

    assert capsys.readouterr().out == "\nthe first internal error:\nfirst\ncause\n"
