"""Findings from answers: which prompts may make one, where its sides come from, and in which zone it lies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from models.contract import Box, FilmReading, FindingState, PromptKind, PromptReading, ScoredBox, Side
from models.documents import decode, encode
from node.domain import Code, Evidence, Film, Finding, GroundedSentence, ModelIdentity
from node.prompt_set import Prompt, PromptSet
from node.read import findings, prompts
from node.read.findings import locate
from node.read.framing import Framing
from tests.support import samples
from tests.support.samples import film

RIGHT = Box(left=10, top=10, right=40, bottom=90)
LEFT = Box(left=60, top=10, right=90, bottom=90)
WIDE = Box(left=20, top=10, right=80, bottom=90)
UPPER, LOWER = Box(left=0, top=0, right=40, bottom=40), Box(left=0, top=40, right=40, bottom=80)
ABDOMEN = Box(left=0, top=0, right=400, bottom=400)
NODULE, UPPER_LEFT = Box(left=10, top=20, right=30, bottom=44), Box(left=0, top=0, right=20, bottom=40)
REGIONS = {"abdomen": ABDOMEN, "upper": UPPER, "lower": LOWER}
FRAMING = Framing(columns=100, rows=100, square=Box(left=0, top=0, right=100, bottom=100))
ZONE = Code(value="281394001", scheme="SCT", meaning="Lower zone of lung")
REGION_PROMPTS = tuple(
    Prompt(key=key, kind=PromptKind.REGION, phrases=(key,), side=side, site=ZONE)
    for key, side in (("right_zone", Side.RIGHT), ("left_zone", Side.LEFT), ("mediastinum", None))
)


EFFUSION = Prompt(
    key="effusion",
    kind=PromptKind.PATHOLOGY,
    phrases=("a",),
    negatives=("b",),
    finding=samples.EFFUSION,
    paired=True,
)
ON_THE_LEFT, NOT_PAIRED = replace(EFFUSION, side=Side.LEFT), replace(EFFUSION, paired=False)


def found(
    of: Prompt,
    *boxes: Box,
    among: tuple[Prompt, ...] = REGION_PROMPTS,
    regions: Mapping[str, Box] | None = None,
    sides_known: bool = True,
    state: FindingState = FindingState.PRESENT,
    source: str = "1.2.3",
    model: ModelIdentity = samples.MODEL,
) -> Finding:
    """Make the finding of one prompt with these boxes, beside the boxes of regions, on a film of 100 x 100 pixels."""
    scored = tuple(ScoredBox(box=box, score=0.5) for box in boxes)
    answer = PromptReading(key=of.key, probability=0.7, state=state, boxes=scored, sentence=None)
    [finding] = findings.find(
        FilmReading(prompts=(answer, *samples.regions(regions or {}))),
        PromptSet(name="set", version="1", sha256="ab" * 32, prompts=(of, *among)),
        source=source,
        framing=FRAMING,
        model=model,
        sides_known=sides_known,
    )
    return finding


@pytest.mark.parametrize(
    ("of", "boxes", "sides_known", "side"),
    [
        (EFFUSION, (RIGHT,), True, Side.RIGHT),
        (EFFUSION, (LEFT,), True, Side.LEFT),
        (EFFUSION, (RIGHT, LEFT), True, Side.BILATERAL),
        (EFFUSION, (WIDE,), True, None),
        (EFFUSION, (RIGHT, WIDE), True, None),
        (EFFUSION, (RIGHT, WIDE, LEFT), True, Side.BILATERAL),
        (EFFUSION, (), True, None),
        (EFFUSION, (RIGHT,), False, None),
        (NOT_PAIRED, (RIGHT,), True, None),
        (ON_THE_LEFT, (RIGHT,), True, Side.LEFT),
        (ON_THE_LEFT, (RIGHT,), False, Side.LEFT),
    ],
)
def test_boxes_or_phrase_give_a_side(of: Prompt, boxes: tuple[Box, ...], sides_known: bool, side: Side | None) -> None:
    finding = found(of, *boxes, sides_known=sides_known)

    assert finding.side == side
    if len(boxes) == 1:
        assert finding.boxes[0].side == side


@pytest.mark.parametrize("state", FindingState)
def test_only_what_is_reported_has_boxes_and_evidence(state: FindingState) -> None:
    finding = found(EFFUSION, RIGHT, LEFT, state=state, regions={"mediastinum": UPPER})

    assert (len(finding.boxes), finding.side) == ((2, Side.BILATERAL) if state.is_reported else (0, None))
    assert (finding.evidence is None) == (not state.is_reported)
    assert (finding.probability is None) == (state is FindingState.LEFT_OUT)
    assert finding.place == "told"
    assert found(ON_THE_LEFT, RIGHT, state=state).side is Side.LEFT


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
        found(replace(EFFUSION, kind=kind), RIGHT)


def test_a_box_is_tracked_by_film_prompt_model_and_place() -> None:
    same = (found(EFFUSION, RIGHT), found(EFFUSION, RIGHT))
    others = (
        found(EFFUSION, RIGHT, source="1.2.4"),
        found(replace(EFFUSION, key="edema"), RIGHT),
        found(EFFUSION, RIGHT, model=replace(samples.MODEL, name="other")),
        found(EFFUSION, RIGHT, model=replace(samples.MODEL, version="9")),
        found(EFFUSION, RIGHT, model=replace(samples.MODEL, weights_sha256="9" * 64)),
        *(found(EFFUSION, replace(RIGHT, **{edge: 20.0})) for edge in ("left", "top", "right", "bottom")),
    )

    uids = [finding.boxes[0].tracking_uid for finding in (*same, *others)]
    assert uids[0] == uids[1]
    assert len({*uids}) == 1 + len(others)


@pytest.mark.parametrize(
    ("boxes", "regions", "zone", "extent"),
    [
        pytest.param([NODULE], REGIONS, "upper", 20 * 20 / 1600, id="fits best and is not the largest"),
        pytest.param([NODULE, UPPER_LEFT], REGIONS, "upper", 0.625, id="what two boxes cover counts once"),
        pytest.param([NODULE], {}, None, 0.0, id="no region"),
        pytest.param([NODULE], {"far": Box(left=500, top=0, right=600, bottom=10)}, None, 0.0, id="no overlap"),
        pytest.param([], REGIONS, None, 0.0, id="no box"),
    ],
)
def test_the_zone_fits_best(boxes: list[Box], regions: dict[str, Box], zone: str | None, extent: float) -> None:
    assert locate(boxes, regions) == Evidence(zone=zone, extent=extent)


def test_a_finding_on_one_side_lies_in_no_zone_of_the_other() -> None:
    box = Box(left=10, top=10, right=40, bottom=50)
    beside = Box(left=10, top=10, right=40, bottom=90)

    # The network's box of the left zone is the very box of the finding, but the finding is on the right.
    finding = found(EFFUSION, box, regions={"left_zone": box, "right_zone": beside})

    assert finding.side is Side.RIGHT
    assert finding.evidence == Evidence(zone="right_zone", extent=0.5)


def test_a_finding_on_both_sides_has_the_zone_of_its_best_fit_and_each_box_its_own() -> None:
    right, left = Box(left=10, top=10, right=40, bottom=50), Box(left=60, top=10, right=90, bottom=50)

    finding = found(EFFUSION, right, left, regions={"right_zone": ABDOMEN, "left_zone": left})

    best = Evidence(zone="left_zone", extent=1.0)
    assert (finding.side, finding.evidence) == (Side.BILATERAL, best)
    assert [box.evidence for box in finding.boxes] == [
        Evidence(zone="right_zone", extent=30 * 40 / 160000),
        best,
    ]


@pytest.mark.parametrize(("sides_known", "side"), [(True, Side.RIGHT), (False, None)])
def test_a_zone_is_stored_with_its_codes_and_a_side_if_the_film_has_sides(sides_known: bool, side: Side | None) -> None:
    shown = found(EFFUSION, NODULE, regions={"right_zone": UPPER}, sides_known=sides_known)

    [finding] = decode(Film, json.loads(json.dumps(encode(film(findings=(shown,)))))).findings

    assert finding == shown
    for evidence in (finding.evidence, finding.boxes[0].evidence):
        assert evidence is not None
        assert (evidence.site, evidence.side) == (ZONE, side)


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

    others = {prompt.key: prompt for prompt in prompts.load("chexpert14").prompts}

    finding = found(others.pop(key), box, among=tuple(others.values()), regions=near, sides_known=False)

    assert finding.evidence is not None
    assert finding.evidence.zone == zone
