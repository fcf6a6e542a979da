"""Compares the network's answers to recent films with those to its first films: population stability index by prompt.

A window holds, for one scanner, for one group of patients (`subgroups`) or for all, the answers to the first
`REFERENCE_FILMS` films and to the last `CURRENT_FILMS` films after them. Of each answer only the bin of its probability
is stored, one of ten equal bins.

Scanners are named from a short closed list, so that no text of an image becomes a metric label. A manufacturer is
recognized by the spellings of its name. Its models are numbered in order of appearance, `philips-1`, `philips-2`.
Scanners of other manufacturers, and those that come when the list is full, are `other`.

Windows are stored below `storage.directory/windows`, by weights, thresholds and prompt set. With other weights the
comparison starts anew; after a restart it continues. Workers that share the folder share its windows; each publishes
them after its own last film. They contain no patient data.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydicom.dataset import Dataset

from node.dicom import attributes
from node.domain import Film, Json, JsonObject, ModelIdentity, derive_uid
from node.metrics import GROUPS, OTHER_SCANNER, Metrics
from node.prompt_set import PromptSet
from node.service.subgroups import groups_of
from node.store.spool import Spool

REFERENCE_FILMS: Final = 500
CURRENT_FILMS: Final = 200
BINS: Final = 10
QUANTILES: Final = (0.5, 0.9)
LEAST_FILMS: Final = 50
"""Below so many films nothing is said of a group: chance would say it."""

# A bin that is empty on one side only would make the index infinite. Adding half a film of the current window to every
# bin keeps it finite, and prevents an alert from single films in rare bins: with 1e-4 instead, random variation causes
# one in 1 to 3 of 100 windows if most films fall into one bin (tests/node/service/test_drift.py).
_FLOOR: Final = 0.5 / CURRENT_FILMS


def psi(reference: Sequence[int], current: Sequence[int]) -> float:
    """Compare two non-empty histograms with the same bins: the sum of (c - r) ln(c / r) over the shares.

    0 if and only if the shares are equal. By convention a value above 0.1 is a shift, and above 0.2 needs action.
    Random variation alone gives 0.06 on average with 500 and 200 films, and above 0.2 in fewer than 2 of 1,000 windows.
    """
    pairs = zip(_shares(reference), _shares(current), strict=True)
    return math.fsum((c - r) * math.log(c / r) for r, c in pairs)


def _shares(counts: Sequence[int]) -> list[float]:
    """Return the share of each bin, all above 0; equal shares stay equal, different ones different."""
    whole = sum(counts)
    return [(count / whole + _FLOOR) / (1 + _FLOOR * len(counts)) for count in counts]


def bin_of(probability: float) -> int:
    """Return which of ten equal bins holds a probability, 0..1; 1 belongs to the last."""
    return min(int(probability * BINS), BINS - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftWindow:
    """The answers to the first films and to the newest films; by prompt one digit, the bin, per film."""

    reference: Mapping[str, str] = field(default_factory=dict)
    current: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference_films(self) -> int:
        """Number of films in the reference."""
        return max(map(len, self.reference.values()), default=0)

    @property
    def current_films(self) -> int:
        """Number of films in the current window."""
        return max(map(len, self.current.values()), default=0)

    def with_film(self, probabilities: Mapping[str, float]) -> DriftWindow:
        """Add one film's answers, by prompt: to the reference until it is full, else in place of the oldest."""
        if self.reference_films < REFERENCE_FILMS:
            return DriftWindow(reference=_added(self.reference, probabilities, REFERENCE_FILMS), current=self.current)
        return DriftWindow(reference=self.reference, current=_added(self.current, probabilities, CURRENT_FILMS))

    def drift(self) -> dict[str, float]:
        """Return the index of every prompt; empty until both windows are full."""
        return {
            prompt: psi(_counts(self.reference[prompt]), _counts(bins))
            for prompt, bins in self.current.items()
            if len(bins) == CURRENT_FILMS and len(self.reference.get(prompt, "")) == REFERENCE_FILMS
        }

    def quantiles(self) -> dict[tuple[str, float], float]:
        """Return the quantiles of the newest films' probabilities by prompt, as upper edges of bins.

        At most `CURRENT_FILMS` films count, and none below `LEAST_FILMS`.
        """
        newest = {
            prompt: sorted((self.reference.get(prompt, "") + self.current.get(prompt, ""))[-CURRENT_FILMS:])
            for prompt in (*self.reference, *self.current)
        }
        return {
            (prompt, quantile): (int(bins[math.ceil(quantile * len(bins)) - 1]) + 1) / BINS
            for prompt, bins in newest.items()
            if len(bins) >= LEAST_FILMS
            for quantile in QUANTILES
        }

    def to_json(self) -> JsonObject:
        """Return the stored form."""
        return {"reference": dict(self.reference), "current": dict(self.current)}


