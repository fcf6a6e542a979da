"""Checks the node's ports: each can be opened, or a running process of this node has opened it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence
from typing import Final

from node import config
from node.checks import Check, fault, ok
from node.config import Settings
from node.jobs import processes
from node.jobs.processes import ProcessState

_PRIVILEGED: Final = 1024


def check_ports(settings: Settings) -> Iterator[Check]:
    """Bind every port for a moment, without listening on it."""
    running = [process for process in processes.states(settings.storage, settings.http) if process.answers]
    for table, host, port in config.servers(settings):
        yield _check(table, host, port, running)


def _check(table: str, host: str, port: int, running: Sequence[ProcessState]) -> Check:
    name, address = f"port {table}", f"{host}:{port}"
    try:
        _bind(host, port)
    except OSError as error:
        holder = next((process for process in running if port in process.ports), None)
        if error.errno == errno.EADDRINUSE and holder is not None:
            return ok(name, f"{address} is used by this node, which runs (process {holder.executor})")
        return fault(name, f"{address} cannot be opened ({error.strerror}); {_remedy(table, port, error)}")
    return ok(name, f"{address} is free" if port else f"{host}: the start takes any free port")


def _bind(host: str, port: int) -> None:
    """Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the node does
        server.bind(address)


def _remedy(table: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"another program has it (ss -ltnp 'sport = :{port}' names it): stop that program, or set {table}.port"
    if error.errno == errno.EACCES:
        return f"ports below {_PRIVILEGED} need CAP_NET_BIND_SERVICE: grant it, or set {table}.port"
    host = "listener.host" if table == "listener.tls" else f"{table}.host"
    return f"set {host} to an address of this machine, such as 0.0.0.0 for all"
