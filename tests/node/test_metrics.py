from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from models.contract import WithheldSentence
from node.errors import Refused
from node.metrics import FAILURES, Metrics
from tests.support import recorded
from tests.support.exported import whole_registry
from tests.support.samples import EDEMA, EFFUSION, absent, film, finding, left_out


def samples(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """The values of one metric, by its labels in alphabetical order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_every_metric_is_as_recorded_after_a_fixed_story() -> None:
    metrics = Metrics()
    metrics.expect(destinations=["archive"], prompts=["pulmonary_edema"])
    withheld = (WithheldSentence(text="No edema.", prompt="pulmonary_edema", reason="contradicts"),)
    gray = np.array([[0, 255], [61, 255]], dtype=np.uint8)
    metrics.count_film(replace(film(findings=(finding(EDEMA, probability=0.34), left_out())), withheld=withheld), gray)
    metrics.count_film(film(findings=(finding(EDEMA, probability=0.71), absent(EFFUSION))), None)
    metrics.on_written(12, 1.5)
    metrics.step_seconds.labels("decode").observe(0.3)
    metrics.turnaround_seconds.observe(45.0)
    metrics.question_seconds.observe(0.4)

    recorded.check("metrics", {name: found for name, found in exposed(whole_registry(metrics)) if "cxr_" in name})


def exposed(registry: CollectorRegistry) -> Iterator[tuple[str, object]]:
    """Each metric with its kind, and its values by labels; of a histogram, by labels and then by bucket."""
    for family in registry.collect():
        values: dict[str, object] = {}
        buckets: dict[str, dict[str, float]] = {}
        for sample in family.samples:
            bucket = sample.labels.get("le", sample.name.removeprefix(family.name))
            labels = ", ".join(f"{name}={value}" for name, value in sample.labels.items() if name != "le")
            if sample.name.endswith("_created"):
                continue
            if family.type == "histogram":
                buckets.setdefault(labels, {})[bucket] = sample.value
            else:
                values[labels] = sample.value
        yield f"{family.name} {family.type}", values | buckets


def test_every_refusal_of_an_object_has_its_label() -> None:
    kinds: list[type[Refused]] = [Refused, *Refused.__subclasses__()]

    assert {kind.reason for kind in kinds} == set(FAILURES["receive"])


def test_a_step_that_fails_is_not_timed() -> None:
    metrics = Metrics()

    with metrics.timed("decode"):
        pass
    with pytest.raises(KeyError), metrics.timed("decode"):
        raise KeyError

    assert samples(metrics.registry, "cxr_step_duration_seconds_count")[("decode",)] == 1.0
