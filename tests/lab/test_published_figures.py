"""The paper's figures and tasks: by hand and by scikit-learn on made-up answers, what is chosen, asked and kept."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import numpy as np
import pytest
import tomli_w
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from language.labels import RuleLabeler
from models.engines import FloatArray
from models.errors import ModelError
from models.lab.evaluation.anatomy import REGIONS
from models.lab.evaluation.boxes_file import FileFilms
from models.lab.evaluation.cases import EvaluationCase, Truth
from models.lab.evaluation.document import tables
from models.lab.evaluation.evaluated_model import read_questions
from models.lab.evaluation.published import detection, grounding, prompting, texts
from models.lab.evaluation.published.analysis import Analysis, read_analysis
from models.lab.evaluation.published.classification import (
    CIG,
    MSCXR,
    Classified,
    Judged,
    classified,
    judged,
    measure_boxes,
    measure_regions,
    regions_asked,
    vectors_of,
)
from models.lab.evaluation.published.clinical_efficacy import Told, mark
from models.lab.evaluation.published.grounding import SIDE, Grounded, mask
from models.lab.evaluation.published.labels import Phrase, PublishedLabels, published_tasks_of
from models.lab.evaluation.published.model import PublishedModel
from models.lab.evaluation.request import DEFAULT, FIGURE_TASKS
from models.lab.evaluation.statistics import Bootstrap
from models.lab.film_lines import FilmLine
from models.lab.tasks.batch import Picture, fill_up
from models.lab.tasks.detection import OVERLAP, SHIPPED, DetectionSettings, detections, groundings, locate
from models.lab.tasks.prompts import ClassVectors, DataSet, class_prompts, embed, region_prompts
from models.lab.tasks.regions import features_apart, features_together
from models.lab.tasks.sentence_selection import gets_sentence, published_selection
from models.manifest import ReportRule
from models.network.chex import Chex
from models.network.detector import Detection
from models.progress import quiet
from models.reading.tokenizers import VOCABULARIES, PromptTokenizer, SentenceTokenizer
from tests.lab.datasets import Films
from tests.models.test_network import DIM, picture_of, small_network
from tests.paths import REPOSITORY
from tests.support.material import material

NO_RESAMPLES = Bootstrap(resamples=0)


def proposals(
    boxes: Sequence[Sequence[list[float]]], scores: Sequence[Sequence[float]], tokens: Tensor | None = None
) -> Detection:
    """What a network proposes for a film: boxes [C, R, 4] of each class, phrase or sentence with scores [C, R]."""
    judged = torch.tensor([scores])
    tokens = torch.ones(*judged.shape, 2) if tokens is None else tokens
    return Detection(
        boxes=torch.tensor([boxes]),
        scores=judged,
        tokens=tokens,
        aggregated_scores=judged.mean(dim=-1),
        aggregated=tokens.mean(dim=2),
    )


@pytest.fixture(scope="module")
def network() -> Chex:
    return small_network(seed=17)


@pytest.fixture(scope="module")
def model(network: Chex) -> PublishedModel:
    """A small network with random weights and the shipped vocabularies."""
    return PublishedModel(
        network=network,
        phrases=PromptTokenizer(VOCABULARIES),
        sentences=SentenceTokenizer(VOCABULARIES),
        picture=lambda gray: network.encode_image(torch.from_numpy(gray[np.newaxis])),
    )


@pytest.fixture(scope="module")
def two_films(network: Chex) -> Picture:
    return picture_of(network, seed=9)


@pytest.fixture(scope="module")
def picture(two_films: Picture) -> Picture:
    return one_film(two_films, 0)


def array(*values: float) -> FloatArray:
    return np.array(values, dtype=np.float32)


# ---- detection

BY_WEIGHTS = DetectionSettings(by_prompts=False, by_weights=True)
AXIS = torch.eye(2)
ASKED = detection.Asked(
    names=("mass", "edema"),
    vectors=ClassVectors(located_by=AXIS, positive=AXIS, negative=AXIS.flip(0)),
    shipped=BY_WEIGHTS,
)
BOX = [0.5, 0.5, 0.4, 0.4]
WIDE = [0.5, 0.5, 0.64, 0.4]
"""Overlaps BOX by 0.625."""
CORNER = [0.05, 0.05, 0.1, 0.1]
"""Overlaps nothing else."""


def located(true: Sequence[tuple[str, list[float]]], found: Detection) -> detection.Located:
    """A film with true boxes, and what the network proposes for mass and edema."""
    return detection.Located(PublishedLabels(boxes=tuple((name, array(*box)) for name, box in true)), found)


def test_precision_agrees_with_numbers_computed_by_hand() -> None:
    # "mass": its box is met up to IoU 0.6, six of seven thresholds, but a film without a mass has a better score, so
    # the precision is a half at every recall. "edema": met at all seven.
    films = [
        located([("mass", BOX)], proposals([[WIDE], [CORNER]], [[0.6], [0.1]])),
        located([("edema", BOX)], proposals([[CORNER], [BOX]], [[0.9], [0.8]])),
    ]
    made = detection.measure(films, ASKED, BY_WEIGHTS, NO_RESAMPLES)
    assert made["per_class"] == pytest.approx({"mass": 6 / 14, "edema": 1.0})
    assert made["map"] == pytest.approx((6 / 14 + 1) / 2)
    assert (made["films"], made["films_with"]) == (2, {"mass": 1, "edema": 1})

    # A half overlaps the whole by 0.5, which is enough for five of seven thresholds; an enclosing box counts once.
    halves = [[0.4, 0.5, 0.2, 0.4], [0.6, 0.5, 0.2, 0.4]]
    films = [located([("mass", BOX)], proposals([halves, halves], [[0.6, 0.5], [0.1, 0.1]]))]
    apart = detection.measure(films, ASKED, BY_WEIGHTS, NO_RESAMPLES)["map"]
    together = detection.measure(films, ASKED, replace(BY_WEIGHTS, merge="enclose"), NO_RESAMPLES)["map"]
    assert (apart, together) == (pytest.approx(5 / 7), pytest.approx(1.0))

    # At the fixed overlap of 0.25 the second box is suppressed: of 101 recalls those to a half have a precision of 1.
    found = proposals([[BOX, WIDE], [CORNER, CORNER]], [[0.6, 0.5], [0.1, 0.1]])
    films = [located([("mass", WIDE), ("mass", BOX)], found)]
    made = detection.measure(films, ASKED, replace(BY_WEIGHTS, overlap=0.95), NO_RESAMPLES)
    assert (made["map"], made["map_nms_fixed"]) == (pytest.approx(1.0), pytest.approx(51 / 101))


def test_scale_score_and_overlap_are_chosen_by_precision() -> None:
    small = [0.5, 0.5, 0.2, 0.2]
    # Boxes of "mass" are drawn twice as large as the network's. The scores are of no use: the prompts alone tell.
    like, unlike = (torch.tensor([axis, axis]).reshape(1, 2, 1, 2) for axis in ([1.0, 0.0], [0.0, 1.0]))
    films = [
        located([("mass", BOX)], proposals([[small], [CORNER]], [[0.5], [0.5]], like)),
        located([("edema", BOX)], proposals([[small], [BOX]], [[0.9], [0.5]], unlike)),
    ]

    settings = detection.chosen(films, ASKED)

    assert settings.scales == (2.0, 1.0)
    assert (settings.by_prompts, settings.by_weights) == (True, False)
    assert detection.measure(films, ASKED, settings, NO_RESAMPLES)["map"] == pytest.approx(1.0)
    words = detection.in_words(settings, ASKED, chosen_on="validate.jsonl")
    assert words["scales"] == {"mass": 2.0, "edema": 1.0}
    assert words["settings"] == {
        "chosen_on": "validate.jsonl",
        "scored_by": "prompts",
        "temperature": 1.0,
        "merge": "suppress",
        "overlap": settings.overlap,
    }
    enclosing = replace(ASKED, shipped=replace(BY_WEIGHTS, merge="enclose", overlap=0.25))
    settings = detection.chosen([located([("mass", BOX)], proposals([[BOX], [BOX]], [[0.5], [0.5]]))], enclosing)
    assert (settings.merge, settings.overlap) == ("enclose", 0.25), "there no overlap is chosen"


# ---- grounding

LEFT_HALF, MIDDLE, QUARTER = [0.25, 0.5, 0.5, 1.0], [0.5, 0.5, 0.5, 1.0], [0.125, 0.5, 0.25, 1.0]


def grounded(true: Sequence[list[list[float]]], found: Detection) -> Grounded:
    """A film with the true boxes of each phrase, and those that the network proposes for it."""
    phrases = tuple(Phrase(f"phrase {n}", np.array(own, dtype=np.float32)) for n, own in enumerate(true))
    return Grounded(phrases, found, torch.zeros(1, len(true), dtype=torch.bool))


def test_grounding_agrees_with_numbers_computed_by_hand() -> None:
    # The first phrase shares a quarter of the picture with its half, of three quarters, up to the score 0.35; above, it
    # has no mask and its half is missed. The second meets its quarter at every score.
    films = [
        grounded([[LEFT_HALF]], proposals([[MIDDLE]], [[0.35]])),
        grounded([[QUARTER]], proposals([[QUARTER]], [[0.9]])),
    ]

    made = grounding.measure(films, 1.0, NO_RESAMPLES)

    found, missed = (1 / 4 + 1 / 4) / (3 / 4 + 1 / 4), (1 / 4) / (1 / 2 + 1 / 4)
    assert made["mask_miou_pooled"] == pytest.approx((3 * found + 2 * missed) / 5), "as in the published code"
    assert made["mask_miou"] == pytest.approx((3 * (1 / 3 + 1) / 2 + 2 * (0 + 1) / 2) / 5), "as written"
    # Sorted by score, the second is right first. The first is right at the IoU 0.1 to 0.3: of the 101 recalls the
    # precision is 1 at all, from 0.4 on at those up to a half, which are 51.
    assert made["map_one_class"] == pytest.approx((3 + 4 * 51 / 101) / 7), "as in the published code"
    assert made["map"] == pytest.approx((3 / 7 + 1) / 2), "as written"
    assert (made["films"], made["phrases"]) == (2, 2)


def test_a_mask_is_what_boxes_cover_together() -> None:
    covered = mask(np.array([LEFT_HALF, MIDDLE], dtype=np.float32))

    assert covered.shape == (SIDE, SIDE) and covered.mean() == pytest.approx(3 / 4)
    assert not mask(np.zeros((0, 4), dtype=np.float32)).any()


def test_the_scale_is_chosen_on_films() -> None:
    """The network's boxes are half as large as the true ones."""
    films = [grounded([[BOX]], proposals([[[0.5, 0.5, 0.2, 0.2], [0.1, 0.1, 0.1, 0.1]]], [[0.6, 0.45]]))]

    words = grounding.in_words(grounding.chosen(films), chosen_on=None)
    assert words["settings"] == {"chosen_on": None, "scale": 2.0, "overlap": OVERLAP}


