"""Single sign-on by OpenID Connect Core 1.0: the authorization code flow with PKCE (RFC 7636), by Authlib.

The provider is asked for its addresses and keys at each sign-in, so a renewed key, secret or certificate needs no
restart. The node calls the address of the issuer alone, follows no redirection, and uses no proxy of the environment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from node.errors import ConfigError
from node.net import tls
from node.settings.http import OidcSettings
from node.web.rate_limit import RateLimit, network_of
from node.web.users import Role, is_user_name

if TYPE_CHECKING:
    import httpx2
    from authlib.integrations.starlette_client import StarletteOAuth2App

_CLIENT: Final = "oidc"
_LIMIT_SECONDS: Final = 10.0
_LONGEST_NAME: Final = 100
_MARK_LETTERS: Final = 10
_ALGORITHMS: Final = frozenset(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512))
"""Signatures by a key that the provider alone has (RFC 7518 3.1)."""

Reason: TypeAlias = Literal["provider", "denied", "state", "token", "group", "busy"]
_ANSWERS: Final[Mapping[Reason, tuple[int, str]]] = {
    "provider": (502, "Single sign-on gives no usable answer. Try again; the log of this node says why."),
    "denied": (403, "Single sign-on did not let you in. Sign in again, or ask its administrator."),
    "state": (400, "This sign-in took too long, or was begun in another window. Sign in again."),
    "token": (403, "Single sign-on cannot be trusted about you. Sign in again; the log of this node says why."),
    "group": (403, "You are known, but none of your groups may use this node. Ask its administrator."),
    "busy": (429, "Too many people sign in from your network. Try again in a minute."),
}


class Refused(Exception):
    """A refused sign-in: the reason for the log, without the provider's text, and the page's text and status.

    user: if the provider has named one
    """

    def __init__(self, reason: Reason, why: str, *, user: str = "") -> None:
        super().__init__(f"{reason}: {why}")
        self.reason, self.why, self.user = reason, why, user
        self.status, self.text = _ANSWERS[reason]


class SingleSignOn:
    """Sends browsers to the provider, and judges with whom they come back. Only the thread of the server calls it."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._rate = RateLimit(burst=60, seconds=1.0)
        self.credential = hashlib.sha256(repr(settings).encode()).hexdigest()[:16]
        """Changes with the settings, so that nobody keeps a revoked role."""

    async def begin(self, request: Request, *, host: str, callback: str) -> Response:
        """Send the browser to the provider, which sends it back to `callback`. Raises Refused."""
        self._count(host)
        with _refusing():
            client = await self._client()
            answer: Response = await client.authorize_redirect(request, callback)
            return answer

    async def finish(self, request: Request, *, host: str) -> tuple[str, Role]:
        """Return the name and role of whom the provider has signed in, after its token is checked. Raises Refused.

        The name is the provider's display name, which may change and is not unique, and a hash of issuer and subject.
        """
        self._count(host)
        from authlib.integrations.starlette_client import StarletteIntegration

        begun = StarletteIntegration(_CLIENT).get_state_data(request.session, request.query_params.get("state", ""))
        if await begun is None:  # before a request to the provider: this needs no sign-in
            raise Refused("state", "no such sign-in was begun in this browser")
        if "error" in request.query_params:
            raise Refused("denied", "the provider sent an error in place of a code")
        wanted = {"iss": self._settings.issuer, "aud": self._settings.client_id}
        with _refusing():
            client = await self._client()
            token = await client.authorize_access_token(
                request, claims_options={name: {"essential": True, "value": value} for name, value in wanted.items()}
            )
            if "userinfo" not in token:
                raise Refused("token", "the provider sent no ID token")
            return self._user_of(token["userinfo"])

    async def examine(self) -> None:
        """Ask the provider for its addresses and keys. Raises Refused."""
        with _refusing():
            await (await self._client()).fetch_jwk_set()

    def _count(self, host: str) -> None:
        """Limit the sign-ins of one network; this needs no sign-in. Raises Refused."""
        if self._rate.take(network_of(host)):
            raise Refused("busy", "too many sign-ins")

    async def _client(self) -> StarletteOAuth2App:
        """Make a client from the provider's current metadata (OpenID Connect Discovery 1.0, 4.3)."""
        from authlib.integrations.starlette_client import OAuth  # takes a fifth of a second, which other nodes save

        settings = self._settings
        client = OAuth().register(
            _CLIENT,
            client_id=settings.client_id,
            client_secret=_secret(settings.client_secret_file),
            server_metadata_url=f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={
                "scope": " ".join(("openid", "profile", *settings.scopes)),
                "code_challenge_method": "S256",
                "verify": await anyio.to_thread.run_sync(partial(tls.system_context, settings.ca)),
                "trust_env": False,
                "timeout": _LIMIT_SECONDS,
                "event_hooks": {"request": [self._require_issuer]},
            },
        )
        metadata = await client.load_server_metadata()
        if metadata.get("issuer") != settings.issuer:
            raise Refused("provider", "the provider names another issuer than http.oidc.issuer; write it alike")
        offered = metadata.get("id_token_signing_alg_values_supported") or []
        client.server_metadata["id_token_signing_alg_values_supported"] = [
            algorithm for algorithm in offered if algorithm in _ALGORITHMS
        ]
        return client

    async def _require_issuer(self, request: httpx2.Request) -> None:
        """Refuse requests to another server than the issuer's, also if its metadata names one. Raises Refused."""
        asked, own = urlsplit(str(request.url)), urlsplit(self._settings.issuer)
        if (asked.scheme, asked.hostname, asked.port) != (own.scheme, own.hostname, own.port):
            raise Refused("provider", "the provider has an address on another server than http.oidc.issuer")

    def _user_of(self, claims: dict[str, Any]) -> tuple[str, Role]:
        settings = self._settings
        name, subject = claims.get("preferred_username"), claims.get("sub")
        if not (isinstance(name, str) and is_user_name(name) and len(name) <= _LONGEST_NAME):
            name = _CLIENT
        if not (isinstance(subject, str) and subject):
            raise Refused("token", "no subject in sub")
        mark = hashlib.sha256(f"{settings.issuer}\n{subject}".encode()).hexdigest()[:_MARK_LETTERS]
        name = f"{name} ({mark})"
        claimed = claims.get(settings.groups_claim)
        groups = {group for group in (claimed if isinstance(claimed, list) else [claimed]) if isinstance(group, str)}
        for role, its_groups in (
            (Role.ADMINISTRATOR, settings.administrator_groups),
            (Role.READER, settings.reader_groups),
        ):
            if groups.intersection(its_groups):
                return name, role
        raise Refused("group", f"{len(groups)} groups in {settings.groups_claim}, none with a role", user=name)


