"""The settings: one TOML file, read once, into frozen dataclasses. Every mistake is listed at once.

Unknown keys are errors. A default and the rule for a value stand on its field and nowhere else. Nothing else in the
program reads a settings file or the environment.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import tomli_w

from models.contract import SentenceRule
from models.documents import Misfit, TypeOf, from_table, refuse
from node.character_sets import TERMS
from node.domain import UNSET_ZONE
from node.errors import ConfigError
from node.hl7.text import NAMES
from node.settings.destinations import DestinationSettings, TlsSettings, form_of
from node.settings.http import HttpSettings, HttpTlsSettings
from node.settings.rules import (
    Address,
    AeTitle,
    CallerHost,
    DatabaseUrl,
    FilePath,
    NotBlank,
    Port,
    Several,
    TimeZone,
    WebUrl,
    between,
    is_loopback,
    one_of,
    without_password,
)

NOTHING_IS_SENT = "there is no [[destinations]] table: results stay on this node, on its pages, and nothing is sent"
ZONE_IS_LEFT = (
    "site.timezone is UTC, as nobody has set it: films that state no offset seem to be taken in UTC; "
    "name the zone of the site, such as Europe/Berlin, or Etc/UTC if it is UTC"
)
HIDDEN: Final = "***"
"""Replaces a password, key or token where settings are shown."""
_IS_SECRET: Final = re.compile(r"password|passphrase|secret|token|credential|(^|_)key$", re.IGNORECASE)
ENGINES = ("onnx", "onnx-cuda", "tensorrt", "torch", "torch-cuda")
GPU_ENGINES = ("tensorrt", "onnx-cuda", "torch-cuda")
REMOVED: Final[Mapping[str, str]] = {
    "alerts.mail": "Alertmanager, which sends mail of the node's alerts (deploy/prometheus/alertmanager.yml)",
    "audit.host": "rsyslog, which sends the lines of audit.file (deploy/rsyslog/chex-node-audit.conf)",
    "audit.max_waiting_mib": "the queue of rsyslog (deploy/rsyslog/chex-node-audit.conf)",
    "audit.port": "rsyslog, which sends the lines of audit.file (deploy/rsyslog/chex-node-audit.conf)",
    "audit.tls": "rsyslog, which sends the lines of audit.file (deploy/rsyslog/chex-node-audit.conf)",
    "orders.patient_updates": "the archive, which reconciles its objects (docs/integrate/hl7.md)",
    "report.searched": "the page of a study, which shows where the network looked",
    "storage.s3": "snapshots of the volume, or restic (docs/operate/backup.md)",
    "trace": "the log, which says how many seconds each film, round and delivery took",
}
"""The replacement of each removed key, by full key without the number of a table."""

_Seconds = Annotated[float, between(0.05, 86400.0)]
_SecondsOrNone = Annotated[float, between(0.0, 86400.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersTlsSettings:
    """TLS 1.2 or newer: the node's own certificate, and the authority of the callers' certificates."""

    certificate: FilePath
    key: FilePath
    ca: FilePath


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTlsSettings(OrdersTlsSettings):
    """A port of its own for TLS."""

    port: Port = 2762


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A sender that may associate: its AE title, its addresses or networks, and the priority of its films."""

    ae_title: AeTitle
    hosts: Several[CallerHost]
    max_associations: Annotated[int, between(1, 1000)] | None = None
    priority: Literal["routine", "stat"] = "routine"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """The Storage and Verification SCP. Port 0 takes any free port."""

    ae_title: AeTitle = "CHEX"
    host: NotBlank = "127.0.0.1"
    port: Port = 11112
    max_associations: Annotated[int, between(1, 1000)] = 20
    max_object_mib: Annotated[int, between(1, 10**6)] = 2048
    idle_seconds: _Seconds = 60.0
    tls: ServerTlsSettings | None = None
    callers: tuple[Caller, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Where films, outputs and the embedded database are stored; with `database_url`, processes share PostgreSQL.

    The embedded database needs a local disk.
    """

    directory: FilePath
    database_url: DatabaseUrl = ""
    min_free_mib: Annotated[int, between(0, 10**9)] = 2048
    keep_days: Annotated[float, between(0.001, 36500.0)] = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """The completion of a study: after `quiet_seconds` without a new film, at the latest after `max_seconds`.

    stat_seconds: a STAT study is read before studies that arrived up to so many seconds earlier
    """

    quiet_seconds: _Seconds = 5.0
    max_seconds: _Seconds = 300.0
    stat_seconds: _SecondsOrNone = 900.0

    def __post_init__(self) -> None:
        if self.max_seconds < self.quiet_seconds:
            raise ValueError("max_seconds: must not be below study.quiet_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionsSettings:
    """The wait of a reader's corrections for the next one in the study, before a report follows them all.

    quiet_seconds: 0 for a report after each of them
    """

    quiet_seconds: _SecondsOrNone = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """The hospital: DICOM times are local time.

    character_set: for film texts that are neither in their declared set nor UTF-8; a defined term, empty for none
    no_patient_ids: placeholders in Patient ID of patients whose number is not known, in any capitalization
    """

    timezone: TimeZone = UNSET_ZONE
    character_set: Annotated[str, one_of("", *TERMS)] = ""
    no_patient_ids: Several[NotBlank] = ("0", "ANONYMOUS", "NONE", "UNKNOWN")

    @property
    def nobodys(self) -> frozenset[str]:
        """`no_patient_ids` in the form that `domain.is_nobodys` compares."""
        return frozenset(number.strip().casefold() for number in self.no_patient_ids)

    @property
    def zone(self) -> ZoneInfo:
        """The site's time zone."""
        return ZoneInfo(self.timezone)

    @property
    def is_zone_left(self) -> bool:
        """Whether the time zone was not set."""
        return self.timezone == UNSET_ZONE


CHEX: Final = "chex"
"""The reader that is ChEX: it opens a model directory by its manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The model directory, its reader and runtime, the number of threads (0: all cores), and the prompt set.

    reader: `chex`, the name of an installed reader, or `package.module:function`; engine and precision are for `chex`
    precision: that of the sentence generator; float16 on a GPU, int8 on a CPU
    uncalibrated: whether a threshold that was not measured on patient films is for review only, or accepted
    uncompared: whether a model that nobody has compared with the one in use is refused, or accepted
    """

    directory: FilePath = Path("models/weights/phantom")
    reader: NotBlank = CHEX
    engine: Annotated[str, one_of(*ENGINES)] = "onnx"
    precision: Literal["float32", "float16", "int8"] = "float32"
    threads: Annotated[int, between(0, 1024)] = 0
    prompts: NotBlank = "chexpert14"
    uncalibrated: Literal["review", "accept"] = "review"
    uncompared: Literal["refuse", "accept"] = "refuse"

    def __post_init__(self) -> None:
        if self.precision == "float16" and self.engine not in GPU_ENGINES:
            raise ValueError(f"precision: float16 is for a GPU; set model.engine to {' or '.join(GPU_ENGINES)}")
        if self.precision == "int8" and self.engine in GPU_ENGINES:
            raise ValueError("precision: int8 is for a CPU; set model.engine to onnx or torch")

    @property
    def trusted(self) -> Literal["real", "any"]:
        """The thresholds by which a finding may be present: those measured on patient films, or any."""
        return "any" if self.uncalibrated == "accept" else "real"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """The sentences of reports: those that agree with the decisions (`checked`), or all as generated (`raw`).

    denials: whether sentences that deny a finding below its measured threshold are withheld, or leave with a mark
    cardiothoracic_ratio: whether the ratio is sent, if the model states its error
    unmeasured_ratio: whether it is also sent if that error was measured on phantoms alone, or not at all
    writers: number of processes that write objects; 0: the node itself writes; unset: by the number of processors
    """

    sentences: Literal["checked", "raw"] = "checked"
    denials: Literal["withheld", "marked"] = "withheld"
    cardiothoracic_ratio: bool = True
    unmeasured_ratio: bool = False
    writers: Annotated[int, between(0, 64)] | None = None

    def __post_init__(self) -> None:
        if self.sentences == "raw" and self.denials == "marked":
            raise ValueError("denials: no sentence is marked with sentences = raw; remove one of both")

    @property
    def rule(self) -> SentenceRule:
        """The rule for the network's sentences."""
        return "marked" if self.denials == "marked" else self.sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionsSettings:
    """The workstation objects that are questions: those that match every list that is set; without a list none.

    creators: manufacturers or persons; labels: labels or descriptions; both compared without case
    wait_minutes: the longest wait for the question's film
    """

    ae_titles: Several[AeTitle] = ()
    creators: Several[NotBlank] = ()
    labels: Several[NotBlank] = ()
    wait_minutes: Annotated[float, between(0.01, 1440.0)] = 30.0

    @property
    def is_on(self) -> bool:
        """Whether any object can be a question."""
        return bool(self.ae_titles or self.creators or self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersSettings:
    """The address that receives orders by MLLP, and the senders' IP addresses. Port 0 takes any free port.

    character_set: the set of messages that name none in MSH-18; a name of HL7 table 0211, empty for ASCII
    """

    host: NotBlank = "127.0.0.1"
    port: Port = 2575
    hosts: Several[Address]
    character_set: Annotated[str, one_of("", *NAMES)] = ""
    tls: OrdersTlsSettings | None = None


ServerTlsTable: TypeAlias = OrdersTlsSettings | HttpTlsSettings
"""The TLS table of a port. A form with a `ca` requires a certificate from every caller."""

TlsTable: TypeAlias = ServerTlsTable | TlsSettings
"""The TLS table of a port or a destination; the last form is for a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The format of log lines (`auto`: for people on a terminal, else JSON), and the least level that is written."""

    format: Literal["auto", "json", "console"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """The audit trail (PS3.15 A.5): messages are lines of a file."""

    file: FilePath


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """An address that gets each alert or notice as JSON by POST.

    token_file: holds a bearer token, and is read for each request; ca: trusted beside the authorities of the system
    """

    url: WebUrl
    token_file: FilePath | None = None
    ca: FilePath | None = None

    def __post_init__(self) -> None:
        url = urlsplit(self.url)
        if url.scheme == "http" and self.token_file is not None and not is_loopback(url.hostname or ""):
            raise ValueError("token_file: a token is sent over TLS only; write https: in the url")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsSettings:
    """The webhook of alerts; after_seconds: how long a trouble must last, or be over, before its alert is sent."""

    after_seconds: Annotated[float, between(0.05, 86400.0)] = 60.0
    webhook: WebhookSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings(WebhookSettings):
    """A webhook for notices of critical findings; pages: the address of this node's pages, for links."""

    name: NotBlank
    pages: WebUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one node."""

    storage: StorageSettings
    listener: ListenerSettings = field(default_factory=ListenerSettings)
    study: StudySettings = field(default_factory=StudySettings)
    corrections: CorrectionsSettings = field(default_factory=CorrectionsSettings)
    site: SiteSettings = field(default_factory=SiteSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    orders: OrdersSettings | None = None
    questions: QuestionsSettings = field(default_factory=QuestionsSettings)
    log: LogSettings = field(default_factory=LogSettings)
    audit: AuditSettings | None = None
    alerts: AlertsSettings | None = None
    notify: tuple[NotifySettings, ...] = ()
    destinations: Several[Annotated[DestinationSettings, TypeOf(form_of)]] = ()

    def __post_init__(self) -> None:
        refuse(self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        """Yield complaints about values of several tables that are valid alone, but not together."""
        taken: dict[tuple[str, int], str] = {}
        for key, host, port in servers(self):
            other = taken.setdefault((host, port), key) if port else key
            if other != key:
                yield f"{key}: must not be {other} as well; choose another one"
        for table, named in (("destinations", self.destinations), ("notify", self.notify)):
            names = [each.name for each in named]
            if len(set(names)) < len(names):
                yield f"{table}.name: every table needs a name of its own"


def load(path: Path) -> Settings:
    """Read a settings file. Raises ConfigError with one line per mistake."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows write a BOM
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror}); name an existing settings file"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: is not valid TOML: {error}"]) from error
    return parse(table)


