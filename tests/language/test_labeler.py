"""What reports say of the classes of CheXpert: cases made by hand, and every report of a phantom."""

from __future__ import annotations

import pytest

from language.labels import RuleLabeler, says
from models.lab.evaluation.cases import truth_of_phantom
from models.lab.phantoms import phantom

LABELER = RuleLabeler()


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ("There is a small left pleural effusion.", "+pleural_effusion"),
        ("No pleural effusion or pneumothorax.", "-pleural_effusion -pneumothorax"),
        (
            "No focal consolidation, pleural effusion, or pneumothorax is seen.",
            "-consolidation -pleural_effusion -pneumothorax",
        ),
        ("No pneumothorax, but a moderate effusion remains.", "-pneumothorax +pleural_effusion"),
        ("There is no edema. There is a nodule in the left lung.", "-edema +lung_lesion"),
        ("Possible pneumonia in the right lower lobe.", "?pneumonia"),
        ("A pneumonia may be present.", "?pneumonia"),
        ("No pleural effusion\nPneumothorax on the left", "-pleural_effusion +pneumothorax"),
        ("Right basilar opacity may represent atelectasis.", "+lung_opacity ?atelectasis"),
        ("A small effusion cannot be excluded.", "?pleural_effusion"),
        ("An underlying consolidation cannot be entirely excluded.", "?consolidation"),
        ("Findings suggest mild edema.", "?edema"),
        ("There is no evidence to suggest pneumonia.", "-pneumonia"),
        ("The pneumothorax has resolved.", "-pneumothorax"),
        ("The effusion is no longer seen.", "-pleural_effusion"),
        ("An effusion, pneumothorax is absent.", "+pleural_effusion -pneumothorax"),
        ("No change in the large right effusion.", "+pleural_effusion"),
        ("Without pleural effusion.", "-pleural_effusion"),
        ("The lungs are clear of consolidation.", "-consolidation"),
        ("The heart is mildly enlarged.", "+cardiomegaly"),
        ("The heart is not enlarged.", "-cardiomegaly"),
        ("Heart size is normal.", "-cardiomegaly"),
        ("The cardiac silhouette is within normal limits.", "-cardiomegaly"),
        ("Moderate enlargement of the cardiac silhouette.", "+cardiomegaly"),
        ("The cardiomediastinal silhouette is enlarged.", "+enlarged_cardiomediastinum"),
        ("Mediastinal contours are normal.", "-enlarged_cardiomediastinum"),
        ("Widening of the mediastinum.", "+enlarged_cardiomediastinum"),
        ("Large pneumothorax with collapse of the lung.", "+pneumothorax"),
        ("Collapse of the left lower lobe.", "+atelectasis"),
        ("Plate-like atelectasis at the bases.", "+atelectasis"),
        ("Pericardial effusion is suspected.", ""),
        ("Hydropneumothorax on the right.", "+pneumothorax +pleural_effusion"),
        ("Pleural thickening at the left apex.", "+pleural_other"),
        ("There is a displaced fracture of a left rib.", "+fracture"),
        ("The bones are intact.", "-fracture"),
        ("An endotracheal tube ends above the carina.", "+support_devices"),
        ("No tubes or lines are seen.", "-support_devices"),
        ("Kerley B lines are present.", ""),
        ("Subcutaneous edema of the chest wall.", ""),
        ("Vascular congestion is seen.", "+edema"),
        ("Patchy infiltrates in both lungs.", "+lung_opacity"),
        ("The right upper lung zone is clear.", ""),
        ("There is no effusion. A large effusion is seen on the left.", "+pleural_effusion"),
        ("THERE IS NO PNEUMOTHORAX.", "-pneumothorax"),
    ],
)
def test_a_report_says(report: str, expected: str) -> None:
    signs = {"positive": "+", "negative": "-", "uncertain": "?"}

    marks = LABELER.label(report)

    said = {signs[mark] + key for key, mark in marks.items() if key != "no_finding"}
    assert said == set(expected.split())
    assert says(marks, "no_finding") is not any(label[0] in "+?" and "devices" not in label for label in said)


def test_nothing_said_is_not_a_normal_film() -> None:
    assert dict(LABELER.label(" ")) == {}


def test_every_report_of_a_phantom_is_understood() -> None:
    for seed in range(40_000, 40_025):
        truth = truth_of_phantom(phantom(seed, side=48))
        marks = LABELER.label(truth.report)

        assert {key: says(marks, key) for key in LABELER.classes} == truth.labels, truth.report
