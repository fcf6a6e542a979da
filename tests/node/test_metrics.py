from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from models.contract import FindingState
from node.domain import Reason
from node.errors import Refused
from node.metrics import FAILURES, ORDER_REFUSALS, REFUSALS, Metrics
from tests.support.exported import whole_registry
from tests.support.samples import EDEMA, EFFUSION, film, finding


def samples(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """The values of one metric, by its labels in alphabetical order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_counters_start_at_zero_for_every_label_they_can_have() -> None:
    metrics = Metrics()
    metrics.expect(destinations=["pacs"], prompts=["edema"])
    registry = metrics.registry

    assert samples(registry, "cxr_associations_refused_total") == {(reason,): 0.0 for reason in REFUSALS}
    assert samples(registry, "cxr_orders_refused_total") == {(reason,): 0.0 for reason in ORDER_REFUSALS}
    assert samples(registry, "cxr_films_total") == {(outcome,): 0.0 for outcome in ("read", *Reason)}
    assert samples(registry, "cxr_deliveries_total") == {
        ("pacs", outcome): 0.0 for outcome in ("sent", "committed", "delayed", "parked")
    }
    assert samples(registry, "cxr_findings_total") == {
        ("edema", state): 0.0 for state in ("present", "indeterminate", "uncalibrated", "absent", "left_out")
    }
    assert ("unforeseen", "place") in samples(registry, "cxr_failures_total")
    assert samples(registry, "cxr_failures_total") == {
        (reason, stage): 0.0 for stage, reasons in FAILURES.items() for reason in reasons
    }


def test_what_was_read_is_counted_by_finding_with_how_its_picture_looks() -> None:
    metrics = Metrics()
    left_out = replace(finding(EFFUSION, state=FindingState.LEFT_OUT), probability=None, boxes=())
    findings = (finding(EDEMA, probability=0.34), left_out)
    gray = np.array([[0, 255], [0, 255]], dtype=np.uint8)

    metrics.count_film(film(findings=findings), gray)
    metrics.count_film(film(findings=findings[:1]), None)

    counted = samples(metrics.registry, "cxr_findings_total")
    assert counted == {("pulmonary_edema", "present"): 2, ("pleural_effusion", "left_out"): 1}
    probabilities = samples(metrics.registry, "cxr_finding_probability_bucket")
    assert [probabilities[le, "pulmonary_edema"] for le in ("0.3", "0.4", "+Inf")] == [0, 2, 2]
    assert all(prompt == "pulmonary_edema" for _, prompt in probabilities), "what is left out has no probability"
    for name in ("cxr_picture_mean", "cxr_picture_deviation"):
        assert samples(metrics.registry, f"{name}_sum") == {(): 0.5}
        assert samples(metrics.registry, f"{name}_count") == {(): 1}, "not without a thumbnail"


def test_every_refusal_of_an_object_has_its_label() -> None:
    kinds: list[type[Refused]] = [Refused, *Refused.__subclasses__()]

    assert {kind.reason for kind in kinds} == set(FAILURES["receive"])


def test_work_that_waits_is_counted_by_queue_and_by_destination() -> None:
    registry = whole_registry()

    assert samples(registry, "cxr_waiting") == {("studies",): 1.0, ("deliveries",): 3.0}
    assert samples(registry, "cxr_studies") == {
        ("receiving",): 0.0, ("reading",): 1.0, ("finished",): 2.0, ("parked",): 0.0,
    }  # fmt: skip
    assert samples(registry, "cxr_destination_paused") == {("archive",): 1.0, ("second",): 0.0}
    assert samples(registry, "cxr_destination_oldest_waiting_seconds") == {("archive",): 8.0, ("second",): 0.0}
    assert samples(registry, "cxr_destination_deliveries")[("second", "parked")] == 0.0
    assert samples(registry, "cxr_destination_uncommitted") == {("archive",): 2.0, ("second",): 0.0}
    assert samples(registry, "cxr_destination_oldest_uncommitted_seconds") == {("archive",): 90.0, ("second",): 0.0}
    assert samples(registry, "cxr_review_films") == {
        ("contradicted",): 3.0, ("near_threshold",): 0.0, ("uncalibrated",): 0.0,
    }  # fmt: skip
    assert samples(registry, "cxr_oldest_waiting_seconds")[("studies",)] == 1.5
    spool = [samples(registry, f"cxr_spool_{name}_bytes")[()] for name in ("free", "capacity", "reserve")]
    assert spool == [1024.0, 4096.0, 512.0]
    assert samples(registry, "cxr_ready") == {("listener",): 1.0, ("disk",): 0.0}


def test_a_step_that_fails_is_not_timed() -> None:
    metrics = Metrics()

    with metrics.timed("decode"):
        pass
    with pytest.raises(KeyError), metrics.timed("decode"):
        raise KeyError

    assert samples(metrics.registry, "cxr_step_duration_seconds_count")[("decode",)] == 1.0
