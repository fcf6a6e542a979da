"""The figures of one evaluation as JSON (design §8) and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

DIGITS: Final = 6
TITLES: Final[Mapping[str, str]] = {
    "detection": "Detection of findings",
    "anatomy": "Regions",
    "region_classification": "What regions hold",
    "report": "Report, before any sentence is withheld",
    "sentences": "Sentences, checked and withheld by rule",
    "films": "What films show, thresholds cross-fitted",
    "hints": "Questions about one side",
    "views": "Views and sides, by the view head",
    "sources": "Which source a normal film is from, by a linear probe on image features",
    "read_sources": "The same of films that a radiologist read as normal",
}
_NAMES: Final[Mapping[str, str]] = {
    "map": "mAP, IoU 0.1 to 0.7",
    "large_four": "mAP, cardiomegaly, pneumothorax, edema, effusion",
    "consolidation_and_opacity": "mAP, consolidation and opacity",
    "miou": "mIoU, all regions",
    "lungs": "mIoU, lungs",
    "lungs_and_heart": "mIoU, lungs and heart",
    "others": "mIoU, other regions",
    "auroc_pooled": "AUROC, pooled",
    "auroc_per_pair": "AUROC, mean of region-finding pairs",
    "ce_micro_f1": "CE micro F1, CheXpert classes",
    "ce_micro_precision": "CE micro precision",
    "ce_micro_recall": "CE micro recall",
    "ce_macro_f1": "CE macro F1",
    "findings_f1": "CE micro F1, ten findings",
    "large_four_f1": "CE micro F1, cardiomegaly, pneumothorax, edema, effusion",
    "consolidation_and_opacity_f1": "CE micro F1, consolidation and opacity",
    "bleu": "BLEU",
    "rouge_l": "ROUGE-L",
    "calibration_error": "calibration error of probabilities",
    "sentences_per_film": "sentences per film",
    "labeled_by_images": "films with labels of their own",
    "labeled_by_reports": "films that got their labels from their reports",
    "withheld_share": "sentences withheld",
    "replaced_by_rule": "of those withheld, replaced by rule",
    "own_present_share": "present findings whose own sentence passes the check",
    "own_reported_share": "reported findings whose own sentence passes the check",
    "by_network_share": "reported findings that leave with a sentence of the network",
    "generated": "sentences generated",
    "present": "findings present",
    "reported": "findings reported",
    "contradicted": "findings contradicted, not present for that",
    "contradicted_rightly": "of these, not on the film by its label",
    "contradicted_wrongly": "of these, on the film by its label",
    "macro_auroc": "AUROC, mean of findings with 15 positives",
    "opacity_against_normal": "AUROC, opacity against normal, by a radiologist",
    "opacity_against_all_others": "AUROC, opacity against all others, by a radiologist",
    "auroc_no_finding": "AUROC, no finding",
    "auroc_no_finding_read": "AUROC, no finding, on films that a radiologist read",
    "auroc_no_finding_mined": "AUROC, no finding, on films with a mined label alone",
    "auroc_of_reading_for_mined_normal": "AUROC of a radiologist's reading for the mined label no finding",
    "false_findings": "findings called present on a normal film",
    "opacity_sensitivity": "opacities of a radiologist called present",
    "precision": "mAP, IoU 0.1 to 0.7",
    "two_constant_boxes": "mAP of two constant boxes, cross-fitted too",
    "gain": "mAP above that of two constant boxes",
    "precision_on_positives": "mAP, on films with the finding alone",
    "two_constant_boxes_on_positives": "mAP of two constant boxes, on films with the finding alone",
    "gain_on_positives": "mAP above that of two constant boxes, on films with the finding alone",
    "spread": "spread of the centers of best boxes, as a share of the true one",
    "source_auroc": "AUROC of the source; 0.5: it cannot be told",
    "films": "films",
    "accuracy": "followed",
    "accuracy_taught": "followed, wordings of training",
    "accuracy_untaught": "followed, wordings never trained",
    "asked": "asked",
    "kept": "frontal films kept",
    "unmarked": "frontal films called neither mirrored nor rotated",
    "uncontradicted": "frontal films whose true view is not contradicted",
    "projection": "frontal films with the right view of AP and PA",
    "mirrored": "mirrored films called so",
    "rotated": "rotated films called so",
    "lateral": "laterals seen as lateral",
    "other": "other films seen as no chest",
    "stopped": "laterals and other films that are certain",
    "frontals": "frontal films",
    "share_measured": "share of films that have one",
    "mean_absolute_error": "mean absolute error",
    "bias": "bias (mean error)",
    "lower": "lower 95 % limit of agreement",
    "upper": "upper 95 % limit of agreement",
    "error_of_constant": "mean absolute error of always the median",
}
_VARIANTS: Final = ("as_read", "decisions", "without_contradictions", "checked", "by_default")
"""The same figures, of something else than the task's own: the rows of the first table say of what."""
_MEASURED: Final = ("cardiothoracic_ratio", "thorax_width")
"""What is measured on boxes of regions; so do these."""
_TABLES: Final[Mapping[str, str]] = {
    "per_class": "by class",
    "per_region": "by region",
    "per_finding": "by finding, mean of regions",
    "per_reason": "sentences withheld, by reason",
    "positives": "films with it",
    "known": "films of which it is known",
    "intervals": "95 % intervals, by patient",
    "by_group": "by group",
    "by_source": "by source",
    "boxed": "boxes on films of people, scale cross-fitted",
    "per_contradiction": "findings contradicted, by reason",
}