def test_deviations_come_from_resampled_films() -> None:
    hits = [located([("mass", BOX)], proposals([[box], [CORNER]], [[0.5], [0.1]])) for box in (BOX, CORNER)]
    said = [grounded([[QUARTER]], proposals([[box]], [[0.8]])) for box in (QUARTER, CORNER)]
    twenty = Bootstrap(resamples=20)

    for figures, names in (
        (detection.measure(hits * 4, ASKED, BY_WEIGHTS, twenty), "map map_nms_fixed"),
        (grounding.measure(said * 4, 1.0, twenty), "mask_miou mask_miou_pooled map map_one_class"),
    ):
        deviations = cast("dict[str, float]", figures["deviations"])
        assert deviations.keys() == {*names.split()}
        assert all(0 < value < 0.5 for value in deviations.values())


# ---- what given boxes hold


def test_boxes_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    count = len(MSCXR)
    films = [Classified(rng.integers(count, size=4), rng.random((4, count), dtype=np.float32)) for _ in range(40)]

    made = measure_boxes(films, Bootstrap(resamples=5))

    classes, scores = (np.concatenate(part) for part in zip(*films, strict=True))
    areas = [roc_auc_score(classes == number, scores[:, number]) for number in range(count)]
    assert made["auroc"] == pytest.approx(np.mean(areas))
    assert set(made["deviations"]) == {"auroc"}  # type: ignore[call-overload] # by name


