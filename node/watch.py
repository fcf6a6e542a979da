"""What the network says, counted per prompt and scanner model, and compared with what it said first.

Windows are kept below `storage.directory/windows`, by weights, thresholds and prompt set: with other weights the
comparison begins anew, after a restart it goes on. Nothing of a patient is in them.
"""

from __future__ import annotations

import threading

from pydicom.dataset import Dataset

from node import attributes
from node.domain import Film, ModelIdentity, PromptSet, derive_uid
from node.drift import Window, window_from_json
from node.metrics import Metrics
from node.scanners import Scanners, scanners_from_json
from node.spool import Spool

_ALL = "all"
_LONGEST_MODEL = 64  # PS3.5 6.2: LO


class Watch:
    """Notes every film that was read. May be called from several threads."""

    def __init__(self, spool: Spool, metrics: Metrics, *, model: ModelIdentity, prompts: PromptSet) -> None:
        self._spool, self._metrics = spool, metrics
        self._key = derive_uid("windows", model.weights_sha256, model.manifest_sha256, prompts.sha256)
        self._noting = threading.Lock()
        self._scanners = scanners_from_json(spool.window("scanners"))
        self._windows: dict[str, Window] = {}
        for scanner in (_ALL, *self._scanners.models):
            self._windows[scanner] = window_from_json(spool.window(self._name(scanner)))
            self._publish(scanner)

    def note(self, film: Film, header: Dataset) -> None:
        """Count the findings of a film that was read. Raises OSError when the disk fails."""
        with self._noting:
            scanner = self._scanner(header)
            for finding in film.findings:
                self._metrics.findings.labels(finding.prompt, finding.state, scanner).inc()
                self._metrics.probability.labels(finding.prompt, scanner).observe(finding.probability)
            probabilities = {finding.prompt: finding.probability for finding in film.findings}
            for window in {_ALL, scanner} & {_ALL, *self._scanners.models}:
                self._windows[window] = self._windows.get(window, Window()).with_film(probabilities)
                self._spool.keep_window(self._name(window), self._windows[window].to_json())
                self._publish(window)

    def _scanner(self, header: Dataset) -> str:
        """The label of a film's scanner, which is numbered when it is new."""
        manufacturer = attributes.text(header, "Manufacturer")
        model = attributes.text(header, "ManufacturerModelName")[:_LONGEST_MODEL]
        known: Scanners = self._scanners.with_scanner(manufacturer, model)
        if known is not self._scanners:
            self._spool.keep_window("scanners", known.to_json())
            self._scanners = known
        return known.label_of(manufacturer, model)

    def _publish(self, scanner: str) -> None:
        window = self._windows[scanner]
        self._metrics.drift_films.labels("reference", scanner).set(window.reference_films)
        self._metrics.drift_films.labels("current", scanner).set(window.current_films)
        for prompt, index in window.drift().items():
            self._metrics.drift_psi.labels(prompt, scanner).set(index)

    def _name(self, scanner: str) -> str:
        return f"{self._key}-{scanner}"
