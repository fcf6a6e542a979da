"""Parses a typed text about a film by rules on its words; a pure function.

A text is understood only if every word of it is: "large effusion" and "tip of the line" are left to the network,
because the report answers neither. A whole sentence never is: its recognized part is answered. What a
finding is called stands in `language/labels.toml` and in the prompt set; whether a text affirms or denies it, as a
correction does, is read as in any sentence (`language.statements`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

from language.cues import cues
from language.labels import ClassRule, class_rules, named_rule
from language.normal import names_in
from language.question_check import is_about_change
from language.statements import Stance, sides_in, statements_of
from models.contract import PromptKind, Side
from node.character_sets import visible
from node.prompt_set import Prompt, PromptSet
from node.read.prompt_names import names_of, refusal, unasked_place

LONGEST: Final = 200
"""The most characters of a text that is looked through; a longer one is no question."""


class Topic(StrEnum):
    """The intent of a text.

    place: location of a finding, and the evidence for it; view: AP or PA; correct: presence or absence as a correction
    free: a query for the network alone; refused: a denial, prohibition or instruction; nothing: no question at all
    """

    PRESENCE = "presence"
    PLACE = "place"
    REGION = "region"
    SIDE = "side"
    LIST = "list"
    SUMMARY = "summary"
    NORMAL = "normal"
    COMPARE = "compare"
    VIEW = "view"
    CORRECT = "correct"
    FREE = "free"
    REFUSED = "refused"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A parsed text.

    findings, regions: keys of prompts; side: the patient's side, None if the text names none
    denied: keys of the findings that a correction says are not there; `findings` are those that it says are
    prompt: the words for the network, if the report does not answer the text or answers it with a wider finding
    reason: why a text is refused, and what to do
    judges: whether the text asks if something is as it should be
    """

    topic: Topic
    findings: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    side: Side | None = None
    prompt: str | None = None
    reason: str = ""
    denied: tuple[str, ...] = ()
    judges: bool = False


