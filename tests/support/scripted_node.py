"""The whole service with a scripted reader, for a process of its own; it can be told to die at a step.

Arguments: node.toml DIE_AT [--only ROLE] [--executor NAME]
DIE_AT: the number of the checkpointed step after which the process kills itself, counted from 1; 0 never
The reader waits while a file named `hold` lies beside the settings, finds a pneumothorax while one named `critical`
does, and is not opened while one named `hold-model` does
While a file named `deadly` lies there, a film of so many columns as it says kills the process (`tests.support.fakes`)
While a file named `panic` lies there, the thread of a workflow ends after the step that it names, as by a panic in Rust
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from node import config, log
from node.jobs.processes import Role
from node.service import app
from tests.support.fakes import Panic, ScriptedReader


def main(arguments: Sequence[str]) -> int:
    """Run the service; returns its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", type=Path)
    parser.add_argument("die_at", type=int)
    parser.add_argument("--only", type=Role)
    parser.add_argument("--executor")
    options = parser.parse_args(arguments)
    numbers = itertools.count(1)

    panic = options.settings.with_name("panic")

    def on_step(name: str) -> None:
        if next(numbers) == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if panic.exists() and panic.read_text(encoding="utf-8") == name:
            raise Panic

    def open_reader() -> ScriptedReader:
        while options.settings.with_name("hold-model").exists():
            time.sleep(0.02)
        return ScriptedReader(**{name: options.settings.with_name(name) for name in ("hold", "critical", "deadly")})

    log.configure()
    return app.serve(
        config.load(options.settings),
        only=options.only,
        executor=options.executor,
        reader=open_reader,
        on_step=on_step,
        path=options.settings,
    )
