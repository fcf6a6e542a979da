"""What all commands of the models have in common, and what two of them print."""

from __future__ import annotations

import signal
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from models import command, golden, program, train
from models.checkpoint import __main__ as checkpoint
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


def test_a_command_gets_its_arguments_and_ends_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["python", "one", "--two"])

    assert ends(lambda arguments: 7 if arguments == ["one", "--two"] else 0) == 7


def test_a_command_that_was_stopped_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(raises(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize(
    ("module", "extra"), [("sklearn.metrics", "evaluate"), ("pycocotools", "evaluate"), ("scipy.optimize", "train")]
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    module: str, extra: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(raises(ModuleNotFoundError(name=module))) == 2

    package = module.partition(".")[0]
    assert f"error: {package} is missing; run pip install -c constraints.txt '.[{extra}]'" in capsys.readouterr().err


def test_a_module_of_no_extra_is_an_error_of_the_program() -> None:
    with pytest.raises(ModuleNotFoundError):
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


# --- models.train -----------------------------------------------------------------------------------------------------


@pytest.fixture
def handlers() -> Iterator[None]:
    """Bring back the handlers of signals that the command replaces."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("of_views", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_training_says_where_its_model_lies_or_how_it_goes_on(
    of_views: bool, stopped: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SimpleNamespace(model=SimpleNamespace(name="tiny", version="3"))
    asked = list[tuple[str, object, bool]]()
    result = None if stopped else Path("out/model")

    def train_by(given: object, stop: Event) -> Path | None:
        signal.raise_signal(signal.SIGTERM)  # told to stop, it goes on to the end of a step
        asked.append(("network", given, stop.is_set()))
        return result

    def train_views(given: object, _report: object, stop: Event) -> Path | None:
        asked.append(("views", given, stop.is_set()))
        return result

    monkeypatch.setattr(runfile, "is_view_run", lambda _: of_views)
    for name in ("read_run", "read_view_run"):
        monkeypatch.setattr(runfile, name, lambda _: run)
    monkeypatch.setattr(loop, "train_by", train_by)
    monkeypatch.setattr(views, "train_views", train_views)

    status = train.main(["my.toml"])

    said = capsys.readouterr()
    assert asked == [("views", run, False) if of_views else ("network", run, True)]
    assert status == (130 if stopped else 0)
    if stopped:
        assert "my.toml again" in said.err if of_views else "my.toml to continue" in said.err
        assert said.out == ""
    else:
        assert said.out.startswith("out/model: has a view head" if of_views else "out/model: tiny 3\n")


@pytest.mark.usefixtures("handlers")
def test_only_the_first_process_of_a_training_says_where_its_model_lies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = SimpleNamespace(model=SimpleNamespace(name="tiny", version="3"))
    monkeypatch.setattr(runfile, "is_view_run", lambda _: False)
    monkeypatch.setattr(runfile, "read_run", lambda _: run)
    monkeypatch.setattr(loop, "train_by", lambda *_: Path("out/model"))
    monkeypatch.setenv("RANK", "1")

    assert train.main(["my.toml"]) == 0
    assert capsys.readouterr().out == ""


# --- models.checkpoint ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ended", "status"), [(0, 0), (1, 1), (2, 1), (-9, 1)])
def test_an_import_ends_as_its_export_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ended: int, status: int
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, ended))

    assert checkpoint._export(Path("model")) == status

    said = capsys.readouterr()
    assert ("exported and proven" in said.out, "lacks only its graphs" in said.err) == (status == 0, status != 0)


# --- models.golden ----------------------------------------------------------------------------------------------------


def near(max_abs: float) -> StageDifference:
    return StageDifference(max_abs=max_abs, tolerance=1e-4)


def compared(**changes: object) -> Comparison:
    kwargs: dict[str, object] = {
        "arrays": {"img/x": near(5e-5), "txt/ids": near(0.0), "given": near(0.0)},
        "given": frozenset({"given"}),
        "parts": {"image": "img/x"},
        "texts": {"sg/sentences": True},
        "exact": frozenset({"txt/ids"}),
        "missing": (),
        "broken": {},
    }
    return Comparison(**(kwargs | changes))  # type: ignore[arg-type]


def test_a_comparison_is_told_line_by_line() -> None:
    good, bad = compared(), near(2e-3)
    wrong = compared(
        arrays={"img/x": bad, "txt/ids": near(1.0)},
        texts={"sg/sentences": False},
        missing=("rg/x",),
        broken={"rg": "no"},
    )

    assert list(golden.lines(good)) == [
        f"{'image':28} largest difference 5.0e-05, allowed 1e-04  (img/x)",
        "2 arrays and 1 texts compared, 1 inputs given: ids equal, texts equal, passed",
    ]
    told = list(golden.lines(wrong))
    for line, begin in zip(
        told[1:-1],
        ("DIFFERS  img/x: 2.0e-03,", "DIFFERS  txt/ids:", "DIFFERS  sg/sentences", "MISSING  rg/x", "BROKEN   rg: no"),
        strict=True,
    ):
        assert line.startswith(begin)
    assert told[-1].endswith("ids differ, texts differ, NOT PASSED")


@pytest.mark.parametrize(
    "changes",
    [
        {"arrays": {"img/x": near(2e-4), "txt/ids": near(0.0)}},
        {"texts": {"sg/sentences": False}},
        {"missing": ("rg/x",)},
        {"broken": {"rg": "no"}},
    ],
)
def test_all_that_is_recorded_must_be_near(changes: dict[str, object]) -> None:
    assert compared().passed
    assert not compared(**changes).passed


def test_an_infinite_difference_is_null_in_json() -> None:
    document = golden.document(compared(arrays={"img/x": near(float("inf")), "txt/ids": near(0.0)}))

    assert document["arrays"] == {"img/x": None, "txt/ids": 0.0}
    assert (document["passed"], document["ids_equal"], document["given"]) == (False, True, ["given"])
