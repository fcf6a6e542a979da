"""The figures of one evaluation as JSON (design §8) and as Markdown, which has the keys of the JSON, and for a card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Final

from models.checkpoint.card import section
from models.decisions import PHANTOMS
from models.lab.evaluation.request import PUBLISHED_TASKS, SHARES, TEXT_TASKS

Table = tuple[list[str], list[list[str]]]
"""The cells of its head, and those of its rows."""
DIGITS: Final = 6
PLACES: Final = "places"
"""What `models.lab.evaluation.placing` measured, beside the tasks of `models.evaluate`."""
_CARD: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "detection": (
        "Detection of findings",
        {"map": "mAP, IoU 0.1 to 0.7", "large_four": "mAP, cardiomegaly, pneumothorax, edema, effusion"},
    ),
    "anatomy": ("Regions", {"miou": "mIoU, all regions", "lungs_and_heart": "mIoU, lungs and heart"}),
    "region_classification": ("What regions hold", {"auroc_per_pair": "AUROC, mean of region-finding pairs"}),
    "report": ("Report, before any sentence is withheld", {"ce_micro_f1": "CE micro F1, CheXpert classes"}),
    "sentences": (
        "Sentences, checked and withheld by rule",
        {
            "withheld_share": "sentences withheld",
            "by_network_share": "reported findings that leave with a sentence of the network",
        },
    ),
    "films": (
        "What films show, thresholds cross-fitted",
        {
            "macro_auroc": "AUROC, mean of findings with 15 positives",
            "opacity_against_normal": "AUROC, opacity against normal, by a radiologist",
            "opacity_against_all_others": "AUROC, opacity against all others, by a radiologist",
            "auroc_no_finding_read": "AUROC, no finding, on films that a radiologist read",
            "auroc_no_finding_mined": "AUROC, no finding, on films with a mined label alone",
            "false_findings": "findings called present on a normal film",
            "opacity_sensitivity": "opacities of a radiologist called present",
        },
    ),
    "hints": ("Questions about one side", {"accuracy": "followed"}),
    "views": (
        "Views and sides, by the view head",
        {
            "kept": "frontal films kept",
            "unmarked": "frontal films called neither mirrored nor rotated",
            "projection": "frontal films with the right view of AP and PA",
            "mirrored": "mirrored films called so",
            "rotated": "rotated films called so",
            "stopped": "laterals and other films stopped, if the header names no view",
        },
    ),
    **{task: (task, {"mask_miou": "mask_miou", "map": "map", "auroc": "auroc"}) for task in PUBLISHED_TASKS},
    **{task: (task, {"ce_14_micro_f1": "ce_14_micro_f1"}) for task in TEXT_TASKS},
}
"""By task: its title in a card, and the figures that a card shows, with their names; a summary has the first."""
_RATIO: Final[Mapping[str, str]] = {
    "mean_absolute_error": "cardiothoracic ratio: mean absolute error",
    "lower": "cardiothoracic ratio: lower 95 % limit of agreement",
    "upper": "cardiothoracic ratio: upper 95 % limit of agreement",
}
_OF_GROUPS: Final = ("macro_auroc", "opacity_against_all_others", "false_findings", "opacity_sensitivity")
_FIRST: Final[Sequence[tuple[tuple[str, ...], str]]] = (
    (("films",), "macro_auroc"),
    (("sentences", "by_default"), "false_findings"),
    (("sentences", "by_default"), "opacity_sensitivity"),
    (("detection",), "map"),
    (("report",), "ce_micro_f1"),
    (("anatomy",), "miou"),
)
"""The figures that a card begins with, the first three measured; of decisions, what a node does by default."""
_BESIDE: Final = ("references", "deviations", "not_computed")
_LONG: Final = "per_pair"
"""A table of hundreds of rows, which the JSON alone has."""
_RIGHT_BOXES: Final = "boxes_right"


def rounded(value: object) -> object:
    """Round every number of a document to its significant digits."""
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def markdown(document: Mapping[str, object]) -> str:
    """Write a document as Markdown."""
    return section("evaluation", document=document, tables=tables, summary=summary(document))


def tables(made: Mapping[str, object]) -> Iterator[Table]:
    """Yield the figures of one task beside what needs no network, then a table of each part of it."""
    references, deviations, reasons = (inner(made, key) for key in _BESIDE)
    rivals = {name: inner(references, name) for name in references}
    rows = [
        [
            key,
            f"not computed: {reasons[key]}" if key in reasons else shown(value),
            shown(deviations.get(key)),
            *(shown(rival.get(key)) for rival in rivals.values()),
        ]
        for key, value in made.items()
        if _is_single(value)
    ]
    yield ["", "value", "deviation", *rivals], rows
    for key in made:
        if key not in (*_BESIDE, _LONG) and (part := inner(made, key)):
            yield _part(key, part)


def _part(title: str, part: Mapping[str, object]) -> Table:
    """Return a table with a row for each figure, or for each group of figures."""
    if singles := [[name, shown(value)] for name, value in part.items() if not isinstance(value, Mapping)]:
        return [title, "value"], singles
    groups = {name: inner(part, name) for name in part}
    columns = dict.fromkeys(name for own in groups.values() for name, value in own.items() if _is_single(value))
    return [title, *columns], [[group, *(_bounded(own, name) for name in columns)] for group, own in groups.items()]


def _is_single(value: object) -> bool:
    return not isinstance(value, Mapping | list | tuple)


def card_tables(document: Mapping[str, object]) -> Iterator[Table]:
    """Yield the tables that a card shows of an evaluation: its main figures; of patient films also findings and groups.

    What phantoms show by finding is drawn in the plots.
    """
    made = inner(document, "tasks")
    if places := inner(made, PLACES):
        yield places_table(places)
    if main := [row for task in made if task in _CARD for row in _card_rows(task, inner(made, task))]:
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
    if groups := inner(films, "by_group"):
        names = _CARD["films"][1]
        yield (
            ["by group", "films", *map(names.__getitem__, _OF_GROUPS)],
            [[group, *(_bounded(inner(groups, group), name) for name in ("films", *_OF_GROUPS))] for group in groups],
        )


def _card_rows(task: str, made: Mapping[str, object]) -> Iterator[list[str]]:
    """Yield the rows of a card's first table; the first row of a task has its name."""
    references, (title, names) = inner(made, "references"), _CARD[task]
    for key, name in names.items():
        if made.get(key) is not None:
            rivals = {rival: value for rival in references if (value := inner(references, rival).get(key)) is not None}
            beside = ", ".join(f"{rival.replace('_', ' ')} {shown(value)}" for rival, value in rivals.items())
            yield [title, name, _bounded(made, key), beside]
            title = ""
    ratio = inner(made, "cardiothoracic_ratio")
    for key, name in _RATIO.items():
        if ratio.get(key) is not None:
            yield ["", name, shown(ratio[key]), ""]


