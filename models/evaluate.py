"""Runnable: measures a model on films with known labels (design §8).

    python -m models.evaluate --model DIR --data phantoms:SEED:COUNT|boxes:FILE.jsonl [--json]
        [--task all|paper|NAME,...] [--choose-on FILE.jsonl]
        [--labeler rules|chexbert:FILE] [--metric-files DIR]
    python -m models.evaluate --model NEW --against IN_USE --data FILMS.csv --out NEW/comparison.json [--json]

`--out DIR` gets evaluation.json, evaluation.md, and films with boxes; `models.calibrate` chooses thresholds. The second
form compares two models on films of a site, by which a node takes the new one; so this stands above `node.read`. Exit
0: done; 1: a file could not be written; 2: wrong input, with one line that says what to do.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

from models.command import command_parser, exit_status, run, share
from models.contract import COMPARISON
from models.engines import ENGINES
from models.errors import ModelError
from models.lab.evaluation.request import (
    ALL,
    CHEXBERT,
    DEFAULT,
    FIGURE_TASKS,
    MOST_FALSE,
    PAPER,
    PUBLISHED_RESAMPLES,
    PUBLISHED_TASKS,
    RESAMPLES,
    RULES,
    TASKS,
    TEXT_RESAMPLES,
    Request,
)

_AGAINST_ONLY: Final = ("reader", "against_reader", "against_prompts")


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    options = _parser().parse_args(arguments)
    if options.against is not None:
        return exit_status(lambda: _compare(options))
    if given := _given(options, _AGAINST_ONLY):
        print(f"error: {given} is for --against; name the model in use, or leave it out", file=sys.stderr)
        return 2
    from models import progress
    from models.lab.evaluation.command import evaluate
    from models.lab.evaluation.document import markdown

    if options.analysis is not None and options.task != (ALL,):
        print("error: the file of --analysis names its task; leave out --task", file=sys.stderr)
        return 2
    others = [entry.name for entry in fields(Request) if entry.name != "tasks"]
    request = Request(tasks=options.task, **{name: getattr(options, name) for name in others})

    def measure() -> int:
        with progress.on(sys.stderr) as report:
            document = evaluate(request, report)
        print(json.dumps(document) if options.json else markdown(document).rstrip())
        return 0

    return exit_status(measure)


def _compare(options: argparse.Namespace) -> int:
    """Compare two models on films of a site, and write what a node reads."""
    from models import progress
    from models.files import replacing
    from models.lab.evaluation import model_comparison
    from models.site_films import answer_films, films_to_compare
    from models.thresholds import now, user

    others = set(vars(options)) - {"model", "against", "data", "out", "prompts", "engine", "json", *_AGAINST_ONLY}
    if given := _given(options, others):
        raise ModelError(f"{given} is not for --against; leave it out")
    if options.out is None:
        raise ModelError(f"--against needs a file; a node looks for --out {options.model / COMPARISON}")
    films = films_to_compare(options.data)
    with progress.on(sys.stderr) as report:
        new, old = (
            answer_films(model, films, network=network, engine=options.engine, prompt_set=str(prompts), report=report)
            for model, network, prompts in (
                (options.model, options.reader, options.prompts),
                (options.against, options.against_reader, options.against_prompts or options.prompts),
            )
        )
    labels = [film.truth.labels for film in films]
    found = model_comparison.compare(labels, old, new, data=Path(options.data).name, at=now(), by=user())
    document = json.dumps(asdict(found), indent=2)
    with replacing(options.out) as file:
        file.write(f"{document}\n".encode())
    print(document if options.json else model_comparison.table(found))
    return 0


def _given(options: argparse.Namespace, names: Collection[str]) -> str:
    """Name an option among some that was given; "" if none was."""
    defaults = _parser().parse_args(["--model", "m", "--data", "d"])
    given = [name for name in sorted(names) if getattr(options, name) != getattr(defaults, name)]
    return f"--{given[0].replace('_', '-')}" if given else ""


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("models.evaluate", description="Measure a model on known films.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument(
        "--data",
        required=True,
        help="phantoms:SEED:COUNT or boxes:FILE.jsonl; with --against films of a site, FILE.csv",
    )
    parser.add_argument(
        "--task",
        type=_tasks,
        default=(ALL,),
        metavar="NAME,...",
        help=f"of {', '.join(TASKS)}; default: all of these that the labels of the films suffice for; "
        f"or of the paper's {', '.join(PUBLISHED_TASKS)}, or {PAPER} for these; or {', '.join(FIGURE_TASKS)}",
    )
    parser.add_argument(
        "--choose-on",
        type=Path,
        metavar="FILE.jsonl",
        help="films of other patients, on which the settings of the paper's tasks are chosen; default: as published",
    )
    parser.add_argument(
        "--analysis",
        type=Path,
        metavar="FILE.toml",
        help="ask one of the paper's tasks otherwise than published, as this file says; it names the task",
    )
    parser.add_argument("--engine", choices=ENGINES, default="onnx", help="default: %(default)s")
    parser.add_argument("--prompts", type=Path, default=DEFAULT, metavar="FILE", help="default: the node's chexpert14")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write figures and films with boxes here")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--pictures", type=_count, default=12, metavar="N", help="films on each sheet; default: %(default)s"
    )
    parser.add_argument(
        "--resamples",
        type=_count,
        metavar="N",
        help=f"resampled sets, for deviations; default: {RESAMPLES}; for the paper's tasks {PUBLISHED_RESAMPLES}, "
        f"and {TEXT_RESAMPLES} where they compare texts",
    )
    _add_choices(parser)
    _add_texts(parser)
    _add_against(parser)
    return parser


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the options that say whose films are measured, and which films choose the thresholds."""
    parser.add_argument(
        "--held-out", metavar="SHARE_OR_FILE", help="only the patients that a run held out, as its run file says"
    )
    parser.add_argument(
        "--folds",
        action="store_true",
        help="choose the thresholds for each fifth of the patients on films of the others, as films must be reported "
        "on that chose the thresholds of the model",
    )
    parser.add_argument(
        "--false-findings",
        type=share,
        metavar="NUMBER",
        default=MOST_FALSE,
        help="limit of the present findings expected on the average film without a finding, by thresholds that the "
        "task films chooses on other patients; default: %(default)s",
    )


