"""Plans what a film will show before any of it is drawn, so that no finding hides another.

The lungs have six zones, and findings that would hide others take the zones they need first. A drawn finding may
therefore find no free zone; the odds are set so that each of the ten is on 30 of 100 films (`_PLANNERS`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from models.lab.phantoms.anatomy import SIDES
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.truth import FindingKey, Severity, Side

Zone = Literal["upper", "mid", "lower"]

ZONES: tuple[Zone, Zone, Zone] = ("upper", "mid", "lower")
HEALTHY = 0.1
"""The share of films without any finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One finding to draw. number: seeds its own random stream, so that it looks the same whatever else is drawn."""

    finding: FindingKey
    kind: str
    side: Side | None
    zone: Zone | None
    severity: Severity
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmPlan:
    """A film to draw; `findings` in the order of drawing. Two plans of one seed differ in their findings only."""

    seed: int
    supine: bool
    findings: tuple[Planned, ...]

    def stream(self, name: str) -> RandomStream:
        """Return the random stream of a part of this film."""
        return RandomStream(self.seed, name)


def plan_of(seed: int) -> FilmPlan:
    """Draw the plan of a seed."""
    stream = RandomStream(seed, "case")
    supine = stream.chance(0.42)
    healthy = stream.chance(HEALTHY)
    room = _Room(stream=stream, supine=supine, free={(side, zone) for side in SIDES for zone in ZONES})
    thrown = [planner for odds, planner in _PLANNERS if stream.chance(odds) and not healthy]
    planned = [entry for planner in thrown for entry in planner(room)]
    numbered = (
        Planned(finding=key, kind=kind, side=side, zone=zone, severity=severity, number=number)
        for number, (key, kind, side, zone, severity) in enumerate(planned)
    )
    return FilmPlan(
        seed=seed, supine=supine, findings=tuple(sorted(numbered, key=lambda entry: _DRAWN.index(entry.finding)))
    )


_Drawn = tuple[FindingKey, str, Side | None, Zone | None, Severity]

# Fluid and air in the pleural space cover findings in the lung.
_DRAWN: tuple[FindingKey, ...] = (
    "cardiomegaly",
    "edema",
    "lung_opacity",
    "consolidation",
    "atelectasis",
    "lung_lesion",
    "pneumothorax",
    "pleural_effusion",
    "fracture",
    "support_devices",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """The zones that are still free, and the random stream."""

    stream: RandomStream
    supine: bool
    free: set[tuple[Side, Zone]]

    def sides(self, both: float) -> tuple[Side, ...]:
        """Choose one side, or both with this probability."""
        return SIDES if self.stream.chance(both) else (self.stream.pick(SIDES),)

    def severity(self) -> Severity:
        return self.stream.pick(("mild", "moderate", "severe"))

    def take(self, side: Side, *zones: Zone) -> bool:
        """Take all of these zones of a side, or none of them."""
        wanted = {(side, zone) for zone in zones}
        if not wanted <= self.free:
            return False
        self.free.difference_update(wanted)
        return True

    def take_any(self, *zones: Zone) -> tuple[Side, Zone] | None:
        """Take one free zone among these, on either side."""
        options = [(side, zone) for side in SIDES for zone in zones if (side, zone) in self.free]
        if not options:
            return None
        chosen = self.stream.pick(options)
        self.free.discard(chosen)
        return chosen


def _effusion(room: _Room) -> Iterator[_Drawn]:
    for side in room.sides(0.45):
        severity = room.severity()
        kind = "layering" if room.supine and severity != "mild" and room.stream.chance(0.4) else "meniscus"
        zones = {"mild": ZONES[2:], "moderate": ZONES[2:], "severe": ZONES[1:]}[severity]
        if room.take(side, *zones):
            yield "pleural_effusion", kind, side, "lower", severity


def _pneumothorax(room: _Room) -> Iterator[_Drawn]:
    for side in room.sides(0.12):
        severity = room.severity()
        basal = room.supine and room.stream.chance(0.4)
        if basal and room.take(side, "lower", "mid"):
            yield "pneumothorax", "deep sulcus", side, "lower", severity
        elif severity == "severe" and room.take(side, *ZONES):
            yield "pneumothorax", "large", side, None, severity
        elif room.take(side, "upper"):
            yield "pneumothorax", "apical", side, "upper", "moderate" if severity == "severe" else severity


def _atelectasis(room: _Room) -> Iterator[_Drawn]:
    lobar = room.stream.chance(0.45)
    for side in room.sides(0.3):
        if lobar and room.stream.chance(0.4) and room.take(side, "upper"):
            yield "atelectasis", "lobar", side, "upper", room.stream.pick(("moderate", "severe"))
        elif room.take(side, "lower"):
            yield "atelectasis", "lobar" if lobar else "plate", side, "lower", room.severity()


def _consolidation(room: _Room) -> Iterator[_Drawn]:
    for _ in range(2 if room.stream.chance(0.35) else 1):
        if (place := room.take_any(*ZONES)) is not None:
            yield "consolidation", "lobar", *place, room.severity()


def _lesion(room: _Room) -> Iterator[_Drawn]:
    for _ in range(room.stream.pick((1, 1, 1, 2, 3))):
        if (place := room.take_any(*ZONES)) is not None:
            severity = room.severity()
            yield "lung_lesion", "nodule" if severity == "mild" else "mass", *place, severity


def _opacity(room: _Room) -> Iterator[_Drawn]:
    for _ in range(room.stream.pick((1, 1, 2, 2, 3))):
        if (place := room.take_any(*ZONES)) is not None:
            yield "lung_opacity", "patchy", *place, room.severity()


def _edema(room: _Room) -> Iterator[_Drawn]:
    severity = room.severity()
    for side in SIDES:
        # Air in the pleural space would hide the edema.
        if sum((side, zone) in room.free for zone in ZONES) >= 1:
            yield "edema", "perihilar", side, None, severity


def _cardiomegaly(room: _Room) -> Iterator[_Drawn]:
    yield "cardiomegaly", "enlarged", None, None, room.severity()


def _fracture(room: _Room) -> Iterator[_Drawn]:
    # At most one fracture of a kind on each side.
    places = [(side, kind) for side in SIDES for kind in ("rib", "rib", "rib", "clavicle", "clavicle")]
    for _ in range(room.stream.pick((1, 1, 2))):
        side, kind = room.stream.pick(places)
        places = [place for place in places if place != (side, kind)]
        yield "fracture", kind, side, None, room.severity()


def _devices(room: _Room) -> Iterator[_Drawn]:
    kinds = ["tracheal tube", "central line", "feeding tube", "pacemaker", "chest tube"]
    for _ in range(room.stream.pick((1, 1, 2, 3))):
        kind = room.stream.pick(kinds)
        kinds.remove(kind)
        side: Side | None = room.stream.pick(SIDES)
        if kind == "pacemaker":
            side = "left" if room.stream.chance(0.8) else "right"
        elif kind in ("tracheal tube", "feeding tube"):
            side = None
        yield "support_devices", kind, side, None, "mild"


_PLANNERS = (
    (0.33, _effusion),
    (0.33, _pneumothorax),
    (0.47, _atelectasis),
    (0.36, _consolidation),
    (0.37, _lesion),
    (0.38, _opacity),
    (0.40, _edema),
    (0.34, _cardiomegaly),
    (0.34, _fracture),
    (0.34, _devices),
)
"""How often each finding is drawn for a film that is not healthy, in the order in which they take zones."""
