"""The whole service in a process of its own with a scripted reader; it can be told to die at a step.

python -m tests.scripted_node node.toml [DIE_AT]     DIE_AT: the number of the checkpointed step after which
                                                     the process kills itself, counted from 1; 0 never
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

from node import app, config, log
from tests.fakes import ScriptedReader


def main() -> None:
    settings, die_at = config.load(Path(sys.argv[1])), int(sys.argv[2])
    numbers = itertools.count(1)

    def on_step(_name: str) -> None:
        if next(numbers) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    log.configure()
    code = app.serve(settings, reader=ScriptedReader(sys.argv[3]), on_step=on_step)
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