_OPENING: Final = frozenset(
    "is are was were do does can could please there any some a an the you i we see show me find look looking for if "
    "tell check evidence sign signs of where what about how has have it patient and or he she they this that".split()
)
"""Opening words of a question, before its subject."""
_FILLING: Final = _OPENING | frozenset(
    "be been did those these seen whats which its patient's in on at to by with from his her here inside within "
    "present visible exist lie lies give got suffering all everything other film films study studies image picture "
    "xray x-ray radiograph chest side sided sides area region box spot place part structure structures silhouette "
    "finding drawn marked what's where's here's it's "
    "but correct generated report adapt accordingly".split()
)
"""Words that do not change a question's subject."""
_CORRECTING: Final = frozenset("also too missed no not without disagree think".split())
"""Words that make a correction of a text that asks nothing."""
_TOPICS: Final[Mapping[Topic, re.Pattern[str]]] = {
    Topic.COMPARE: re.compile(
        r"\b(compared?|comparison|changed?|changes|larger|smaller|bigger|better|worse|improved|worsened|grown|previous|prior|"
        r"earlier|last|progress(ed|ion)?|than|since|new|gone|resolved|still|disappear(ed)?|vanished|cleared|removed|"
        r"(any|no) longer|anymore)\b"
    ),
    Topic.VIEW: re.compile(r"\b(ap|pa|views?|projection)\b"),
    Topic.PLACE: re.compile(
        r"\b(where|locat(e|ion|ed)|points?|mark|show|position|which (side|zone|lung|part)|"
        r"why|explain|indicators?|symptoms?)\b"
    ),
    Topic.SIDE: re.compile(r"\b(left or right|right or left|(which|what) side)\b"),
    Topic.NORMAL: re.compile(
        r"\b(normal|abnormal(ity|ities)?|healthy|okay|ok|fine|clear|unremarkable|alright|"
        r"acute|urgent|critical|serious|bad|worrying|position(ed|ing)?|placement|correct(ly)?|in place)\b"
    ),
    Topic.LIST: re.compile(
        r"\b(lists?|enumerate|findings|observations|anything|something|reported|found|detected|else|show|wrong)\b"
    ),
    Topic.SUMMARY: re.compile(
        r"\b(summar(y|ies|i[sz]e|i[sz]ed)|overview|impression|report|conclusion|results?|describe|read|say|"
        r"what (do|can) (you|we|i) see)\b"
    ),
}
"""The words of each topic that is not a finding or a region; the first that is found counts."""
_SHORT: Final = {f"{s[0]}{z[0]}l": f"{s} {z} lung zone" for s in ("right", "left") for z in ("upper", "mid", "lower")}
"""Radiologists' abbreviations with their full words."""
_HEART: Final = "cardiomegaly"
_HEART_SIZE: Final = re.compile(
    r"\b(heart|cardiac|cardio-?thoracic|ct)( silhouette)?('s)? (normal |normal in )?(size|ratio|width)\b|\bctr\b|"
    r"\b(size|width) of (the )?heart\b|\bheart (too |very )?(big|large|enlarged|wide)\b|"
    r"\b(big|large|enlarged|wide) (the )?(patient's )?heart\b"
)
_WORD: Final = re.compile(r"x-ray|[\w']+")
_PLURAL: Final = re.compile(r"(ie)?s$")
_BONES: Final = re.compile(r"\bbones?\b")
_DEVICE: Final = re.compile(
    r"\b(endotracheal|tracheal|et|ng|og|nasogastric|orogastric|feeding|chest|tracheostomy|central( venous)?|venous|"
    r"picc|dialysis)[- ](tubes?|lines?|catheters?|drains?)\b|\b(ett|ngt|ogt|cvc|cvl)s?\b"
)
_EITHER: Final = re.compile(r"\bcollapsed lungs?\b|\blungs? collapsed?\b")
"""Words that people use for a pneumothorax, too: `language/labels.toml` reads them as atelectasis alone."""
_OF_FINDINGS: Final = (Topic.PRESENCE, Topic.PLACE, Topic.COMPARE)
_FIRST: Final = (Topic.COMPARE, Topic.VIEW)
_ALONE: Final = (Topic.NORMAL, Topic.LIST, Topic.SUMMARY, Topic.PLACE)
_MOST_WORDS: Final = 6
_LUNG, _BONE = "lung", "bone"
_SIDE_WORDS: Final = re.compile(
    r"\b(left|right|lt|rt|l|r|l-sided|r-sided|(left|right)-sided|bilateral(ly)?|both|either|each|lungs?|zones?|fields?|clavicles?)\b"
)


def understand(text: str, prompts: PromptSet) -> Query:
    """Parse a text about a film that is read with a prompt set."""
    text = visible(text)
    query, reason = _correction(text, prompts) or _understood(text, prompts), refusal(text, prompts)
    if reason is None and query.topic is Topic.FREE:
        reason = unasked_place(text, prompts)
    if reason is None or query.topic is Topic.CORRECT or (query.topic is Topic.COMPARE and is_about_change(text)):
        return query
    return Query(topic=Topic.REFUSED, reason=reason)


def _correction(text: str, prompts: PromptSet) -> Query | None:
    """Parse a correction: the text asks nothing, and clearly adds or denies findings.

    A place counts only with added findings: denying a finding on one side does not reject it.
    """
    typed = _written_out(text).lower()
    said = statements_of(typed, _rules(prompts))
    keys = {stance: tuple(dict.fromkeys(each.key for each in said if each.stance is stance)) for stance in Stance}
    rest = _without(typed, _mentions(typed, prompts))
    for pattern in () if keys[Stance.DENIED] else (*cues().zones.values(), _SIDE_WORDS):
        rest = pattern.sub(" ", rest)
    words = frozenset(_WORD.findall(rest))
    is_clear = len(typed) <= LONGEST and not typed.endswith("?") and not keys[Stance.UNCLEAR] + keys[Stance.POSSIBLE]
    if not (said and is_clear and words & _CORRECTING and words <= _FILLING | _CORRECTING):
        return None
    return Query(topic=Topic.CORRECT, findings=keys[Stance.AFFIRMED], denied=keys[Stance.DENIED], side=_side(typed))