def rounded(value: object) -> object:
    """Round every number of a document to its significant digits."""
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def markdown(document: Mapping[str, object]) -> str:
    """Write a document as Markdown."""
    return "\n".join(_lines(document)) + "\n"


def tables(task: str, made: Mapping[str, object], *, level: int = 3) -> Iterator[str]:
    """Write the figures of one task: the main ones beside what needs no network, then those of its classes.

    level: of the heading
    """
    references = inner(made, "references")
    deviations = inner(made, "deviations")
    rivals = {name: inner(references, name) for name in references}
    yield f"{'#' * level} {TITLES[task]}"
    yield ""
    yield from row("", "value", "deviation", *(name.replace("_", " ") for name in rivals))
    yield from row("---", *["---"] * (2 + len(rivals)))
    for key, value in made.items():
        if key in _NAMES and value is not None:
            cells = [shown(rival.get(key)) for rival in rivals.values()]
            yield from row(_NAMES[key], shown(value), shown(deviations.get(key)), *cells)
    for key in (*_VARIANTS, *_MEASURED):
        for name, value in inner(made, key).items():
            if name in _NAMES and value is not None:
                yield from row(f"{key.replace('_', ' ')}: {_NAMES[name]}", shown(value), "", *[""] * len(rivals))
    for key, title in _TABLES.items():
        if inner(made, key):
            yield ""
            yield from row(title, "value")
            yield from row("---", "---")
            for name, value in _flat(inner(made, key)):
                yield from row(_NAMES.get(name, name.replace("_", " ")), shown(value))
    yield ""


def shown(value: object) -> str:
    """Format one figure; an unknown one is a dash."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " to ".join(map(shown, value))
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _flat(table: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the entries of a table, and those of tables inside it under both names, with their intervals."""
    for name, value in table.items():
        if not isinstance(value, Mapping):
            yield name, value
            continue
        bounds = inner(value, "intervals")
        for key, number in value.items():
            if not isinstance(number, Mapping):
                interval = f" ({shown(bounds[key])})" if key in bounds else ""
                yield f"{name}: {_NAMES.get(key, key)}", shown(number) + interval


def _lines(document: Mapping[str, object]) -> Iterator[str]:
    model = inner(document, "model")
    yield f"# {model.get('name')} {model.get('version')} on {document['data']}"
    yield ""
    yield (
        f"{document['count']} films, engine {model.get('engine')}, weights {str(model.get('weights_sha256'))[:12]}"
        + (f", without {document['ablations']}" if document.get("ablations") else "")
        + ". Deviations are over resampled films."
    )
    yield ""
    if unmeasured := inner(document, "not_measured"):
        yield "Not measured by any task: " + ", ".join(f"{count} {what}" for what, count in unmeasured.items()) + "."
        yield ""
    for task, made in inner(document, "tasks").items():
        yield from tables(task, made if isinstance(made, Mapping) else {})
    tuning = inner(document, "tuning")
    if tuning:
        yield from decisions(tuning)


def decisions(tuning: Mapping[str, object], *, level: int = 3) -> Iterator[str]:
    """Write what tuning changed."""
    before, after = inner(tuning, "before"), inner(tuning, "after")
    yield f"{'#' * level} Decisions, tuned on these films"
    yield ""
    yield from row("", "before", "after")
    yield from row("---", "---", "---")
    for key, value in before.items():
        if not isinstance(value, Mapping):
            yield from row(_NAMES.get(key, key.replace("_", " ")), shown(value), shown(after.get(key)))
    yield ""
    if bands := inner(tuning, "bands"):
        yield from _bands(bands)


def _bands(bands: Mapping[str, object]) -> Iterator[str]:
    """Write between which probabilities each finding is to be reviewed, and what the films showed there."""
    yield "Between these probabilities a finding is to be reviewed; from the second on it is present."
    yield ""
    yield from row("finding", "from", "to", "below: films", "that show it", "between: films", "that show it")
    yield from row(*["---"] * 7)
    for key in bands:
        band = inner(bands, key)
        values = (band.get(name) for name in ("lower", "upper", "below", "missed", "within", "shown"))
        yield from row(key.replace("_", " "), *map(shown, values))
    yield ""


def row(*cells: str) -> Iterator[str]:
    """Write a row of a table."""
    yield f"| {' | '.join(cells)} |"


def inner(table: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return a table inside a table; an empty one if it is missing."""
    found = table.get(key)
    return found if isinstance(found, Mapping) else {}
