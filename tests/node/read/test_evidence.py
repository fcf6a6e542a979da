"""Evidence: the zone that a finding overlaps most, its share of that zone, and that it is no measurement."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contract import Box, FilmReading, FindingState, PromptKind, PromptReading, ScoredBox, Side
from models.documents import decode, encode
from node.domain import Code, Evidence, Film, Finding
from node.outputs import report_json
from node.prompt_set import Prompt, PromptSet
from node.read import findings, prompts
from node.read.findings import covered, locate
from node.read.framing import Framing
from tests.support import samples
from tests.support.samples import film, report

UPPER, LOWER = Box(left=0, top=0, right=40, bottom=40), Box(left=0, top=40, right=40, bottom=80)
ABDOMEN = Box(left=0, top=0, right=400, bottom=400)
NODULE = Box(left=10, top=20, right=30, bottom=44)
REGIONS = {"abdomen": ABDOMEN, "upper": UPPER, "lower": LOWER}

ZONE = Code(value="281394001", scheme="SCT", meaning="Lower zone of lung")
REGION_SIDES: dict[str, Side | None] = {"right_zone": Side.RIGHT, "left_zone": Side.LEFT, "mediastinum": None}
EFFUSION = Prompt(
    key="effusion",
    kind=PromptKind.PATHOLOGY,
    phrases=("a",),
    negatives=("b",),
    finding=Code(value="60046008", scheme="SCT", meaning="Pleural effusion"),
    paired=True,
)
PROMPTS = PromptSet(
    name="set",
    version="1",
    sha256="ab" * 32,
    prompts=(
        EFFUSION,
        *(
            Prompt(key=key, kind=PromptKind.REGION, phrases=(key,), side=side, site=ZONE)
            for key, side in REGION_SIDES.items()
        ),
    ),
)


def found(
    *boxes: Box, regions: dict[str, Box], state: FindingState = FindingState.PRESENT, sides_known: bool = True
) -> Finding:
    """Make the finding of an effusion with these boxes, on a film of 100 x 100 pixels."""
    answer = PromptReading(
        key="effusion",
        probability=0.7,
        state=state,
        boxes=tuple(ScoredBox(box=box, score=0.5) for box in boxes),
        sentence=None,
    )
    [finding] = findings.find(
        FilmReading(prompts=(answer, *samples.regions(regions))),
        PROMPTS,
        source="1.2.3",
        framing=Framing(columns=100, rows=100, square=Box(left=0, top=0, right=100, bottom=100)),
        model=samples.MODEL,
        sides_known=sides_known,
    )
    return finding


def test_the_zone_is_the_region_that_fits_best_not_the_largest() -> None:
    evidence = locate([NODULE], REGIONS)

    assert evidence == Evidence(zone="upper", extent=20 * 20 / 1600)


def test_what_two_boxes_cover_is_counted_once() -> None:
    twice = [Box(left=0, top=0, right=20, bottom=40), Box(left=10, top=0, right=30, bottom=40)]

    assert locate(twice, REGIONS) == Evidence(zone="upper", extent=0.75)


@pytest.mark.parametrize(
    ("boxes", "regions"),
    [([NODULE], {}), ([NODULE], {"far": Box(left=500, top=0, right=600, bottom=10)}), ([], REGIONS)],
)
def test_without_any_overlap_there_is_no_zone(boxes: list[Box], regions: dict[str, Box]) -> None:
    assert locate(boxes, regions) == Evidence(zone=None, extent=0.0)


_small = st.tuples(st.integers(0, 11), st.integers(0, 11), st.integers(1, 8), st.integers(1, 8)).map(
    lambda at: Box(left=at[0], top=at[1], right=at[0] + at[2], bottom=at[1] + at[3])
)


@given(_small, st.lists(_small, max_size=5))
def test_the_share_is_that_of_the_pixels(region: Box, boxes: list[Box]) -> None:
    pixels = np.zeros((20, 20), dtype=bool)
    for box in boxes:
        pixels[int(box.top) : int(box.bottom), int(box.left) : int(box.right)] = True

    inside = pixels[int(region.top) : int(region.bottom), int(region.left) : int(region.right)]

    assert covered(region, boxes) == pytest.approx(inside.mean())


@pytest.mark.parametrize("extent", [-0.01, 1.01])
def test_an_extent_is_a_share(extent: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in 0\.\.1"):
        Evidence(zone=None, extent=extent)


def test_a_finding_on_one_side_lies_in_no_zone_of_the_other() -> None:
    box = Box(left=10, top=10, right=40, bottom=50)
    beside = Box(left=10, top=10, right=40, bottom=90)

    # The network's box of the left zone is the very box of the finding, but the finding is on the right.
    finding = found(box, regions={"left_zone": box, "right_zone": beside})

    assert finding.side is Side.RIGHT
    assert finding.evidence == Evidence(zone="right_zone", extent=0.5)


def test_a_finding_on_both_sides_has_the_zone_of_its_best_fit() -> None:
    right, left = Box(left=10, top=10, right=40, bottom=50), Box(left=60, top=10, right=90, bottom=50)

    finding = found(right, left, regions={"right_zone": ABDOMEN, "left_zone": left})

    assert finding.side is Side.BILATERAL
    assert finding.evidence == Evidence(zone="left_zone", extent=1.0)


def test_each_box_has_the_zone_of_its_own_side() -> None:
    right, left = Box(left=10, top=10, right=40, bottom=50), Box(left=60, top=10, right=90, bottom=50)

    finding = found(right, left, regions={"right_zone": ABDOMEN, "left_zone": left})

    assert [box.evidence for box in finding.boxes] == [
        Evidence(zone="right_zone", extent=30 * 40 / 160000),
        Evidence(zone="left_zone", extent=1.0),
    ]


@pytest.mark.parametrize(("sides_known", "side"), [(True, Side.RIGHT), (False, None)])
def test_a_zone_has_codes_and_a_side_if_the_film_has_sides(sides_known: bool, side: Side | None) -> None:
    finding = found(NODULE, regions={"right_zone": UPPER}, sides_known=sides_known)

    [box] = finding.boxes
    assert box.evidence is not None and finding.evidence is not None
    assert (box.evidence.site, box.evidence.side) == (finding.evidence.site, finding.evidence.side) == (ZONE, side)


def test_the_codes_of_a_zone_are_stored_with_a_reading() -> None:
    shown = found(NODULE, regions={"right_zone": UPPER})
    stored = json.loads(json.dumps(encode(film(findings=(shown,)))))

    [read] = decode(Film, stored).findings

    assert read == shown
    for evidence in (read.evidence, read.boxes[0].evidence):
        assert evidence is not None
        assert (evidence.site, evidence.side) == (ZONE, Side.RIGHT)


@pytest.mark.parametrize("state", FindingState)
def test_only_a_reported_finding_has_evidence(state: FindingState) -> None:
    finding = found(NODULE, regions={"mediastinum": UPPER}, state=state)

    assert (finding.evidence is None) == (not state.is_reported)


def test_the_report_says_that_evidence_was_not_measured() -> None:
    box = Box(left=10, top=10, right=40, bottom=50)
    shown = found(box, regions={"right_zone": box})
    absent = found(box, regions={"right_zone": box}, state=FindingState.ABSENT)

    document = json.loads(json.dumps(report_json.report_to_json(report(film(findings=(shown, absent))), [])))

    assert [finding["evidence"] for finding in document["films"][0]["findings"]] == [
        {"zone": "right_zone", "side": "right", "extent": 1.0, "measured": False},
        None,
    ]


@pytest.mark.parametrize(
    ("prompt", "zone"),
    [
        ("consolidation", "right_lower_lung_zone"),
        ("pleural_effusion", "right_lower_lung_zone"),
        ("cardiomegaly", "cardiac_silhouette"),
        ("enlarged_cardiomediastinum", "mediastinum"),
        ("support_devices", "mediastinum"),
    ],
)
def test_a_finding_lies_in_a_part_of_its_own_site(prompt: str, zone: str) -> None:
    box = Box(left=20, top=40, right=60, bottom=80)
    near = {"right_lower_lung_zone": LOWER, "cardiac_silhouette": ABDOMEN, "mediastinum": box, "abdomen": ABDOMEN}
    answer = PromptReading(
        key=prompt, probability=0.7, state=FindingState.PRESENT, boxes=(ScoredBox(box=box, score=1),), sentence=None
    )

    [finding] = findings.find(
        FilmReading(prompts=(answer, *samples.regions(near))),
        prompts.load("chexpert14"),
        source="1.2.3",
        framing=Framing(columns=100, rows=100, square=Box(left=0, top=0, right=100, bottom=100)),
        model=samples.MODEL,
        sides_known=False,
    )

    assert finding.evidence is not None
    assert finding.evidence.zone == zone