def parse(table: Mapping[str, object]) -> Settings:
    """Turn parsed TOML into settings; pure. Raises ConfigError with one line per mistake."""
    mistakes = list(_needed(table))
    try:
        settings = from_table(Settings, table, removed=REMOVED)
    except Misfit as misfit:
        raise ConfigError([*mistakes, *misfit.mistakes]) from misfit
    if mistakes:
        raise ConfigError(mistakes)
    return settings


def tls_tables(settings: Settings) -> Iterator[tuple[str, TlsTable]]:
    """Return every TLS table with its full key."""
    if settings.listener.tls is not None:
        yield "listener.tls", settings.listener.tls
    if settings.orders is not None and settings.orders.tls is not None:
        yield "orders.tls", settings.orders.tls
    if settings.http.tls is not None:
        yield "http.tls", settings.http.tls
    for number, destination in enumerate(settings.destinations, 1):
        if destination.tls is not None:
            yield f"destinations[{number}].tls", destination.tls


def servers(settings: Settings) -> Iterator[tuple[str, str, int]]:
    """Return every listening port: its key, host and port."""
    yield "listener.port", settings.listener.host, settings.listener.port
    if settings.listener.tls is not None:
        yield "listener.tls.port", settings.listener.host, settings.listener.tls.port
    yield "http.port", settings.http.host, settings.http.port
    if settings.http.probe_port is not None:
        yield "http.probe_port", settings.http.host, settings.http.probe_port
    if settings.orders is not None:
        yield "orders.port", settings.orders.host, settings.orders.port


