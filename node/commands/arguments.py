"""The arguments that several commands take, and how a text becomes their value."""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path
from typing import Final, NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from models.contract import Box
from node.character_sets import TERMS
from node.config import ENGINES, ModelSettings, ReportSettings
from node.errors import InputError
from node.output_kinds import DEFAULT_OUTPUTS, OUTPUTS, in_order

ROLES: Final = ("reader", "administrator")
READER_HELP: Final = "the network: chex, the name of an installed reader, or package.module:function"


def add_model(parser: argparse.ArgumentParser, *, run: object, required: bool) -> None:
    """Add the arguments that name a model and how it runs."""
    defaults = ModelSettings()
    parser.add_argument("--model", type=Path, required=required, default=defaults.directory, help="model directory")
    # TensorRT stores its engines in the node's storage folder, which these commands do not have.
    parser.add_argument("--engine", choices=[name for name in ENGINES if name != "tensorrt"], default=defaults.engine)
    parser.add_argument("--reader", default=defaults.reader, metavar="NAME", help=READER_HELP)
    parser.add_argument("--threads", type=_threads, default=defaults.threads, help="0: all cores")
    parser.add_argument("--prompt-set", dest="prompts", default=defaults.prompts, help="name or file of a prompt set")
    parser.set_defaults(run=run)


def add_explain(parser: argparse.ArgumentParser, *, run: object) -> None:
    """Add the arguments of `explain`."""
    parser.add_argument("what", type=Path, metavar="FILE_OR_UID")
    parser.add_argument("settings", type=Path, nargs="?", metavar="node.toml", help="needed for a UID")
    parser.set_defaults(run=run)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select thresholds and sentences."""
    parser.add_argument(
        "--population", choices=("real", "phantoms"), default="real", help="use thresholds measured on such films"
    )
    parser.add_argument(
        "--uncalibrated",
        choices=("review", "accept"),
        default=ModelSettings().uncalibrated,
        help="findings whose threshold was not measured on them: review them, or accept the threshold",
    )
    parser.add_argument(
        "--sentences",
        choices=("checked", "raw"),
        default=ReportSettings().sentences,
        help="only sentences that say what was decided, or all as generated",
    )


def add_read(read: argparse.ArgumentParser, *, run: object) -> None:
    """Add the arguments of `read`."""
    read.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    read.add_argument("--out", type=Path, required=True, help="folder for the results")
    read.add_argument(
        "--outputs",
        type=outputs,
        default=DEFAULT_OUTPUTS,
        metavar="KIND,...",
        help=f"objects to write, of {', '.join(OUTPUTS.own)}; default {','.join(DEFAULT_OUTPUTS)}",
    )
    read.add_argument("--csv", type=Path, metavar="FILE", help="write a table, too: one line a film")
    read.add_argument("--timezone", default="UTC", help="local time of the objects, such as Europe/Berlin")
    read.add_argument(
        "--character-set",
        choices=TERMS,
        default="",
        metavar="TERM",
        help="of text that is neither in the set that its header names nor UTF-8, such as 'ISO_IR 100' or GB18030",
    )
    read.add_argument("--json", action="store_true", help="answer with one JSON document")
    add_model(read, run=run, required=True)
    add_trust(read)


def add_retry(retry: argparse.ArgumentParser) -> None:
    """Add the arguments of `retry`."""
    retry.add_argument("study", nargs="*", metavar="STUDY_UID")
    retry.add_argument("--all", action="store_true", help="all parked work")
    retry.add_argument("--destination", metavar="NAME", help="every parked delivery to one destination")


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _threads(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of threads; 0 means all cores")
    return int(text)


def outputs(text: str) -> tuple[str, ...]:
    """Return the kinds of outputs in the order of the table, each once."""
    wanted = text.split(",")
    if complaint := next(filter(None, map(OUTPUTS.complaint, wanted)), None):
        raise argparse.ArgumentTypeError(complaint)
    return in_order(wanted)


def box(text: str) -> Box:
    """Turn left,top,right,bottom into a box."""
    try:
        left, top, right, bottom = (float(edge) for edge in text.split(","))
        return Box(left=left, top=top, right=right, bottom=bottom)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a box; write left,top,right,bottom in pixels") from error


def day(text: str) -> date:
    """Turn YYYY-MM-DD into a day."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day; write YYYY-MM-DD") from error


def zone(name: str) -> ZoneInfo:
    """Return a time zone. Raises InputError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InputError(f"{name!r} is not a time zone; use a name such as Europe/Berlin") from error


def add_password(password: argparse.ArgumentParser, *, run: object) -> None:
    """Add the arguments of `password`."""
    password.add_argument("file", type=Path, metavar="FILE", help="http.password_file of the settings")
    password.add_argument("user", nargs="?", metavar="USER")
    password.add_argument("--remove", action="store_true", help="remove the user")
    password.add_argument("--role", choices=ROLES, help="what the user may do; of a known user only this changes")
    password.add_argument("--list", action="store_true", help="list the users with their roles")
    password.set_defaults(run=run)


def add_ask(ask: argparse.ArgumentParser, *, run: object) -> None:
    """Add the arguments of `ask`."""
    ask.add_argument("film", type=Path, metavar="FILE", help="DICOM, PNG or JPEG")
    ask.add_argument("--json", action="store_true", help="answer with one JSON document")
    ask.add_argument("--prompt", action="append", default=[], metavar="TEXT")
    ask.add_argument("--box", action="append", default=[], type=box, metavar="L,T,R,B", help="pixels of the film")
    add_model(ask, run=run, required=True)
    add_trust(ask)
