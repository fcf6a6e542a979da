"""All checks in the order in which they are shown, as lines for a person and as JSON for a program.

Each port can be opened, or a running process of this node has opened it. Somebody can sign in: the file of passwords is
read by nobody else, and has somebody in it; the provider of single sign-on says where users sign in.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from models.program import command_for
from node import config
from node.checks import Check, CheckState, fault, note, ok, run_check
from node.commands.doctor.model import check_model
from node.commands.doctor.storage import check_database, check_storage
from node.config import Settings
from node.errors import RetryLater
from node.health import alerts
from node.health.checks import check_certificates, check_clock, check_destinations
from node.jobs import processes
from node.jobs.processes import ProcessState
from node.web import passwords, single_sign_on
from node.web.users import Role

_PRIVILEGED: Final = 1024
_PASSWORDS: Final = "passwords"
_ADD: Final = f"{command_for('node')} password"
_OTHERS_WRITE, _OTHERS_READ = 0o022, 0o044


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
    """Check whether the webhook of [alerts] can be reached. Sends no alert; shows no path, which may be a secret."""
    if settings.alerts is None:
        return
    try:
        alerts.reach_webhook(settings.alerts.webhook)
    except RetryLater as error:
        yield fault("alerts", f"{error}; start it, or correct [alerts.webhook]")
    else:
        yield ok("alerts", "[alerts.webhook] can be reached; no alert was sent")


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
    """Check `http.password_file`; nothing is said if there is none. Raises ConfigError, whose text names the file."""
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
            "node to see whether the node may read it, and replace old hashes in it",
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
    """Say whether there is no fault; notes are allowed."""
    return all(check.state is not CheckState.FAULT for check in checks)


def render(checks: Sequence[Check]) -> str:
    """Return a line for each check, and a last line with the counts."""
    width = max(len(check.name) for check in checks)
    lines = [f"{_word(check.state):<5} {check.name:<{width}}  {check.message}" for check in checks]
    return "\n".join([*lines, _summary(checks)])


def to_json(checks: Sequence[Check]) -> dict[str, object]:
    """Return what the checks found as a JSON object."""
    return {
        "passed": passed(checks),
        "checks": [{"name": check.name, "state": str(check.state), "message": check.message} for check in checks],
    }


def _word(state: CheckState) -> str:
    return state.upper() if state is CheckState.FAULT else str(state)


def _summary(checks: Sequence[Check]) -> str:
    counts = {state: sum(check.state is state for check in checks) for state in (CheckState.FAULT, CheckState.NOTE)}
    found = [f"{count} {state}{'' if count == 1 else 's'}" for state, count in counts.items() if count]
    return ", ".join(found) or "everything is good"