def render(settings: Settings) -> str:
    """Write the effective settings as TOML, defaults included, without passwords, keys and tokens."""
    storage = replace(settings.storage, database_url=without_password(settings.storage.database_url))
    notify = tuple(replace(each, url=_without_path(each.url)) for each in settings.notify)
    alerts = settings.alerts
    if alerts is not None:
        alerts = replace(alerts, webhook=replace(alerts.webhook, url=_without_path(alerts.webhook.url)))
    shown = replace(settings, storage=storage, alerts=alerts, notify=notify)
    return tomli_w.dumps(asdict(shown, dict_factory=_as_toml))


def _without_path(address: str) -> str:
    """Return a webhook for display: its path is often a secret by which chat programs know who posts."""
    url = urlsplit(address)
    return f"{url.scheme}://{url.netloc}/***" if url.path.strip("/") else address


def _as_toml(values: list[tuple[str, object]]) -> dict[str, object]:
    """Leave out what is not set, which TOML cannot express, and empty lists; write paths as texts, and no secret."""
    return {key: _shown(key, value) for key, value in values if value not in (None, ())}


def _shown(key: str, value: object) -> object:
    """Return a value for display. Our own secrets stand in files; a package's destination may have some of its own."""
    if isinstance(value, Path):
        return str(value)
    return HIDDEN if isinstance(value, str) and value and _IS_SECRET.search(key) else value


def _needed(table: Mapping[str, object]) -> Iterator[str]:
    """Return a complaint for the missing table that has no default: who may send."""
    listener = table.get("listener")
    if not (isinstance(listener, Mapping) and listener.get("callers")):
        yield "listener.callers: no caller may associate; add a [[listener.callers]] table per sender"
