"""What labels of real films say: a radiologist goes before a mined label, and normal says nothing about devices."""

from __future__ import annotations

import pytest

from models.lab.lines import FilmLine, labels_of_line
from models.lab.training.labels import Line

BOXES = {"lung_opacity": [[0.3, 0.6, 0.1, 0.1], [0.7, 0.6, 0.2, 0.2], [0.2, 0.8, 0.1, 0.1]]}


def told(
    *nih_labels: str,
    reading: str | None = None,
    boxes: dict[str, list[list[float]]] | None = None,
    labels: dict[str, bool] | None = None,
    mined: tuple[str, ...] = (),
) -> Line:
    film: FilmLine = {"file": "a.png", "nih_labels": list(nih_labels), "labels": labels or {}, "mined": list(mined)}
    if reading is not None:
        film["rsna"] = reading
    return labels_of_line(film, boxes=boxes or {}, regions={})


def test_a_mined_label_is_marked_as_one() -> None:
    line = told("Effusion", "Infiltration")

    assert line["present"]["pleural_effusion"] and line["present"]["lung_opacity"]
    assert not line["present"]["edema"] and not line["present"]["no_finding"]
    assert set(line["mined"]) == set(line["present"])
    assert line["located"] == []


def test_a_radiologist_goes_before_a_mined_label() -> None:
    normal, other = told("Pneumonia", reading="Normal"), told("Pneumonia", reading="No Lung Opacity / Not Normal")

    assert not normal["present"]["pneumonia"] and normal["present"]["no_finding"]
    assert not other["present"]["pneumonia"] and not other["present"]["no_finding"]
    assert "pneumonia" not in normal["mined"] and "pneumonia" not in other["mined"]
    assert {"pneumothorax", "lung_opacity"} <= set(normal["located"])
    assert set(other["located"]) == {"consolidation", "lung_opacity", "pneumonia"}


def test_a_mined_label_that_a_reading_denies_is_not_said() -> None:
    line = told("Effusion", labels={"pleural_effusion": False, "consolidation": True})

    assert not line["present"]["pleural_effusion"] and "pleural_effusion" not in line["mined"]
    assert [sentence["findings"] for sentence in line["said"]] == [["consolidation"]]


def test_a_mined_normal_that_a_reading_denies_places_nothing() -> None:
    assert "pleural_effusion" in told("No Finding")["located"]
    assert told("No Finding", labels={"fracture": True, "no_finding": False})["located"] == []
    assert told("No Finding", reading="Lung Opacity", boxes=BOXES)["located"] == ["lung_opacity"]


def test_a_mined_label_of_another_report_goes_before_no_reading() -> None:
    line = told(reading="Normal", labels={"edema": True, "fracture": True}, mined=("edema",))

    assert not line["present"]["edema"] and line["present"]["fracture"]
    assert "edema" not in line["mined"] and "fracture" not in line["mined"]


def test_normal_says_nothing_about_devices() -> None:
    line = told("No Finding", reading="Normal")

    assert "support_devices" not in line["present"] and "support_devices" not in line["located"]
    assert line["mined"] == ["cardiomegaly"]


def test_boxes_of_an_opacity_are_not_those_of_a_pneumonia() -> None:
    line = told("Pneumonia", "Consolidation", reading="Lung Opacity", boxes=BOXES)

    assert line["located"] == ["lung_opacity"]
    assert line["present"]["pneumonia"] and {"pneumonia", "consolidation"} <= set(line["mined"])


def test_what_is_present_is_said_once_for_each_side() -> None:
    said = told("Effusion", reading="Lung Opacity", boxes=BOXES)["said"]

    by_class = {(sentence["findings"][0], sentence["text"]): len(sentence["boxes"]) for sentence in said}
    assert by_class == {
        ("pleural_effusion", "There is a pleural effusion."): 0,
        ("lung_opacity", "There is a right lung opacity."): 2,
        ("lung_opacity", "There is a left lung opacity."): 1,
    }


def test_a_film_without_any_label_says_nothing() -> None:
    assert labels_of_line({"file": "a.png"}, boxes={}, regions={"spine": [0.5, 0.5, 0.1, 0.9]}) == {
        "regions": {"spine": [0.5, 0.5, 0.1, 0.9]},
        "boxes": {},
        "located": [],
    }


def test_an_unknown_reading_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rsna must be one of Normal, .*not 'Fine'"):
        told(reading="Fine")
