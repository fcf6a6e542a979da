"""The settings: one TOML file, read once, into frozen dataclasses. Every mistake is listed at once.

A key that is unknown, or whose feature this version does not have, is refused. A default stands on its field and
nowhere else. Nothing else in the program reads a settings file or the environment.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import tomllib
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from node.errors import ConfigError

_T = TypeVar("_T")

OUTPUT_KINDS = ("sr", "gsps")
ENGINES = ("onnx", "torch")

_LATER = {
    "listener.tls": "DICOM TLS is not in this version; remove the table",
    "destinations.tls": "TLS to a destination is not in this version; remove the table",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who may associate: a calling AE title from one of these hosts."""

    ae_title: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """The Storage and Verification SCP. Port 0 takes any free port."""

    ae_title: str = "CHEX"
    host: str = "127.0.0.1"
    port: int = 11112
    max_associations: int = 20
    callers: tuple[Caller, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Where films, outputs and the embedded database lie. Local disk only."""

    directory: Path
    database_url: str = ""
    min_free_mib: int = 2048
    keep_days: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """When a study counts as complete: after silence, or at the latest after `max_seconds`."""

    quiet_seconds: float = 5.0
    max_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """The hospital: DICOM times are local time."""

    timezone: str = "UTC"

    @property
    def zone(self) -> ZoneInfo:
        """The site's time zone."""
        return ZoneInfo(self.timezone)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which weights, which runtime, how many threads (0: all cores), which prompt set."""

    directory: Path = Path("models/weights/phantom")
    engine: str = "onnx"
    threads: int = 0
    prompts: str = "chexpert14"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Metrics and probes. Port 0 takes any free port."""

    host: str = "127.0.0.1"
    port: int = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationSettings:
    """One archive that gets results by C-STORE."""

    name: str
    ae_title: str
    host: str
    port: int
    type: str = "dicom"
    outputs: tuple[str, ...] = OUTPUT_KINDS
    storage_commitment: bool = False
    give_up_hours: float = 72.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one node."""

    storage: StorageSettings
    listener: ListenerSettings = field(default_factory=ListenerSettings)
    study: StudySettings = field(default_factory=StudySettings)
    site: SiteSettings = field(default_factory=SiteSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    destinations: tuple[DestinationSettings, ...] = ()


def load(path: Path) -> Settings:
    """Read a settings file.

    Raises ConfigError with one line per mistake.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror}); name an existing settings file"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: is not valid TOML: {error}"]) from error
    return parse(table)


def parse(table: Mapping[str, object]) -> Settings:
    """Turn parsed TOML into settings; pure.

    Raises ConfigError with one line per mistake.
    """
    mistakes: list[str] = []
    settings = _build(Settings, table, where="", mistakes=mistakes)
    if settings is not None:
        _check(settings, mistakes)
    if settings is None or mistakes:
        raise ConfigError(mistakes)
    return settings


def render(settings: Settings) -> str:
    """Write the effective settings as TOML, defaults included."""
    return "\n".join(_lines(settings, "")).strip() + "\n"


def _build(kind: type[_T], table: object, *, where: str, mistakes: list[str]) -> _T | None:
    """Make one dataclass from one table, noting every mistake; None when it cannot be made."""
    if not isinstance(table, Mapping):
        mistakes.append(f"[{where}]: must be a table, write [{where}] and its keys below")
        return None
    hints = typing.get_type_hints(kind)
    fields = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]  # T is a dataclass
    for key in table.keys() - fields.keys():
        name = f"{where}.{key}".lstrip(".")
        mistakes.append(f"{name}: {_LATER.get(name, 'unknown key; remove it or correct its spelling')}")
    values: dict[str, object] = {}
    before = len(mistakes)
    for key, item in fields.items():
        name = f"{where}.{key}".lstrip(".")
        if key in table:
            values[key] = _convert(hints[key], table[key], where=name, mistakes=mistakes)
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            mistakes.append(f"{name}: is missing; add it")
    return kind(**values) if len(mistakes) == before else None


