"""Checks beyond the command `check`: disk, database, model, ports, sign-in, certificates, clock and peers.

It changes nothing: a temporary file in the storage folder is removed again, the database is opened for reading, and a
destination gets association requests and echoes. It may run beside a node. No line contains a patient or a password.
Of SQLite files integrity and mode are checked, of PostgreSQL that it answers. The model is opened as `serve` does.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from models.contract import Fallback
from models.program import command_for
from node import config
from node.check_result import Check, CheckState, fault, note, ok, run_check
from node.config import CHEX, GPU_ENGINES, ModelSettings, Settings, StorageSettings
from node.errors import InputError, NodeError, RetryLater
from node.health import alerts
from node.health.checks import check_certificates, check_clock, check_destinations, check_room
from node.jobs import processes
from node.jobs.processes import ProcessState
from node.prompt_set import PromptSet
from node.read import prompts
from node.read.manifest import not_calibrated, read_film_rule
from node.read.model import RadiographReader, check_files, open_configured, read_gpu
from node.service.model import refusal
from node.store import database
from node.store.folders import fault_of_folder, require_known_format
from node.web import passwords, single_sign_on
from node.web.users import Role

_STORAGE: Final = "storage"
_OTHERS: Final = 0o077
"""The permissions of a folder's or file's group and of everybody else."""
_DATABASE: Final = "database"
_SLOW_SECONDS: Final = 1.0
_APART_SECONDS: Final = 10.0
_MODEL: Final = "model"
_NOT_BUILT: Final = "not_built"
NOWHERE: Final = Path(os.devnull) / "engines"
"""A folder that cannot be created: a check must not spend minutes to build TensorRT engines on a running node's GPU."""
_PRIVILEGED: Final = 1024
_PASSWORDS: Final = "passwords"
_ADD: Final = f"{command_for('node')} password"
_OTHERS_WRITE, _OTHERS_READ = 0o022, 0o044


def check_storage(settings: Settings) -> Iterator[Check]:
    """Store a file in the storage folder as a film is stored, and remove it; check space, owner and processes."""
    storage = settings.storage
    try:
        if not storage.directory.exists():
            yield _absent(storage.directory)
            return
        require_known_format(storage.directory)
        complaint = fault_of_folder(storage.directory, is_shared=bool(storage.database_url))
    except InputError as error:  # the same text as `serve`
        yield fault(_STORAGE, str(error))
        return
    except OSError as error:
        yield _unusable(storage, error)
        return
    if complaint is not None:
        yield fault(_STORAGE, f"{storage.directory}: {complaint}")
        return
    room = check_room(storage)
    usable = ok(_STORAGE, f"{storage.directory} can be written, synced, renamed and locked; {room.message}")
    yield usable if room.state is CheckState.OK else room
    yield from _access(storage.directory)
    yield from _processes(settings)


def is_open_to_others(path: Path) -> bool:
    """Return whether anybody but the owner has a permission."""
    return bool(path.stat().st_mode & _OTHERS)


