"""The commands that an installed program has: each starts a module of the program as `python -m` does.

The program's folder comes first on `sys.path`, so a package `models` elsewhere is never imported in its place.
Processes that `multiprocessing` starts get the same `sys.path`, and `models.checkpoint` starts `export.build` in that
folder.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

MODELS: Final[Mapping[str, tuple[str, str]]] = {
    "export": ("export.build", "export the graphs of a model directory and prove them"),
    "parity": ("export.parity", "compare two runtimes of one model"),
    "checkpoint": ("models.checkpoint", "turn a published checkpoint into a model directory"),
    "prepare": ("models.prepare", "turn a public data set into lines for training and evaluation"),
    "train": ("models.train", "train a model by a run file"),
    "join": ("models.join", "join the results of two trainings into the start of a third"),
    "evaluate": ("models.evaluate", "measure a model on known films"),
    "calibrate": ("models.calibrate", "calibrate a model on labelled films"),
    "thresholds": ("models.thresholds", "show the thresholds of a model, and change one"),
    "card": ("models.lab.evaluation.card", "fill a model card with measured figures"),
    "paper": ("models.lab.evaluation.paper", "write the tables of the paper, published and measured"),
    "placing": ("models.lab.evaluation.placing", "choose which boxes and sides are reported on patient films"),
    "phantoms": ("models.phantoms", "make chest films with exact truth"),
    "golden": ("models.golden", "compare the network with recorded arrays of the published one"),
}
"""Each subcommand of `chex-models`: the module that it runs, and what it does."""


def node() -> None:
    """Run `chex-node`, which is `python -m node`."""
    sys.path.insert(0, str(_program()))
    _run("node", sys.argv[1:])


def models() -> None:
    """Run `chex-models SUBCOMMAND`, which is `python -m` with the module of the subcommand."""
    sys.path.insert(0, str(_program()))
    options = _parser().parse_args(sys.argv[1:2])  # what follows the subcommand is for its module to parse
    module, _text = MODELS[options.subcommand]
    _run(module, sys.argv[2:])


def _program() -> Path:
    """Find the folder that holds `node`, `models`, `export` and `language`.

    In an editable install this is the root of the repository, so the commands always run its present code.
    """
    here = Path(__file__).resolve()
    installed = here.parent / "program"
    return installed if installed.is_dir() else here.parents[3]


def _parser() -> argparse.ArgumentParser:
    from models.program import VERSION_LINE  # found only now that the program's folder is on the path

    parser = argparse.ArgumentParser(prog="chex-models", description="Models: make, train, measure, export.")
    parser.add_argument("--version", action="version", version=VERSION_LINE)
    subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    for name, (_module, text) in MODELS.items():
        subcommands.add_parser(name, help=text, add_help=False)
    return parser


def _run(module: str, arguments: list[str]) -> None:
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)
