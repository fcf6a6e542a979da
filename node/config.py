"""The settings: one TOML file, read once, into frozen dataclasses. Every mistake is listed at once.

A key that is unknown, or whose feature this version does not have, is refused. A default and the rule for a value
stand on its field and nowhere else. Nothing else in the program reads a settings file or the environment.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from zoneinfo import ZoneInfo

from node.errors import ConfigError
from node.rules import ADDRESS, AE_TITLE, NOT_BLANK, TIME_ZONE, between, later, one_of, ruled, setting

_T = TypeVar("_T")

OUTPUT_KINDS = ("sr", "gsps")
ENGINES = ("onnx", "torch")

_ANY_PORT, _PEER_PORT = between(0, 65535), between(1, 65535)
_SECONDS = between(0.05, 86400.0)

_LATER = {
    "listener.tls": "DICOM TLS is not in this version; remove the table",
    "destinations.tls": "TLS to a destination is not in this version; remove the table",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who may associate: a calling AE title from one of these IP addresses."""

    ae_title: str = setting(AE_TITLE)
    hosts: tuple[str, ...] = setting(ADDRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """The Storage and Verification SCP. Port 0 takes any free port."""

    ae_title: str = setting(AE_TITLE, default="CHEX")
    host: str = setting(NOT_BLANK, default="127.0.0.1")
    port: int = setting(_ANY_PORT, default=11112)
    max_associations: int = setting(between(1, 1000), default=20)
    callers: tuple[Caller, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Where films, outputs and the embedded database lie. Local disk only."""

    directory: Path
    database_url: str = setting(later("", "PostgreSQL is not in this version; leave it empty for SQLite"), default="")
    min_free_mib: int = setting(between(0, 10**9), default=2048)
    keep_days: float = setting(between(0.001, 36500.0), default=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """When a study counts as complete: after silence, or at the latest after `max_seconds`."""

    quiet_seconds: float = setting(_SECONDS, default=5.0)
    max_seconds: float = setting(_SECONDS, default=300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """The hospital: DICOM times are local time."""

    timezone: str = setting(TIME_ZONE, default="UTC")

    @property
    def zone(self) -> ZoneInfo:
        """The site's time zone."""
        return ZoneInfo(self.timezone)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which weights, which runtime, how many threads (0: all cores), which prompt set."""

    directory: Path = Path("models/weights/phantom")
    engine: str = setting(one_of(*ENGINES, later=("tensorrt",)), default="onnx")
    threads: int = setting(between(0, 1024), default=0)
    prompts: str = setting(NOT_BLANK, default="chexpert14")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Metrics and probes. Port 0 takes any free port."""

    host: str = setting(NOT_BLANK, default="127.0.0.1")
    port: int = setting(_ANY_PORT, default=8080)


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationSettings:
    """One archive that gets results by C-STORE."""

    name: str = setting(NOT_BLANK)
    ae_title: str = setting(AE_TITLE)
    host: str = setting(NOT_BLANK)
    port: int = setting(_PEER_PORT)
    type: str = setting(one_of("dicom", later=("hl7", "dicomweb")), default="dicom")
    outputs: tuple[str, ...] = setting(one_of(*OUTPUT_KINDS, later=("sr3d", "sc", "text")), default=OUTPUT_KINDS)
    storage_commitment: bool = setting(later(False, "is not in this version; set it to false"), default=False)
    give_up_hours: float = setting(between(0.001, 8760.0), default=72.0)


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
    mistakes = list(_needed(table))
    settings = _build(Settings, table, where="", mistakes=mistakes)
    if settings is not None:
        mistakes += _contradictions(settings)
    if settings is None or mistakes:
        raise ConfigError(mistakes)
    return settings


def render(settings: Settings) -> str:
    """Write the effective settings as TOML, defaults included."""
    return "\n".join(_lines(settings, "")).strip() + "\n"


def _needed(table: Mapping[str, object]) -> Iterator[str]:
    """Name what no default can stand for: who may send, and where results go."""
    listener = table.get("listener")
    if not (isinstance(listener, Mapping) and listener.get("callers")):
        yield "listener.callers: nobody may associate; add a [[listener.callers]] table per sender"
    if not table.get("destinations"):
        yield "destinations: results would go nowhere; add a [[destinations]] table"


def _contradictions(settings: Settings) -> Iterator[str]:
    """Name values that are good each, but not together."""
    if settings.study.max_seconds < settings.study.quiet_seconds:
        yield "study.max_seconds: must not be below study.quiet_seconds"
    listener, http = settings.listener, settings.http
    if listener.port and (listener.host, listener.port) == (http.host, http.port):
        yield "http.port: must not be listener.port as well; choose another one"
    names = [destination.name for destination in settings.destinations]
    if len(set(names)) < len(names):
        yield "destinations.name: every destination needs a name of its own"


def _build(kind: type[_T], table: object, *, where: str, mistakes: list[str]) -> _T | None:
    """Make one dataclass from one table, noting every mistake; None when a value is missing or of the wrong type."""
    if not isinstance(table, Mapping):
        mistakes.append(f"{where}: must be a table, write [{where}] and its keys below")
        return None
    hints = typing.get_type_hints(kind)
    fields = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]  # T is a dataclass
    for key in sorted(table.keys() - fields.keys()):
        name = f"{where}.{key}".lstrip(".")
        known = _LATER.get(re.sub(r"\[\d+\]", "", name))
        mistakes.append(f"{name}: {known or 'unknown key; remove it or correct its spelling'}")
    values: dict[str, object] = {}
    for key, item in fields.items():
        name = f"{where}.{key}".lstrip(".")
        if key in table:
            values[key] = _convert(hints[key], table[key], where=name, mistakes=mistakes)
            mistakes += [f"{name}: {complaint}" for complaint in ruled(item, values[key])]
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            mistakes.append(f"{name}: is missing; add it")
            values[key] = None
    return None if None in values.values() else kind(**values)


def _convert(hint: object, value: object, *, where: str, mistakes: list[str]) -> object:
    """Convert one TOML value to a field's type; None, with a mistake noted, when it does not fit."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value, where=where, mistakes=mistakes)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list) or not value:
            mistakes.append(f"{where}: must be a list with something in it")
            return None
        places = [f"{where}[{number}]" if len(value) > 1 else where for number in range(1, len(value) + 1)]
        kind = typing.get_args(hint)[0]
        items = [_convert(kind, one, where=at, mistakes=mistakes) for at, one in zip(places, value, strict=True)]
        return None if None in items else tuple(items)
    if hint is Path and isinstance(value, str) and value:
        return Path(value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    wanted = {Path: "a path in quotes", float: "a number", int: "a whole number", str: "a text in quotes"}
    mistakes.append(f"{where}: must be {wanted.get(hint, 'true or false')}, got {value!r}")  # type: ignore[call-overload]  # hint is a type
    return None


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
            return json.dumps(str(value))  # a JSON string is a TOML basic string
