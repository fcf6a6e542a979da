"""Write the report for programs, `report.json` (design §8), and convert a film's answer to JSON and back, losslessly.

Between the steps of a workflow films are stored with more keys than `report.json` has: the film that is read back must
equal the film that was written, while the keys of `report.json` are a contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from node.domain import (
    Box,
    Code,
    Evidence,
    Film,
    FilmView,
    Finding,
    FindingBox,
    FindingState,
    GroundedSentence,
    Json,
    JsonObject,
    Note,
    ReaderMark,
    Reason,
    Report,
    ScoredBox,
    Side,
    WithheldSentence,
)
from node.outputs import impression, measured, wording

VERSION = 1


def report_to_json(report: Report, outputs: Sequence[str], *, left_alone: Iterable[Film] = ()) -> JsonObject:
    """Return the content of report.json.

    outputs: names of the files written beside it
    left_alone: objects without an answer, which are listed with their reason
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
        "films": [film_for_programs(film) for film in (*report.films, *left_alone)],
        "outputs": list(outputs),
    }


def film_for_programs(film: Film) -> JsonObject:
    """Return an entry of `films` in report.json (design §8)."""
    return {**_film_to_json(film, _finding_to_json), "impression": [*impression.of_film(film)]}


def film_to_json(film: Film) -> JsonObject:
    """Return a film as JSON values, with every key that `film_from_json` needs."""
    return _film_to_json(film, _whole_finding_to_json)


def film_from_json(document: Mapping[str, Json]) -> Film:
    """Return the film that `film_to_json` wrote. Raises KeyError, TypeError or ValueError for any other document."""
    reason, analyzed = document["reason"], document["analyzed"]
    return Film(
        source=_text(document["source"]),
        reason=None if reason is None else Reason(_text(reason)),
        view=_view_from_json(document.get("view")),  # an earlier version stored none
        notes=tuple(Note(_text(note)) for note in _list(document["notes"])),
        columns=_optional_int(document["columns"]),
        rows=_optional_int(document["rows"]),
        analyzed=None if analyzed is None else _box_from_json(analyzed),
        sentences=tuple(_sentence_from_json(sentence) for sentence in _objects(document["sentences"])),
        withheld=tuple(
            WithheldSentence(
                text=_text(withheld["text"]), prompt=_text(withheld["prompt"]), reason=_text(withheld["reason"])
            )
            for withheld in _objects(document["withheld"])
        ),
        findings=tuple(_finding_from_json(finding) for finding in _objects(document["findings"])),
        ratio=measured.from_json(document.get("measurements", [])),  # an earlier version stored none
    )


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


def _view_from_json(value: Json) -> FilmView | None:
    if value is None:
        return None
    document = cast(JsonObject, _of(dict, value))
    if document.keys() != {"tag", "seen", "certainty"}:
        raise ValueError(f"a view has other keys: {', '.join(document)}")
    certainty = document["certainty"]
    return FilmView(
        tag=_optional_text(document["tag"]),
        seen=_optional_text(document["seen"]),
        certainty=None if certainty is None else _number(certainty),
    )


def _sentence_to_json(sentence: GroundedSentence) -> JsonObject:
    return {
        "text": sentence.text,
        "prompt": sentence.prompt,
        "by": sentence.by,
        **_reader_to_json(sentence.reader),
        "score": sentence.score,
        "boxes": [{"box": list(scored.box.edges), "score": scored.score} for scored in sentence.boxes],
    }


def _sentence_from_json(document: Mapping[str, Json]) -> GroundedSentence:
    return GroundedSentence(
        text=_text(document["text"]),
        prompt=_text(document["prompt"]),
        by=_text(document["by"]),
        score=_number(document["score"]),
        boxes=tuple(
            ScoredBox(box=_box_from_json(scored["box"]), score=_number(scored["score"]))
            for scored in _objects(document["boxes"])
        ),
    )


def _finding_to_json(finding: Finding) -> JsonObject:
    return {
        "prompt": finding.prompt,
        "code": _code_to_json(finding.code),
        "laterality": finding.side,
        "probability": finding.told_probability,
        "state": finding.state,
        "reason": wording.reason_of(finding.contradiction, left_out=wording.is_left_out(finding)),
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


def _evidence_from_json(value: Json) -> Evidence | None:
    if value is None:
        return None
    document = cast(JsonObject, _of(dict, value))
    zone, site = document["zone"], document.get("site")  # an earlier version stored neither site nor laterality
    return Evidence(
        zone=None if zone is None else _text(zone),
        extent=_number(document["extent"]),
        site=None if site is None else _code_from_json(site),
        side=_side_from_json(document.get("laterality")),
    )


def _whole_finding_to_json(finding: Finding) -> JsonObject:
    """Return a finding with what report.json does not have: contradiction, codes, side and evidence of each box.

    And with the probability of what is left out, on which another threshold may be measured.
    """
    return _finding_to_json(finding) | {
        "probability": finding.probability,
        "left_out": finding.left_out,
        "near": finding.near,
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


def _finding_from_json(document: Mapping[str, Json]) -> Finding:
    site = document["site"]
    return Finding(
        prompt=_text(document["prompt"]),
        code=_code_from_json(document["code"]),
        site=None if site is None else _code_from_json(site),
        side=_side_from_json(document["laterality"]),
        probability=_number(document["probability"]),
        state=FindingState(_text(document["state"])),
        boxes=tuple(
            FindingBox(
                box=_box_from_json(box["box"]),
                score=_number(box["score"]),
                tracking_uid=_text(box["tracking_uid"]),
                side=_side_from_json(box["laterality"]),
                evidence=_evidence_from_json(box.get("evidence")),
            )
            for box in _objects(document["boxes"])
        ),
        sentence=_optional_int(document["sentence"]),
        # An earlier version stored none of these.
        evidence=_evidence_from_json(document.get("evidence")),
        contradiction=_optional_text(document.get("contradiction")),
        left_out=document.get("left_out") is True,
        near=cast("bool | None", document.get("near")),
    )


def _code_to_json(code: Code) -> Json:
    return [code.value, code.scheme, code.meaning]


def _code_from_json(value: Json) -> Code:
    code, scheme, meaning = (_text(part) for part in _list(value))
    return Code(value=code, scheme=scheme, meaning=meaning)


def _box_from_json(value: Json) -> Box:
    left, top, right, bottom = (_number(edge) for edge in _list(value))
    return Box(left=left, top=top, right=right, bottom=bottom)


def _side_from_json(value: Json) -> Side | None:
    return None if value is None else Side(_text(value))


def _objects(value: Json) -> Iterable[JsonObject]:
    return (cast(JsonObject, _of(dict, item)) for item in _list(value))


def _list(value: Json) -> list[Json]:
    return cast("list[Json]", _of(list, value))


def _text(value: Json) -> str:
    return cast(str, _of(str, value))


def _number(value: Json) -> float:
    return cast(float, _of((int, float), value))


def _optional_int(value: Json) -> int | None:
    return cast("int | None", _of((int, type(None)), value))


def _optional_text(value: Json) -> str | None:
    return None if value is None else _text(value)


def _of(kind: type | tuple[type, ...], value: Json) -> object:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind}, got {type(value).__name__}")
    return value