def test_regions_are_weighted_by_how_often_they_hold_a_class() -> None:
    scores = np.full((4, len(REGIONS), len(CIG)), np.nan, dtype=np.float32)
    there = np.zeros(scores.shape, dtype=np.bool_)
    # The first region holds the first class on three of four films, scored rightly; the second on one, wrongly.
    scores[:, 0, 0], there[:, 0, 0] = [0.9, 0.8, 0.7, 0.1], [True, True, True, False]
    scores[:, 1, 0], there[:, 1, 0] = [0.1, 0.8, 0.7, 0.9], [True, False, False, False]
    # A second class, in the first region alone: half of the pairs are in order. The third is on all films.
    scores[:, 0, 1], there[:, 0, 1] = [0.5, 0.1, 0.9, np.nan], [True, False, False, False]
    scores[:, 0, 2], there[:, 0, 2] = 0.5, True

    made = measure_regions(list(map(Judged, scores, there)), NO_RESAMPLES)

    assert made["per_class"] == dict.fromkeys(CIG) | {CIG[0]: (3 * 1 + 1 * 0) / 4, CIG[1]: 0.5}
    assert made["auroc"] == pytest.approx((0.75 + 0.5) / 2)
    assert made["auroc_weighted"] == pytest.approx((3 * 1 + 1 * 0 + 1 * 0.5) / 5)


