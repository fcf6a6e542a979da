"""Tell of the text of an answer over HTTP what may be told: words of a closed list, in their order. Pure.

An archive that refuses an object often says why in a line of text or a page of HTML, and that line may quote the
patient's name, number or dates. So every word that is not on the list is left out.
"""

from __future__ import annotations

import re
from typing import Final

_MARKUP: Final = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^>]*>|&#?\w+;", re.DOTALL | re.IGNORECASE)
_WORD: Final = re.compile(r"[A-Za-z]+(?:[-'/][A-Za-z]+)*")
_READ_BYTES: Final = 16 * 1024
_LONGEST: Final = 120
_LEAST_WORDS: Final = 2
_GAP: Final = "..."

_KNOWN: Final = frozenset(
    """
    a about accept acceptable accepted access account administrator after again all allowed already an and any archive
    are array as at attribute attributes authorization authorized available back bad be because before being body
    bulkdata busy but by can can't cannot character characters charset class client closed code codec coerced collision
    comprehensive compressed compression conflict connection contact contain contains content content-type context
    corrupt corrupted could couldn't data database dataset denied device dicom dicomweb did different digital directory
    disabled disk does doesn't duplicate duplicated element elements empty enabled encapsulated encoding end error
    errors exceeded exceeds exception exist existing exists expected explicit fail failed failure field file files
    filter fit folder for forbidden format found free from full gateway get grayscale group had handler has have header
    headers http image implicit in incoming incomplete instance instances insufficient internal into invalid is it item
    items its jpeg json key large later left length license limit limits list little loading locked long lossless lossy
    low maximum media memory message meta metadata method mime minimum mismatch missing modality more multipart must
    network new no node none not null number object objects of off on only operation or order other out over parse
    parser parsing part parts patient payload permission permitted pixel please policy possible post preamble
    presentation private process processed processing profile quarantine quota quotas range read read-only readable
    received refused registered reject rejected related report request requested required resource resources response
    retry rule same sequence series server service size sop space specified state status stop storage store stored
    storing stow stow-rs structured study successful support supported syntax syntaxes table tag tags temporarily that
    the there this time timed timeout to token too transaction transfer try type uid uids unable unauthorized
    unavailable undefined unexpected unknown unprocessable unreadable unrecognized unsupported until upload user valid
    validate validation value values version violates violation was were when which while with within without write
    written wrong xml you your
    """.split()
)
"""Words of technical answers in English; none of them is a name that somebody would have alone."""


def known_words(body: bytes) -> str:
    """Return the known words of an answer, with dots for what is left out; "" if there are less than two."""
    text = _MARKUP.sub(" ", body[:_READ_BYTES].decode("utf-8", errors="replace"))
    told: list[str] = []
    for found in _WORD.finditer(text):
        word = found[0].lower()
        if word in _KNOWN:
            told.append(word)
        elif told and told[-1] != _GAP:
            told.append(_GAP)
    words = " ".join(told).strip(f" {_GAP}")
    is_enough = sum(word != _GAP for word in told) >= _LEAST_WORDS
    return words[:_LONGEST].rstrip(f" {_GAP}") if is_enough else ""
