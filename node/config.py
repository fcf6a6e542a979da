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
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

import tomli_w

from node.character_sets import TERMS
from node.domain import UNSET_ZONE
from node.errors import ConfigError
from node.hl7.character_sets import NAMES
from node.settings.alerts import AlertsSettings, unusable_alerts
from node.settings.destinations import DestinationSettings, form_of, unsafe_destination
from node.settings.file import (
    ADDRESS,
    AE_TITLE,
    CALLER_HOST,
    DATABASE_URL,
    NOT_BLANK,
    TIME_ZONE,
    SettingsReader,
    between,
    one_of,
    setting,
    without_password,
)
from node.settings.http import HttpSettings, HttpTlsSettings, unsafe_access
from node.settings.removed import REMOVED
from node.settings.tls import TlsSettings

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
LOG_FORMATS = ("auto", "json", "console")
LOG_LEVELS = ("debug", "info", "warning", "error")

_ANY_PORT = between(0, 65535)
_SECONDS = between(0.05, 86400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTlsSettings:
    """A port for TLS 1.2 or newer: the node's own certificate, and the authority of the callers' certificates."""

    port: int = setting(_ANY_PORT, default=2762)
    certificate: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A sender that may associate: its AE title, its addresses or networks, and the priority of its films."""

    ae_title: str = setting(AE_TITLE)
    hosts: tuple[str, ...] = setting(CALLER_HOST)
    max_associations: int | None = setting(between(1, 1000), default=None)
    priority: str = setting(one_of("routine", "stat"), default="routine")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """The Storage and Verification SCP. Port 0 takes any free port."""

    ae_title: str = setting(AE_TITLE, default="CHEX")
    host: str = setting(NOT_BLANK, default="127.0.0.1")
    port: int = setting(_ANY_PORT, default=11112)
    max_associations: int = setting(between(1, 1000), default=20)
    max_object_mib: int = setting(between(1, 10**6), default=2048)
    idle_seconds: float = setting(_SECONDS, default=60.0)
    tls: ServerTlsSettings | None = None
    callers: tuple[Caller, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Where films, outputs and the embedded database are stored; with `database_url`, processes share PostgreSQL.

    The embedded database needs a local disk.
    """

    directory: Path
    database_url: str = setting(DATABASE_URL, default="")
    min_free_mib: int = setting(between(0, 10**9), default=2048)
    keep_days: float = setting(between(0.001, 36500.0), default=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """When a study counts as complete: after `quiet_seconds` without a new film, at the latest after `max_seconds`.

    stat_seconds: a STAT study is read before studies that arrived up to so many seconds earlier
    """

    quiet_seconds: float = setting(_SECONDS, default=5.0)
    max_seconds: float = setting(_SECONDS, default=300.0)
    stat_seconds: float = setting(between(0.0, 86400.0), default=900.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionsSettings:
    """How long a reader's corrections wait for the next one, in the same study, before a report follows them all.

    quiet_seconds: 0 for a report after each of them
    """

    quiet_seconds: float = setting(between(0.0, 86400.0), default=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """The hospital: DICOM times are local time.

    character_set: of films whose text is neither in the set that they name nor in UTF-8; a defined term, empty for none
    no_patient_ids: what stands for the number of a patient whose number is not known, however it is capitalized
    """

    timezone: str = setting(TIME_ZONE, default=UNSET_ZONE)
    character_set: str = setting(one_of("", *TERMS), default="")
    no_patient_ids: tuple[str, ...] = setting(NOT_BLANK, default=("0", "ANONYMOUS", "NONE", "UNKNOWN"))

    @property
    def nobodys(self) -> frozenset[str]:
        """Return `no_patient_ids` as `domain.is_nobodys` compares them."""
        return frozenset(number.strip().casefold() for number in self.no_patient_ids)

    @property
    def zone(self) -> ZoneInfo:
        """The site's time zone."""
        return ZoneInfo(self.timezone)

    @property
    def is_zone_left(self) -> bool:
        """Whether the time zone is the default, which says nothing of the site."""
        return self.timezone == UNSET_ZONE


CHEX: Final = "chex"
"""The reader that is ChEX: it opens a model directory by its manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which weights, which network reads with them, which runtime, how many threads (0: all cores), which prompt set.

    reader: `chex`, the name of an installed reader, or `package.module:function`; engine and precision are of `chex`
    precision: of the sentence generator; float16 on a GPU, int8 on a CPU
    uncalibrated: whether a threshold that was not measured on real films is for review only, or accepted
    uncompared: whether a model that nobody has compared with the one in use is refused, or accepted
    """

    directory: Path = Path("models/weights/phantom")
    reader: str = setting(NOT_BLANK, default=CHEX)
    engine: str = setting(one_of(*ENGINES), default="onnx")
    precision: str = setting(one_of("float32", "float16", "int8"), default="float32")
    threads: int = setting(between(0, 1024), default=0)
    prompts: str = setting(NOT_BLANK, default="chexpert14")
    uncalibrated: str = setting(one_of("review", "accept"), default="review")
    uncompared: str = setting(one_of("refuse", "accept"), default="refuse")

    @property
    def trusted(self) -> Literal["real", "any"]:
        """Which thresholds may call a finding present: those measured on real films, or any."""
        return "any" if self.uncalibrated == "accept" else "real"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """Which sentences leave: those that say what was decided (`checked`), or all as generated (`raw`), for research.

    cardiothoracic_ratio: whether the ratio is sent, if the model states its error
    unmeasured_ratio: whether there is one, too, if that error was measured on phantoms alone, or not at all
    searched: whether report.json says where the network looked for findings that it does not report
    writers: processes that write objects; 0: the node's own alone; unset: by the processors that it may use
    """

    sentences: str = setting(one_of("checked", "raw"), default="checked")
    cardiothoracic_ratio: bool = True
    unmeasured_ratio: bool = False
    searched: bool = False
    writers: int | None = setting(between(0, 64), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionsSettings:
    """Which stored objects of workstations are questions: those that fit every list that is set; without a list none.

    creators: manufacturers or persons; labels: labels or descriptions; without case; wait_minutes: for the film
    """

    ae_titles: tuple[str, ...] = setting(AE_TITLE, default=())
    creators: tuple[str, ...] = setting(NOT_BLANK, default=())
    labels: tuple[str, ...] = setting(NOT_BLANK, default=())
    wait_minutes: float = setting(between(0.01, 1440.0), default=30.0)

    @property
    def is_on(self) -> bool:
        """Whether any object can be a question."""
        return bool(self.ae_titles or self.creators or self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersTlsSettings:
    """TLS 1.2 or newer for orders: the node's own certificate, and the authority of the senders' certificates."""

    certificate: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersSettings:
    """Where orders are received by MLLP, and from which IP addresses. Port 0 takes any free port.

    character_set: of messages that name none in MSH-18; a name of HL7 table 0211, empty for ASCII
    """

    host: str = setting(NOT_BLANK, default="127.0.0.1")
    port: int = setting(_ANY_PORT, default=2575)
    hosts: tuple[str, ...] = setting(ADDRESS)
    character_set: str = setting(one_of("", *NAMES), default="")
    tls: OrdersTlsSettings | None = None


ServerTlsTable: TypeAlias = ServerTlsSettings | OrdersTlsSettings | HttpTlsSettings
"""What a port needs for TLS. A form with a `ca` requires a certificate from every caller."""

TlsTable: TypeAlias = ServerTlsTable | TlsSettings
"""What a port or a destination needs for TLS; the last form is for a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How log lines look (`auto`: for people on a terminal, else JSON), and the least level that is written."""

    format: str = setting(one_of(*LOG_FORMATS), default="auto")
    level: str = setting(one_of(*LOG_LEVELS), default="info")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """The audit trail (PS3.15 A.5): messages are lines of a file."""

    file: Path


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
    destinations: tuple[DestinationSettings, ...] = field(default=(), metadata={"form": form_of})


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
    reading = SettingsReader(removed=REMOVED)
    settings = reading.table(Settings, table, where="")
    mistakes = [*_needed(table), *reading.mistakes]
    if settings is not None:
        mistakes += _contradictions(settings)
    if settings is None or mistakes:
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
    """Return every listening port: the key of its table, host and port."""
    yield "listener", settings.listener.host, settings.listener.port
    if settings.listener.tls is not None:
        yield "listener.tls", settings.listener.host, settings.listener.tls.port
    yield "http", settings.http.host, settings.http.port
    if settings.orders is not None:
        yield "orders", settings.orders.host, settings.orders.port


def render(settings: Settings) -> str:
    """Write the effective settings as TOML, defaults included, without passwords, keys and tokens."""
    storage = replace(settings.storage, database_url=without_password(settings.storage.database_url))
    alerts = None if settings.alerts is None else settings.alerts.without_secrets
    return tomli_w.dumps(asdict(replace(settings, storage=storage, alerts=alerts), dict_factory=_as_toml))


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


def _contradictions(settings: Settings) -> Iterator[str]:
    """Return a complaint for values that are valid alone, but not together."""
    if settings.study.max_seconds < settings.study.quiet_seconds:
        yield "study.max_seconds: must not be below study.quiet_seconds"
    cpu_engines = tuple(engine for engine in ENGINES if engine not in GPU_ENGINES)
    for precision, device, engines in (("float16", "GPU", GPU_ENGINES), ("int8", "CPU", cpu_engines)):
        if settings.model.precision == precision and settings.model.engine not in engines:
            yield f"model.precision: {precision} is for a {device}; set model.engine to {' or '.join(engines)}"
    taken: dict[tuple[str, int], str] = {}
    for table, host, port in servers(settings):
        other = taken.setdefault((host, port), table) if port else table
        if other != table:
            yield f"{table}.port: must not be {other}.port as well; choose another one"
    for key, tls in tls_tables(settings):
        if (tls.certificate is None) != (tls.key is None):
            yield f"{key}.key: a certificate needs its key and a key its certificate; name both or neither"
    for number, destination in enumerate(settings.destinations, 1):
        yield from (f"destinations[{number}].{complaint}" for complaint in unsafe_destination(destination))
    yield from unsafe_access(settings.http)
    if settings.alerts is not None:
        yield from unusable_alerts(settings.alerts)
    names = [destination.name for destination in settings.destinations]
    if len(set(names)) < len(names):
        yield "destinations.name: every destination needs a name of its own"