def check_files(settings: OidcSettings) -> None:
    """Check that the files of the settings can be used. Raises ConfigError."""
    mistakes = []
    try:
        _secret(settings.client_secret_file)
    except (OSError, ValueError) as error:
        why = f"{settings.client_secret_file}: {tls.complaint(error)}"
        mistakes.append(f"http.oidc.client_secret_file: {why}; write the secret of the client in one line")
    try:
        tls.system_context(settings.ca)
    except (OSError, ValueError) as error:
        mistakes.append(f"http.oidc.ca: {settings.ca}: {tls.complaint(error)}; name a PEM file of certificates")
    if mistakes:
        raise ConfigError(mistakes)


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn Authlib's errors into Refused, without the provider's text."""
    from authlib.integrations.base_client.errors import OAuthError
    from joserfc.errors import JoseError

    try:
        yield
    except Refused:
        raise
    except JoseError as error:  # signature, issuer, audience, nonce, time
        claim = getattr(error, "claim", "") or error.error
        raise Refused("token", f"{type(error).__name__} ({claim})") from error
    except OAuthError as error:
        raise Refused("provider", "the provider refused the node; check client_id and client_secret_file") from error
    except Exception as error:  # errors of the connection, or of the provider's documents
        raise Refused("provider", tls.cause(error)) from error


def _secret(path: Path) -> str:
    """Return the client's secret. Raises OSError, or ValueError if the file has no line of text."""
    secret = path.read_text(encoding="utf-8").strip()
    if not secret or not secret.isprintable():
        raise ValueError
    return secret
