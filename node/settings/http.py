"""The settings of the port of metrics, probes, pages and interface for programs, and who may use the last two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from node.settings.file import ADDRESS, HEADER_NAME, HOST_NAME, NOT_BLANK, between, is_loopback, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTlsSettings:
    """HTTPS by TLS 1.2 or newer: the node's own certificate and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Metrics, probes, pages and API, and who may use the last two. Port 0 takes any free port.

    hosts: names by which the node is reached, in addition to its address; a request for another name is refused
    trusted_proxy: addresses of reverse proxies, whose `user_header` names the user, if it is set
    role_header: in which a proxy names the user's roles or groups; those of `administrator_roles` make an administrator
    show_patient: whether everybody on this machine sees patients where no users are set
    """

    host: str = setting(NOT_BLANK, default="127.0.0.1")
    port: int = setting(between(0, 65535), default=8080)
    hosts: tuple[str, ...] = setting(HOST_NAME, default=())
    password_file: Path | None = None
    trusted_proxy: tuple[str, ...] = setting(ADDRESS, default=())
    user_header: str = setting(HEADER_NAME, default="")
    role_header: str = setting(HEADER_NAME, default="")
    administrator_roles: tuple[str, ...] = setting(NOT_BLANK, default=())
    tls: HttpTlsSettings | None = None
    show_patient: bool = False

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the port."""
        return is_loopback(self.host)

    @property
    def knows_users(self) -> bool:
        """Whether users can be told apart: by a password, or by the header of a proxy."""
        return self.password_file is not None or bool(self.user_header)

    @property
    def serves_pages(self) -> bool:
        """Whether pages and API are served. Without users they are for this machine only."""
        return self.knows_users or self.is_local

    @property
    def shows_patients(self) -> bool:
        """Whether somebody may see patients on pages; else the database holds none."""
        return self.knows_users or self.show_patient


def unsafe_access(http: HttpSettings) -> Iterator[str]:
    """Return a complaint for pages that anybody could open, or whose passwords would be readable on the network."""
    if http.user_header and not http.trusted_proxy:
        yield "http.user_header: any client could send it; name the proxy's IP addresses in http.trusted_proxy"
    if http.show_patient and not http.is_local:
        yield (
            "http.show_patient: shows patients without a password, so http.host must be this machine alone; "
            "remove it: a user who has signed in sees patients without it"
        )
    if http.trusted_proxy and not http.knows_users:
        yield "http.trusted_proxy: tells no users apart; name its http.user_header, or set http.password_file"
    if http.role_header and not http.user_header:
        yield "http.role_header: is of a user whom the proxy names; name the http.user_header, too"
    if bool(http.role_header) != bool(http.administrator_roles):
        yield "http.administrator_roles: belong to http.role_header; set both or neither"
    if not http.is_local and http.password_file is not None and http.tls is None and not http.trusted_proxy:
        yield "http.password_file: passwords would cross the network in clear; add [http.tls], or http.trusted_proxy"
