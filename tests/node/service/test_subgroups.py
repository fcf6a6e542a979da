"""Groups of patients whose answers are watched apart: who belongs where, and what is published of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from node.domain import FilmView
from node.metrics import GROUPS, Metrics
from node.read import prompts
from node.service.drift import CURRENT_FILMS, LEAST_FILMS, REFERENCE_FILMS, DriftWindow, Watch
from node.service.subgroups import groups_of
from node.store.spool import Spool
from tests.node.service.test_drift import MODEL
from tests.support.answered import film, header

PROMPTS = prompts.load("chexpert14")


def of(**attributes: str) -> Dataset:
    """A header of a film with these attributes and none of the others that tell a group."""
    made = header()
    for keyword in ("PatientSex", "PatientAge", "PatientBirthDate", "StudyDate"):
        setattr(made, keyword, attributes.get(keyword, ""))
    return made


@pytest.mark.parametrize(
    ("attributes", "sex", "age"),
    [
        ({"PatientSex": "F", "PatientAge": "045Y"}, "sex_female", "age_40_59"),
        ({"PatientSex": "M", "PatientAge": "080Y"}, "sex_male", "age_80_up"),
        ({"PatientSex": "O", "PatientAge": "011M"}, "sex_other", "age_0_17"),
        ({"PatientSex": "X", "PatientAge": ""}, "sex_unknown", "age_unknown"),
        ({"PatientBirthDate": "20080101", "StudyDate": "20261123"}, "sex_unknown", "age_18_39"),
        ({"PatientBirthDate": "20270101", "StudyDate": "20261123"}, "sex_unknown", "age_unknown"),
    ],
)
def test_a_film_belongs_to_a_sex_and_an_age_band(attributes: dict[str, str], sex: str, age: str) -> None:
    assert groups_of(film(0.5), of(**attributes))[:2] == (sex, age)


@pytest.mark.parametrize(
    ("view", "group"),
    [
        (FilmView(tag="AP", seen="PA"), "view_AP"),
        (FilmView(tag="frontal", seen="PA", certainty=0.9), "view_PA"),
        (FilmView(tag="frontal", seen="not_chest"), "view_unknown"),
        (None, "view_unknown"),
    ],
)
def test_the_header_tells_the_projection_before_the_picture(view: FilmView | None, group: str) -> None:
    found = groups_of(replace(film(0.5), view=view), of())

    assert found[2] == group
    assert set(found) <= set(GROUPS)


def test_answers_are_counted_by_group(tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.expect(destinations=(), prompts=["edema"])
    watch = Watch(Spool(tmp_path), metrics, model=MODEL, prompts=PROMPTS)
    answered = film(0.95)
    (finding,) = [found for found in answered.findings if found.prompt == "edema"]

    watch.note(answered, of(PatientSex="F", PatientAge="070Y"))

    for group, count in (("sex_female", 1), ("age_60_79", 1), ("view_unknown", 1), ("sex_male", 0)):
        labels = {"prompt": "edema", "state": str(finding.state), "group": group}
        assert metrics.registry.get_sample_value("cxr_group_findings_total", labels) == count
    assert metrics.registry.get_sample_value("cxr_group_films", {"group": "sex_female"}) == 1
    few = {"prompt": "edema", "group": "sex_female", "quantile": "0.5"}
    assert metrics.registry.get_sample_value("cxr_group_probability", few) is None, "one film says nothing of a group"


def test_quantiles_are_of_the_newest_films() -> None:
    window = DriftWindow(reference={"edema": "9" * REFERENCE_FILMS}, current={"edema": "01" * (CURRENT_FILMS // 2)})

    assert window.quantiles() == {("edema", 0.5): 0.1, ("edema", 0.9): 0.2}
    assert DriftWindow(reference={"edema": "0" * (LEAST_FILMS - 1)}).quantiles() == {}
    assert DriftWindow(reference={"edema": "3" * LEAST_FILMS}).quantiles() == {("edema", 0.5): 0.4, ("edema", 0.9): 0.4}


def test_a_group_that_drifts_is_published_after_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    Watch(spool, Metrics(), model=MODEL, prompts=PROMPTS).note(film(0.05), of(PatientSex="M"))
    window = DriftWindow(reference={"edema": "0" * REFERENCE_FILMS}, current={"edema": "5" * CURRENT_FILMS})
    (path,) = (tmp_path / "windows").glob("*-sex_male.json")
    spool.keep_windows({path.stem: window.to_json()})

    metrics = Metrics()
    Watch(spool, metrics, model=MODEL, prompts=PROMPTS)

    drift = metrics.registry.get_sample_value("cxr_group_drift_psi", {"prompt": "edema", "group": "sex_male"})
    assert drift is not None and drift > 1
    assert metrics.registry.get_sample_value("cxr_group_films", {"group": "sex_male"}) == 700
