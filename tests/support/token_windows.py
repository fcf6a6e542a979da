"""A second reading of sentences, by windows of words around a noun: written apart from `language`, to compare with it.

It knows no clauses: a word of denial counts for eight words after it, unless a word that begins anew stands between.
"""

from __future__ import annotations

import re
from typing import Final

NOUNS: Final = {
    "atelectasis": {"atelectasis", "collapse"},
    "consolidation": {"consolidation", "consolidations"},
    "edema": {"edema"},
    "fracture": {"fracture", "fractures"},
    "lung_lesion": {"nodule", "nodules", "mass", "masses", "lesion", "lesions"},
    "lung_opacity": {"opacity", "opacities"},
    "pleural_effusion": {"effusion", "effusions"},
    "pneumothorax": {"pneumothorax", "pneumothoraces"},
    "support_devices": {"tube", "tubes", "line", "lines", "device", "devices", "pacemaker", "leads"},
}
DENIALS: Final = {"no", "not", "without", "neither", "nor", "absent", "free"}
ANEW: Final = {"but", "however", "there", "a", "an", "the", "with", ";"}
WINDOW: Final = 8
_HEART: Final = {"heart", "cardiac"}
_LARGE: Final = {"enlarged", "enlargement", "cardiomegaly"}


def read(sentence: str) -> dict[str, bool]:
    """What a sentence says: True for each finding that it reports, False for each that it denies."""
    words = re.findall(r"[a-z]+|;", sentence.lower())
    said = {}
    for key, nouns in NOUNS.items():
        places = [place for place, word in enumerate(words) if word in nouns]
        if places:
            said[key] = any(not _is_denied(words, place) for place in places)
    if said.get("pneumothorax"):
        said.pop("atelectasis", None)  # the lung that a pneumothorax makes collapse
    large = [place for place, word in enumerate(words) if word in _LARGE]
    if large and (_HEART & set(words) or "cardiomegaly" in words):
        said["cardiomegaly"] = not _is_denied(words, large[0])
    elif _HEART & set(words) and "normal" in words:
        said["cardiomegaly"] = False
    if {"mediastinum", "normal"} <= set(words):
        said["enlarged_cardiomediastinum"] = False
    if {"bones", "intact"} <= set(words):
        said["fracture"] = False
    return said


def _is_denied(words: list[str], place: int) -> bool:
    for word in reversed(words[max(0, place - WINDOW) : place]):
        if word in DENIALS:
            return True
        if word in ANEW:
            return False
    return bool(DENIALS & set(words[place + 1 : place + 4]))
