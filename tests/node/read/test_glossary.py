"""The glossary for people who are no physicians: every code is explained, from public sources, without advice."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from models.contract import PromptKind
from node.domain import Code
from node.read import prompts
from node.web.shown_film import Explanation, explain, glossary

PUBLIC_SITES = ("medlineplus.gov", "www.nhs.uk", "www.radiologyinfo.org")
ADVICE = re.compile(
    r"\b(should (you|be|take)|you (must|need|should)|treat\w*|therapy|medicine|drug|worry|harmless|safe)\b"
)
PROMPTS = prompts.load("chexpert14").prompts
ALL = glossary().terms


def test_every_code_is_explained_and_each_finding_in_its_own_words() -> None:
    findings = [prompt.finding for prompt in PROMPTS if prompt.kind is PromptKind.PATHOLOGY and prompt.finding]

    assert None not in [explain(code) for prompt in PROMPTS for code in (prompt.finding, prompt.site) if code]
    assert len({each.text for each in map(explain, findings) if each is not None}) == 13
    assert explain(Code(value="1", scheme="SCT", meaning="Something else")) is None


@pytest.mark.parametrize("term", ALL, ids=lambda term: term.name)
def test_a_text_gives_no_advice_and_names_a_public_source(term: Explanation) -> None:
    assert ADVICE.findall(f"{term.name} {term.text}".lower()) == []
    assert urlsplit(term.link).scheme == "https"
    assert urlsplit(term.link).hostname in PUBLIC_SITES
    assert term.source.startswith(("MedlinePlus, ", "NHS, ", "RadiologyInfo, "))
    assert "Only a physician can judge" in glossary().caution
