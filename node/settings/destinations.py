"""The settings of the destinations, each form with its rules."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, Protocol
from urllib.parse import urlsplit

from models.documents import Rule, refuse
from node.errors import InputError
from node.hl7.text import CODECS, DEFAULT
from node.output_kinds import DEFAULT_OUTPUTS, OUTPUTS
from node.plugins import Table
from node.settings.rules import AeTitle, FilePath, Hl7Name, NotBlank, Several, WebUrl, between, is_loopback, one_of

_PeerPort = Annotated[int, between(1, 65535)]
_AnswerSeconds = Annotated[float, between(0.05, 3600.0)]
_GiveUpHours = Annotated[float, between(0.001, 8760.0)]

TypeName = Annotated[str, Rule(lambda name: TYPES.complaint(name))]
Outputs = Several[Annotated[str, Rule(OUTPUTS.complaint)]]
"""The values of `type`, and of `outputs` for DICOM objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS 1.2 or newer: the trusted authority, and the node's own certificate if the other side requires one."""

    ca: FilePath
    certificate: FilePath | None = None
    key: FilePath | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("key: a certificate needs its key and a key its certificate; name both or neither")


class DestinationSettings(Protocol):
    """The settings that destinations of all types have."""

    @property
    def name(self) -> str:
        """Its name, which no other destination has."""

    @property
    def type(self) -> str:
        """The name of its type."""

    @property
    def host(self) -> str:
        """Its address, for the log and for `doctor`; "" if it is not on the network."""

    @property
    def port(self) -> int:
        """Its port; 0 if it is not on the network."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The kinds of outputs that it gets."""

    @property
    def storage_commitment(self) -> bool:
        """Whether the node requests storage commitment."""

    @property
    def give_up_hours(self) -> float:
        """The time, in hours, after which a delivery that fails is parked."""

    @property
    def tls(self) -> TlsSettings | None:
        """Its TLS table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DicomDestination:
    """An archive that gets results by C-STORE."""

    name: NotBlank
    ae_title: AeTitle
    host: NotBlank
    port: _PeerPort
    type: TypeName = "dicom"
    outputs: Outputs = DEFAULT_OUTPUTS
    storage_commitment: bool = False
    answer_seconds: _AnswerSeconds = 60.0
    give_up_hours: _GiveUpHours = 72.0
    tls: TlsSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hl7Destination:
    """An information system that gets results as ORU^R01 over MLLP, and the addresses in its messages."""

    name: NotBlank
    host: NotBlank
    port: _PeerPort
    type: TypeName = "hl7"
    outputs: Several[Annotated[str, one_of("oru")]] = ("oru",)
    sending_application: Hl7Name = "CHEX"
    sending_facility: Hl7Name = ""
    receiving_application: Hl7Name = ""
    receiving_facility: Hl7Name = ""
    processing_id: Literal["P", "T", "D"] = "P"
    character_set: Annotated[str, one_of(*CODECS)] = DEFAULT
    answer_seconds: _AnswerSeconds = 30.0
    give_up_hours: _GiveUpHours = 72.0
    tls: TlsSettings | None = None
    storage_commitment: ClassVar[bool] = False
    """An information system confirms nothing but the message itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDestination:
    """Common settings of destinations over HTTP.

    url: the base URL of its service; https without `tls` trusts the authorities of the system
    token_file: holds a bearer token; login_file: holds USER:PASSWORD for basic authentication; read for each request
    """

    name: NotBlank
    url: WebUrl
    token_file: FilePath | None = None
    login_file: FilePath | None = None
    answer_seconds: _AnswerSeconds = 60.0
    give_up_hours: _GiveUpHours = 72.0
    tls: TlsSettings | None = None

    def __post_init__(self) -> None:
        refuse(self._unsafe())

    def _unsafe(self) -> Iterator[str]:
        if not self.is_secured and self.tls is not None:
            yield "tls: the url begins with http:, so no TLS is used; write https:"
        for key in ("token_file", "login_file"):
            if not self.is_secured and getattr(self, key) is not None and not is_loopback(self.host):
                yield f"{key}: its content is sent over TLS only; write https: in the url"
        if self.token_file is not None and self.login_file is not None:
            yield "login_file: the service asks for a token or a login; name one of the two files"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DicomwebDestination(WebDestination):
    """An archive that gets results by STOW-RS.

    storage_commitment: ask by QIDO-RS whether the archive has the objects it was sent
    """

    type: TypeName = "dicomweb"
    outputs: Outputs = DEFAULT_OUTPUTS
    storage_commitment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FhirDestination(WebDestination):
    """A FHIR server (R5) that gets a transaction bundle a study.

    patient_system, accession_system: the URIs by which the server knows patient and accession numbers, if it has any
    """

    type: TypeName = "fhir"
    outputs: Several[Annotated[str, one_of("fhir")]] = ("fhir",)
    patient_system: str = ""
    accession_system: str = ""
    storage_commitment: ClassVar[bool] = False
    """A FHIR server confirms nothing but the bundle itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationType:
    """A type of destinations.

    settings: the dataclass of its table, which is a `DestinationSettings`
    sender: where its `deliver.kinds.Sender` stands, as MODULE:NAME; it is imported when it is used first
    """

    settings: type
    sender: str


TYPES: Final = Table(
    group="chex_node.destinations",
    kind=DestinationType,
    own={
        "dicom": DestinationType(settings=DicomDestination, sender="node.deliver.dicom:SENDER"),
        "hl7": DestinationType(settings=Hl7Destination, sender="node.deliver.hl7:SENDER"),
        "dicomweb": DestinationType(settings=DicomwebDestination, sender="node.deliver.dicomweb:SENDER"),
        "fhir": DestinationType(settings=FhirDestination, sender="node.deliver.fhir:SENDER"),
    },
)


def form_of(table: Mapping[str, object]) -> type:
    """Return the dataclass for a destination's table: that of its `type`, or of `dicom` if it names none that is known.

    The rule on `type` reports an invalid name.
    """
    with suppress(InputError):
        if (found := TYPES.find(str(table.get("type")))) is not None:
            return found.settings
    return DicomDestination


class DestinationTable(Mapping[str, DestinationSettings]):
    """The destinations in force, by name. A reload of the settings replaces all of them; each call returns a whole."""

    def __init__(self, destinations: Iterable[DestinationSettings]) -> None:
        self.replace(destinations)

    def replace(self, destinations: Iterable[DestinationSettings]) -> None:
        """Replace all destinations."""
        self._by_name = {destination.name: destination for destination in destinations}

    def __getitem__(self, name: str) -> DestinationSettings:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def items(self) -> ItemsView[str, DestinationSettings]:
        """Return the destinations of this moment with their names."""
        return self._by_name.items()

    def values(self) -> ValuesView[DestinationSettings]:
        """Return the destinations of this moment."""
        return self._by_name.values()


def kinds_of(destinations: Iterable[DestinationSettings]) -> frozenset[str]:
    """Return the kinds of outputs that destinations get; without destinations, the default ones, shown on pages."""
    named = [destination.outputs for destination in destinations] or [DEFAULT_OUTPUTS]
    return frozenset(kind for outputs in named for kind in outputs)
