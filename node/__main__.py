"""The commands: parse arguments, print answers, turn errors into exit codes.

Exit codes: 0 done; 1 failed; 2 wrong input or settings, with one line that says what to do; 130 stopped by Ctrl-C; 141
nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from models.command import is_unread, while_read
from models.contract import Box
from models.program import VERSION_LINE, command_for
from node import config, log
from node.character_sets import TERMS
from node.config import ENGINES, ModelSettings, ReportSettings
from node.domain import JsonObject
from node.errors import INTERRUPTED, ConfigError, InputError, NodeError, please_report, where
from node.jobs.processes import Role
from node.output_kinds import DEFAULT_OUTPUTS, OUTPUTS, in_order

if TYPE_CHECKING:
    from node.prompt_set import PromptSet
    from node.read.model import RadiographReader


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Raises BrokenPipeError if nobody reads its output any more."""
    options = _parser().parse_args(arguments)
    log.begin()
    try:
        return int(options.run(options))
    except (ConfigError, InputError) as error:
        print("\n".join(f"error: {mistake}" for mistake in str(error).split("\n")), file=sys.stderr)
        return 2
    except NodeError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print(f"stopped{f'; {stop}' if str(stop) else ''}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:  # the last boundary: no text of a foreign error, which may hold patient data
        if isinstance(error, BrokenPipeError) and is_unread():
            raise
        print(f"failed: {where(error)}; {please_report()}", file=sys.stderr)
        return 1


def _serve(options: argparse.Namespace) -> int:
    from node.net import tls
    from node.service import app
    from node.web import access

    settings = config.load(options.settings)
    tls.check_files(settings)
    access.check_files(settings.http)
    log.configure(form=settings.log.format, level=settings.log.level)
    only = options.only and Role(options.only)
    return app.serve(settings, only=only, executor=options.executor, path=options.settings)


def _reload(options: argparse.Namespace) -> int:
    from node.commands.operate import reload

    for line in reload(config.load(options.settings), options.settings):
        print(line)
    return 0


def _check(options: argparse.Namespace) -> int:
    from node.net import tls
    from node.read import prompts
    from node.read.model import check_files
    from node.store.folders import require_known_format
    from node.web import access

    settings = config.load(options.settings)
    tls.check_files(settings)
    access.check_files(settings.http)
    prompts.load(settings.model.prompts)
    check_files(settings.model.directory, engine=settings.model.engine, reader=settings.model.reader)
    require_known_format(settings.storage.directory)
    if not settings.destinations:
        print(f"# {config.NOTHING_IS_SENT}")
    if settings.site.is_zone_left:
        print(f"# {config.ZONE_IS_LEFT}")
    print(config.render(settings), end="")
    return 0


def _read(options: argparse.Namespace) -> int:
    from models import progress
    from node.commands import read_files
    from node.read import prompts
    from node.read.manifest import not_calibrated

    local, prompt_set = _zone(options.timezone), prompts.load(options.prompts)
    outcomes: Counter[str] = Counter()
    reports = []
    with progress.on(sys.stderr) as show:

        def tell(path: Path, outcome: str) -> None:
            outcomes[outcome] += 1
            show(f"{path}: {outcome}")

        studies = read_files.collect(options.paths, on_file=tell)
        read_files.check_folder(options.out)
        if options.csv is not None:
            read_files.check_folder(options.csv.parent)
        reader = _reader(options, prompt_set)
        if text := not_calibrated(options.model, prompt_set, reader=options.reader):
            show(text)
        files_reader = read_files.FileReader(
            reader=reader,
            prompts=prompt_set,
            zone=local,
            character_set=options.character_set,
            kinds=options.outputs,
            on_file=tell,
        )
        try:
            for report in files_reader.read(studies, options.out):
                reports.append(report)
                show("studies", len(reports), len(studies))
        except KeyboardInterrupt as stop:
            done = f"{len(reports)} of {len(studies)} studies are in {options.out}; run the same command again to go on"
            raise KeyboardInterrupt(done) from stop
    if options.csv is not None:
        read_files.write_table(options.csv, reports)
    if options.json:
        print(json.dumps({"studies": reports}, ensure_ascii=False, indent=2))
    else:
        for report in reports:
            print(options.out / str(report["study"]))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    print(f"studies in {options.out}: {counts}", file=sys.stderr)
    return 0


def _ask(options: argparse.Namespace) -> int:
    from node.commands import ask
    from node.outputs.asked_question import answer_to_json
    from node.read import open_film, prompts

    questions = ask.questions_of(options.prompt, options.box)
    open_film.check(options.film)
    prompt_set = prompts.load(options.prompts)
    answers = open_film.ask(options.film, questions, reader=_reader(options, prompt_set), prompts=prompt_set)
    answered: JsonObject = {"film": str(options.film), "questions": [answer_to_json(answer) for answer in answers]}
    print(json.dumps(answered, ensure_ascii=False, indent=2) if options.json else ask.in_words(answered))
    return 0


def _reader(options: argparse.Namespace, prompt_set: PromptSet) -> RadiographReader:
    """Open the model that a command names."""
    from node.read import decoder_processes
    from node.read.model import open_reader

    decoder_processes.of_this_process().start()  # it imports the decoders while the model is opened
    return open_reader(
        options.model,
        prompts=prompt_set,
        engine=options.engine,
        reader=options.reader,
        threads=options.threads,
        trusted="any" if options.uncalibrated == "accept" else options.population,
        sentences=options.sentences,
    )


def _status(options: argparse.Namespace) -> int:
    from node.commands.operate import render, status

    settings = config.load(options.settings)
    content = status(settings)
    print(json.dumps(content, indent=2) if options.json else render(content, zone=settings.site.zone))
    return 0


def _retry(options: argparse.Namespace) -> int:
    from node.jobs import study_actions

    if bool(options.study) + options.all + bool(options.destination) != 1:
        raise InputError("name studies, or --all, or --destination NAME; one of the three")
    settings = config.load(options.settings)
    if options.study:
        pieces = study_actions.retry(settings, options.study)
    else:
        pieces = (
            study_actions.retry_destination(settings, options.destination)
            if options.destination
            else study_actions.retry_all(settings)
        )
    if options.json:
        print(json.dumps({"queued": pieces}))
        return 0
    for study_uid, count in pieces.items():
        print(f"{study_uid}: {f'{count} queued again' if count else 'nothing is parked'}")
    if not pieces:
        print("nothing is parked")
    return 0


def _explain(options: argparse.Namespace) -> int:
    from node.commands.explain import film, study

    settings = None if options.settings is None else config.load(options.settings)
    if options.what.is_file():
        model = ModelSettings() if settings is None else settings.model
        character_set = "" if settings is None else settings.site.character_set
        explanation = film.explain_file(
            options.what, model=model.directory, reader=model.reader, character_set=character_set
        )
        print(film.render(explanation))
        return 0
    if settings is None:
        raise InputError(f"{options.what}: is not a file; for a UID name the settings too: explain UID node.toml")
    print(study.render(study.explain_uid(str(options.what), settings), settings, options.settings))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    settings = config.load(options.settings)
    from node.commands import doctor

    checks = doctor.examine(settings)
    print(json.dumps(doctor.to_json(checks), indent=2) if options.json else doctor.render(checks))
    return 0 if doctor.passed(checks) else 1


def _corrections(options: argparse.Namespace) -> int:
    from node.commands.corrections import export

    count = export(config.load(options.settings), options.export)
    print(f"{options.export}: {count} corrected film{'' if count == 1 else 's'}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from importlib.util import find_spec

    from models import progress

    if find_spec("dicomanonymizer") is None:
        raise InputError("export needs the extra export; run pip install -c constraints.txt '.[export]'")
    from node.commands.export import folder

    with progress.on(sys.stderr) as show:
        done = folder.export(config.load(options.settings), options.out, since=options.since, tell=show)
    print(f"{options.out}: {len(done.films)} films of {len(done.patients)} patients, {done.objects} objects on them")
    return 0


def _abandon(options: argparse.Namespace) -> int:
    from node.commands.operate import abandon

    count = abandon(config.load(options.settings), options.destination, force=options.force)
    if options.json:
        print(json.dumps({"abandoned": {options.destination: count}}))
    else:
        print(f"{options.destination}: {f'{count} deliveries ended' if count else 'nothing is open'}")
    return 0


def _password(options: argparse.Namespace) -> int:
    from node.web import passwords
    from node.web.users import Role

    path, user, role = options.file, options.user, options.role and Role(options.role)
    called = {Role.ADMINISTRATOR: "an administrator", Role.READER: "a reader"}
    if options.list == bool(user):
        raise InputError("name a user, or --list; one of the two")
    if options.list:
        for name, entry in sorted(passwords.users_in(path).items()):
            print(f"{name}: {entry.role}")
        return 0
    if options.remove:
        passwords.remove_user(path, user)
        done = f"{user} is removed"
    elif role is not None and path.exists() and user in passwords.users_in(path):
        passwords.set_role(path, user, role)
        done = f"{user} is {called[role]} now"
    else:
        given = passwords.set_password(path, user, _typed_password(), role=role)
        done = f"{user} has a new password, and is {called[given]}"
    print(f"{path}: {done}")
    return 0


def _typed_password() -> str:
    """Return a password that is typed twice, or the first line of piped standard input. Raises InputError."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("The same again: ") != password:
        raise InputError("the two passwords differ; nothing was changed")
    return password


def _demo(options: argparse.Namespace) -> int:
    from node.commands import demo, read_files

    if not options.model.exists():
        shipped = Path(__file__).parents[1] / "models" / "weights" / "phantom"
        remedy = f"name a model directory by --model, such as a copy of {shipped}"
        raise InputError(f"{options.model} does not exist; {remedy}")
    read_files.check_folder(options.out)
    log.configure(level="warning")
    model = ModelSettings(
        directory=options.model, engine=options.engine, threads=options.threads, prompts=options.prompts
    )
    # Only where somebody can look at the page and end it: a program that runs the demonstration waits for its end.
    is_watched = sys.stdin.isatty() and sys.stdout.isatty()
    stay = partial(_stay, is_opened=options.open) if options.open or is_watched else None
    demo.run(options.out, model=model, say=lambda line: print(line, flush=True), stay=stay)
    return 0


def _stay(address: str, *, is_opened: bool) -> None:
    """Name the page of a study, and keep the node that serves it until Ctrl-C."""
    print(f"look at the film and ask about it: {address}\nCtrl-C ends it", flush=True)
    if is_opened:
        import webbrowser

        webbrowser.open(address)
    with suppress(KeyboardInterrupt):
        Event().wait()


def _parser() -> _Parser:
    parser = _Parser(prog=command_for("node"), description="Chest X-rays in, SR and GSPS out.")
    parser.add_argument("--version", action="version", version=VERSION_LINE)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for name, run, text in (
        ("serve", _serve, "run the service"),
        ("check", _check, "print the effective settings, or every mistake in them"),
        ("doctor", _doctor, "check disk, database, model, ports, certificates, passwords, clock and destinations"),
        ("reload", _reload, "have the running node use changed callers, destinations and prompts"),
        ("status", _status, "show what waits, is parked or failed, and why"),
        ("retry", _retry, "run parked work of studies again"),
        ("abandon", _abandon, "end all deliveries to a removed destination permanently"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("settings", type=Path, metavar="node.toml")
        command.set_defaults(run=run)
        if name == "serve":
            command.add_argument("--only", choices=[str(role) for role in Role], help="do one part; needs PostgreSQL")
            command.add_argument("--executor", metavar="NAME", help="name of this process; keep it across restarts")
        if name in ("doctor", "status", "retry", "abandon"):
            command.add_argument("--json", action="store_true", help="answer with one JSON document")
        if name == "retry":
            command.add_argument("study", nargs="*", metavar="STUDY_UID")
            command.add_argument("--all", action="store_true", help="all parked work")
            command.add_argument("--destination", metavar="NAME", help="every parked delivery to one destination")
        if name == "abandon":
            command.add_argument("destination", metavar="DESTINATION")
            command.add_argument("--force", action="store_true", help="even if it is still in the settings")

    text = "export what readers corrected as films with labels for models.train, without a patient's name"
    corrections = commands.add_parser("corrections", help=text, description=text)
    corrections.add_argument("settings", type=Path, metavar="node.toml")
    corrections.add_argument("--export", type=Path, required=True, metavar="FILE.jsonl", help="a new file")
    corrections.set_defaults(run=_corrections)

    text = "export films, reports and labels for research, de-identified (DICOM PS3.15 Annex E)"
    export = commands.add_parser("export", help=text, description=text)
    export.add_argument("settings", type=Path, metavar="node.toml")
    export.add_argument("--since", type=_day, required=True, metavar="DAY", help="films that came since, YYYY-MM-DD")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder, or an unfinished export")
    export.set_defaults(run=_export)

    text = "say why a file is read or not, or show the course of a study or film by its UID"
    explain = commands.add_parser("explain", help=text, description=text)
    explain.add_argument("what", type=Path, metavar="FILE_OR_UID")
    explain.add_argument("settings", type=Path, nargs="?", metavar="node.toml", help="needed for a UID")
    explain.set_defaults(run=_explain)

    _add_read(commands.add_parser("read", help="read files without a network"))

    ask = commands.add_parser("ask", help="ask about one film: by prompt, by box, or both")
    ask.add_argument("film", type=Path, metavar="FILE", help="DICOM, PNG or JPEG")
    ask.add_argument("--json", action="store_true", help="answer with one JSON document")
    ask.add_argument("--prompt", action="append", default=[], metavar="TEXT")
    ask.add_argument("--box", action="append", default=[], type=_box, metavar="L,T,R,B", help="pixels of the film")
    _add_model(ask, run=_ask, required=True)
    _add_trust(ask)

    text = "set the password of a user of the pages, typed twice or as a line of standard input"
    password = commands.add_parser("password", help=text, description=text)
    password.add_argument("file", type=Path, metavar="FILE", help="http.password_file of the settings")
    password.add_argument("user", nargs="?", metavar="USER")
    password.add_argument("--remove", action="store_true", help="remove the user")
    password.add_argument(
        "--role", choices=("reader", "administrator"), help="what the user may do; of a known user only this changes"
    )
    password.add_argument("--list", action="store_true", help="list the users with their roles")
    password.set_defaults(run=_password)

    demo = commands.add_parser("demo", help="send real films through a node on this machine")
    demo.add_argument("--open", action="store_true", help="open the page of the films in a browser")
    demo.add_argument("--out", type=Path, default=Path("demo-out"))
    _add_model(demo, run=_demo, required=False)
    return parser


def _add_read(read: argparse.ArgumentParser) -> None:
    """Add the arguments of `read`."""
    read.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    read.add_argument("--out", type=Path, required=True, help="folder for the results")
    read.add_argument(
        "--outputs",
        type=_outputs,
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
    _add_model(read, run=_read, required=True)
    _add_trust(read)


def _add_model(parser: argparse.ArgumentParser, *, run: object, required: bool) -> None:
    """Add the arguments that name a model and how it runs."""
    defaults = ModelSettings()
    reader = "the network: chex, the name of an installed reader, or package.module:function"
    parser.add_argument("--model", type=Path, required=required, default=defaults.directory, help="model directory")
    # TensorRT stores its engines in the node's storage folder, which these commands do not have.
    parser.add_argument("--engine", choices=[name for name in ENGINES if name != "tensorrt"], default=defaults.engine)
    parser.add_argument("--reader", default=defaults.reader, metavar="NAME", help=reader)
    parser.add_argument("--threads", type=_threads, default=defaults.threads, help="0: all cores")
    parser.add_argument("--prompt-set", dest="prompts", default=defaults.prompts, help="name or file of a prompt set")
    parser.set_defaults(run=run)


def _add_trust(parser: argparse.ArgumentParser) -> None:
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


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _threads(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of threads; 0 means all cores")
    return int(text)


def _outputs(text: str) -> tuple[str, ...]:
    """Return the kinds of outputs in the order of the table, each once."""
    wanted = text.split(",")
    if complaint := next(filter(None, map(OUTPUTS.complaint, wanted)), None):
        raise argparse.ArgumentTypeError(complaint)
    return in_order(wanted)


def _box(text: str) -> Box:
    """Turn left,top,right,bottom into a box."""
    try:
        left, top, right, bottom = (float(edge) for edge in text.split(","))
        return Box(left=left, top=top, right=right, bottom=bottom)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a box; write left,top,right,bottom in pixels") from error


def _day(text: str) -> date:
    """Turn YYYY-MM-DD into a day."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day; write YYYY-MM-DD") from error


def _zone(name: str) -> ZoneInfo:
    """Return a time zone. Raises InputError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InputError(f"{name!r} is not a time zone; use a name such as Europe/Berlin") from error


if __name__ == "__main__":
    code = while_read(main)
    os._exit(code)  # threads of the durable executor may wait forever; their work is on disk
