"""`explain FILE`: every rule of routing with what it saw, the decision, the decoding, and no value of a patient."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.datadict import dictionary_VR
from pydicom.dataset import Dataset
from pydicom.uid import DigitalXRayImageStorageForPresentation

from node.commands.explain.film import FilmExplanation, explain_file, render
from node.dicom.film_header import parse_header
from node.domain import Reason
from node.read import routing
from node.read.routing import Action
from tests.paths import REPOSITORY
from tests.repository.test_no_patient_data import quoting
from tests.support import films
from tests.support.service import run_command
from tests.support.traces import found_in, marked

ADULTS = range(18, 200)
LOOKED_AT = {keyword for rule in routing.rules_for(ADULTS) for keyword in rule.looks_at}
MODEL = REPOSITORY / "models" / "weights" / "phantom"


def explained(folder: Path, film: Dataset, *, model: Path = MODEL) -> FilmExplanation:
    path = films.saved(folder, film)
    return explain_file(path, model=model)


def deciding(explanation: FilmExplanation) -> tuple[int, str | None] | None:
    """Number and attribute of the rule that decided."""
    found = [(outcome.rule, outcome.decided_by) for outcome in explanation.rules if outcome.applies]
    assert len(found) <= 1
    return found[0] if found else None


def test_a_film_that_is_read_passes_every_rule(tmp_path: Path) -> None:
    explanation = explained(tmp_path, films.rg1())

    assert [outcome.applies for outcome in explanation.rules] == [False] * len(routing.rules_for(ADULTS))
    assert (explanation.action, explanation.reason, explanation.notes) == (Action.READ, None, ())
    assert (explanation.columns, explanation.rows, explanation.bits_stored) == (1841, 1955, 15)
    assert explanation.photometric_interpretation == "MONOCHROME1"
    assert explanation.transfer_syntax == "Explicit VR Little Endian"
    assert explanation.decoding is not None
    assert list(explanation.decoding.analyzed or ()) == [0, 57, 1841, 1898]
    assert "decision: read" in render(explanation)


@pytest.mark.parametrize(
    ("make", "expected", "reason"),
    [
        (films.own_object, (1, "ContributingEquipmentSequence"), Reason.OWN_OBJECT),
        (lambda: films.non_image("SR"), (2, "SOPClassUID"), Reason.MODALITY),
        (lambda: films.thumbnail({"Modality": "PX"}), (3, "Modality"), Reason.MODALITY),
        (
            lambda: films.thumbnail({"PatientSpeciesDescription": "Canine"}),
            (4, "PatientSpeciesDescription"),
            Reason.SPECIES,
        ),
        (
            lambda: films.thumbnail({"PresentationIntentType": "FOR PROCESSING"}),
            (5, "PresentationIntentType"),
            Reason.FOR_PROCESSING,
        ),
        (lambda: films.thumbnail({"BodyPartExamined": "HIP"}), (6, "BodyPartExamined"), Reason.NOT_CHEST),
        (
            lambda: films.thumbnail({"BodyPartExamined": "", "StudyDescription": "Hip, left"}),
            (6, "StudyDescription"),
            Reason.NOT_CHEST,
        ),
        (films.lateral, (7, "ViewPosition"), Reason.LATERAL),
        (
            lambda: films.thumbnail({"ViewPosition": "", "SeriesDescription": "Thorax lat."}),
            (7, "SeriesDescription"),
            Reason.LATERAL,
        ),
        (films.two_frames, (8, "NumberOfFrames"), Reason.MODALITY),
        (films.color, (8, "SamplesPerPixel"), Reason.COLOR),
        (lambda: films.thumbnail({"PatientAge": "004M"}), (9, "PatientAge"), Reason.AGE),
        (films.one_pixel, (8, "Columns"), Reason.TOO_SMALL),
    ],
)
def test_the_rule_that_decides_is_named_with_its_attribute(
    tmp_path: Path, make: Callable[[], Dataset], expected: tuple[int, str], reason: Reason
) -> None:
    explanation = explained(tmp_path, make())

    assert deciding(explanation) == expected
    assert explanation.reason is reason
    assert [outcome.applies for outcome in explanation.rules[expected[0] :]] == [None] * (9 - expected[0])
    assert "nothing" not in explanation.advice, "the film can be corrected and sent again"
    (line,) = [line for line in render(explanation).splitlines() if "YES" in line]
    assert line.startswith(f"  {expected[0]} ") and f"{expected[1]} is " in line


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (films.constant, Reason.BLANK),
        (films.cut_short, Reason.UNDECODABLE),
        (films.mislabeled_codestream, Reason.UNDECODABLE),
    ],
)
def test_pixels_that_cannot_be_read_decide_after_the_rules(
    tmp_path: Path, make: Callable[[], Dataset], reason: Reason
) -> None:
    explanation = explained(tmp_path, make())

    assert deciding(explanation) is None
    assert (explanation.action, explanation.reason) == (Action.ANSWER, reason)
    assert "decoding: FAILS" in render(explanation)


def test_without_a_model_the_film_is_decoded_without_a_square(tmp_path: Path) -> None:
    explanation = explained(tmp_path, films.thumbnail(), model=tmp_path / "nowhere")

    assert explanation.decoding is not None
    assert (explanation.decoding.reason, explanation.decoding.analyzed) == (None, None)
    assert "not known" in explanation.decoding.message


@given(
    st.dictionaries(
        st.sampled_from(sorted(keyword for keyword in LOOKED_AT if dictionary_VR(keyword) in ("CS", "LO", "UI"))),
        st.text(max_size=20),
        max_size=5,
    )
)
def test_the_last_rule_applied_is_the_decision(texts: dict[str, str]) -> None:
    film = Dataset()
    film.SOPClassUID, film.Modality, film.Rows, film.Columns = DigitalXRayImageStorageForPresentation, "DX", 512, 512
    film.PixelData = b""
    header = parse_header(films.changed(film, texts))

    *_, (rule, objection) = routing.apply_rules(header, routing.rules_for(ADULTS))

    decision = routing.choose(header, routing.rules_for(ADULTS))
    if objection is None:
        assert decision.action is Action.READ
    else:
        assert (decision.action, decision.reason) == (rule.action, objection.reason)
        assert objection.keyword in rule.looks_at


@pytest.mark.parametrize("keywords", ["", "ViewPosition PatientOrientation Modality SeriesInstanceUID Rows"])
def test_nothing_of_a_patient_is_shown(tmp_path: Path, keywords: str) -> None:
    film = quoting(marked(films.thumbnail()), keywords.split())
    film.SeriesDescription = f"{film.SeriesDescription} LATEROQzvxwkjp DECUBQzvxwkjp chest"
    path = films.saved(tmp_path, film)

    plain, as_json = (run_command("explain", path, *more) for more in ((), ("--json",)))

    assert (plain.returncode, as_json.returncode) == (0, 0), plain.stderr + as_json.stderr
    said = plain.stdout + plain.stderr + as_json.stdout + as_json.stderr
    assert "SeriesDescription" in said and "text with CHEST, DECUB, LATERO" in said
    assert found_in(said.encode()) == []


def test_the_command_answers_with_one_document(tmp_path: Path) -> None:
    path = films.saved(tmp_path, films.lateral())

    done = run_command("explain", path, "--json")

    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert (content["action"], content["reason"]) == ("answer", "lateral")
    assert content["rules"][6]["attributes"]["ViewPosition"] == "LL"
    assert [rule["applies"] for rule in content["rules"]] == [False] * 6 + [True, None, None]


@pytest.mark.parametrize("name", ["README.md", "nothing.dcm"])
def test_what_is_no_dicom_object_is_wrong_input(name: str) -> None:
    done = run_command("explain", name)

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and name in line


def test_a_film_whose_uids_are_none_is_explained_without_them(tmp_path: Path) -> None:
    film = films.changed(films.thumbnail(), {"StudyInstanceUID": "Qzvxwkjp.1"})

    explanation = explained(tmp_path, film)

    assert explanation.study is None
    assert "refuses to receive it" in render(explanation)
    assert found_in(render(explanation).encode()) == []