def places_table(places: Mapping[str, object]) -> Table:
    """Return the shares of right places: of findings at the score in use, at the chosen one and cross-validated.

    places: the result of `placing.judge`; a score from which no report has a box has no row
    """
    head = [
        "places on patient films",
        "reports with a box",
        "boxes right",
        "one side right",
        "both sides right",
        "zone right",
        "mAP above two constant boxes",
    ]
    rows = list[list[str]]()
    boxed, limits = inner(places, "boxed"), inner(places, "limits")
    for key in limits:
        name, fits = key.replace("_", " "), {part: _gain(inner(inner(boxed, part), key)) for part in boxed}
        own = inner(limits, key)
        for part, what in (("before", "in use"), ("chosen", "chosen")):
            made = inner(inner(places, part), key)
            if made.get("with_box"):
                rows.append([f"{name}, limit {what}: {own.get(part):.3f}", *_shares(made), fits["held_out"]])
        folds = inner(inner(places, "folds"), key)
        rows.append([f"{name}, in the folds", *_shares(folds, is_by_fold=True), fits["folds"]])
    together = inner(places, "all")
    rows.append(["all findings, limits in use", *_shares(inner(together, "before")), ""])
    if any(inner(limits, key).get("is_better") for key in limits):
        rows.append(["all findings, better limits", *_shares(inner(together, "after")), ""])
    return head, rows


def _shares(made: Mapping[str, object], *, is_by_fold: bool = False) -> Iterator[str]:
    """Yield each count; that of right boxes with its 95 % interval, or with the counts of each fold."""
    bounds, by_fold = inner(made, "intervals").get(_RIGHT_BOXES), made.get("by_fold")
    for part, whole in SHARES.items():
        after = ""
        if part == _RIGHT_BOXES and is_by_fold and isinstance(by_fold, list):
            after = f" ({', '.join(f'{fold[part]}/{fold[whole]}' for fold in by_fold)})"
        elif part == _RIGHT_BOXES and isinstance(bounds, list):
            after = f" ({bounds[0]:.2f} to {bounds[1]:.2f})"
        yield f"{made.get(part)}/{made.get(whole)}{after}" if made.get(whole) else "-"


def _gain(made: Mapping[str, object]) -> str:
    bounds, gain = inner(made, "intervals").get("gain_on_positives"), made.get("gain_on_positives")
    if not isinstance(bounds, list) or not isinstance(gain, float):
        return "-"
    return f"{gain:.2f} ({bounds[0]:.2f} to {bounds[1]:.2f})"


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
                names = _CARD["films" if path[0] == "sentences" else path[0]][1]
                found.append(f"{names[name]}: {_bounded(made, name)}, {films}.")
    return found


def summary(document: Mapping[str, object]) -> list[str]:
    """Return an evaluation in ten lines: whose it is, the first figure of each task, and what it does not say."""
    model, data = inner(document, "model"), str(document["data"])
    lines = [f"- {model.get('name')} {model.get('version')}, {model.get('engine')}: {document['count']} films, {data}"]
    for task, (title, names) in _CARD.items():
        made = inner(inner(document, "tasks"), task)
        if key := next((key for key in names if key in made), ""):
            lines.append(f"- {title}: {names[key]} {_bounded(made, key)}")
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
