"""The figures of one evaluation as JSON (design §8) and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Final

from models.checkpoint.card import section
from models.decisions import PHANTOMS
from models.lab.evaluation.published.clinical_efficacy import efficacy_names
from models.lab.evaluation.request import CURVE

Table = tuple[list[str], list[list[str]]]
"""The cells of its head, and those of its rows."""
DIGITS: Final = 6
PLACES: Final = "places"
"""What `models.lab.evaluation.placing` measured, beside the tasks of `models.evaluate`."""
TITLES: Final[Mapping[str, str]] = {
    "detection": "Detection of findings",
    "anatomy": "Regions",
    "region_classification": "What regions hold",
    "report": "Report, before any sentence is withheld",
    "sentences": "Sentences, checked and withheld by rule",
    "films": "What films show, thresholds cross-fitted",
    "hints": "Questions about one side",
    "views": "Views and sides, by the view head",
    "detection_vindr": "Detection, VinDr-CXR",
    "detection_nih8": "Detection, ChestX-ray14, eight classes",
    "detection_mscxr": "Detection, MS-CXR",
    "grounding_mscxr": "Grounding of phrases, MS-CXR",
    "region_classification_mscxr": "Class of each box, MS-CXR",
    "region_classification_imagenome": "What regions hold, Chest ImaGenome, 53 classes",
    "region_explanation_mscxr": "Sentences about boxes, MS-CXR",
    "region_explanation_imagenome": "Sentences about regions, Chest ImaGenome",
    "report_mimic": "Reports as published, MIMIC-CXR",
    "figure_4": "Figure 4: prompts that say which of two lungs",
    "figure_5": "Figure 5: prompts that say the right or the wrong lung",
    "figure_6": "Figure 6: more precise prompts",
    "figure_8": "Figure 8: prompts with severity, change or negation",
    "figure_9": "Figure 9: where prompts are looked for on films without the finding",
}
_NAMES: Final[Mapping[str, str]] = {
    "map": "mAP, IoU 0.1 to 0.7",
    "map_nms_fixed": "mAP, boxes suppressed above a fixed overlap, as written",
    "map_one_class": "mAP, all phrases of one class, as in the published code",
    "mask_miou": "mIoU of masks, mean of phrases and of scores above 0.1 to 0.5, as written",
    "mask_miou_pooled": "mIoU of masks, pixels of all phrases summed, as in the published code",
    "map_on_positives": "mAP, each class on films with a box of it",
    "large_four": "mAP, cardiomegaly, pneumothorax, edema, effusion",
    "consolidation_and_opacity": "mAP, consolidation and opacity",
    "miou": "mIoU, all regions",
    "lungs": "mIoU, lungs",
    "lungs_and_heart": "mIoU, lungs and heart",
    "others": "mIoU, other regions",
    "auroc": "AUROC, mean of classes",
    "balanced_accuracy": "accuracy of the likeliest class, mean of classes",
    "auroc_weighted": "AUROC, mean of region-finding pairs, weighted by how often regions hold the finding",
    "auroc_pooled": "AUROC, pooled",
    "auroc_per_pair": "AUROC, mean of region-finding pairs",
    "ce_micro_f1": "CE micro F1, CheXpert classes",
    "ce_micro_precision": "CE micro precision",
    "ce_micro_recall": "CE micro recall",
    "ce_macro_f1": "CE macro F1",
    "findings_f1": "CE micro F1, ten findings",
    "large_four_f1": "CE micro F1, cardiomegaly, pneumothorax, edema, effusion",
    "consolidation_and_opacity_f1": "CE micro F1, consolidation and opacity",
    **efficacy_names(),
    "labeler": "classes of texts found by",
    "bleu": "BLEU",
    "bleu_1": "BLEU-1, words cut as published",
    "bleu_4": "BLEU-4, words cut as published",
    "rouge_l": "ROUGE-L",
    "meteor": "METEOR",
    "cider": "CIDEr, 0 to 10",
    "bertscore_f1": "BERTScore F1",
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
    **{name: str(share) for name, share in CURVE.items()},
    "precision": "mAP, IoU 0.1 to 0.7",
    "two_constant_boxes": "mAP of two constant boxes, cross-fitted too",
    "gain": "mAP above that of two constant boxes",
    "precision_on_positives": "mAP, on films with the finding alone",
    "two_constant_boxes_on_positives": "mAP of two constant boxes, on films with the finding alone",
    "gain_on_positives": "mAP above that of two constant boxes, on films with the finding alone",
    "films": "films",
    "films_of_the_paper": "films in the paper",
    "boxes": "boxes",
    "giou": "gIoU with the box, median",
    "giou_lower": "lower quartile",
    "giou_upper": "upper quartile",
    "giou_other": "gIoU with what is on the other side, median",
    "nearer": "nearer to the box",
    "queried": "sentences that find what was asked for",
    "others_found": "other classes found, mean",
    "others_named": "other classes found or denied, mean",
    "accuracy": "followed",
    "accuracy_taught": "followed, wordings of training",
    "accuracy_untaught": "followed, wordings never trained",
    "asked": "asked",
    "kept": "frontal films kept",
    "unmarked": "frontal films called neither mirrored nor rotated",
    "projection": "frontal films with the right view of AP and PA",
    "mirrored": "mirrored films called so",
    "rotated": "rotated films called so",
    "lateral": "laterals seen as lateral",
    "other": "other films seen as no chest",
    "stopped": "laterals and other films stopped, if the header names no view",
    "frontals": "frontal films",
    "share_measured": "share of films that have one",
    "mean_absolute_error": "mean absolute error",
    "bias": "bias (mean error)",
    "lower": "lower 95 % limit of agreement",
    "upper": "upper 95 % limit of agreement",
    "error_of_constant": "mean absolute error of always the median",
}
_VARIANTS: Final = ("trained_classes", "as_read", "decisions", "without_contradictions", "checked", "by_default")
"""The same figures, of something else than the task's own: the rows of the first table say of what."""
_GROUPED: Final[Mapping[str, str]] = {
    "curves": "sensitivity, if so many films without any finding are called",
    "by_group": "by group",
    "boxed": "boxes on patient films, scale cross-fitted",
    "by_prompt": "likeliest box, by prompt",
    "by_sentence": "sentence, by what is asked",
}
"""Tables of tables: a row for each group, a column for each figure."""
_FIRST: Final[Sequence[tuple[tuple[str, ...], str]]] = (
    (("films",), "macro_auroc"),
    (("sentences", "by_default"), "false_findings"),
    (("sentences", "by_default"), "opacity_sensitivity"),
    (("detection",), "map"),
    (("report",), "ce_micro_f1"),
    (("anatomy",), "miou"),
)
"""The figures that a card begins with, the first three measured; of decisions, what a node does by default."""
_HEADLINES: Final[Mapping[str, str]] = {
    "detection": "map",
    "anatomy": "miou",
    "region_classification": "auroc_per_pair",
    "report": "ce_micro_f1",
    "sentences": "withheld_share",
    "films": "macro_auroc",
    "hints": "accuracy",
    "views": "kept",
    **dict.fromkeys(("detection_vindr", "detection_nih8", "detection_mscxr"), "map"),
    "grounding_mscxr": "mask_miou",
    **dict.fromkeys(("region_classification_mscxr", "region_classification_imagenome"), "auroc"),
    **dict.fromkeys(("region_explanation_mscxr", "region_explanation_imagenome", "report_mimic"), "ce_14_micro_f1"),
}
"""The figure of each task in the summary."""
_CARD: Final[Mapping[str, tuple[str, ...]]] = {
    "detection": ("map", "large_four"),
    "anatomy": ("miou", "lungs_and_heart"),
    "sentences": ("withheld_share", "by_network_share"),
    "films": (
        "macro_auroc",
        "opacity_against_normal",
        "opacity_against_all_others",
        "auroc_no_finding_read",
        "auroc_no_finding_mined",
        "false_findings",
        "opacity_sensitivity",
    ),
    "views": ("kept", "unmarked", "projection", "mirrored", "rotated", "stopped"),
}
"""The figures that a card shows of a task; of any other task the one of `_HEADLINES`."""
_CARD_RATIO: Final = ("mean_absolute_error", "lower", "upper")
_CARD_GROUPS: Final = ("films", "macro_auroc", "opacity_against_all_others", "false_findings", "opacity_sensitivity")
_MEASURED: Final = ("cardiothoracic_ratio", "thorax_width")
"""What is measured on boxes of regions; so do these."""
_TABLES: Final[Mapping[str, str]] = {
    "per_class": "by class",
    "per_class_on_positives": "by class, on films with it",
    "per_region": "by region",
    "per_finding": "by finding, mean of regions",
    "per_reason": "sentences withheld, by reason",
    "positives": "films with it",
    "settings": "settings; chosen on: the file of other films, or - as published",
    "scales": "scale of boxes",
    "known": "films of which it is known",
    "intervals": "95 % intervals, by patient",
    "nearest_region": "films on which a region overlaps the prompt's box most",
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
    model, unmeasured = inner(document, "model"), inner(document, "not_measured")
    tasks = inner(document, "tasks")
    return section(
        "evaluation",
        model=model,
        data=document["data"],
        count=document["count"],
        weights=str(model.get("weights_sha256"))[:12],
        analysis=inner(document, "analysis").get("name"),
        unmeasured=[f"{count} {what}" for what, count in unmeasured.items()],
        tasks=[task_section(task, inner(tasks, task)) for task in tasks],
        summary=summary(document),
    )


def task_section(task: str, made: Mapping[str, object]) -> str:
    """Write all figures of one task."""
    return section("task", title=TITLES[task], tables=list(tables(made)))


def tables(made: Mapping[str, object]) -> Iterator[Table]:
    """Yield the tables of one task: the main figures beside what needs no network, then those of its classes."""
    references = inner(made, "references")
    deviations, reasons = inner(made, "deviations"), inner(made, "not_computed")
    rivals = {name: inner(references, name) for name in references}
    blank = [""] * len(rivals)
    rows: list[list[str]] = []
    for key, value in made.items():
        if key in _NAMES and value is not None:
            cells = [shown(rival.get(key)) for rival in rivals.values()]
            rows.append([_NAMES[key], shown(value), shown(deviations.get(key)), *cells])
        elif key in reasons:
            rows.append([_NAMES[key], f"not computed: {reasons[key]}", "", *blank])
    for key in (*_VARIANTS, *_MEASURED):
        for name, value in inner(made, key).items():
            if name in _NAMES and value is not None:
                rows.append([f"{key.replace('_', ' ')}: {_NAMES[name]}", shown(value), "", *blank])
    yield ["", "value", "deviation", *(name.replace("_", " ") for name in rivals)], rows
    for key, title in _TABLES.items():
        if values := inner(made, key):
            named = [[_NAMES.get(name, name.replace("_", " ")), shown(value)] for name, value in values.items()]
            yield [title, "value"], named
    for key in _GROUPED:
        yield from _grouped(made, key, tuple(_NAMES))


def card_tables(document: Mapping[str, object]) -> Iterator[Table]:
    """Yield the tables that a card shows of an evaluation: its main figures; of patient films also findings and groups.

    What phantoms show by finding is drawn in the plots; `places_page` has the table of places.
    """
    made = inner(document, "tasks")
    if main := [row for task in made if task != PLACES for row in _card_rows(task, inner(made, task))]:
        yield ["", "", "value", "without a network"], main
    if str(document["data"]).startswith(PHANTOMS):
        return
    films = inner(made, "films")
    positives, known = inner(films, "positives"), inner(films, "known")
    areas = {name: area for name, area in inner(films, "per_class").items() if area is not None}
    if positives:
        rows = [(name, positives.get(name), known.get(name), area) for name, area in areas.items()]
        head = ["finding", "films with it", "of", "AUROC"]
        yield head, [[name.replace("_", " "), *map(shown, figures)] for name, *figures in rows]
    yield from _grouped(films, "by_group", _CARD_GROUPS)


def _card_rows(task: str, made: Mapping[str, object]) -> Iterator[list[str]]:
    """Yield the rows of a card's first table; the first row of a task has its name."""
    references, title = inner(made, "references"), TITLES[task]
    for name in _CARD.get(task, (_HEADLINES[task],)):
        if made.get(name) is not None:
            rivals = {rival: value for rival in references if (value := inner(references, rival).get(name)) is not None}
            beside = ", ".join(f"{rival.replace('_', ' ')} {shown(value)}" for rival, value in rivals.items())
            yield [title, _NAMES[name], _bounded(made, name), beside]
            title = ""
    for name, value in inner(made, "cardiothoracic_ratio").items():
        if name in _CARD_RATIO and value is not None:
            yield ["", f"cardiothoracic ratio: {_NAMES[name]}", shown(value), ""]


def _grouped(made: Mapping[str, object], key: str, columns: Sequence[str]) -> Iterator[Table]:
    """Yield a table of tables with a row for each group, if there is one; its columns are those that any group has."""
    groups = inner(made, key)
    names = [name for name in columns if any(name in inner(groups, group) for group in groups)]
    if groups:
        cells = {group: [_bounded(inner(groups, group), name) for name in names] for group in groups}
        yield (
            [_GROUPED[key], *map(_NAMES.__getitem__, names)],
            [[group.replace("_", " "), *cells[group]] for group in groups],
        )


def _bounded(made: Mapping[str, object], name: str) -> str:
    """Format a figure with its interval, or its deviation, if it has one."""
    bounds, deviation = inner(made, "intervals").get(name), inner(made, "deviations").get(name)
    after = "" if bounds is None else f" ({shown(bounds)})"
    return shown(made.get(name)) + (after if after or deviation is None else f" +/- {shown(deviation)}")


def figures_in_words(documents: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the figures that a card may begin with, with intervals: of patient films before phantoms."""
    found = []
    for document in sorted(documents, key=lambda document: str(document["data"]).startswith(PHANTOMS)):
        for path, name in _FIRST:
            made = reduce(inner, path, inner(document, "tasks"))
            if isinstance(made.get(name), float):
                films = f"{document['count']} films, `{Path(str(document['data'])).name}`"
                found.append(f"{_NAMES[name]}: {_bounded(made, name)}, {films}.")
    return found


def summary(document: Mapping[str, object]) -> list[str]:
    """Return an evaluation in ten lines: whose it is, the first figure of each task, and what it does not say."""
    model, data = inner(document, "model"), str(document["data"])
    lines = [f"- {model.get('name')} {model.get('version')}, {model.get('engine')}: {document['count']} films, {data}"]
    for task, name in _HEADLINES.items():
        made = inner(inner(document, "tasks"), task)
        if name in made:
            lines.append(f"- {TITLES[task]}: {_NAMES[name]} {_bounded(made, name)}")
    drawn = "Phantoms are drawn by a program: nothing of this holds for patient films."
    return [
        *lines,
        f"- {drawn if data.startswith(PHANTOMS) else 'This holds for films like these, of patients like these.'}",
    ]


def shown(value: object) -> str:
    """Format one figure; an unknown one is a dash."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " to ".join(map(shown, value))
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def inner(table: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return a table inside a table; an empty one if it is missing."""
    found = table.get(key)
    return found if isinstance(found, Mapping) else {}
