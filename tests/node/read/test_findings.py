"""Findings from answers: which prompts may make one, where its sides come from, and in which zone it lies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contract import Box, FilmReading, FindingState, PromptKind, PromptReading, ScoredBox, Side
from models.documents import decode, encode
from node.domain import Code, Evidence, Film, Finding, GroundedSentence, ModelIdentity
from node.outputs import report_json
from node.prompt_set import Prompt, PromptSet
from node.read import findings, prompts
from node.read.findings import covered, locate
from node.read.framing import Framing
from tests.support import samples
from tests.support.samples import film, report

RIGHT = Box(left=10, top=10, right=40, bottom=90)
LEFT = Box(left=60, top=10, right=90, bottom=90)
WIDE = Box(left=20, top=10, right=80, bottom=90)
UPPER, LOWER = Box(left=0, top=0, right=40, bottom=40), Box(left=0, top=40, right=40, bottom=80)
ABDOMEN = Box(left=0, top=0, right=400, bottom=400)
NODULE = Box(left=10, top=20, right=30, bottom=44)
REGIONS = {"abdomen": ABDOMEN, "upper": UPPER, "lower": LOWER}
FRAMING = Framing(columns=100, rows=100, square=Box(left=0, top=0, right=100, bottom=100))
ZONE = Code(value="281394001", scheme="SCT", meaning="Lower zone of lung")
REGION_PROMPTS = tuple(
    Prompt(key=key, kind=PromptKind.REGION, phrases=(key,), side=side, site=ZONE)
    for key, side in (("right_zone", Side.RIGHT), ("left_zone", Side.LEFT), ("mediastinum", None))
)


def prompt(*, side: Side | None = None, paired: bool = True, kind: PromptKind = PromptKind.PATHOLOGY) -> Prompt:
    return Prompt(
        key="effusion",
        kind=kind,
        phrases=("a",),
        negatives=("b",),
        finding=samples.EFFUSION,
        side=side,
        paired=paired,
    )


def found(
    of: Prompt,
    *boxes: Box,
    regions: Mapping[str, Box] | None = None,
    sides_known: bool = True,
    state: FindingState = FindingState.PRESENT,
    source: str = "1.2.3",
    model: ModelIdentity = samples.MODEL,
) -> Finding:
    """Make the finding of one prompt with these boxes, beside the boxes of regions, on a film of 100 x 100 pixels."""
    prompt_set = PromptSet(name="set", version="1", sha256="ab" * 32, prompts=(of, *REGION_PROMPTS))
    return found_in(
        prompt_set, of.key, boxes, regions or {}, sides_known=sides_known, state=state, source=source, model=model
    )


def found_in(
    prompt_set: PromptSet,
    key: str,
    boxes: Sequence[Box],
    regions: Mapping[str, Box],
    *,
    sides_known: bool = False,
    state: FindingState = FindingState.PRESENT,
    source: str = "1.2.3",
    model: ModelIdentity = samples.MODEL,
) -> Finding:
    scored = tuple(ScoredBox(box=box, score=0.5) for box in boxes)
    answer = PromptReading(key=key, probability=0.7, state=state, boxes=scored, sentence=None)
    [finding] = findings.find(
        FilmReading(prompts=(answer, *samples.regions(regions))),
        prompt_set,
        source=source,
        framing=FRAMING,
        model=model,
        sides_known=sides_known,
    )
    return finding


@pytest.mark.parametrize(
    ("boxes", "side"),
    [
        ((RIGHT,), Side.RIGHT),
        ((LEFT,), Side.LEFT),
        ((RIGHT, LEFT), Side.BILATERAL),
        ((WIDE,), None),
        ((RIGHT, WIDE), None),
        ((RIGHT, WIDE, LEFT), Side.BILATERAL),
        ((), None),
    ],
)
def test_the_side_of_a_finding_follows_from_its_boxes(boxes: tuple[Box, ...], side: Side | None) -> None:
    assert found(prompt(), *boxes).side == side


def test_a_film_that_does_not_tell_its_sides_gives_none() -> None:
    assert found(prompt(), RIGHT, sides_known=False).side is None


def test_a_site_that_is_not_paired_has_no_side() -> None:
    assert found(prompt(paired=False), RIGHT).side is None


@pytest.mark.parametrize("sides_known", [True, False])
def test_a_phrase_that_names_a_side_gives_it_on_any_film(sides_known: bool) -> None:
    finding = found(prompt(side=Side.LEFT), RIGHT, sides_known=sides_known)

    assert (finding.side, finding.boxes[0].side) == (Side.LEFT, Side.LEFT)


@pytest.mark.parametrize("state", FindingState)
def test_only_what_is_reported_has_boxes_and_evidence(state: FindingState) -> None:
    finding = found(prompt(), RIGHT, LEFT, state=state, regions={"mediastinum": UPPER})

    assert (len(finding.boxes), finding.side) == ((2, Side.BILATERAL) if state.is_reported else (0, None))
    assert (finding.evidence is None) == (not state.is_reported)
    assert (finding.probability is None) == (state is FindingState.LEFT_OUT)
    assert finding.place == "told"


def test_an_absent_finding_keeps_the_side_of_its_prompt() -> None:
    assert found(prompt(side=Side.LEFT), RIGHT, state=FindingState.ABSENT).side is Side.LEFT


def test_only_the_sentence_of_an_absent_finding_loses_its_boxes() -> None:
    states = {"edema": FindingState.ABSENT, "fracture": FindingState.INDETERMINATE}
    where = (ScoredBox(box=RIGHT, score=0.5),)
    reading = FilmReading(
        sentences=tuple(
            GroundedSentence(text="Words.", prompt=key, score=0.5, boxes=where)
            for key in ("edema", "fracture", "left_lung")
        ),
        prompts=tuple(
            PromptReading(key=key, probability=0.5, state=state, boxes=where, sentence=0)
            for key, state in states.items()
        ),
    )

    assert [sentence.boxes for sentence in findings.ground(reading)] == [(), where, where]


@pytest.mark.parametrize("kind", [PromptKind.REGION, PromptKind.NO_FINDING])
def test_no_other_prompt_makes_a_finding(kind: PromptKind) -> None:
    with pytest.raises(ValueError, match="pathology"):
        found(prompt(kind=kind), RIGHT)


def test_a_box_is_tracked_by_film_prompt_model_and_place() -> None:
    same = (found(prompt(), RIGHT), found(prompt(), RIGHT))
    others = (
        found(prompt(), RIGHT, source="1.2.4"),
        found(replace(prompt(), key="edema"), RIGHT),
        found(prompt(), RIGHT, model=replace(samples.MODEL, name="other")),
        found(prompt(), RIGHT, model=replace(samples.MODEL, version="9")),
        found(prompt(), RIGHT, model=replace(samples.MODEL, weights_sha256="9" * 64)),
        *(found(prompt(), replace(RIGHT, **{edge: 20.0})) for edge in ("left", "top", "right", "bottom")),
    )

    uids = [finding.boxes[0].tracking_uid for finding in (*same, *others)]
    assert uids[0] == uids[1]
    assert len({*uids}) == 1 + len(others)


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


def test_a_finding_on_one_side_lies_in_no_zone_of_the_other() -> None:
    box = Box(left=10, top=10, right=40, bottom=50)
    beside = Box(left=10, top=10, right=40, bottom=90)

    # The network's box of the left zone is the very box of the finding, but the finding is on the right.
    finding = found(prompt(), box, regions={"left_zone": box, "right_zone": beside})

    assert finding.side is Side.RIGHT
    assert finding.evidence == Evidence(zone="right_zone", extent=0.5)


def test_a_finding_on_both_sides_has_the_zone_of_its_best_fit_and_each_box_its_own() -> None:
    right, left = Box(left=10, top=10, right=40, bottom=50), Box(left=60, top=10, right=90, bottom=50)

    finding = found(prompt(), right, left, regions={"right_zone": ABDOMEN, "left_zone": left})

    best = Evidence(zone="left_zone", extent=1.0)
    assert (finding.side, finding.evidence) == (Side.BILATERAL, best)
    assert [box.evidence for box in finding.boxes] == [
        Evidence(zone="right_zone", extent=30 * 40 / 160000),
        best,
    ]


@pytest.mark.parametrize(("sides_known", "side"), [(True, Side.RIGHT), (False, None)])
def test_a_zone_is_stored_with_its_codes_and_a_side_if_the_film_has_sides(sides_known: bool, side: Side | None) -> None:
    shown = found(prompt(), NODULE, regions={"right_zone": UPPER}, sides_known=sides_known)

    [finding] = decode(Film, json.loads(json.dumps(encode(film(findings=(shown,)))))).findings

    assert finding == shown
    for evidence in (finding.evidence, finding.boxes[0].evidence):
        assert evidence is not None
        assert (evidence.site, evidence.side) == (ZONE, side)


def test_the_report_says_that_evidence_was_not_measured() -> None:
    box = Box(left=10, top=10, right=40, bottom=50)
    shown = found(prompt(), box, regions={"right_zone": box})
    absent = found(prompt(), box, regions={"right_zone": box}, state=FindingState.ABSENT)

    document = json.loads(json.dumps(report_json.report_to_json(report(film(findings=(shown, absent))), [])))

    assert [finding["evidence"] for finding in document["films"][0]["findings"]] == [
        {"zone": "right_zone", "side": "right", "extent": 1.0, "measured": False},
        None,
    ]


@pytest.mark.parametrize(
    ("key", "zone"),
    [
        ("consolidation", "right_lower_lung_zone"),
        ("pleural_effusion", "right_lower_lung_zone"),
        ("cardiomegaly", "cardiac_silhouette"),
        ("enlarged_cardiomediastinum", "mediastinum"),
        ("support_devices", "mediastinum"),
    ],
)
def test_a_finding_lies_in_a_part_of_its_own_site(key: str, zone: str) -> None:
    box = Box(left=20, top=40, right=60, bottom=80)
    near = {"right_lower_lung_zone": LOWER, "cardiac_silhouette": ABDOMEN, "mediastinum": box, "abdomen": ABDOMEN}

    finding = found_in(prompts.load("chexpert14"), key, [box], near)

    assert finding.evidence is not None
    assert finding.evidence.zone == zone
