"""What all commands of the models have in common, and what two of them print."""

from __future__ import annotations

import io
import math
import signal
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from models import command, golden, program, progress, train
from models.command import above_zero, exit_status, share
from models.contract import StageDifference
from models.errors import ModelError
from models.lab.golden.comparison import Comparison
from models.lab.training import loop, runfile, views
from models.program import command_for


def ends(main: Callable[[list[str]], int]) -> object:
    with pytest.raises(SystemExit) as ended:
        command.run(main)
    return ended.value.code


def raises(error: BaseException) -> Callable[..., int]:
    def act(*_: object) -> int:
        raise error

    return act


def test_a_command_gets_its_arguments_and_ends_with_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["python", "one", "--two"])

    assert ends(lambda arguments: 7 if arguments == ["one", "--two"] else 0) == 7
    assert ends(raises(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_a_package_that_is_missing_is_named_with_its_extra(capsys: pytest.CaptureFixture[str]) -> None:
    for module, package, extra in (
        ("sklearn.metrics", "sklearn", "evaluate"),
        ("pycocotools", "pycocotools", "evaluate"),
        ("scipy.optimize", "scipy", "train"),
    ):
        assert ends(raises(ModuleNotFoundError(name=module))) == 2
        told = f"error: {package} is missing; run pip install -c constraints.txt '.[{extra}]'\n"
        assert capsys.readouterr().err == told
    with pytest.raises(ModuleNotFoundError):  # a module of no extra is an error of the program
        command.run(raises(ModuleNotFoundError(name="models.lost")))


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ModelError("one\ntwo"), 2, "error: one\nerror: two\n"),
        (OSError(28, "No space left"), 1, "failed: [Errno 28] No space left; nothing was left\n"),
        (KeyboardInterrupt(), 130, "stopped; nothing was left\n"),
    ],
)
def test_each_error_has_its_exit_status(
    error: BaseException, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(raises(error), remark="; nothing was left") == status
    assert capsys.readouterr().err == message


def test_numbers_of_options_lie_in_their_bounds() -> None:
    assert (share("1"), share("0.2"), above_zero("0.5"), above_zero("7")) == (1.0, 0.2, 0.5, 7.0)
    for text in ("0", "-0.1", "1.01", "nan"):
        with pytest.raises(ArgumentTypeError, match="above 0 and at most 1"):
            share(text)
    for text in ("0", "-1", "inf", "nan"):
        with pytest.raises(ArgumentTypeError, match="above 0"):
            above_zero(text)


def test_an_installed_program_is_run_by_its_own_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command_for("models.train") == "python -m models.train"

    monkeypatch.setattr(program, "__file__", "/usr/lib/chex_node/program/models/program.py")

    asked = ("node", "export.build", "models.train", "models.golden")
    expected = ["chex-node", "chex-models export", "chex-models train", "chex-models golden"]
    assert [command_for(module) for module in asked] == expected


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_is_a_line_a_stage_and_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)

    with progress.on(stream) as report:
        report("taking [a].pth")
        for done in range(1, 4):
            report("write", done, 3)

    if is_terminal:
        assert "taking [a].pth" in stream.getvalue() and "100 %" in stream.getvalue()
    else:
        assert stream.getvalue() == "taking [a].pth\nwrite: 100 %\n"


# --- models.train -----------------------------------------------------------------------------------------------------


@pytest.fixture
def handlers() -> Iterator[None]:
    """Bring back the handlers of signals that the command replaces."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("of_views", "said"),
    [
        (False, "stopped; run python -m models.train my.toml to continue from here\n"),
        (True, "stopped; nothing was written, run python -m models.train my.toml again\n"),
    ],
)
def test_a_stopped_training_says_how_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str, *, of_views: bool
) -> None:
    def stopped(*given: object) -> None:
        signal.raise_signal(signal.SIGTERM)  # told to stop, it goes on to the end of a step
        assert isinstance(given[-1], Event) and given[-1].is_set()

    monkeypatch.setattr(runfile, "is_view_run", lambda _: of_views)
    for name in ("read_run", "read_view_run"):
        monkeypatch.setattr(runfile, name, lambda _: None)
    monkeypatch.setattr(loop, "train_by", stopped)
    monkeypatch.setattr(views, "train_views", stopped)

    assert train.main(["my.toml"]) == 130
    assert capsys.readouterr() == ("", said)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("rank", "said"), [("0", "out/model: tiny 3\n"), ("1", "")])
def test_only_the_first_process_of_a_training_says_where_its_model_lies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str, said: str
) -> None:
    run = SimpleNamespace(model=SimpleNamespace(name="tiny", version="3"))
    monkeypatch.setattr(runfile, "is_view_run", lambda _: False)
    monkeypatch.setattr(runfile, "read_run", lambda _: run)
    monkeypatch.setattr(loop, "train_by", lambda *_: Path("out/model"))
    monkeypatch.setenv("RANK", rank)

    assert train.main(["my.toml"]) == 0
    assert capsys.readouterr().out == said


# --- models.golden ----------------------------------------------------------------------------------------------------


def near(max_abs: float) -> StageDifference:
    return StageDifference(max_abs=max_abs, tolerance=1e-4)


GOOD = Comparison(
    arrays={"img/x": near(5e-5), "txt/ids": near(0.0), "given": near(0.0)},
    given=frozenset({"given"}),
    parts={"image": "img/x"},
    texts={"sg/sentences": True},
    exact=frozenset({"txt/ids"}),
    missing=(),
    broken={},
)


WRONG: dict[str, Any] = {
    "arrays": {"img/x": near(2e-3), "txt/ids": near(1.0)},
    "texts": {"sg/sentences": False},
    "missing": ("rg/x",),
    "broken": {"rg": "no"},
}


def test_all_that_is_recorded_must_be_near_and_is_told_line_by_line() -> None:
    assert list(golden.lines(GOOD)) == [
        f"{'image':28} largest difference 5.0e-05, allowed 1e-04  (img/x)",
        "2 arrays and 1 texts compared, 1 inputs given: ids equal, texts equal, passed",
    ]
    told = list(golden.lines(replace(GOOD, **WRONG)))
    for line, begin in zip(
        told[1:-1],
        ("DIFFERS  img/x: 2.0e-03,", "DIFFERS  txt/ids:", "DIFFERS  sg/sentences", "MISSING  rg/x", "BROKEN   rg: no"),
        strict=True,
    ):
        assert line.startswith(begin)
    assert told[-1].endswith("ids differ, texts differ, NOT PASSED")
    assert GOOD.passed
    assert not any(replace(GOOD, **{name: change}).passed for name, change in WRONG.items())
    document = golden.document(replace(GOOD, arrays={"img/x": near(math.inf), "txt/ids": near(0.0)}))
    assert document["arrays"] == {"img/x": None, "txt/ids": 0.0}, "JSON has no infinity"
    assert (document["passed"], document["ids_equal"], document["given"]) == (False, True, ["given"])