def _understood(text: str, prompts: PromptSet) -> Query:
    """Parse a question without denials and instructions."""
    written = _written_out(text)
    typed = written.lower()
    if len(typed) > LONGEST:
        return Query(topic=Topic.NOTHING)
    mentions = _mentions(typed, prompts)
    rest = _without(typed, mentions)
    is_placed = bool(names_in(rest, "zones") or _organs(rest) - {_LUNG})  # "edema of the lungs" has no place
    regions = _regions(rest, prompts) if is_placed or not mentions else ()
    side = _side(typed)
    topics = [topic for topic, words in _TOPICS.items() if words.search(rest)]
    is_sentence = not _is_understood(_BONES.sub(" ", rest) if mentions else rest, prompts)
    if is_sentence and not _is_sentence((asked := _asked(written) or written).lower()):
        return Query(topic=Topic.FREE, side=side, prompt=asked)
    is_sized = _HEART in mentions and _HEART_SIZE.search(typed) is not None
    topic = _topic(topics, has_finding=bool(mentions), has_region=bool(regions))
    is_wider = bool(mentions) and not (is_sentence or is_sized or _is_named(mentions, prompts))
    return Query(
        topic=topic,
        findings=tuple(mentions) if topic in _OF_FINDINGS else (),
        regions=regions if topic in (Topic.PRESENCE, Topic.PLACE, Topic.REGION) else (),
        side=side,
        prompt=_asked(written) if is_wider else None,
        judges=Topic.NORMAL in topics,
    )


def is_plain_prompt(text: str, query: Query, prompts: PromptSet) -> bool:
    """Return whether a text is no question but a prompt for the network: a name of the prompt set, or unknown words.

    query: the parsed text
    """
    typed = " ".join(text.casefold().split())
    if query.topic is Topic.REFUSED:
        return False
    if query.topic is Topic.FREE:
        return _asked(typed) == typed
    asked = (prompt for prompt in prompts.prompts if prompt.kind is not PromptKind.NO_FINDING)  # it is never answered
    return any(typed in map(str.casefold, (*prompt.phrases, prompt.name)) for prompt in asked)


def _written_out(text: str) -> str:
    """Return a text without abbreviations."""
    typed = " ".join(text.replace("\u2019", "'").split())
    return _WORD.sub(lambda word: _SHORT.get(word[0].lower(), word[0]), typed)


def _mentions(typed: str, prompts: PromptSet) -> dict[str, list[str]]:
    """Return the words with which a text mentions each finding that it mentions."""
    mentions = {key: found for key, rule in _rules(prompts).items() if (found := _mentioned(rule, typed))}
    for key, words in ((_HEART, _HEART_SIZE), ("support_devices", _DEVICE), ("pneumothorax", _EITHER)):
        if key in _rules(prompts) and (found := [each[0] for each in words.finditer(typed)]):
            mentions[key] = [*mentions.get(key, []), *found]
    return mentions


def _without(typed: str, mentions: Mapping[str, list[str]]) -> str:
    """Return a text without its mentions of findings."""
    for mention in sorted((each for found in mentions.values() for each in found), key=len, reverse=True):
        typed = typed.replace(mention, " ")
    return typed


def _topic(topics: list[Topic], *, has_finding: bool, has_region: bool) -> Topic:
    if first := [topic for topic in _FIRST if topic in topics]:
        return first[0]
    if has_finding:
        return Topic.PLACE if Topic.PLACE in topics else Topic.PRESENCE
    if Topic.SIDE in topics:
        return Topic.SIDE
    return Topic.REGION if has_region else next((topic for topic in _ALONE if topic in topics), Topic.NOTHING)


@cache
def _rules(prompts: PromptSet) -> Mapping[str, ClassRule]:
    """Return the mention rule of each pathology of a prompt set: its own names and those of its CheXpert class."""
    known = class_rules()
    return {prompt.key: named_rule(names_of(prompt), known.get(prompt.key)) for prompt in _pathologies(prompts)}


