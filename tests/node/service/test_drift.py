"""Drift by hand-computed numbers and laws; scanner labels; windows that outlive a restart."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from node.domain import ModelIdentity
from node.metrics import Metrics
from node.read import prompts
from node.service.drift import (
    BINS,
    CURRENT_FILMS,
    MOST_SCANNERS,
    REFERENCE_FILMS,
    DriftWindow,
    Scanners,
    Watch,
    bin_of,
    psi,
    scanners_from_json,
    vendor_of,
    window_from_json,
)
from node.store.spool import Spool
from tests.support.answered import film, header

PROMPTS = prompts.load("chexpert14")
MODEL = ModelIdentity(name="scripted", version="1", weights_sha256="0" * 64, engine="scripted")
ALERT = 0.2
HISTOGRAMS = st.lists(st.integers(0, 300), min_size=BINS, max_size=BINS).filter(any)


class Bench:
    """A watch on a spool; started again as often as wanted, with counters from 0."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self, model: ModelIdentity = MODEL) -> None:
        self.metrics = Metrics()
        self.watch = Watch(Spool(self.folder), self.metrics, model=model, prompts=PROMPTS)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    def fill(self, scanner: str, *, last: str) -> None:
        """Keep windows with one film to go: all answers low at first, then as `last` says, a bin per film."""
        self.watch.note(film(0.05), header())
        window = DriftWindow(reference={"edema": "0" * REFERENCE_FILMS}, current={"edema": last})
        (path,) = (self.folder / "windows").glob(f"*-{scanner}.json")
        Spool(self.folder).keep_windows({path.stem: window.to_json()})
        self.start()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_index_is_what_a_hand_computes() -> None:
    # Shares .5 .5 against .8 .2, each with .0025 more: .298507 ln(.8025 / .2025)
    assert psi([50, 50], [80, 20]) == pytest.approx(0.298507 * 1.376992, abs=1e-6)
    # .7 .2 .1 against .6 .3 .1, each with .0025 more: .099256 (ln(.7025 / .6025) + ln(.3025 / .2025))
    assert psi([70, 20, 10], [6, 3, 1]) == pytest.approx(0.099256 * (0.153562 + 0.401362), abs=1e-5)


def test_an_empty_bin_leaves_the_index_finite() -> None:
    assert psi([500, 0], [0, 200]) == pytest.approx(2 * 0.995025 * math.log(401), rel=1e-5)


@given(HISTOGRAMS, st.integers(1, 5))
def test_the_index_of_equal_shares_is_zero(counts: list[int], times: int) -> None:
    assert psi(counts, [times * count for count in counts]) == pytest.approx(0.0, abs=1e-12)


@given(HISTOGRAMS, HISTOGRAMS)
def test_the_index_of_different_shares_is_above_zero(first: list[int], second: list[int]) -> None:
    assume([count * sum(second) for count in first] != [count * sum(first) for count in second])

    assert psi(first, second) > 0.0
    assert psi(first, second) == pytest.approx(psi(second, first))


def test_a_shift_by_one_bin_raises_the_alert_and_chance_does_not() -> None:
    chance = np.random.default_rng(7)
    kinds = [np.full(BINS, 1 / BINS), np.array([0.6, 0.2, 0.1, 0.05, 0.01, 0.01, 0.01, 0.01, 0.005, 0.005])]
    for shares in kinds:
        drawn = [chance.multinomial(films, shares, 4000) for films in (REFERENCE_FILMS, CURRENT_FILMS)]
        shifted = chance.multinomial(CURRENT_FILMS, np.roll(shares, 1), 4000)

        alone = [psi(list(reference), list(current)) for reference, current in zip(*drawn, strict=True)]
        moved = [psi(list(reference), list(current)) for reference, current in zip(drawn[0], shifted, strict=True)]

        assert np.mean(alone) < 0.07
        assert np.mean(np.array(alone) > ALERT) < 0.002
        if shares.std():
            assert min(moved) > ALERT


@given(st.floats(0.0, 1.0))
def test_every_probability_has_a_bin(probability: float) -> None:
    assert 0 <= bin_of(probability) < BINS
    assert bin_of(1.0) == BINS - 1


def test_the_last_films_are_compared_with_the_first_films() -> None:
    window = DriftWindow()
    for number in range(REFERENCE_FILMS + CURRENT_FILMS - 1):
        window = window.with_film({"edema": 0.05 if number < REFERENCE_FILMS else 0.95})
    assert window.drift() == {}

    window = window.with_film({"edema": 0.95})

    assert (window.reference_films, window.current_films) == (REFERENCE_FILMS, CURRENT_FILMS)
    assert window.drift() == {"edema": psi([REFERENCE_FILMS] + [0] * 9, [0] * 9 + [CURRENT_FILMS])}
    for _ in range(CURRENT_FILMS):
        window = window.with_film({"edema": 0.05})
    assert window.drift()["edema"] == pytest.approx(0.0)


