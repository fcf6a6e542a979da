"""The content of a report on a study of which nothing could be read (PS3.16 TID 2000): one reason per object.

Viewers show little of a text: the reason comes first, the film it belongs to last, and the lines are short.
"""

from __future__ import annotations

from collections.abc import Mapping

from highdicom.sr import ContainerContentItem
from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from node.domain import Report
from node.outputs import words
from node.outputs.sr_items import FINDING, container, inferred_from, language, observer, source_object, text

IMAGING_REPORT = Concept("18748-4", "LN", "Diagnostic Imaging Report")
FINDINGS = Concept("59776-5", "LN", "Findings")


def content(report: Report, sources: Mapping[str, Dataset]) -> ContainerContentItem:
    """Say of every object why it has no result."""
    root = container(IMAGING_REPORT, template="2000", is_root=True)
    root.ContentSequence.extend(language())
    root.ContentSequence.extend(observer(report))
    findings = container(FINDINGS)
    findings.ContentSequence.append(text(words.wrapped(words.intended_use(report)), name=FINDING))
    for film in report.films:
        why = words.wrapped(words.not_processed(film), words.film_name(report, film))
        findings.ContentSequence.append(inferred_from(text(why, name=FINDING), source_object(sources[film.source])))
    root.ContentSequence.append(findings)
    return root
