"""What a probability says: by the finding's own threshold, and only as far as somebody measured it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from models.contract import FindingState, Trusted
from models.decisions import Band, Decisions, Measurement, PhantomThreshold, RatioError
from models.reading.decision import decide, is_ratio_measured, is_ratio_trusted

DECISIONS = Decisions(
    temperature=1.0,
    default_threshold=0.5,
    thresholds={"edema": 0.7, "fracture": 0.7, "nodule": 0.7},
    measurements={
        "edema": Measurement(measured_on="hospital", positives=20, negatives=80),
        "fracture": Measurement(measured_on="phantoms", positives=20, negatives=80),
    },
    review_band=0.1,
    box_threshold=0.5,
    region_threshold=0.5,
)


@pytest.mark.parametrize(
    ("key", "trusted", "above", "near"),
    [
        ("edema", "real", FindingState.PRESENT, FindingState.INDETERMINATE),
        ("edema", "phantoms", FindingState.UNCALIBRATED, FindingState.UNCALIBRATED),
        ("edema", "any", FindingState.PRESENT, FindingState.INDETERMINATE),
        ("fracture", "real", FindingState.UNCALIBRATED, FindingState.UNCALIBRATED),
        ("fracture", "phantoms", FindingState.PRESENT, FindingState.INDETERMINATE),
        ("nodule", "real", FindingState.UNCALIBRATED, FindingState.UNCALIBRATED),
        ("nodule", "phantoms", FindingState.UNCALIBRATED, FindingState.UNCALIBRATED),
        ("nodule", "any", FindingState.PRESENT, FindingState.INDETERMINATE),
    ],
)
def test_only_a_measured_threshold_calls_a_finding_present(
    key: str, trusted: Trusted, above: FindingState, near: FindingState
) -> None:
    states = [decide(DECISIONS, key, probability, trusted=trusted) for probability in (0.7, 0.65, 0.6, 0.5999)]

    assert states == [above, near, near, FindingState.ABSENT]


def test_a_measured_band_goes_before_the_common_width() -> None:
    wide = Band(lower=0.2, below=40, missed=2, within=30, shown=9)
    narrow = replace(wide, lower=0.7)
    measurements = {key: replace(own, band=wide) for key, own in DECISIONS.measurements.items()}
    phantoms = {"edema": PhantomThreshold(threshold=0.8, positives=3, negatives=7, band=narrow)}
    decisions = replace(DECISIONS, measurements=measurements, phantoms=phantoms)

    real = [decide(decisions, "edema", probability, trusted="real") for probability in (0.199, 0.2, 0.699, 0.7)]
    drawn = [
        decide(decisions.on_phantoms(), "edema", probability, trusted="phantoms") for probability in (0.69, 0.7, 0.8)
    ]

    assert real == [FindingState.ABSENT, FindingState.INDETERMINATE, FindingState.INDETERMINATE, FindingState.PRESENT]
    assert drawn == [FindingState.ABSENT, FindingState.INDETERMINATE, FindingState.PRESENT]
    assert decide(decisions, "nodule", 0.599, trusted="any") is FindingState.ABSENT, "it has no band of its own"


@pytest.mark.parametrize("table", ["measurements", "phantoms"])
def test_a_band_ends_at_its_threshold(table: str) -> None:
    band = Band(lower=0.75, below=40, missed=2, within=0, shown=0)
    own = PhantomThreshold(threshold=0.7, positives=3, negatives=7, band=band)
    measured = dict(DECISIONS.measurements) | {"edema": replace(DECISIONS.measurements["edema"], band=band)}

    with pytest.raises(ValueError, match=rf"{table}\.edema\.band\.lower \(0\.75\) must not be above the threshold"):
        if table == "phantoms":
            replace(DECISIONS, phantoms={"edema": own})
        else:
            replace(DECISIONS, measurements=measured)


@pytest.mark.parametrize("wrong", [{"lower": 1.2}, {"missed": 41}, {"shown": 10}, {"shown": -1}])
def test_a_band_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    right = Band(lower=0.2, below=40, missed=2, within=9, shown=9)

    with pytest.raises(ValueError, match=r"must lie|are counts"):
        replace(right, **wrong)


@pytest.mark.parametrize(
    ("measured_on", "trusting"),
    [("hospital", {"real", "any"}), ("phantoms", {"phantoms", "any"}), (None, set())],
)
def test_a_ratio_is_trusted_where_its_error_was_measured(measured_on: str | None, trusting: set[str]) -> None:
    error = measured_on and RatioError(
        measured_on=measured_on, films=9, mean_absolute_error=0.02, bias=0.0, lower=-0.05, upper=0.05
    )
    ways: tuple[Trusted, ...] = ("real", "phantoms", "any")

    assert {trusted for trusted in ways if is_ratio_trusted(error or None, trusted)} == trusting
    measured = {trusted for trusted in ways if is_ratio_measured(error or None, trusted)}
    assert measured == (trusting - {"any"} if measured_on == "phantoms" else trusting)


@pytest.mark.parametrize("key", [None, "pneumonia"])
def test_what_has_no_threshold_stays_to_be_reviewed(key: str | None) -> None:
    for trusted in ("real", "phantoms"):
        assert decide(DECISIONS, key, 0.9, trusted=trusted) is FindingState.UNCALIBRATED
        assert decide(DECISIONS, key, 0.39, trusted=trusted) is FindingState.ABSENT
    assert decide(DECISIONS, key, 0.5, trusted="any") is FindingState.PRESENT


def test_a_measurement_without_a_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"measurements\.edema belongs to no threshold"):
        Decisions(
            temperature=1.0,
            default_threshold=0.5,
            measurements={"edema": Measurement(measured_on="hospital", positives=20, negatives=80)},
            review_band=0.1,
            box_threshold=0.5,
            region_threshold=0.5,
        )


def test_a_finding_has_a_threshold_for_each_kind_of_film() -> None:
    own = PhantomThreshold(threshold=0.4, positives=3, negatives=7)
    decisions = replace(DECISIONS, phantoms={"edema": own})

    real = [decide(decisions, "edema", probability, trusted="real") for probability in (0.5, 0.7)]
    on_phantoms = [
        decide(decisions.on_phantoms(), "edema", probability, trusted="phantoms") for probability in (0.2, 0.5)
    ]

    assert (real, on_phantoms) == (
        [FindingState.ABSENT, FindingState.PRESENT],
        [FindingState.ABSENT, FindingState.PRESENT],
    )


@pytest.mark.parametrize("key", ["fracture", "nodule", "pneumonia"])
def test_phantoms_have_a_second_threshold_only_beside_a_real_one(key: str) -> None:
    with pytest.raises(ValueError, match=rf"phantoms\.{key} needs measurements\.{key}, on real films"):
        replace(DECISIONS, phantoms={key: PhantomThreshold(threshold=0.4, positives=3, negatives=7)})


@pytest.mark.parametrize("wrong", [{"measured_on": " "}, {"positives": 0}, {"negatives": 0}])
def test_a_measurement_names_its_population_and_films(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong)))):
        Measurement(**({"measured_on": "hospital", "positives": 20, "negatives": 80} | wrong))  # type: ignore[arg-type]
