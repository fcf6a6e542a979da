"""The tasks of the paper: what is kept of what the network finds, and what an answer may depend on."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from models.engines import FloatArray
from models.lab.tasks import detection
from models.lab.tasks.batch import Picture, fill_up
from models.lab.tasks.detection import SHIPPED, DetectionSettings, detections, groundings
from models.lab.tasks.prompts import ClassPrompt, ClassVectors, DataSet, class_prompts, region_prompts
from models.lab.tasks.regions import features_apart, features_together
from models.lab.tasks.sentence_selection import gets_sentence, published_selection
from models.manifest import ReportRule
from models.network.chex import Chex
from models.network.detector import Detection
from tests.lab.proposals import proposals
from tests.models.test_network import DIM, picture_of, small_network
from tests.support.material import material

BY_WEIGHTS = DetectionSettings(by_prompts=False, by_weights=True)

# A class holds its own axis, and its opposite holds the other one.
POSITIVE, NEGATIVE = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
CLASSES = ClassVectors(located_by=POSITIVE, positive=POSITIVE, negative=NEGATIVE)

LEFT, NEAR_LEFT, RIGHT = [0.2, 0.5, 0.2, 0.4], [0.22, 0.5, 0.2, 0.4], [0.8, 0.5, 0.2, 0.4]

Published = dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def network() -> Chex:
    return small_network(seed=17)


@pytest.fixture(scope="module")
def picture(network: Chex) -> Picture:
    return picture_of(network, seed=9)


def one_film(picture: Picture, film: int) -> Picture:
    patches, positions, cls = (part[film : film + 1] for part in picture)
    return patches, positions, cls


def rows_of(proposed: Detection, settings: DetectionSettings) -> FloatArray:
    (rows,) = detections(proposed, CLASSES, settings)
    return rows


# ---- detection


def test_boxes_under_better_ones_of_their_class_are_dropped() -> None:
    proposed = proposals([[LEFT, NEAR_LEFT, RIGHT], [LEFT, RIGHT, NEAR_LEFT]], [[0.3, 0.5, 0.2], [0.6, 0.4, 0.1]])

    rows = rows_of(proposed, BY_WEIGHTS)

    wanted = [[*LEFT, 1, 0.6], [*NEAR_LEFT, 0, 0.5], [*RIGHT, 1, 0.4], [*RIGHT, 0, 0.2]]
    np.testing.assert_allclose(rows, wanted, atol=1e-6)


def test_an_enclosing_box_has_the_best_score_in_class_order() -> None:
    settings = DetectionSettings(by_prompts=False, by_weights=True, merge="enclose")

    rows = rows_of(proposals([[LEFT, RIGHT], [NEAR_LEFT, NEAR_LEFT]], [[0.1, 0.3], [0.9, 0.2]]), settings)

    np.testing.assert_allclose(rows, [[0.5, 0.5, 0.8, 0.4, 0, 0.3], [*NEAR_LEFT, 1, 0.9]], atol=1e-6)


@pytest.mark.parametrize(("by_weights", "factor"), [(False, 1.0), (True, 0.25)])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_a_box_is_scored_by_what_it_holds(by_weights: bool, factor: float, temperature: float) -> None:
    # The length of a vector is not its meaning: cosines are 1 to the class and 0 to its opposite.
    tokens = torch.tensor([[[[5.0, 0.0]], [[0.1, 0.0]]]])
    settings = DetectionSettings(by_weights=by_weights, temperature=temperature)

    rows = rows_of(proposals([[LEFT], [LEFT]], [[0.25], [0.25]], tokens), settings)

    likely = 1 / (1 + math.exp(-1 / temperature))
    np.testing.assert_allclose(rows[:, 4:], [[0, factor * likely], [1, factor * (1 - likely)]], atol=1e-6)


def test_the_shipped_settings_are_the_published_ones() -> None:
    shipped = {
        name: (settings.temperature, settings.by_weights, settings.by_prompts, settings.merge, settings.scales)
        for name, settings in SHIPPED.items()
    }

    assert shipped == {
        "vindr": (0.5, True, True, "suppress", ()),
        "nih8": (0.1, False, True, "enclose", ()),
        "mscxr": (0.1, False, True, "suppress", ()),
    }
    assert {settings.overlap for settings in SHIPPED.values()} == {0.25}


def test_a_film_is_detected_alone_but_its_classes_see_each_other(network: Chex, picture: Picture) -> None:
    classes = ClassVectors(*torch.randn(3, 5, DIM, generator=torch.Generator().manual_seed(5)))

    together = detection.locate(network, picture, classes.located_by)
    alone = detection.locate(network, one_film(picture, 1), classes.located_by)
    fewer = detection.locate(network, picture, classes.located_by[:3])

    torch.testing.assert_close(alone.boxes, together.boxes[1:])
    rows, wanted = (detections(each, classes, SHIPPED["vindr"])[-1] for each in (alone, together))
    np.testing.assert_allclose(rows, wanted, atol=1e-6)
    assert (together.boxes[:, :3] - fewer.boxes).abs().max() > 1e-4, "as published"


# ---- grounding


def sentences(*counts: int) -> list[Tensor]:
    """Embeddings of as many sentences for each film."""
    source = torch.Generator().manual_seed(8)
    return [torch.randn(count, DIM, generator=source) for count in counts]


def test_boxes_of_a_sentence_come_best_first_without_overlaps() -> None:
    proposed = proposals([[LEFT, NEAR_LEFT, RIGHT], [RIGHT, LEFT, NEAR_LEFT]], [[0.2, 0.4, 0.6], [0.1, 0.5, 0.3]])

    ((first, second),) = groundings(proposed, torch.tensor([[False, False]]))

    np.testing.assert_allclose(first, [[*RIGHT, 0.6], [*NEAR_LEFT, 0.4]], atol=1e-6)
    np.testing.assert_allclose(second, [[*LEFT, 0.5], [*RIGHT, 0.1]], atol=1e-6)


def test_padding_finds_nothing_but_sentences_see_it_as_published(network: Chex, picture: Picture) -> None:
    rows = sentences(3, 1)
    together = detection.locate(network, picture, *fill_up(rows))

    first, second = (detection.locate(network, one_film(picture, n), *fill_up(rows[n : n + 1])) for n in range(2))

    torch.testing.assert_close(first.boxes, together.boxes[:1], msg="a film that fills its row")
    torch.testing.assert_close(first.scores, together.scores[:1])
    assert together.boxes[1, 1:].count_nonzero() == 0 and together.scores[1, 1:].count_nonzero() == 0
    assert (second.boxes - together.boxes[1:, :1]).abs().max() > 1e-4


# ---- given boxes


def given(*counts: int) -> list[Tensor]:
    """As many boxes for each film."""
    source = torch.Generator().manual_seed(10)
    return [0.2 + 0.6 * torch.rand(count, 4, generator=source) for count in counts]


def test_a_box_apart_depends_on_no_other_box_and_on_no_padding(network: Chex, picture: Picture) -> None:
    rows = given(4, 2)
    together = features_apart(network, picture, *fill_up(rows))

    alone = features_apart(network, one_film(picture, 1), *fill_up([rows[1][1:]]))

    torch.testing.assert_close(alone[0, 0], together[1, 1])
    boxes, _ = fill_up(rows)
    described = network.describe(*picture, boxes, torch.zeros(2, 4, DIM), torch.zeros(2, 4))
    torch.testing.assert_close(together[0], described[0])


def test_boxes_together_depend_on_the_padding_as_published(network: Chex, picture: Picture) -> None:
    rows = given(4, 2)
    together = features_together(network, picture, *fill_up(rows))

    torch.testing.assert_close(features_together(network, one_film(picture, 0), *fill_up(rows[:1])), together[:1])
    alone = features_together(network, one_film(picture, 1), *fill_up(rows[1:]))
    assert (alone[0] - together[1, :2]).abs().max() > 1e-4


# ---- the published prompts


@pytest.fixture(scope="module")
def published() -> Published:
    prompts: Published = json.loads(material("chex/prompts.json").read_text(encoding="utf-8"))
    return prompts


def by_name(data_set: DataSet) -> dict[str, ClassPrompt]:
    return {prompt.name: prompt for prompt in class_prompts(data_set)}


@pytest.mark.parametrize(
    ("data_set", "names", "prompts"),
    [
        ("vindr", "vindrcxr_loc_top15", "vindrcxr"),
        ("nih8", "nih8", "nih8"),
        ("mscxr", "ms_cxr", "mscxr"),
        ("cig", "cig_all", "cigcls"),
    ],
)
def test_classes_and_their_phrases_are_the_published_ones(
    published: Published, data_set: DataSet, names: str, prompts: str
) -> None:
    ours = by_name(data_set)

    assert list(ours) == list(published[f"class_names/{names}"])
    positives, negatives = published[f"prompts/{prompts}_pos"], published[f"prompts/{prompts}_neg"]
    assert {name: [prompt.positive] for name, prompt in ours.items()} == {name: positives[name] for name in ours}
    assert {name: [prompt.negative] for name, prompt in ours.items()} == {name: negatives[name] for name in ours}
    # Regions of Chest ImaGenome are given, so its classes have no phrase that finds them but their own.
    located_by = published.get(f"prompts/{prompts}_box", positives)
    assert {name: [prompt.located_by] for name, prompt in ours.items()} == {name: located_by[name] for name in ours}


def test_regions_and_their_synonyms_are_the_published_ones(published: Published) -> None:
    regions = region_prompts()

    assert {region.name: list(region.phrases) for region in regions} == published["prompts/cig_anat"]
    single, joined = published["anatomy_names/cig_default"], published["anatomy_names/cig_multi"]
    assert [region.name for region in regions] == [*single, *joined]
    members = {region.name: list(region.members) for region in regions if region.members}
    assert members == published["anatomy_multibox_mapping/cig_mapping"]


# ---- the published selection of sentences


def test_pathologies_are_always_told_and_regions_when_of_note() -> None:
    noted = np.array([[0.4, 0.6, 0.5, 0.51]], dtype=np.float32)
    pathologies = [True, True, False, False]

    assert gets_sentence(noted, pathologies).tolist() == [[True, True, False, True]]
    assert gets_sentence(noted, pathologies, all_regions=True).all()
    ignoring = gets_sentence(noted, pathologies, ignore_negative_pathologies=True)
    assert ignoring.tolist() == [[False, True, False, True]]


def test_the_published_code_gives_numbers_of_another_prompt() -> None:
    # Five prompts, of which the fourth speaks not: the last of four sentences is that of the fifth prompt.
    preference = np.array([0.9, 0.1, 0.4, 0.8, 0.2], dtype=np.float32)
    similarity = np.zeros((4, 4), dtype=np.float32)
    similarity[2, 3] = similarity[3, 2] = 0.99  # the last two sentences say the same

    told = published_selection(similarity, preference, rule=ReportRule())

    # The fourth sentence, made for the fifth prompt, stays and is shown as the fourth prompt's.
    assert told == [0, 1, 3]