def test_the_boxes_of_a_film_see_each_other(model: PublishedModel, picture: Picture) -> None:
    boxes = tuple(("mscxr/Edema", array(x, 0.5, 0.3, 0.4)) for x in (0.3, 0.7))
    vectors = vectors_of(model, "mscxr")

    both, alone = (classified(model, vectors, PublishedLabels(boxes=some), picture) for some in (boxes, boxes[:1]))

    assert both is not None and alone is not None and both.scores.shape == (2, len(MSCXR))
    assert np.abs(both.scores[0] - alone.scores[0]).max() > 1e-6
    assert classified(model, vectors, PublishedLabels(), picture) is None


def test_regions_without_a_box_are_unknown(model: PublishedModel, picture: Picture) -> None:
    spine = array(0.5, 0.5, 0.2, 0.9)
    labels = PublishedLabels(regions={"spine": spine}, region_findings={"spine": frozenset({CIG[24]})})
    vectors = vectors_of(model, "cig")

    made = judged(model, vectors, labels, picture)

    assert made is not None and made.scores.shape == (29, 53)
    assert np.flatnonzero(~np.isnan(made.scores).any(axis=1)).tolist() == [REGIONS.index("spine")]
    assert np.argwhere(made.there).tolist() == [[REGIONS.index("spine"), 24]]
    assert judged(model, vectors, PublishedLabels(), picture) is None


@pytest.mark.parametrize(
    ("line", "tasks"),
    [
        ({}, ""),
        (
            {"boxes": [{"label": "mscxr/Pneumonia", "xyxy": [1, 2, 3, 4]}]},
            "detection_mscxr region_classification_mscxr",
        ),
        ({"located": [*MSCXR]}, "detection_mscxr"),
        ({"located": [*MSCXR[1:]]}, ""),
        ({"phrases": [{"text": "Edema.", "boxes": [[0, 0, 1, 1]]}]}, "grounding_mscxr region_explanation_mscxr"),
        ({"phrases": [{"text": "Edema.", "boxes": []}]}, ""),
        ({"sentences": [{"text": "Edema.", "regions": ["spine"]}]}, "region_explanation_imagenome report_mimic"),
        ({"sentences": [{"text": "Edema.", "regions": []}]}, "report_mimic"),
        ({"report": "Edema."}, "report_mimic"),
        ({"report": " "}, ""),
    ],
)
def test_a_line_serves_the_tasks_of_the_paper_that_its_labels_suffice_for(line: dict[str, object], tasks: str) -> None:
    assert published_tasks_of(cast("FilmLine", line)) == {*tasks.split()}


# ---- texts, as published and in analyses

LEFT, RIGHT = array(0.3, 0.5, 0.3, 0.6), array(0.7, 0.5, 0.3, 0.6)
LABELS = PublishedLabels(
    regions={"left lung": RIGHT, "right lung": LEFT},
    region_texts={"left lung": "Clear.", "right lung": "Opacity."},
    report="The lungs are clear.",
)
ANALYSES = sorted((REPOSITORY / "models" / "lab" / "evaluation" / "analyses").iterdir())
REPORT: Final = "report_mimic"
EXPLAINED: Final = "region_explanation_imagenome"


def test_texts_agree_with_numbers_computed_by_hand() -> None:
    films = [
        Told(("There is a small left pleural effusion.",), ("There is a left pleural effusion.",)),
        Told(("No pneumothorax.",), ("Pneumothorax on the right.",)),
    ]

    made = texts.measure(films, mark(RuleLabeler(), REPORT, [("film", told) for told in films], quiet), NO_RESAMPLES)

    # Right: an effusion. Wrong: a pneumothorax, and that there is no finding was missed.
    assert (made["ce_14_micro_f1"], made["ce_14_micro_precision"]) == (pytest.approx(2 / (2 + 1 + 1)), 0.5)
    # Six of seven and six of six words in order; one of two and one of four.
    assert made["rouge_l"] == pytest.approx((12 / 13 + 1 / 3) / 2)
    assert (made["films"], made["texts"]) == (2, 2)