def window_from_json(content: JsonObject | None) -> DriftWindow:
    """Read the stored form; an empty window if there is none or it is invalid."""
    content = content or {}
    reference = _bins(content.get("reference"), REFERENCE_FILMS)
    current = _bins(content.get("current"), CURRENT_FILMS)
    return DriftWindow() if reference is None or current is None else DriftWindow(reference=reference, current=current)


def _added(films: Mapping[str, str], probabilities: Mapping[str, float], limit: int) -> dict[str, str]:
    return {
        prompt: (films.get(prompt, "") + str(bin_of(probability)))[-limit:]
        for prompt, probability in probabilities.items()
    }


def _counts(bins: str) -> list[int]:
    found = Counter(bins)
    return [found[str(number)] for number in range(BINS)]


def _bins(content: Json, limit: int) -> dict[str, str] | None:
    """Return one digit per film by prompt, at most `limit`; None if the content is anything else."""
    if not isinstance(content, dict):
        return None
    films = {prompt: bins for prompt, bins in content.items() if isinstance(bins, str)}
    fits = all(bins.isascii() and bins.isdecimal() and len(bins) <= limit for bins in films.values())
    return films if fits and len(films) == len(content) else None


MOST_SCANNERS: Final = 20

# Spellings of radiography manufacturers in (0008,0070), including names from before an acquisition.
_VENDORS: Final = {
    "agfa": "agfa",
    "canon": "canon|toshiba",
    "carestream": "carestream|kodak",
    "fujifilm": "fuji|fujifilm",
    "ge": "ge|general electric",
    "hologic": "hologic",
    "konica_minolta": "konica|minolta",
    "philips": "philips",
    "samsung": "samsung",
    "shimadzu": "shimadzu",
    "siemens": "siemens",
    "varex": "varex|varian",
}


def vendor_of(manufacturer: str) -> str | None:
    """Name a manufacturer from the closed list, or None."""
    for vendor, names in _VENDORS.items():
        if re.search(rf"\b({names})\b", manufacturer, re.IGNORECASE):
            return vendor
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanners:
    """The scanner models seen so far: each label and its model name (0008,1090)."""

    models: Mapping[str, str] = field(default_factory=dict)

    def label_of(self, manufacturer: str, model: str) -> str:
        """Return the label of a scanner, `other` if it has none."""
        vendor = vendor_of(manufacturer)
        for label, known in self.models.items():
            if known == model and label.rpartition("-")[0] == vendor:
                return label
        return OTHER_SCANNER

    def with_scanner(self, manufacturer: str, model: str) -> Scanners:
        """Number a new model if the list has room; otherwise return the same list."""
        vendor = vendor_of(manufacturer)
        is_known = self.label_of(manufacturer, model) != OTHER_SCANNER
        if vendor is None or is_known or len(self.models) >= MOST_SCANNERS:
            return self
        number = 1 + sum(label.rpartition("-")[0] == vendor for label in self.models)
        return Scanners(models={**self.models, f"{vendor}-{number}": model})

    def to_json(self) -> JsonObject:
        """Return the stored form."""
        return dict(self.models)


def scanners_from_json(content: JsonObject | None) -> Scanners:
    """Read the stored form; empty if there is none. Labels that this version does not use are dropped."""
    labels = "|".join(_VENDORS)
    kept = {
        label: model
        for label, model in (content or {}).items()
        if isinstance(model, str) and re.fullmatch(rf"({labels})-\d+", label)
    }
    return Scanners(models=dict(list(kept.items())[:MOST_SCANNERS]))