@cache
def _spellings(prompts: PromptSet) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the words of each region's prompt, and its key."""
    return tuple(
        (prompt.key, named_rule(prompt.phrases).mentions)
        for prompt in prompts.prompts
        if prompt.kind is PromptKind.REGION
    )


def _pathologies(prompts: PromptSet) -> Iterator[Prompt]:
    return (prompt for prompt in prompts.prompts if prompt.kind is PromptKind.PATHOLOGY)


def _is_named(mentions: Mapping[str, list[str]], prompts: PromptSet) -> bool:
    """Return whether a text calls its findings by their own names, or by a word of these: "effusion"."""
    own = {prompt.key: " ".join(names_of(prompt)).lower() for prompt in _pathologies(prompts)}
    return all(
        any(_PLURAL.sub("", word) in own[key] for word in re.findall(r"\w+", mention))
        and len(mention.split()) <= len(own[key].split())
        for key, found in mentions.items()
        for mention in found
    )


def _mentioned(rule: ClassRule, typed: str) -> list[str]:
    """Return the whole words with which a text mentions a finding."""
    spans = [found.span() for found in rule.mentions_in(typed)]
    ends = [(re.split(r"\W", typed[:start])[-1], re.split(r"\W", typed[end:])[0]) for start, end in spans]
    return [head + typed[start:end] + tail for (head, tail), (start, end) in zip(ends, spans, strict=True)]


def _regions(rest: str, prompts: PromptSet) -> tuple[str, ...]:
    """Return the regions that a text names: in the words of their prompts, or by organ, zone and side."""
    if spelled := tuple(key for key, words in _spellings(prompts) if words.search(rest)):
        return spelled
    organs, zones, sides = _organs(rest), names_in(rest, "zones"), sides_in(rest)
    if not organs and not zones and not sides:
        return ()
    return tuple(
        prompt.key
        for prompt in prompts.prompts
        if prompt.kind is PromptKind.REGION
        and all(_agree(asked, said) for asked, said in zip((organs, zones, sides), _words_of(prompt), strict=True))
    )


def _organs(rest: str) -> frozenset[str]:
    """Return the organs that a text names; of all bones, only the clavicles have a region."""
    return names_in(rest, "organs") - (frozenset() if "clavic" in rest else {_BONE})


def _words_of(prompt: Prompt) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    phrase = prompt.phrases[0].lower()
    return names_in(phrase, "organs"), names_in(phrase, "zones"), frozenset(sides_in(phrase))


def _agree(asked: frozenset[str], said: frozenset[str]) -> bool:
    return not asked or bool(asked & said)


def _side(typed: str) -> Side | None:
    sides = sides_in(typed)
    if len(sides) > 1:
        return Side.BILATERAL
    return Side(next(iter(sides))) if sides else None


def _is_understood(rest: str, prompts: PromptSet) -> bool:
    """Return whether every word of a text is one of a region, organ, zone, side or topic, or changes nothing."""
    for _, words in _spellings(prompts):
        rest = words.sub(" ", rest)
    for organ, pattern in cues().organs.items():
        if organ != _BONE:
            rest = re.sub(rf"\w*(?:{pattern.pattern})\w*", " ", rest)
    for words in (*cues().zones.values(), _SIDE_WORDS, *_TOPICS.values()):
        rest = words.sub(" ", rest)
    return _FILLING.issuperset(_WORD.findall(rest))


def _is_sentence(asked: str) -> bool:
    """Return whether a text is no prompt: it is long, has a verb, or asks for what the report answers."""
    words = (cues().verb, *(_TOPICS[topic] for topic in (*_FIRST, *_ALONE)))
    return len(asked.split()) > _MOST_WORDS or any(pattern.search(asked) for pattern in words)


def _asked(text: str) -> str:
    """Return a text without the words that make it a question."""
    words = itertools.dropwhile(lambda word: word.rstrip(",").lower() in _OPENING, text.split())
    return " ".join(words).rstrip(" ?!.,")
