"""A small OpenID Connect provider on this machine, in threads: real HTTP, tokens that joserfc signs.

It signs everybody in at once as one person, asks for PKCE, state and nonce, and takes each code once. What it says can
be spoiled, as a provider that is wrong or hostile would.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from node.settings.http import OidcSettings
from tests.support.certificates import Identity
from tests.support.peers import LOOPBACK

CLIENT, SECRET = "chex-node", "a secret of the client"


@dataclass(slots=True, kw_only=True)
class Spoiled:
    """What the provider says otherwise than it should.

    claims: of the ID token; None leaves one out; metadata: of the discovery document
    is_forged: another key than the published one signs; is_unsigned: nobody signs
    has_token: whether the answer has an ID token
    """

    claims: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)
    is_forged: bool = False
    is_unsigned: bool = False
    has_token: bool = True


class Provider:
    """Signs in `ada`, who is in the groups `staff` and `radiology`; closed at the end of its context."""

    def __init__(self, identity: Identity | None = None) -> None:
        self.spoiled = Spoiled()
        self.asked: list[str] = []
        self.claims: dict[str, Any] = {"sub": "f:1:ada", "preferred_username": "ada", "groups": ["staff", "radiology"]}
        self.key = _key("own")
        self._codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider._get(self)

            def do_POST(self) -> None:
                provider._token(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._scheme = "http"
        if identity is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(identity.certificate, identity.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def issuer(self) -> str:
        """Its address."""
        return f"{self._scheme}://{LOOPBACK}:{self._server.server_address[1]}/realms/hospital"

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        self.asked.append(url.path.removeprefix("/realms/hospital"))
        match self.asked[-1]:
            case "/.well-known/openid-configuration":
                _answer(handler, {**self._metadata(), **self.spoiled.metadata})
            case "/keys":
                _answer(handler, KeySet([self.key]).as_dict(private=False))
            case "/authorize":
                self._authorize(handler, {name: value for name, (value,) in parse_qs(url.query).items()})
            case _:
                _answer(handler, {}, status=404)

    def _metadata(self) -> dict[str, object]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def _authorize(self, handler: BaseHTTPRequestHandler, asked: dict[str, str]) -> None:
        """Sign the person in, and lead the browser back with a code."""
        assert (asked["client_id"], asked["response_type"]) == (CLIENT, "code")
        assert (asked["code_challenge_method"], "openid" in asked["scope"].split()) == ("S256", True)
        assert len(asked["nonce"]) > 15 and len(asked["state"]) > 15
        code = secrets.token_urlsafe()
        self._codes[code] = asked
        handler.send_response(302)
        handler.send_header("location", f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}")
        handler.end_headers()

    def _token(self, handler: BaseHTTPRequestHandler) -> None:
        """Give a token for a code (RFC 6749 4.1.3), once, to whom the code was asked by (RFC 7636 4.6)."""
        self.asked.append("/token")
        body = handler.rfile.read(int(handler.headers["content-length"])).decode()
        sent = {name: value for name, (value,) in parse_qs(body).items()}
        login = base64.b64decode(handler.headers["authorization"].removeprefix("Basic ")).decode()
        asked = self._codes.pop(sent["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(sent["code_verifier"].encode()).digest()).decode()
        if login != f"{CLIENT}:{SECRET}":
            _answer(handler, {"error": "invalid_client"}, status=401)
        elif asked is None or (challenge.rstrip("="), sent["redirect_uri"]) != (
            asked["code_challenge"],
            asked["redirect_uri"],
        ):
            _answer(handler, {"error": "invalid_grant"}, status=400)
        else:
            answer = {"access_token": secrets.token_urlsafe(), "token_type": "Bearer", "expires_in": 60}
            _answer(handler, answer | ({"id_token": self._signed(asked)} if self.spoiled.has_token else {}))

    def _signed(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        usual = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 60, "nonce": asked["nonce"], **self.claims}
        claims = {name: value for name, value in {**usual, **self.spoiled.claims}.items() if value is not None}
        if self.spoiled.is_unsigned:
            parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in ({"alg": "none"}, claims)]
            return f"{'.'.join(part.rstrip('=') for part in parts)}."
        return jwt.encode(
            {"alg": "RS256", "kid": "first"}, claims, _key("forged") if self.spoiled.is_forged else self.key
        )


def oidc_of(provider: Provider, folder: Path) -> OidcSettings:
    """Settings of a node whose users a provider signs in; folder: for the file of the secret."""
    secret = folder / "secret"
    secret.write_text(f"{SECRET}\n", encoding="utf-8")
    return OidcSettings(
        issuer=provider.issuer,
        client_id=CLIENT,
        client_secret_file=secret,
        reader_groups=("radiology",),
        administrator_groups=("chex-admins",),
    )


@cache
def _key(_name: str) -> RSAKey:
    """A key that signs; to make one takes time."""
    return RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})


def _answer(handler: BaseHTTPRequestHandler, content: Mapping[str, object], *, status: int = 200) -> None:
    body = json.dumps(content).encode()
    handler.send_response(status)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
