"""The settings of the port of metrics, probes, pages and interface for programs, and who may use the last two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from models.documents import refuse
from node.settings.rules import Address, FilePath, HeaderName, HostName, NotBlank, Port, Several, WebUrl, is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTlsSettings:
    """HTTPS by TLS 1.2 or newer: the node's own certificate and its key."""

    certificate: FilePath
    key: FilePath


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """Single sign-on by an OpenID Connect provider; users in neither list of groups are refused.

    issuer: the provider, as in its tokens; only its own server is called
    client_secret_file: holds the secret in one line, and is read at each sign-in
    scopes: scopes beside `openid` and `profile`, for a provider that names groups only then
    groups_claim: the claim of the ID token that lists groups
    ca: an authority trusted beside the authorities of the system
    """

    issuer: WebUrl
    client_id: NotBlank
    client_secret_file: FilePath
    scopes: Several[NotBlank] = ()
    groups_claim: NotBlank = "groups"
    reader_groups: Several[NotBlank] = ()
    administrator_groups: Several[NotBlank] = ()
    ca: FilePath | None = None

    def __post_init__(self) -> None:
        refuse(self._unusable())

    def _unusable(self) -> Iterator[str]:
        """Yield complaints about an issuer without TLS, and about settings that admit nobody."""
        issuer = urlsplit(self.issuer)
        host = issuer.hostname or ""
        if issuer.scheme == "http" and not (is_loopback(host) or host.endswith(".localhost")):  # RFC 6761 6.3
            yield "issuer: secret and tokens would cross the network in clear; write https: where it is served"
        if not (self.reader_groups or self.administrator_groups):
            yield "administrator_groups: nobody could sign in; name groups there, or in http.oidc.reader_groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Metrics, probes, pages and API, and who may use the last two. Port 0 takes any free port.

    probe_port: one more port, for `/metrics`, `/live` and `/ready` alone, with its own thread
    hosts: names by which the node is reached, in addition to its address; a request for another name is refused
    trusted_proxy: addresses of reverse proxies, whose `user_header` names the user, if it is set
    role_header: the header with the user's roles or groups; those of `administrator_roles` make an administrator
    show_patient: whether everybody on this machine sees patients where no users are set
    """

    host: NotBlank = "127.0.0.1"
    port: Port = 8080
    probe_port: Port | None = None
    hosts: Several[HostName] = ()
    password_file: FilePath | None = None
    oidc: OidcSettings | None = None
    trusted_proxy: Several[Address] = ()
    user_header: HeaderName = ""
    role_header: HeaderName = ""
    administrator_roles: Several[NotBlank] = ()
    tls: HttpTlsSettings | None = None
    show_patient: bool = False

    def __post_init__(self) -> None:
        refuse(self._unsafe())

    def _unsafe(self) -> Iterator[str]:
        """Yield complaints about pages open to everybody, or whose passwords would cross the network in clear."""
        if self.user_header and not self.trusted_proxy:
            yield "user_header: any client could send it; name the proxy's IP addresses in http.trusted_proxy"
        if self.show_patient and not self.is_local:
            yield (
                "show_patient: shows patients without a password, so http.host must be this machine alone; "
                "remove it: a user who has signed in sees patients without it"
            )
        if self.trusted_proxy and not self.knows_users:
            remedy = "name its http.user_header, or set http.password_file or http.oidc"
            yield f"trusted_proxy: does not identify users; {remedy}"
        if self.role_header and not self.user_header:
            yield "role_header: has the roles of the user in http.user_header; name that header, too"
        if bool(self.role_header) != bool(self.administrator_roles):
            yield "administrator_roles: belong to http.role_header; set both or neither"
        if not self.is_local and self.tls is None and not self.trusted_proxy:
            remedy = "add [http.tls], or http.trusted_proxy"
            if self.password_file is not None:
                yield f"password_file: passwords would cross the network in clear; {remedy}"
            if self.oidc is not None:
                yield f"oidc: sessions would cross the network in clear; {remedy}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the port."""
        return is_loopback(self.host)

    @property
    def knows_users(self) -> bool:
        """Whether users are identified: by a password, by single sign-on, or by the header of a proxy."""
        return self.password_file is not None or self.oidc is not None or bool(self.user_header)

    @property
    def serves_pages(self) -> bool:
        """Whether pages and API are served. Without users they are for this machine only."""
        return self.knows_users or self.is_local

    @property
    def shows_patients(self) -> bool:
        """Whether somebody may see patients on pages; else the database holds none."""
        return self.knows_users or self.show_patient
