"""The commands: parses arguments, prints answers, turns errors into exit codes, and nothing else.

Exit 0: done; 1: failed; 2: wrong input or settings, with one clear line that says what to do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from node import config, log
from node.config import ENGINES, ModelSettings
from node.domain import Box
from node.errors import ConfigError, InputError, NodeError, where
from node.roles import Role


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    log.mute()
    try:
        return int(options.run(options))
    except ConfigError as error:
        print("\n".join(f"error: {mistake}" for mistake in error.mistakes), file=sys.stderr)
        return 2
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except NodeError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except Exception as error:  # the last boundary: no text of a foreign error, which may hold patient data
        print(f"failed: {where(error)}; this is a fault of the program, please report it", file=sys.stderr)
        return 1


def _serve(options: argparse.Namespace) -> int:
    from node import app, tls

    settings = config.load(options.settings)
    tls.check_files(settings)
    log.configure()
    return app.serve(settings, only=options.only and Role(options.only), executor=options.executor)


def _check(options: argparse.Namespace) -> int:
    from node import prompts, tls

    settings = config.load(options.settings)
    tls.check_files(settings)
    prompts.load(settings.model.prompts)
    if not (settings.model.directory / "manifest.toml").is_file():
        raise ConfigError([f"model.directory: {settings.model.directory} is no model directory; correct the path"])
    print(config.render(settings), end="")
    return 0


def _read(options: argparse.Namespace) -> int:
    from node import local, prompts
    from node.inference import open_reader

    prompt_set = prompts.load(options.prompts)
    reader = open_reader(options.model, prompts=prompt_set, engine=options.engine, threads=options.threads)
    reports = local.read(
        options.paths,
        options.out,
        reader=reader,
        prompts=prompt_set,
        zone=_zone(options.timezone),
        on_film=lambda path, outcome: print(f"{path}: {outcome}", file=sys.stderr),
    )
    if options.json:
        print(json.dumps({"studies": reports}, ensure_ascii=False, indent=2))
    else:
        for report in reports:
            print(options.out / str(report["study"]))
    return 0


def _ask(options: argparse.Namespace) -> int:
    from node import local, prompts
    from node.inference import open_reader

    questions = local.questions_of(options.prompt, options.box)
    prompt_set = prompts.load(options.prompts)
    reader = open_reader(options.model, prompts=prompt_set, engine=options.engine, threads=options.threads)
    answers = local.ask(options.film, questions, reader=reader, prompts=prompt_set)
    content = {"film": str(options.film), "questions": [local.answer_to_json(answer) for answer in answers]}
    print(json.dumps(content, ensure_ascii=False, indent=2))
    return 0


def _status(options: argparse.Namespace) -> int:
    from node.status import render, status

    content = status(config.load(options.settings))
    print(json.dumps(content, indent=2) if options.json else render(content))
    return 0


def _retry(options: argparse.Namespace) -> int:
    from node.status import retry

    pieces = retry(config.load(options.settings), options.study)
    if options.json:
        print(json.dumps({"queued": pieces}))
    else:
        for study_uid, count in pieces.items():
            print(f"{study_uid}: {f'{count} queued again' if count else 'nothing is parked'}")
    return 0


def _abandon(options: argparse.Namespace) -> int:
    from node.status import abandon

    count = abandon(config.load(options.settings), options.destination, force=options.force)
    if options.json:
        print(json.dumps({"abandoned": {options.destination: count}}))
    else:
        print(f"{options.destination}: {f'{count} deliveries ended' if count else 'nothing is open'}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from node import demo

    log.configure(level="warning")
    model = ModelSettings(
        directory=options.model, engine=options.engine, threads=options.threads, prompts=options.prompts
    )
    demo.run(options.out, model=model, say=lambda line: print(line, flush=True))
    return 0


def _parser() -> _Parser:
    parser = _Parser(prog="python -m node", description="Chest X-rays in, SR and GSPS out.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for name, run, text in (
        ("serve", _serve, "run the service"),
        ("check", _check, "print the effective settings, or every mistake in them"),
        ("status", _status, "what is waiting, parked, failed, and why"),
        ("retry", _retry, "run parked work of studies again"),
        ("abandon", _abandon, "end for good what was to go to a destination that is gone"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("settings", type=Path, metavar="node.toml")
        command.set_defaults(run=run)
        if name == "serve":
            command.add_argument("--only", choices=[str(role) for role in Role], help="do one part; needs PostgreSQL")
            command.add_argument("--executor", metavar="NAME", help="the same name after every start")
        if name in ("status", "retry", "abandon"):
            command.add_argument("--json", action="store_true", help="answer with one JSON document")
        if name == "retry":
            command.add_argument("study", nargs="+", metavar="STUDY_UID")
        if name == "abandon":
            command.add_argument("destination", metavar="DESTINATION")
            command.add_argument("--force", action="store_true", help="also when it is still in the settings")

    read = commands.add_parser("read", help="read files without a network")
    read.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    read.add_argument("--out", type=Path, required=True, help="folder for the results")
    read.add_argument("--timezone", default="UTC", help="local time of the objects, such as Europe/Berlin")
    read.add_argument("--json", action="store_true", help="answer with one JSON document")
    _add_model(read, run=_read, required=True)

    ask = commands.add_parser("ask", help="ask about one film: by a prompt, by a box, by both")
    ask.add_argument("film", type=Path, metavar="FILE")
    ask.add_argument("--json", action="store_true", help="answer with one JSON document, as it always does")
    ask.add_argument("--prompt", action="append", default=[], metavar="TEXT")
    ask.add_argument("--box", action="append", default=[], type=_box, metavar="L,T,R,B", help="pixels of the film")
    _add_model(ask, run=_ask, required=True)

    demo = commands.add_parser("demo", help="send real films through a node on this machine")
    demo.add_argument("--out", type=Path, default=Path("demo-out"))
    _add_model(demo, run=_demo, required=False)
    return parser


def _add_model(parser: argparse.ArgumentParser, *, run: object, required: bool) -> None:
    defaults = ModelSettings()
    parser.add_argument("--model", type=Path, required=required, default=defaults.directory, help="model directory")
    # TensorRT keeps what it builds beside the node's storage, which these commands have not.
    parser.add_argument("--engine", choices=[name for name in ENGINES if name != "tensorrt"], default=defaults.engine)
    parser.add_argument("--threads", type=_threads, default=defaults.threads, help="0: all cores")
    parser.add_argument("--prompt-set", dest="prompts", default=defaults.prompts, help="name or file of a prompt set")
    parser.set_defaults(run=run)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _threads(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of threads; 0 means all cores")
    return int(text)


def _box(text: str) -> Box:
    try:
        left, top, right, bottom = (float(edge) for edge in text.split(","))
        return Box(left=left, top=top, right=right, bottom=bottom)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no box; write left,top,right,bottom in pixels") from error


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InputError(f"{name!r} is no time zone; use a name such as Europe/Berlin") from error


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of the durable engine may wait for ever; what they wait for is on disk
