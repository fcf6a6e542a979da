"""The whole service in a process of its own with a scripted reader; it can be told to die at a step.

python -m tests.scripted_node node.toml DIE_AT VERSION [--only ROLE] [--executor NAME]

DIE_AT: the number of the checkpointed step after which the process kills itself, counted from 1; 0 never
VERSION: of the reader, which waits while a file named `hold` lies beside the settings
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
from pathlib import Path

from node import app, config, log
from node.roles import Role
from tests.fakes import ScriptedReader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", type=Path)
    parser.add_argument("die_at", type=int)
    parser.add_argument("version")
    parser.add_argument("--only", type=Role)
    parser.add_argument("--executor")
    options = parser.parse_args()
    numbers = itertools.count(1)

    def on_step(_name: str) -> None:
        if next(numbers) == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    log.configure()
    code = app.serve(
        config.load(options.settings),
        only=options.only,
        executor=options.executor,
        reader=ScriptedReader(options.version, hold=options.settings.with_name("hold")),
        on_step=on_step,
    )
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
