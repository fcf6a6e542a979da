"""Runnable: turns a published checkpoint into a model directory.

    python -m models.checkpoint SOURCE DIRECTORY [--gpt2-heads N] [--rest DIR] [--no-export]

After the import it exports the ONNX graphs, so that the node can use the directory at once. Exit 0: done; 1: a file
could not be written or the export failed; 2: wrong input, with one line that says what to do; 130: stopped.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from models.command import INTERRUPTED, command_parser, exit_status, run
from models.program import command_for

_ROOT = Path(__file__).parents[2]
"""The folder that holds `models` and `export`."""


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    options = _parser().parse_args(arguments)
    status = exit_status(lambda: _bring(options), remark="; nothing was left behind")
    if status:
        return status
    from models.manifest import read_manifest

    manifest = read_manifest(options.directory)
    print(f"{options.directory}: {manifest.name} {manifest.version} is imported", flush=True)
    return _export(options.directory) if options.export else 0


def _bring(options: argparse.Namespace) -> int:
    from models import progress
    from models.checkpoint.importer import bring

    with progress.on(sys.stderr) as report:
        bring(options.source, options.directory, gpt2_heads=options.gpt2_heads, rest=options.rest, report=report)
    return 0


def _export(directory: Path) -> int:
    """Run `python -m export.build` for a model directory; 0 if its graphs are exported and proven, 130 after Ctrl-C.

    It is a separate process because `models` must not import `export`, and so that the importer's memory is free before
    the export starts. The process has its own session, so Ctrl-C on the terminal reaches this process only, which stops
    the other one and says how to continue.
    """
    command = [sys.executable, "-m", "export.build", "--model", str(directory.absolute()), "--json"]
    try:
        done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.DEVNULL, start_new_session=True, check=False)
        status, problem = (1 if done.returncode else 0), "failed"
    except OSError as error:
        status, problem = 1, f"failed ({error.strerror})"
    except KeyboardInterrupt:
        status, problem = INTERRUPTED, "stopped"
    if status == 0:
        read = f"{command_for('node')} read FILE --model {directory} --out DIR"
        print(f"{directory}: graphs exported and proven; {read} reads a film")
        return 0
    print(
        f"export {problem}: {directory} is imported and lacks only its graphs; "
        f"run {command_for('export.build')} --model {directory}",
        file=sys.stderr,
    )
    return status


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("models.checkpoint", description="Turn a published checkpoint into a model directory.")
    parser.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help="the published zip, its unpacked folder, a run folder or a .pth; or CheXzero's .pt, or a GPT-2 "
        "(pytorch_model.bin, model.safetensors, or the folder with it)",
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="the model directory to write")
    parser.add_argument("--gpt2-heads", type=int, metavar="N", help="of a GPT-2 that is not the published one")
    parser.add_argument(
        "--rest", type=Path, metavar="DIR", help="the model directory that gives what CheXzero or GPT-2 do not hold"
    )
    parser.add_argument(
        "--export",
        action=argparse.BooleanOptionalAction,
        default=True,
        help=f"go on to the ONNX graphs and their proof, as {command_for('export.build')} does",
    )
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run(main)
