"""Write the report for programs, `report.json` (design §8), and convert a film's answer to JSON and back, losslessly.

Between the steps of a workflow films are stored with more keys than `report.json` has: the film that is read back must
equal the film that was written, while the keys of `report.json` are a contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from node.codec import decode, spelled_out
from node.domain import (
    Code,
    Evidence,
    Film,
    FilmView,
    Finding,
    FindingBox,
    GroundedSentence,
    Json,
    JsonObject,
    ReaderMark,
    Report,
    ScoredBox,
    Searched,
)
from node.outputs import impression, measured, wording

VERSION = 1

SEARCHED_NOTE: Final = (
    "These boxes are not findings: they show where the network looked for findings that it does not report."
)


def report_to_json(
    report: Report, outputs: Sequence[str], *, left_alone: Iterable[Film] = (), with_searched: bool = False
) -> JsonObject:
    """Return the content of report.json.

    outputs: names of the files written beside it
    left_alone: objects without an answer, which are listed with their reason
    with_searched: as in `film_for_programs`
    """
    model = report.model
    return {
        "version": VERSION,
        "study": report.study_uid,
        "model": {
            "name": model.name,
            "version": model.version,
            "weights_sha256": model.weights_sha256,
            "engine": model.engine,
            "prompts": report.prompts_name,
            "prompts_sha256": report.prompts_sha256,
        },
        "films": [film_for_programs(film, with_searched=with_searched) for film in (*report.films, *left_alone)],
        "outputs": list(outputs),
    }


def film_for_programs(film: Film, *, with_searched: bool = False) -> JsonObject:
    """Return an entry of `films` in report.json (design §8).

    with_searched: whether it says, under a key of its own, where the network looked for what is not reported
    """
    content: JsonObject = {**_film_to_json(film, _finding_to_json), "impression": [*impression.of_film(film)]}
    if not (with_searched and film.is_read):
        return content
    prompts: list[Json] = [_searched_to_json(place) for _, place in wording.searched(film)]
    return {**content, "searched": {"note": SEARCHED_NOTE, "prompts": prompts}}


def film_to_json(film: Film) -> JsonObject:
    """Return a film as JSON values, with every key that `film_from_json` needs."""
    searched: list[Json] = [_searched_to_json(place) for place in film.searched]
    return {**_film_to_json(film, _whole_finding_to_json), "searched": searched, "middle": film.middle}


def film_from_json(document: Mapping[str, Json]) -> Film:
    """Return the film that `film_to_json` wrote. Raises ValueError for any other document."""
    content = spelled_out(document)
    view, found = content.get("view"), decode(list[dict[str, object]], content.get("findings"))
    made = {
        "view": None if view is None else decode(FilmView, view),
        "findings": [decode(Finding, {"reader": None, **finding}) for finding in found],
        "ratio": measured.from_json(document.get("measurements")),
    }
    return decode(Film, {**content, **made})


def _film_to_json(film: Film, finding_to_json: Callable[[Finding], JsonObject]) -> JsonObject:
    return {
        "source": film.source,
        "status": "read" if film.is_read else "not_processed",
        "reason": film.reason,
        "notes": list(film.notes),
        "view": _view_to_json(film.view),
        "columns": film.columns,
        "rows": film.rows,
        "analyzed": None if film.analyzed is None else list(film.analyzed.edges),
        "sentences": [_sentence_to_json(sentence) for sentence in film.sentences],
        "withheld": [
            {"text": withheld.text, "prompt": withheld.prompt, "reason": withheld.reason} for withheld in film.withheld
        ],
        "findings": [finding_to_json(finding) for finding in film.findings],
        "measurements": measured.to_json(film),
    }


def _view_to_json(view: FilmView | None) -> Json:
    return None if view is None else {"tag": view.tag, "seen": view.seen, "certainty": view.certainty}


def _sentence_to_json(sentence: GroundedSentence) -> JsonObject:
    return {
        "text": sentence.text,
        "prompt": sentence.prompt,
        "by": sentence.by,
        **_reader_to_json(sentence.reader),
        "score": sentence.score,
        "boxes": _scored_to_json(sentence.boxes),
    }


def _searched_to_json(place: Searched) -> JsonObject:
    return {"prompt": place.prompt, "boxes": _scored_to_json(place.boxes)}


def _scored_to_json(boxes: Iterable[ScoredBox]) -> Json:
    return [{"box": list(scored.box.edges), "score": scored.score} for scored in boxes]


def _finding_to_json(finding: Finding) -> JsonObject:
    return {
        "prompt": finding.prompt,
        "code": _code_to_json(finding.code),
        "laterality": finding.side,
        "probability": finding.output_probability,
        "state": finding.state,
        "reason": wording.reason_of(finding.contradiction, finding.state),
        **_reader_to_json(finding.reader),
        "sentence": finding.sentence,
        "boxes": [_box_to_json(found) for found in finding.boxes],
        "evidence": _evidence_to_json(finding),
    }


def _reader_to_json(mark: ReaderMark | None) -> JsonObject:
    return {} if mark is None else {"reader": {"what": mark.what, "by": mark.by, "at": mark.at.isoformat()}}


def _evidence_to_json(finding: Finding) -> Json:
    """Return where a finding lies; measured is false, because it is read off the network's own boxes."""
    if finding.evidence is None:
        return None
    zone, extent = finding.evidence.zone, finding.evidence.extent
    return {"zone": zone, "side": finding.side, "extent": extent, "measured": False}


def _whole_evidence_to_json(evidence: Evidence | None) -> Json:
    if evidence is None:
        return None
    site = None if evidence.site is None else _code_to_json(evidence.site)
    return {"zone": evidence.zone, "extent": evidence.extent, "site": site, "laterality": evidence.side}


def _whole_finding_to_json(finding: Finding) -> JsonObject:
    """Return a finding with what report.json does not have: contradiction, codes, side and evidence of each box."""
    return _finding_to_json(finding) | {
        "probability": finding.probability,
        "near": finding.near,
        "place": finding.place,
        "site": None if finding.site is None else _code_to_json(finding.site),
        "contradiction": finding.contradiction,
        "boxes": [
            _box_to_json(found) | {"laterality": found.side, "evidence": _whole_evidence_to_json(found.evidence)}
            for found in finding.boxes
        ],
        "evidence": _whole_evidence_to_json(finding.evidence),
    }


def _box_to_json(found: FindingBox) -> JsonObject:
    content: JsonObject = {"box": list(found.box.edges), "score": found.score, "tracking_uid": found.tracking_uid}
    return content | _reader_to_json(found.reader)


def _code_to_json(code: Code) -> Json:
    return [code.value, code.scheme, code.meaning]
