"""A pytest plugin for an environment without PyTorch and the ONNX libraries: skips what needs one of them, and says so.

    python -m pytest -p tests.support.without_torch

Only the absence of a library in `LEFT_OUT` skips a test; any other failure stays one.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

LEFT_OUT: Final = ("onnx", "tensorrt", "torch")
"""How the names of these libraries begin, as packages and as modules: onnxruntime and onnxscript are among them."""

_MODELS: Final = {"half_model", "phantom_model", "untrained_weights"}
"""Fixtures that export or write a model in a process of their own, for which PyTorch is needed."""


class _Module(pytest.Module):
    """A test file that is skipped if it imports a library that is left out."""

    def _getobj(self) -> object:
        try:
            return super()._getobj()  # type: ignore[no-untyped-call]  # pytest's own
        except self.CollectError as error:
            if reason := _left_out(error.__cause__):
                pytest.skip(reason, allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Collect a test file with the class above."""
    return _Module.from_parent(parent, path=module_path)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs a model."""
    if _MODELS & set(getattr(item, "fixturenames", ())):
        pytest.skip("needs a model, and so torch")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a test that imports a library that is left out as skipped."""
    report = yield
    if report.failed and call.excinfo is not None and (reason := _left_out(call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.reportinfo()[1] or 0, f"Skipped: {reason}")
    return report


def _left_out(error: BaseException | None) -> str | None:
    """Say which library is missing, if it is one that is left out."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(LEFT_OUT):
        return f"needs {error.name}"
    return None
