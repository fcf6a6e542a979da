"""What the network says, counted per prompt and scanner model, and compared with what it said first.

Windows are kept below `storage.directory/windows`, by weights, thresholds and prompt set: with other weights the
comparison begins anew, after a restart it goes on. Workers that share the folder share its windows, and each tells how
they were after its own last film. Nothing of a patient is in them.
"""

from __future__ import annotations

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
    """Notes every film that was read. May be called from several threads, and processes."""

    def __init__(self, spool: Spool, metrics: Metrics, *, model: ModelIdentity, prompts: PromptSet) -> None:
        self._spool, self._metrics = spool, metrics
        self._key = derive_uid("windows", model.weights_sha256, model.manifest_sha256, prompts.sha256)
        for scanner in (_ALL, *scanners_from_json(spool.window("scanners")).models):
            self._publish(scanner, self._window(scanner))

    def note(self, film: Film, header: Dataset) -> None:
        """Count the findings of a film that was read. Raises OSError when the disk fails."""
        with self._spool.changing_windows():
            scanners = self._scanners(header)
            scanner = scanners.label_of(*_maker(header))
            for finding in film.findings:
                self._metrics.findings.labels(finding.prompt, finding.state, scanner).inc()
                self._metrics.probability.labels(finding.prompt, scanner).observe(finding.probability)
            probabilities = {finding.prompt: finding.probability for finding in film.findings}
            for name in {_ALL, scanner} & {_ALL, *scanners.models}:
                window = self._window(name).with_film(probabilities)
                self._spool.keep_window(self._name(name), window.to_json())
                self._publish(name, window)

    def _scanners(self, header: Dataset) -> Scanners:
        """The scanners that are known; a film's own is numbered when it is new."""
        before = scanners_from_json(self._spool.window("scanners"))
        known = before.with_scanner(*_maker(header))
        if known is not before:
            self._spool.keep_window("scanners", known.to_json())
        return known

    def _window(self, scanner: str) -> Window:
        return window_from_json(self._spool.window(self._name(scanner)))

    def _publish(self, scanner: str, window: Window) -> None:
        self._metrics.drift_films.labels("reference", scanner).set(window.reference_films)
        self._metrics.drift_films.labels("current", scanner).set(window.current_films)
        for prompt, index in window.drift().items():
            self._metrics.drift_psi.labels(prompt, scanner).set(index)

    def _name(self, scanner: str) -> str:
        return f"{self._key}-{scanner}"


def _maker(header: Dataset) -> tuple[str, str]:
    """Manufacturer and model of a film's scanner."""
    model = attributes.text(header, "ManufacturerModelName")[:_LONGEST_MODEL]
    return attributes.text(header, "Manufacturer"), model