def _absent(directory: Path) -> Check:
    above = next(folder for folder in directory.absolute().parents if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        return fault(
            _STORAGE, f"{directory} does not exist and cannot be created in {above}; {_folder_remedy(directory)}"
        )
    return note(
        _STORAGE,
        f"{directory} does not exist; the first start creates it; if the node has run before, mount its disk or "
        "correct storage.directory",
    )


def _unusable(storage: StorageSettings, error: OSError) -> Check:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return fault(
            _STORAGE, f"{storage.directory} is full ({error.strerror}); free space, films are refused until then"
        )
    if error.errno in (errno.EROFS, errno.EIO):
        return fault(_STORAGE, f"{storage.directory} cannot be used ({error.strerror}); check the disk and its mount")
    return fault(
        _STORAGE, f"{storage.directory} cannot be used ({error.strerror}); {_folder_remedy(storage.directory)}"
    )


def _access(directory: Path) -> Iterator[Check]:
    found = directory.stat()
    if found.st_uid != os.geteuid():
        yield note(
            "storage owner",
            f"{directory} belongs to user {found.st_uid}, and this command ran as {os.geteuid()}; run it as the user "
            "of the node to see what the node may do",
        )
    if is_open_to_others(directory):
        yield note(
            "storage mode", f"{directory} is open to other users (mode {found.st_mode & 0o7777:04o}); chmod 700 it"
        )


def _processes(settings: Settings) -> Iterator[Check]:
    """Report the processes of this node; one that is not ready gets a note."""
    for process in processes.states(settings.storage, settings.http):
        name = f"process {process.executor}"
        if process.ready is None:
            yield ok(name, "runs on another machine; run this command there for its ports")
        elif process.ready:
            yield ok(name, "runs on the storage folder and is ready")
        elif process.answers:
            yield note(name, "runs on the storage folder and is not ready; its /ready shows which part is not good")
        else:
            yield note(name, "has not ended in order and does not answer: it was killed or hangs; start it again")


def _folder_remedy(directory: Path) -> str:
    return (
        f"give the node's user a folder of its own there (chown, chmod 700), or correct storage.directory {directory}"
    )


def check_database(settings: Settings) -> Iterator[Check]:
    """Read the SQLite files completely, or ask PostgreSQL."""
    if settings.storage.database_url:
        yield from _server(settings.storage)
        return
    for path in database.sqlite_files(settings.storage):
        yield from _file(path)
    for path in database.files_set_aside(settings.storage):
        yield note(
            f"{_DATABASE} {path.name}",
            "a damaged file that a start moved aside; check the disk, and remove the file when it is no longer needed",
        )


def _file(path: Path) -> Iterator[Check]:
    name = f"{_DATABASE} {path.name}"
    if not path.exists():
        yield ok(name, "does not exist yet; the first start creates it")
    elif not database.is_whole(path):
        yield fault(name, f"{path} is damaged; restart the node, which moves it aside and builds a new one")
    elif is_open_to_others(path):
        yield note(name, f"{path} is good, and open to other users; chmod 600 it, or restart the node, which does")
    else:
        yield ok(name, f"{path} is good")


def _server(storage: StorageSettings) -> Iterator[Check]:
    began = time.monotonic()
    try:
        server = database.ask_server(storage)
    except NodeError as error:
        yield fault(_DATABASE, f"PostgreSQL cannot be asked ({error}); start it, or correct storage.database_url")
        return
    seconds, apart = time.monotonic() - began, abs((server.now - datetime.now(UTC)).total_seconds())
    version = f"PostgreSQL {server.version}"
    if server.is_standby:
        yield fault(
            _DATABASE, f"{version} is a standby, which accepts no writes; name the primary in storage.database_url"
        )
    elif server.forbidden:
        schemas = " and ".join(server.forbidden)
        yield fault(
            _DATABASE, f"{version}: the node's user may not create tables in {schemas}; GRANT CREATE ON DATABASE"
        )
    elif seconds > _SLOW_SECONDS:
        yield note(_DATABASE, f"{version} answers, but took {seconds:.1f} s; look at its load and the network")
    else:
        yield ok(_DATABASE, f"{version} answers in {seconds * 1000:.0f} ms, and the node may create its tables")
    if apart > _APART_SECONDS:
        yield note(f"{_DATABASE} clock", f"the clocks of PostgreSQL and this machine differ by {apart:.0f} s; set them")


def check_model(settings: Settings) -> Iterator[Check]:
    """Open the model with the runtime of the settings. Raises ConfigError or InputError with the fault."""
    model = settings.model
    prompt_set = prompts.load(model.prompts)
    if model.reader == CHEX:
        check_files(model.directory, engine=model.engine)
    reader = open_configured(settings, prompt_set, engines=NOWHERE)
    identity = reader.identity
    yield ok(
        _MODEL,
        f"{identity.name} {identity.version} in {model.directory}: {_opened(model)}, runtime {identity.engine} "
        f"answers, prompt set {prompt_set.title} fits",
    )
    if why := refusal(settings, identity, prompt_set):
        yield fault(f"{_MODEL} change", why)
    for fallback in reader.fallbacks:
        yield note(
            f"{_MODEL} engine", f"{identity.engine} runs instead of {fallback.engine}: {_fallback_reason(fallback)}"
        )
    yield from _left_out(model, prompt_set)
    if text := not_calibrated(model.directory, prompt_set, reader=model.reader):
        yield note(f"{_MODEL} thresholds", text)
    yield from _parity(reader)
    if model.reader == CHEX and model.engine in GPU_ENGINES:
        yield _gpu()


def _fallback_reason(fallback: Fallback) -> str:
    if fallback.reason == _NOT_BUILT:
        return (
            "only serve opens its engines, and builds what is missing; the log says in model.opened which one it uses"
        )
    return fallback.message


def _opened(model: ModelSettings) -> str:
    return "its hashes are right" if model.reader == CHEX else f"reader {model.reader} opens it"


def _left_out(model: ModelSettings, prompt_set: PromptSet) -> Iterator[Check]:
    """Name the findings of the prompt set that the model never reports."""
    left_out = read_film_rule(model.directory, reader=model.reader).left_out
    if names := [prompt.key.replace("_", " ") for prompt in prompt_set.prompts if prompt.key in left_out]:
        why = "never reported, because nobody showed that this model recognizes them well enough"
        yield note(f"{_MODEL} findings", f"{why}: {', '.join(names)}")


def _parity(reader: RadiographReader) -> Iterator[Check]:
    """Report that runtime and weights agree, which opening the model has verified."""
    if reader.parity:
        share = max(stage.share for stage in reader.parity.values())
        yield ok(f"{_MODEL} graphs", f"are proven; they use at most {share:.0%} of the tolerance")


def _gpu() -> Check:
    """Report GPU and driver."""
    found = read_gpu()
    if found is None:
        return note(f"{_MODEL} GPU", "PyTorch finds none")
    return ok(f"{_MODEL} GPU", f"{found[0]}, driver {found[1]}")


def check_audit(settings: Settings) -> Iterator[Check]:
    """Check whether the file of audit messages can be written; does not create it: another user may run this."""
    if settings.audit is None:
        return
    path = settings.audit.file
    place = path if path.exists() else path.parent
    if place.is_dir() == path.exists() or not os.access(place, os.W_OK):
        yield fault("audit", f"audit.file {path} cannot be written; create its folder, or choose another file")
    else:
        yield ok("audit", f"{path} can be written")


def check_alerts(settings: Settings) -> Iterator[Check]:
    """Check whether the webhooks can be reached. Sends nothing; shows no path, which may be a secret."""
    webhooks = {} if settings.alerts is None else {"[alerts.webhook]": settings.alerts.webhook}
    for table, webhook in (webhooks | {f"[[notify]] {each.name}": each for each in settings.notify}).items():
        try:
            alerts.reach_webhook(webhook)
        except RetryLater as error:
            yield fault("alerts", f"{error}; start it, or correct {table}")
        else:
            yield ok("alerts", f"{table} can be reached; no alert was sent")


def check_ports(settings: Settings) -> Iterator[Check]:
    """Bind every port for a moment, without listening on it."""
    running = [process for process in processes.states(settings.storage, settings.http) if process.answers]
    for key, host, port in config.servers(settings):
        yield _check(key, host, port, running)


def _check(key: str, host: str, port: int, running: Sequence[ProcessState]) -> Check:
    name, address = f"port {key.removesuffix('.port')}", f"{host}:{port}"
    try:
        _bind(host, port)
    except OSError as error:
        holder = next((process for process in running if port in process.ports), None)
        if error.errno == errno.EADDRINUSE and holder is not None:
            return ok(name, f"{address} is used by this node, which runs (process {holder.executor})")
        return fault(name, f"{address} cannot be opened ({error.strerror}); {_remedy(key, port, error)}")
    return ok(name, f"{address} is free" if port else f"{host}: the start takes any free port")


def _bind(host: str, port: int) -> None:
    """Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the node does
        server.bind(address)


def _remedy(key: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"another program has it (ss -ltnp 'sport = :{port}' names it): stop that program, or set {key}"
    if error.errno == errno.EACCES:
        return f"ports below {_PRIVILEGED} need CAP_NET_BIND_SERVICE: grant it, or set {key}"
    return f"set {key.split('.')[0]}.host to an address of this machine, such as 0.0.0.0 for all"


def check_passwords(settings: Settings) -> Iterator[Check]:
    """Check `http.password_file`; yields nothing if there is none. Raises ConfigError, whose text names the file."""
    path = settings.http.password_file
    if path is None:
        return
    users = passwords.users_in(path)
    count, administrators = len(users), sum(entry.role is Role.ADMINISTRATOR for entry in users.values())
    if not count:
        yield fault(_PASSWORDS, f"{path} has no user, so nobody can sign in; add one by {_ADD} {path} USER")
        return
    if not administrators:
        yield note(_PASSWORDS, f"{path} has no administrator; make one by {_ADD} {path} USER --role administrator")
    found = path.stat()
    mode = f"mode {found.st_mode & 0o7777:04o}"
    if found.st_mode & _OTHERS_WRITE:
        yield fault(_PASSWORDS, f"others may change {path} ({mode}), and so sign in as anybody; chmod 600 it")
    elif found.st_mode & _OTHERS_READ:
        yield note(_PASSWORDS, f"others may read the hashes in {path} ({mode}); chmod 600 it")
    if found.st_uid not in (0, os.geteuid()):
        yield note(
            _PASSWORDS,
            f"{path} belongs to user {found.st_uid}, and this command ran as {os.geteuid()}; run it as the user of the "
            "node to see whether the node may read it",
        )
    yield ok(
        _PASSWORDS, f"{path} has {count} user{'' if count == 1 else 's'}; with the role administrator: {administrators}"
    )


def check_single_sign_on(settings: Settings) -> Iterator[Check]:
    """Ask the provider of `http.oidc` for its addresses and keys; signs nobody in. Raises ConfigError for bad files."""
    oidc, name = settings.http.oidc, "single sign-on"
    if oidc is None:
        return
    single_sign_on.check_files(oidc)
    try:
        asyncio.run(single_sign_on.SingleSignOn(oidc).examine())
    except single_sign_on.Refused as refused:
        yield fault(name, f"{oidc.issuer} cannot be used ({refused.why}); start it, or correct [http.oidc]")
    else:
        yield ok(name, f"{oidc.issuer} says where users sign in, and by which keys; nobody was signed in")


_CHECKS: Final[Mapping[str, Callable[[Settings], Iterable[Check]]]] = {
    "storage": check_storage,
    "database": check_database,
    "model": check_model,
    "ports": check_ports,
    "certificates": check_certificates,
    "passwords": check_passwords,
    "single sign-on": check_single_sign_on,
    "audit": check_audit,
    "alerts": check_alerts,
    "clock": check_clock,
}


def examine(settings: Settings) -> tuple[Check, ...]:
    """Check everything. The destinations are asked first, while no model computes: their answers are timed."""
    last = run_check("destinations", partial(check_destinations, settings))
    first = [run_check(name, partial(look, settings)) for name, look in _CHECKS.items()]
    return tuple(check for checks in (*first, last) for check in checks)


def passed(checks: Sequence[Check]) -> bool:
    """Return whether there is no fault; notes are allowed."""
    return all(check.state is not CheckState.FAULT for check in checks)


def render(checks: Sequence[Check]) -> str:
    """Return a line for each check, and a last line with the counts."""
    width = max(len(check.name) for check in checks)
    lines = [f"{_word(check.state):<5} {check.name:<{width}}  {check.message}" for check in checks]
    return "\n".join([*lines, _summary(checks)])


def to_json(checks: Sequence[Check]) -> dict[str, object]:
    """Return the results of the checks as a JSON object."""
    return {"passed": passed(checks), "checks": [asdict(check) for check in checks]}


def _word(state: CheckState) -> str:
    return state.upper() if state is CheckState.FAULT else str(state)


def _summary(checks: Sequence[Check]) -> str:
    counts = {state: sum(check.state is state for check in checks) for state in (CheckState.FAULT, CheckState.NOTE)}
    found = [f"{count} {state}{'' if count == 1 else 's'}" for state, count in counts.items() if count]
    return ", ".join(found) or "everything is good"
