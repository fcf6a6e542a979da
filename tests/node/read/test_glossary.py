"""The glossary for people who are no physicians: every code, common words, short sentences, and no advice."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from models.contract import PromptKind
from node.domain import Code
from node.read import prompts
from node.web.shown import Explanation, explain, glossary

PUBLIC_SITES = ("medlineplus.gov", "www.nhs.uk", "www.radiologyinfo.org")
# Words that a person outside medicine may not know, or takes in another sense.
JARGON = re.compile(
    r"\b(acute|airspace|anterior|apex|apical|atelecta\w*|bilateral|cardi\w*|chronic|consolidat\w*|diffuse|edema|effusion|focal|"
    r"fracture|hil(um|ar)|infiltrat\w*|lesion|lobe|lobar|mediastin\w*|nodul\w*|opaci\w*|parenchyma\w*|pathology|pleura\w*|"
    r"pneumo\w*|posterior|pulmonary|radiograph\w*|silhouette|thora\w*|unremarkable|vascular|zone)\b"
)
ADVICE = re.compile(
    r"\b(should (you|be|take)|you (must|need|should)|treat\w*|therapy|medicine|drug|worry|harmless|safe)\b"
)
CODES = [
    code for prompt in prompts.load("chexpert14").prompts for code in (prompt.finding, prompt.site) if code is not None
]
ALL = glossary().terms


def sentences(text: str) -> list[str]:
    return [sentence for sentence in re.split(r"(?<=[.!?]) ", text) if sentence]


def words(text: str) -> list[str]:
    return re.findall(r"[a-z][a-z'-]*", text.lower())


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.value)
def test_every_code_of_the_prompt_set_is_explained(code: Code) -> None:
    assert explain(code) is not None


def test_findings_have_explanations_of_their_own() -> None:
    found = [
        explain(prompt.finding)
        for prompt in prompts.load("chexpert14").prompts
        if prompt.kind is PromptKind.PATHOLOGY and prompt.finding is not None
    ]

    assert len({each.text for each in found if each is not None}) == 13
    assert explain(Code(value="1", scheme="SCT", meaning="Something else")) is None


@pytest.mark.parametrize("term", ALL, ids=lambda term: term.name)
def test_a_text_has_common_words_and_no_advice(term: Explanation) -> None:
    said = f"{term.name} {term.text}".lower()

    assert JARGON.findall(said) == []
    assert ADVICE.findall(said) == []


@pytest.mark.parametrize("term", ALL, ids=lambda term: term.name)
def test_a_text_names_a_public_source_and_the_physician(term: Explanation) -> None:
    assert urlsplit(term.link).scheme == "https"
    assert urlsplit(term.link).hostname in PUBLIC_SITES
    assert term.source.startswith(("MedlinePlus, ", "NHS, ", "RadiologyInfo, "))
    assert "Only a physician can judge" in glossary().caution