def _add_texts(parser: argparse.ArgumentParser) -> None:
    """Add the options of the tasks that compare texts."""
    parser.add_argument(
        "--labeler",
        type=_labeler,
        metavar="rules|chexbert:FILE",
        help="what finds the classes in texts of the paper's tasks: our rules, or CheXbert's weights; default: rules",
    )
    parser.add_argument(
        "--metric-files", type=Path, metavar="DIR", help="files that some figures of texts need: docs/model/paper.md"
    )


def _add_against(parser: argparse.ArgumentParser) -> None:
    """Add the options that compare a model with the one in use."""
    parser.add_argument(
        "--against", type=Path, metavar="DIR", help="compare the model with this one, which a node has in use"
    )
    parser.add_argument("--against-prompts", metavar="NAME", help="name or file of its prompt set; default: --prompts")
    for option, model in (("--reader", "--model"), ("--against-reader", "--against")):
        parser.add_argument(
            option,
            default="chex",
            metavar="NAME",
            help=f"the network of {model}, as model.reader; default: %(default)s",
        )


def _labeler(text: str) -> str:
    """Read the name of a labeler."""
    if text == RULES or (text.startswith(CHEXBERT) and text != CHEXBERT):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is neither {RULES} nor {CHEXBERT}FILE, with the file of its weights")


def _tasks(text: str) -> tuple[str, ...]:
    """Read the names of tasks."""
    names, known = tuple(name.strip() for name in text.split(",")), (*TASKS, *PUBLISHED_TASKS, *FIGURE_TASKS)
    if unknown := [name for name in names if name not in (ALL, PAPER, *known)]:
        raise argparse.ArgumentTypeError(
            f"there is no task {unknown[0]!r}; choose from {', '.join(known)}, {ALL}, or {PAPER}"
        )
    return names


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} must be 0 or more")
    return value


if __name__ == "__main__":
    run(main)