_ALL = "all"
_LONGEST_MODEL = 64  # PS3.5 6.2: LO


class Watch:
    """Records every film that was read. Thread-safe, and safe between processes."""

    def __init__(self, spool: Spool, metrics: Metrics, *, model: ModelIdentity, prompts: PromptSet) -> None:
        self._spool, self._metrics = spool, metrics
        self._key = derive_uid("windows", model.weights_sha256, model.manifest_sha256, prompts.sha256)
        self._is_ended = False
        scanners = (_ALL, *scanners_from_json(spool.window("scanners")).models)
        found = {films: self._window(films) for films in (*scanners, *GROUPS)}
        metrics.forget_drift()
        for films, window in found.items():
            publish = self._publish_group if films in GROUPS else self._publish
            publish(films, window)

    def end(self) -> None:
        """Publish no more: films are read with other prompts. What is being read is still recorded."""
        self._is_ended = True

    def note(self, film: Film, header: Dataset) -> None:
        """Record the findings of a film that was read. Raises OSError when the disk fails.

        A finding that the model leaves out is counted in its state, and has no probability.
        """
        told = ((finding.prompt, finding.output_probability) for finding in film.findings)
        probabilities = {prompt: probability for prompt, probability in told if probability is not None}
        with self._spool.changing_windows():
            changed: dict[str, JsonObject] = {}
            scanners = self._scanners(header, changed)
            scanner = scanners.label_of(*_maker(header))
            for finding in film.findings:
                self._metrics.findings.labels(finding.prompt, finding.state, scanner).inc()
            for prompt, probability in probabilities.items():
                self._metrics.probability.labels(prompt, scanner).observe(probability)
            for withheld in film.withheld:
                self._metrics.withheld.labels(withheld.reason).inc()
            for name in {_ALL, scanner} & {_ALL, *scanners.models}:
                window = self._window(name).with_film(probabilities)
                changed[self._name(name)] = window.to_json()
                self._publish(name, window)
            for group in groups_of(film, header):
                for finding in film.findings:
                    self._metrics.group_findings.labels(finding.prompt, finding.state, group).inc()
                window = self._window(group).with_film(probabilities)
                changed[self._name(group)] = window.to_json()
                self._publish_group(group, window)
            self._spool.keep_windows(changed)

    def _scanners(self, header: Dataset, changed: dict[str, JsonObject]) -> Scanners:
        """Return the known scanners, after adding that of this film if it is new, and what of them changed."""
        before = scanners_from_json(self._spool.window("scanners"))
        known = before.with_scanner(*_maker(header))
        if known is not before:
            changed["scanners"] = known.to_json()
        return known

    def _window(self, films: str) -> DriftWindow:
        return window_from_json(self._spool.window(self._name(films)))

    def _publish(self, scanner: str, window: DriftWindow) -> None:
        if self._is_ended:
            return
        self._metrics.drift_films.labels("reference", scanner).set(window.reference_films)
        self._metrics.drift_films.labels("current", scanner).set(window.current_films)
        for prompt, index in window.drift().items():
            self._metrics.drift_psi.labels(prompt, scanner).set(index)

    def _publish_group(self, group: str, window: DriftWindow) -> None:
        if self._is_ended:
            return
        self._metrics.group_films.labels(group).set(window.reference_films + window.current_films)
        for (prompt, quantile), probability in window.quantiles().items():
            self._metrics.group_probability.labels(prompt, group, str(quantile)).set(probability)
        for prompt, index in window.drift().items():
            self._metrics.group_drift.labels(prompt, group).set(index)

    def _name(self, films: str) -> str:
        return f"{self._key}-{films}"


def _maker(header: Dataset) -> tuple[str, str]:
    """Return manufacturer and model of a film's scanner."""
    model = attributes.text(header, "ManufacturerModelName")[:_LONGEST_MODEL]
    return attributes.text(header, "Manufacturer"), model