def test_each_box_of_a_phrase_is_explained_and_regions_that_no_sentence_speaks_of_are_seen_only(
    model: PublishedModel, picture: Picture
) -> None:
    labels = PublishedLabels(phrases=(Phrase("edema", np.stack([LEFT, RIGHT])), Phrase("mass", LEFT[np.newaxis])))

    told = texts.of_phrases(model, labels, picture)

    assert told is not None and told.true == ("edema", "edema", "mass")
    assert len(told.generated) == 3 and told.generated[0] == told.generated[2], "of one box"
    assert texts.of_phrases(model, PublishedLabels(), picture) is None

    labels = PublishedLabels(regions={"spine": LEFT, "right lung": RIGHT}, region_texts={"right lung": "Clear."})

    told = texts.of_regions(model, labels, picture)

    assert told is not None and told.true == ("Clear.",) and len(told.generated) == 1
    assert texts.of_regions(model, PublishedLabels(regions={"spine": LEFT}), picture) is None


def test_a_report_is_made_as_a_second_program_makes_it(model: PublishedModel, picture: Picture) -> None:
    asked = texts.report_questions(model, read_questions(DEFAULT).prompts)
    assert asked.pathologies == (True,) * 14 + (False,) * 15

    told = texts.of_report(model, asked, LABELS, picture)

    _, _, weights, (features,) = model.network.find(*picture, asked.prompts[np.newaxis])
    cosines = [
        torch.cosine_similarity(features, words.mean(dim=0), dim=-1) for words in (asked.positive, asked.negative)
    ]
    chosen = [n for n in range(29) if n < 14 or torch.sigmoid(cosines[0][n] - cosines[1][n]) > 0.5]
    said = [model.sentences.decode(model.network.write(features[[n]])[0].tolist()) for n in chosen]
    tokens = torch.from_numpy(model.phrases.encode(said))
    unit = torch.nn.functional.normalize(model.network.encode_prompts(tokens), dim=-1)
    alike = (unit @ unit.T).fill_diagonal_(-1.0).numpy()
    kept = list(range(len(said)))
    while len(kept) > 1:
        among = alike[np.ix_(kept, kept)]
        first, second = (kept[place] for place in np.unravel_index(among.argmax(), among.shape))
        if among.max() < (0.8 if len(kept) > 10 else 0.9):
            break
        kept.remove(first if weights[0, first] < weights[0, second] else second)
    assert told == (("The lungs are clear.",), (" ".join(said[n] for n in kept),))
    assert texts.of_report(model, asked, PublishedLabels(), picture) is None