@given(st.lists(st.dictionaries(st.sampled_from(("edema", "fracture")), st.floats(0, 1)), max_size=20))
def test_a_window_comes_back_as_it_was_kept(films: list[dict[str, float]]) -> None:
    window = DriftWindow()
    for probabilities in films:
        window = window.with_film(probabilities)

    assert window_from_json(window.to_json()) == window


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"reference": 3, "current": {"edema": ["0"]}},
        {"reference": {"edema": "0", "fracture": "x"}, "current": {}},
        {
            "reference": {"edema": "\N{ARABIC-INDIC DIGIT THREE}" * REFERENCE_FILMS},
            "current": {"edema": "1" * CURRENT_FILMS},
        },
        {
            "reference": {"edema": "3" * REFERENCE_FILMS},
            "current": {"edema": "\N{ARABIC-INDIC DIGIT ONE}" * CURRENT_FILMS},
        },
        {"reference": {"edema": "3" * (REFERENCE_FILMS + 1)}, "current": {"edema": "1" * CURRENT_FILMS}},
        {"reference": {"edema": "3" * REFERENCE_FILMS}, "current": {"edema": "1" * (CURRENT_FILMS + 1)}},
    ],
)
def test_a_damaged_window_is_an_empty_one(content: dict[str, object] | None) -> None:
    assert window_from_json(content) == DriftWindow()  # type: ignore[arg-type]  # whatever a file may hold


@pytest.mark.parametrize(
    ("manufacturer", "vendor"),
    [
        ("Philips Medical Systems", "philips"),
        ('"GE Healthcare"', "ge"),
        ("FUJIFILM Corporation", "fujifilm"),
        ("KODAK", "carestream"),
        ("Orange Imaging", None),
        ("Doe^Jane", None),
        ("", None),
    ],
)
def test_a_manufacturer_is_known_by_the_ways_it_is_written(manufacturer: str, vendor: str | None) -> None:
    assert vendor_of(manufacturer) == vendor


def test_models_are_numbered_in_the_order_they_come() -> None:
    scanners = Scanners()
    for manufacturer, model in (("Philips", "One"), ("PHILIPS", "Two"), ("Siemens", "One"), ("Philips", "One")):
        scanners = scanners.with_scanner(manufacturer, model)

    assert list(scanners.models) == ["philips-1", "philips-2", "siemens-1"]
    assert scanners.label_of("Philips Medical Systems", "Two") == "philips-2"
    assert scanners_from_json(scanners.to_json()) == scanners


@given(st.lists(st.tuples(st.sampled_from(("Agfa", "GE", "Doe^Jane")), st.text()), max_size=60))
def test_labels_are_few_and_hold_no_text_of_an_image(seen: list[tuple[str, str]]) -> None:
    scanners = Scanners()
    for manufacturer, model in seen:
        scanners = scanners.with_scanner(manufacturer, model)

    assert len(scanners.models) <= MOST_SCANNERS
    own = {f"{vendor}-{number}" for vendor in ("agfa", "ge") for number in range(1, MOST_SCANNERS + 1)}
    assert {scanners.label_of(*scanner) for scanner in seen} <= own | {"other"}


def test_findings_are_counted_by_prompt_state_and_scanner(bench: Bench) -> None:
    bench.watch.note(film(0.9), header())
    bench.watch.note(film(0.2), header("Nobody", "Nothing"))

    assert bench.value("cxr_findings_total", prompt="edema", state="present", scanner="philips-1") == 1
    assert bench.value("cxr_findings_total", prompt="edema", state="absent", scanner="other") == 1
    assert bench.value("cxr_finding_probability_bucket", prompt="edema", scanner="philips-1", le="0.8") == 0
    assert bench.value("cxr_finding_probability_bucket", prompt="edema", scanner="philips-1", le="0.9") == 1
    assert bench.value("cxr_drift_films", window="reference", scanner="all") == 2


def test_a_scanner_that_drifts_is_told_from_the_others(bench: Bench) -> None:
    bench.fill("philips-1", last="9" * (CURRENT_FILMS - 1))
    assert bench.value("cxr_drift_psi", prompt="edema", scanner="philips-1") is None

    bench.watch.note(film(0.95), header())
    bench.watch.note(film(0.05), header("Siemens", "Ysio"))

    drifted = bench.value("cxr_drift_psi", prompt="edema", scanner="philips-1")
    assert drifted is not None and drifted > 0.2
    assert bench.value("cxr_drift_psi", prompt="edema", scanner="siemens-1") is None


def test_windows_and_scanner_numbers_outlive_a_restart(bench: Bench) -> None:
    bench.fill("philips-1", last="0" * CURRENT_FILMS)

    bench.start()
    bench.watch.note(film(0.05), header())

    assert bench.value("cxr_drift_psi", prompt="edema", scanner="philips-1") == pytest.approx(0.0)
    assert bench.value("cxr_drift_films", window="reference", scanner="philips-1") == REFERENCE_FILMS


def test_workers_of_one_folder_share_windows_and_scanner_numbers(bench: Bench) -> None:
    other = Bench(bench.folder)
    scanners = [header(model=f"Model {number}") for number in range(2)]

    for number in range(6):
        (bench if number % 2 else other).watch.note(film(0.5), scanners[number % 3 % 2])

    assert (
        max(worker.value("cxr_drift_films", window="reference", scanner="all") or 0 for worker in (bench, other)) == 6
    )
    known = scanners_from_json(Spool(bench.folder).window("scanners"))
    assert len(known.models) == 2


def test_other_weights_are_compared_with_their_own_first_films(bench: Bench) -> None:
    bench.fill("philips-1", last="0" * CURRENT_FILMS)

    bench.start(replace(MODEL, weights_sha256="1" * 64))

    assert bench.value("cxr_drift_films", window="reference", scanner="philips-1") == 0
    assert bench.value("cxr_drift_psi", prompt="edema", scanner="philips-1") is None