def _convert(hint: object, value: object, *, where: str, mistakes: list[str]) -> object:
    """Convert one TOML value to a field's type, noting a mistake when it does not fit."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value, where=where, mistakes=mistakes)
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if not isinstance(value, list):
            mistakes.append(f"{where}: must be a list")
            return ()
        return tuple(_convert(item, one, where=where, mistakes=mistakes) for one in value)
    if hint is Path and isinstance(value, str) and value:
        return Path(value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    wanted = {Path: "a path in quotes", float: "a number", int: "a whole number", str: "a text in quotes"}
    mistakes.append(f"{where}: must be {wanted.get(hint, 'true or false')}, got {value!r}")  # type: ignore[call-overload]  # hint is a type
    return None


def _check(settings: Settings, mistakes: list[str]) -> None:
    """Note every value that has the right type and is still wrong, or whose feature comes in a later version."""

    def require(condition: bool, message: str) -> None:
        if not condition:
            mistakes.append(message)

    listener, storage, study, model = settings.listener, settings.storage, settings.study, settings.model
    _check_ae_title("listener.ae_title", listener.ae_title, require)
    _check_port("listener.port", listener.port, require, lowest=0)
    _check_port("http.port", settings.http.port, require, lowest=0)
    require(listener.max_associations >= 1, "listener.max_associations: must be at least 1")
    require(
        bool(listener.callers), "listener.callers: nobody may associate; add a [[listener.callers]] table per sender"
    )
    for caller in listener.callers:
        _check_ae_title("listener.callers.ae_title", caller.ae_title, require)
        require(bool(caller.hosts), f"listener.callers: {caller.ae_title} needs at least one address in hosts")
        for host in caller.hosts:
            require(_is_address(host), f"listener.callers.hosts: {host!r} is no IP address; names are not looked up")
    require(
        not storage.database_url, "storage.database_url: PostgreSQL is not in this version; leave it empty for SQLite"
    )
    require(storage.min_free_mib >= 0, "storage.min_free_mib: must not be negative")
    require(storage.keep_days > 0, "storage.keep_days: must be above 0")
    require(study.quiet_seconds > 0, "study.quiet_seconds: must be above 0")
    require(study.max_seconds >= study.quiet_seconds, "study.max_seconds: must not be below study.quiet_seconds")
    try:
        ZoneInfo(settings.site.timezone)
    except (ZoneInfoNotFoundError, ValueError):
        mistakes.append(f"site.timezone: {settings.site.timezone!r} is unknown; use a name such as Europe/Berlin")
    if model.engine == "tensorrt":
        mistakes.append("model.engine: tensorrt is not in this version; use onnx")
    else:
        require(model.engine in ENGINES, f"model.engine: {model.engine!r} is unknown; use one of {', '.join(ENGINES)}")
    require(model.threads >= 0, "model.threads: must not be negative; 0 means all cores")
    names = [destination.name for destination in settings.destinations]
    require(len(set(names)) == len(names), "destinations.name: every destination needs a name of its own")
    require(bool(names), "destinations: results would go nowhere; add a [[destinations]] table")
    for destination in settings.destinations:
        _check_destination(destination, require)


def _check_destination(destination: DestinationSettings, require: Callable[[bool, str], None]) -> None:
    where = f"destinations.{destination.name}"
    require(bool(destination.name.strip()), "destinations.name: must not be blank")
    require(bool(destination.host.strip()), f"{where}.host: must not be blank")
    _check_ae_title(f"{where}.ae_title", destination.ae_title, require)
    _check_port(f"{where}.port", destination.port, require, lowest=1)
    require(destination.type == "dicom", f"{where}.type: {destination.type!r} is not in this version; use dicom")
    require(bool(destination.outputs), f"{where}.outputs: must not be empty; use {list(OUTPUT_KINDS)}")
    for kind in destination.outputs:
        require(kind in OUTPUT_KINDS, f"{where}.outputs: {kind!r} is not in this version; use {list(OUTPUT_KINDS)}")
    require(
        not destination.storage_commitment,
        f"{where}.storage_commitment: is not in this version; set it to false",
    )
    require(destination.give_up_hours > 0, f"{where}.give_up_hours: must be above 0")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _check_ae_title(where: str, title: str, require: Callable[[bool, str], None]) -> None:
    """PS3.5 6.2, AE: 1 to 16 characters, printable ASCII without a backslash, not only blanks."""
    good = 1 <= len(title.strip()) <= 16 and title.isascii() and title.isprintable() and "\\" not in title
    require(good, f"{where}: {title!r} is no AE title; use 1 to 16 printable ASCII characters without a backslash")


def _check_port(where: str, port: int, require: Callable[[bool, str], None], *, lowest: int) -> None:
    require(lowest <= port <= 65535, f"{where}: must be between {lowest} and 65535")


def _lines(value: object, where: str) -> list[str]:
    """Render one dataclass as TOML lines: plain keys first, then its tables."""
    plain, tables = [], []
    for item in dataclasses.fields(value):  # type: ignore[arg-type]  # always one of our dataclasses
        name, inner = f"{where}.{item.name}".lstrip("."), getattr(value, item.name)
        if dataclasses.is_dataclass(inner):
            tables += ["", f"[{name}]", *_lines(inner, name)]
        elif isinstance(inner, tuple) and inner and dataclasses.is_dataclass(inner[0]):
            for one in inner:
                tables += ["", f"[[{name}]]", *_lines(one, name)]
        else:
            plain.append(f"{item.name} = {_toml(inner)}")
    return plain + tables


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case tuple():
            return "[" + ", ".join(_toml(one) for one in value) + "]"
        case _:
            return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
