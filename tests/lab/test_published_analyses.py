"""Analyses of the paper's tasks: what each file asks otherwise, and what goes with nothing."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from models.errors import ModelError
from models.lab.evaluation.evaluated_model import read_questions
from models.lab.evaluation.published import texts
from models.lab.evaluation.published.analysis import Analysis, read_analysis
from models.lab.evaluation.published.classification import regions_asked
from models.lab.evaluation.published.labels import PublishedLabels
from models.lab.evaluation.published.model import PublishedModel
from models.lab.evaluation.request import DEFAULT
from models.lab.tasks.batch import Picture
from models.lab.tasks.prompts import embed
from models.lab.tasks.regions import features_together
from tests.lab.published import small_model
from tests.models.test_chex import picture_of
from tests.paths import REPOSITORY

FILES = REPOSITORY / "models" / "lab" / "evaluation" / "analyses"
REPORT, REGIONS = "report_mimic", "region_explanation_imagenome"
OTHERWISE: dict[str, tuple[str, dict[str, object]]] = {
    "report_pathologies": (REPORT, {"prompts": "pathologies"}),
    "report_regions": (REPORT, {"prompts": "regions"}),
    "report_positive_only": (REPORT, {"positive_only": True}),
    "report_all_regions": (REPORT, {"all_regions": True}),
    "report_all_regions_positive_only": (REPORT, {"all_regions": True, "positive_only": True}),
    "report_regions_all": (REPORT, {"prompts": "regions", "all_regions": True}),
    "report_pathologies_positive_only": (REPORT, {"prompts": "pathologies", "positive_only": True}),
    "report_filter_by_class": (REPORT, {"filter": "by_class"}),
    "regions_by_name": (REGIONS, {"asked_by": "name"}),
    "classes_by_name": ("region_classification_imagenome", {"asked_by": "name"}),
}
LEFT, RIGHT = (np.array([x, 0.5, 0.3, 0.6], dtype=np.float32) for x in (0.3, 0.7))
LABELS = PublishedLabels(
    regions={"left lung": RIGHT, "right lung": LEFT},
    region_texts={"left lung": "Clear.", "right lung": "Opacity."},
    report="The lungs are clear.",
)


@pytest.fixture(scope="module")
def model() -> PublishedModel:
    return small_model(seed=17)


@pytest.fixture(scope="module")
def picture(model: PublishedModel) -> Picture:
    patches, positions, cls = picture_of(model.network, seed=9)
    return patches[:1], positions[:1], cls[:1]


def analysis(**settings: object) -> Analysis:
    return Analysis(**{"task": REPORT, **settings})  # type: ignore[arg-type] # each has its own type


def written(model: PublishedModel, picture: Picture, how: Analysis) -> tuple[str, ...]:
    """Write as an analysis says; the texts of a film."""
    if how.task == REPORT:
        asked = texts.report_questions(model, read_questions(DEFAULT).prompts, how)
        told = texts.of_report(model, asked, LABELS, picture, how)
    else:
        told = texts.of_regions(model, LABELS, picture, how)
    assert told is not None
    return told.generated


def test_every_file_is_in_the_table() -> None:
    assert {path.stem for path in FILES.iterdir()} == OTHERWISE.keys()


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_file_differs_from_the_paper_in_what_it_says(name: str, model: PublishedModel, picture: Picture) -> None:
    how = read_analysis(FILES / f"{name}.toml")
    published = analysis(task=OTHERWISE[name][0])

    differing = {
        field.name: getattr(how, field.name)
        for field in fields(Analysis)
        if getattr(how, field.name) != getattr(published, field.name)
    }

    assert (how.task, differing) == OTHERWISE[name]
    assert len(written(model, picture, how)) == (1 if how.task == REPORT else 2)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"asked_by": "name"}, "a report is given neither boxes nor names"),
        ({"task": REGIONS, "prompts": "regions"}, "are for task report_mimic"),
        ({"task": REGIONS, "filter": "by_class"}, "are for task report_mimic"),
        ({"prompts": "regions", "positive_only": True}, "leave one of them out"),
        ({"prompts": "pathologies", "filter": "by_class"}, "filter changes nothing"),
        ({"task": REGIONS, "all_regions": True}, "are for task report_mimic"),
        ({"prompts": "pathologies", "all_regions": True}, "asks for none; leave one of them out"),
        ({"all_regions": True, "filter": "by_class"}, "filter changes nothing"),
    ],
)
def test_what_does_not_go_together_says_why(tmp_path: Path, settings: dict[str, object], complaint: str) -> None:
    path = tmp_path / "own.toml"
    lines = {"task": REPORT, **settings}
    path.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items()))

    with pytest.raises(ModelError) as refused:
        read_analysis(path)

    assert complaint in str(refused.value)


def test_regions_are_given_by_box_or_name(model: PublishedModel, picture: Picture) -> None:
    ways = [analysis(task=REGIONS, asked_by=by) for by in ("box", "name")]

    by_box, by_name = (regions_asked(model, picture, LABELS.regions, how) for how in ways)

    boxes = torch.from_numpy(np.stack([RIGHT, LEFT]))[np.newaxis]
    together = features_together(model.network, picture, boxes, torch.zeros(1, 2, dtype=torch.bool))
    names = embed(model.network, model.phrases, [("Left lung",), ("Right lung",)])
    assert torch.allclose(by_box, together, atol=1e-5)
    assert torch.allclose(by_name, model.network.find(*picture, names[np.newaxis])[3], atol=1e-5)
