"""The settings of the destinations, each form with its rules."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from node.domain import MESSAGE_KIND
from node.hl7.character_sets import CODECS, DEFAULT
from node.settings.file import AE_TITLE, HL7_NAME, NOT_BLANK, WEB_URL, between, one_of, setting
from node.settings.tls import TlsSettings

OUTPUT_KINDS: Mapping[str, str] = {
    "sr": "structured report",
    "sr3d": "structured report, 3D form",
    "text": "report as text",
    "gsps": "presentation state",
    "sc": "picture with boxes",
}
"""What `outputs` of a destination for DICOM objects may name (`outputs.writers.OUTPUTS`), and its name on the pages."""
DEFAULT_OUTPUTS = ("sr", "gsps")

_PEER_PORT = between(1, 65535)
_ANSWER_SECONDS = between(0.05, 3600.0)
_GIVE_UP_HOURS = between(0.001, 8760.0)
_TYPE = one_of("dicom", "hl7", "dicomweb")


@dataclass(frozen=True, slots=True, kw_only=True)
class DicomDestination:
    """An archive that gets results by C-STORE."""

    name: str = setting(NOT_BLANK)
    ae_title: str = setting(AE_TITLE)
    host: str = setting(NOT_BLANK)
    port: int = setting(_PEER_PORT)
    type: str = setting(_TYPE, default="dicom")
    outputs: tuple[str, ...] = setting(one_of(*OUTPUT_KINDS), default=DEFAULT_OUTPUTS)
    storage_commitment: bool = False
    answer_seconds: float = setting(_ANSWER_SECONDS, default=60.0)
    give_up_hours: float = setting(_GIVE_UP_HOURS, default=72.0)
    tls: TlsSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hl7Destination:
    """An information system that gets results as ORU^R01 over MLLP, and the addresses in its messages."""

    name: str = setting(NOT_BLANK)
    host: str = setting(NOT_BLANK)
    port: int = setting(_PEER_PORT)
    type: str = setting(_TYPE, default="hl7")
    outputs: tuple[str, ...] = setting(one_of(MESSAGE_KIND), default=(MESSAGE_KIND,))
    sending_application: str = setting(HL7_NAME, default="CHEX")
    sending_facility: str = setting(HL7_NAME, default="")
    receiving_application: str = setting(HL7_NAME, default="")
    receiving_facility: str = setting(HL7_NAME, default="")
    processing_id: str = setting(one_of("P", "T", "D"), default="P")
    character_set: str = setting(one_of(*CODECS), default=DEFAULT)
    answer_seconds: float = setting(_ANSWER_SECONDS, default=30.0)
    give_up_hours: float = setting(_GIVE_UP_HOURS, default=72.0)
    tls: TlsSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DicomwebDestination:
    """An archive that gets results by STOW-RS.

    url: of its DICOMweb service; https without `tls` trusts the authorities of the system
    token_file: holds a bearer token, and is read for each request
    storage_commitment: ask by QIDO-RS whether the archive has what it was sent
    """

    name: str = setting(NOT_BLANK)
    url: str = setting(WEB_URL)
    type: str = setting(_TYPE, default="dicomweb")
    token_file: Path | None = None
    outputs: tuple[str, ...] = setting(one_of(*OUTPUT_KINDS), default=DEFAULT_OUTPUTS)
    storage_commitment: bool = False
    answer_seconds: float = setting(_ANSWER_SECONDS, default=60.0)
    give_up_hours: float = setting(_GIVE_UP_HOURS, default=72.0)
    tls: TlsSettings | None = None

    @property
    def is_secured(self) -> bool:
        """Whether requests go over TLS."""
        return urlsplit(self.url).scheme == "https"

    @property
    def host(self) -> str:
        """The name or address of the service."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port of the service."""
        return urlsplit(self.url).port or (443 if self.is_secured else 80)


DestinationSettings: TypeAlias = DicomDestination | Hl7Destination | DicomwebDestination
"""The forms of a destination table. Its `type` chooses the form; without a `type` it is the first."""


def unsafe_destination(destination: DestinationSettings) -> Iterator[str]:
    """Return a complaint, after the name of its key, for TLS that is not used and a token that could be read."""
    if isinstance(destination, DicomwebDestination) and not destination.is_secured:
        if destination.tls is not None:
            yield "tls: the url begins with http:, so no TLS is used; write https:"
        if destination.token_file is not None and not _is_loopback(destination.host):
            yield "token_file: a token is sent over TLS only; write https: in the url"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
