"""What the validators let pass beyond the templates that they know."""

from __future__ import annotations

import pytest

from tests.support.validators import is_complaint

MEASURED = '/CONTAINER (126000,DCM,"Imaging Measurement Report")'
GROUP = f'{MEASURED}/CONTAINER (126010,DCM,"Imaging Measurements")/CONTAINER (125007,DCM,"Measurement Group")'
EVALUATIONS = f'{MEASURED}/CONTAINER (C0034375,UMLS,"Qualitative Evaluations")'
COMMENT = 'TEXT (121106,DCM,"Comment")'
TEXT = '/CONTAINER (18748-4,LN,"Diagnostic Imaging Report")'
SECTION = f'{TEXT}/CONTAINER (59776-5,LN,"Findings")'
FINDING = 'TEXT (121071,DCM,"Finding")'
PERSON = ('CODE (121005,DCM,"Observer Type")', 'PNAME (121008,DCM,"Person Observer Name")')


def complaints(parent: str) -> list[bool]:
    """Whether each item of a person observer is a complaint at a place where PixelMed does not expect it."""
    return [is_complaint(f"Warning: 1.9.1: {parent}/{item}: Content Item not in template") for item in PERSON]


@pytest.mark.parametrize(
    "parent",
    [SECTION, GROUP, f"{GROUP}/{COMMENT}", f'{EVALUATIONS}/CODE (8186001,SCT,"Cardiomegaly")'],
)
def test_an_observer_may_stand_where_the_standard_has_it(parent: str) -> None:
    assert complaints(parent) == [False, False]


@pytest.mark.parametrize(
    "parent",
    [
        f"{SECTION}/{FINDING}",  # TID 2000 cannot be extended, and has observers of sections alone
        f"{SECTION}/{COMMENT}",
        f'{TEXT}/CODE (121049,DCM,"Language of Content Item and Descendants")',
        f'{MEASURED}/CONTAINER (126010,DCM,"Imaging Measurements")',  # the node says nothing of whole sections
        EVALUATIONS,
        f'{MEASURED}/CONTAINER (111028,DCM,"Image Library")/CONTAINER (126200,DCM,"Image Library Group")',
        f'{GROUP}/SCOORD (111030,DCM,"Image Region")',  # no target of HAS OBS CONTEXT below coordinates
        f'{GROUP}/CONTAINER (125007,DCM,"Measurement Group")',
    ],
)
def test_an_observer_elsewhere_is_a_complaint(parent: str) -> None:
    assert complaints(parent) == [True, True]
