"""Write the report for programs, `report.json` (design §8). Its keys are a contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from models.contract import ScoredBox
from models.documents import encode
from node.domain import Film, Finding, FindingBox, GroundedSentence, Json, JsonObject, ReaderMark, Report
from node.outputs import impression, ratio_text, wording

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
    return {
        "source": film.source,
        "status": "read" if film.is_read else "not_processed",
        "reason": film.reason,
        "notes": list(film.notes),
        "view": None if film.view is None else encode(film.view),
        "columns": film.columns,
        "rows": film.rows,
        "analyzed": None if film.analyzed is None else list(film.analyzed.edges),
        "sentences": [_sentence_to_json(sentence) for sentence in film.sentences],
        "withheld": [encode(withheld) for withheld in film.withheld],
        "findings": [_finding_to_json(finding) for finding in film.findings],
        "measurements": ratio_text.to_json(film),
        "impression": [*impression.of_film(film)],
    }


def _sentence_to_json(sentence: GroundedSentence) -> JsonObject:
    return {
        "text": sentence.text,
        "prompt": sentence.prompt,
        "by": sentence.by,
        **_reader_to_json(sentence.reader),
        "score": sentence.score,
        "boxes": _scored_to_json(sentence.boxes),
    }


def _scored_to_json(boxes: Iterable[ScoredBox]) -> Json:
    return [{"box": list(scored.box.edges), "score": scored.score} for scored in boxes]


def _finding_to_json(finding: Finding) -> JsonObject:
    return {
        "prompt": finding.prompt,
        "code": [finding.code.value, finding.code.scheme, finding.code.meaning],
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
    return {} if mark is None else {"reader": encode(mark)}


def _evidence_to_json(finding: Finding) -> Json:
    """Return a finding's location; measured is false, because it comes from the network's own boxes."""
    if finding.evidence is None:
        return None
    zone, extent = finding.evidence.zone, finding.evidence.extent
    return {"zone": zone, "side": finding.side, "extent": extent, "measured": False}


def _box_to_json(found: FindingBox) -> JsonObject:
    content: JsonObject = {"box": list(found.box.edges), "score": found.score, "tracking_uid": found.tracking_uid}
    return content | _reader_to_json(found.reader)