@pytest.mark.parametrize("path", ANALYSES, ids=lambda path: path.stem)
def test_an_analysis_asks_otherwise_than_the_paper(path: Path, model: PublishedModel, picture: Picture) -> None:
    how = read_analysis(path)
    assert how != Analysis(task=how.task)

    if how.task == REPORT:
        asked = texts.report_questions(model, read_questions(DEFAULT).prompts, how)
        told = texts.of_report(model, asked, LABELS, picture, how)
    else:
        told = texts.of_regions(model, LABELS, picture, how)

    assert told is not None and len(told.generated) == (1 if how.task == REPORT else 2)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"asked_by": "name"}, "a report is given neither boxes nor names"),
        ({"task": EXPLAINED, "prompts": "regions"}, "are for task report_mimic"),
        ({"task": EXPLAINED, "filter": "by_class"}, "are for task report_mimic"),
        ({"prompts": "regions", "positive_only": True}, "leave one of them out"),
        ({"prompts": "pathologies", "filter": "by_class"}, "filter changes nothing"),
        ({"task": EXPLAINED, "all_regions": True}, "are for task report_mimic"),
        ({"prompts": "pathologies", "all_regions": True}, "asks for none; leave one of them out"),
        ({"all_regions": True, "filter": "by_class"}, "filter changes nothing"),
    ],
)
def test_what_does_not_go_together_says_why(tmp_path: Path, settings: dict[str, object], complaint: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(tomli_w.dumps({"task": REPORT, **settings}))

    with pytest.raises(ModelError, match=complaint):
        read_analysis(path)


def test_regions_are_given_by_box_or_name(model: PublishedModel, picture: Picture) -> None:
    by_box, by_name = (
        regions_asked(model, picture, LABELS.regions, Analysis(task=EXPLAINED, asked_by=way)) for way in ("box", "name")
    )

    boxes = torch.from_numpy(np.stack([RIGHT, LEFT]))[np.newaxis]
    together = features_together(model.network, picture, boxes, torch.zeros(1, 2, dtype=torch.bool))
    names = embed(model.network, model.phrases, [("Left lung",), ("Right lung",)])
    assert torch.allclose(by_box, together, atol=1e-5)
    assert torch.allclose(by_name, model.network.find(*picture, names[np.newaxis])[3], atol=1e-5)


# ---- Figures 4, 5, 6, 8 and 9: which boxes count, and what is asked about them

EFFUSION, CARDIOMEGALY = "mscxr/Pleural Effusion", "mscxr/Cardiomegaly"
HELD = {"cig/af/pleural effusion"}


def square(x: float, y: float, side: float) -> FloatArray:
    return array(x, y, side, side)


LUNGS_AND_HEART = {
    "right lung": square(0.3, 0.5, 0.4),
    "right lower lung zone": square(0.3, 0.6, 0.2),
    "left lung": square(0.7, 0.5, 0.4),
    "left lower lung zone": square(0.7, 0.6, 0.2),
    "cardiac silhouette": square(0.5, 0.6, 0.3),
}


def instances(boxes: dict[str, list[FloatArray]], held: dict[str, set[str]]) -> PublishedLabels:
    return PublishedLabels(
        boxes=tuple((name, own) for name, some in boxes.items() for own in some),
        regions=LUNGS_AND_HEART,
        region_findings={name: frozenset(held.get(name, ())) for name in LUNGS_AND_HEART},
    )


BOTH = instances({EFFUSION: [square(0.3, 0.6, 0.25), square(0.7, 0.5, 0.4)]}, {"right lung": HELD, "left lung": HELD})
ONE = instances({EFFUSION: [square(0.3, 0.6, 0.2)]}, {"right lung": HELD})
OTHERWISE = instances({CARDIOMEGALY: [square(0.5, 0.6, 0.3)]}, {"left lung": HELD})
"""Two boxes of a class, one in each lung; one; and one whose class no region holds."""


def films_of(model: PublishedModel, *labels: PublishedLabels) -> FileFilms:
    """Films with these labels, and noise for pixels."""
    films, side = Films(), model.network.sizes.image_encoder.image_size
    for number, own in enumerate(labels):
        gray = np.random.default_rng(number).random((side, side), dtype=np.float32)
        films.append(EvaluationCase(name=str(number), gray=gray, truth=Truth(), published=own))
    return cast("FileFilms", films)


def test_a_box_lies_in_the_part_of_the_lung_that_it_overlaps_most() -> None:
    right, left = prompting.instances_of(BOTH)

    assert (right.fine, right.coarse) == ("right lower lung zone", "right lung"), "a part of a region that holds it"
    assert (left.fine, left.coarse) == ("left lung", "left lung")
    assert (right.others.tolist(), left.others.tolist()) == ([left.box.tolist()], [right.box.tolist()])
    assert right.opposite is not None and right.opposite.tolist() == LUNGS_AND_HEART["left lung"].tolist()
    asked = right.asked(right.fine), right.asked(word="Mild")
    assert asked == ("Pleural effusion in the right lower lung zone", "Mild pleural effusion")
    assert prompting.instances_of(OTHERWISE) == [], "MS-CXR and Chest ImaGenome differ"


def test_each_figure_is_about_its_instances(model: PublishedModel) -> None:
    made = prompting.figures(model, films_of(model, BOTH, ONE, OTHERWISE), FIGURE_TASKS, RuleLabeler(), quiet)

    counted = {
        task: {kind: row["boxes"] for kind, row in made[task]["by_prompt"].items()}  # type: ignore[attr-defined] # a table
        for task in prompting.BOXES
    }
    grades = ("as it is", "mild", "moderate", "severe", "improved", "unchanged", "worsened", "no")
    assert counted == {
        "figure_4": dict.fromkeys(("no hint", "coarse hint", "fine hint"), 2),
        "figure_5": dict.fromkeys(("no hint", "right hint", "opposite hint"), 1),
        "figure_6": dict.fromkeys(("no hint", "coarse hint", "fine hint"), 3),
        "figure_8": dict.fromkeys(grades, 3),
    }
    assert all(own["films"] == 2 and own["films_of_the_paper"] == 98 for own in made.values())
    told = made["figure_6"]["by_sentence"]
    assert set(told) == {"pathology", "box", "box and pathology", "region", "pathology in the region"}  # type: ignore[call-overload] # a table
    _, (head, rows) = tables(made["figure_4"])
    assert (head[:2], rows[0][:2]) == (["by_prompt", "boxes"], ["no hint", "2"])
    nearest = cast("dict[str, int]", made["figure_9"]["nearest_region"])
    assert sum(nearest.values()) <= 7 + 7 + 6 and not any(name.startswith("Pleural effusion") for name in nearest)
    with pytest.raises(ModelError, match="prepare mscxr with --mimic and the folder that imagenome was prepared to"):
        prompting.figures(model, films_of(model, OTHERWISE), ["figure_4"], RuleLabeler(), quiet)


def test_the_box_of_an_instance_has_a_giou_of_one(
    model: PublishedModel, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    [instance] = prompting.instances_of(ONE)
    found = np.stack([LUNGS_AND_HEART["left lung"], instance.box, square(0.3, 0.6, 0.1)])
    monkeypatch.setattr(prompting, "likeliest", lambda *_: found)

    rows = list(prompting.located(model, picture, instance, "figure_5"))

    # The last is a quarter of the box, and all of it lies inside.
    assert [row.own for row in rows[1:]] == pytest.approx([1.0, 0.25], abs=1e-6)
    assert rows[0].own < 0 and rows[0].other == pytest.approx(1.0, abs=1e-6) and rows[1].other < 0


def test_sentences_are_counted_by_what_they_find(monkeypatch: pytest.MonkeyPatch, model: PublishedModel) -> None:
    told = {"pathology": "There is a pleural effusion.", "region": "No pleural effusion. There is edema."}
    monkeypatch.setattr(prompting, "sentences", lambda *_: told)

    made = prompting.figures(model, films_of(model, ONE), ["figure_6"], RuleLabeler(), quiet)["figure_6"]

    assert made["by_sentence"] == {
        "pathology": {"queried": 1.0, "others_found": 0.0, "others_named": 0.0},
        "region": {"queried": 0.0, "others_found": 1.0, "others_named": 1.0},
    }


# ---- the tasks: what is kept of what the network finds, and what an answer may depend on


# A class holds its own axis, and its opposite holds the other one.
POSITIVE, NEGATIVE = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
CLASSES = ClassVectors(located_by=POSITIVE, positive=POSITIVE, negative=NEGATIVE)

AT_LEFT, NEAR, AT_RIGHT = [0.2, 0.5, 0.2, 0.4], [0.22, 0.5, 0.2, 0.4], [0.8, 0.5, 0.2, 0.4]


def one_film(picture: Picture, film: int) -> Picture:
    patches, positions, cls = (part[film : film + 1] for part in picture)
    return patches, positions, cls


def drawn(*counts: int, size: int) -> list[Tensor]:
    """For each film as many rows of numbers 0..1: boxes, or embeddings."""
    source = torch.Generator().manual_seed(8)
    return [torch.rand(count, size, generator=source) for count in counts]


# ---- detection


def test_boxes_under_better_ones_of_their_class_are_dropped_and_an_enclosing_one_has_the_best_score() -> None:
    proposed = proposals([[AT_LEFT, NEAR, AT_RIGHT], [AT_LEFT, AT_RIGHT, NEAR]], [[0.3, 0.5, 0.2], [0.6, 0.4, 0.1]])
    (rows,) = detections(proposed, CLASSES, BY_WEIGHTS)
    wanted = [[*AT_LEFT, 1, 0.6], [*NEAR, 0, 0.5], [*AT_RIGHT, 1, 0.4], [*AT_RIGHT, 0, 0.2]]
    np.testing.assert_allclose(rows, wanted, atol=1e-6)

    proposed = proposals([[AT_LEFT, AT_RIGHT], [NEAR, NEAR]], [[0.1, 0.3], [0.9, 0.2]])
    (rows,) = detections(proposed, CLASSES, replace(BY_WEIGHTS, merge="enclose"))
    np.testing.assert_allclose(rows, [[0.5, 0.5, 0.8, 0.4, 0, 0.3], [*NEAR, 1, 0.9]], atol=1e-6)  # in class order


@pytest.mark.parametrize(("by_weights", "factor"), [(False, 1.0), (True, 0.25)])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_a_box_is_scored_by_what_it_holds(by_weights: bool, factor: float, temperature: float) -> None:
    # The length of a vector is not its meaning: cosines are 1 to the class and 0 to its opposite.
    tokens = torch.tensor([[[[5.0, 0.0]], [[0.1, 0.0]]]])
    settings = DetectionSettings(by_weights=by_weights, temperature=temperature)

    (rows,) = detections(proposals([[AT_LEFT], [AT_LEFT]], [[0.25], [0.25]], tokens), CLASSES, settings)

    likely = 1 / (1 + math.exp(-1 / temperature))
    np.testing.assert_allclose(rows[:, 4:], [[0, factor * likely], [1, factor * (1 - likely)]], atol=1e-6)


def test_the_shipped_settings_are_the_published_ones() -> None:
    of_prompts = DetectionSettings(
        by_prompts=True, by_weights=False, temperature=0.1, scales=(), overlap=0.25, merge="suppress"
    )

    assert {
        "vindr": replace(of_prompts, by_weights=True, temperature=0.5),
        "nih8": replace(of_prompts, merge="enclose"),
        "mscxr": of_prompts,
    } == SHIPPED


def test_a_film_is_detected_alone_but_its_classes_see_each_other(network: Chex, two_films: Picture) -> None:
    classes = ClassVectors(*torch.randn(3, 5, DIM, generator=torch.Generator().manual_seed(5)))

    together = locate(network, two_films, classes.located_by)
    alone = locate(network, one_film(two_films, 1), classes.located_by)
    fewer = locate(network, two_films, classes.located_by[:3])

    torch.testing.assert_close(alone.boxes, together.boxes[1:])
    rows, wanted = (detections(each, classes, SHIPPED["vindr"])[-1] for each in (alone, together))
    np.testing.assert_allclose(rows, wanted, atol=1e-6)
    assert (together.boxes[:, :3] - fewer.boxes).abs().max() > 1e-4, "as published"


# ---- grounding


def test_boxes_of_a_sentence_come_best_first_without_overlaps() -> None:
    proposed = proposals([[AT_LEFT, NEAR, AT_RIGHT], [AT_RIGHT, AT_LEFT, NEAR]], [[0.2, 0.4, 0.6], [0.1, 0.5, 0.3]])

    ((first, second),) = groundings(proposed, torch.tensor([[False, False]]))

    np.testing.assert_allclose(first, [[*AT_RIGHT, 0.6], [*NEAR, 0.4]], atol=1e-6)
    np.testing.assert_allclose(second, [[*AT_LEFT, 0.5], [*AT_RIGHT, 0.1]], atol=1e-6)


def test_padding_finds_nothing_but_sentences_see_it_as_published(network: Chex, two_films: Picture) -> None:
    rows = drawn(3, 1, size=DIM)
    together = locate(network, two_films, *fill_up(rows))

    first, second = (locate(network, one_film(two_films, n), *fill_up(rows[n : n + 1])) for n in range(2))

    torch.testing.assert_close(first.boxes, together.boxes[:1], msg="a film that fills its row")
    torch.testing.assert_close(first.scores, together.scores[:1])
    assert together.boxes[1, 1:].count_nonzero() == 0 and together.scores[1, 1:].count_nonzero() == 0
    assert (second.boxes - together.boxes[1:, :1]).abs().max() > 1e-4


# ---- given boxes


def test_a_box_apart_depends_on_no_other_and_no_padding_and_boxes_together_on_it_as_published(
    network: Chex, two_films: Picture
) -> None:
    rows = drawn(4, 2, size=4)
    apart = features_apart(network, two_films, *fill_up(rows))
    alone = features_apart(network, one_film(two_films, 1), *fill_up([rows[1][1:]]))
    torch.testing.assert_close(alone[0, 0], apart[1, 1])
    boxes, _ = fill_up(rows)
    described = network.describe(*two_films, boxes, torch.zeros(2, 4, DIM), torch.zeros(2, 4))
    torch.testing.assert_close(apart[0], described[0])

    together = features_together(network, two_films, *fill_up(rows))

    torch.testing.assert_close(features_together(network, one_film(two_films, 0), *fill_up(rows[:1])), together[:1])
    alone = features_together(network, one_film(two_films, 1), *fill_up(rows[1:]))
    assert (alone[0] - together[1, :2]).abs().max() > 1e-4


# ---- the published prompts


@pytest.mark.parametrize(
    ("data_set", "names", "prompts"),
    [
        ("vindr", "vindrcxr_loc_top15", "vindrcxr"),
        ("nih8", "nih8", "nih8"),
        ("mscxr", "ms_cxr", "mscxr"),
        ("cig", "cig_all", "cigcls"),
    ],
)
def test_classes_and_their_phrases_are_the_published_ones(data_set: DataSet, names: str, prompts: str) -> None:
    published = json.loads(material("chex/prompts.json").read_text(encoding="utf-8"))
    positives, negatives = published[f"prompts/{prompts}_pos"], published[f"prompts/{prompts}_neg"]
    # Regions of Chest ImaGenome are given, so its classes have no phrase that finds them but their own.
    located_by = published.get(f"prompts/{prompts}_box", positives)

    ours = [(own.name, [own.positive], [own.negative], [own.located_by]) for own in class_prompts(data_set)]

    theirs = list(published[f"class_names/{names}"])
    assert ours == [(name, positives[name], negatives[name], located_by[name]) for name in theirs]


def test_regions_and_their_synonyms_are_the_published_ones() -> None:
    published = json.loads(material("chex/prompts.json").read_text(encoding="utf-8"))
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
