"""Shows studies in viewers and says what is wrong: boxes off their place, reports that cannot be reached, crashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydicom.dataset import Dataset

from models.contract import Box
from node.outputs import asked_question, wording
from tests.drills.conformance import cases, dicomscope, pictures, studies
from tests.drills.conformance.ohif import Ohif, ShownReport
from tests.drills.conformance.pictures import Mask, Picture, Placing
from tests.drills.conformance.studies import FilmResult, ReportedBox, Study
from tests.support import documents

MOST_DEVIATION: Final = 0.02
"""How far an edge may lie from its place, in parts of the film's width."""
LEAST_CONTRAST: Final = 1.5
"""Of a label with the film below it, as WCAG 2 measures it: white on a gray of 209 of 255, still seen at a glance."""
LEAST_SOLID: Final = 0.9
"""The share of a line that is drawn if it is no line of dashes."""
_DITHERED: Final = 240
"""Gray from which an overlay plane counts as white: DICOMscope 3.6 dithers what it shrinks, down to 247."""


@dataclass(slots=True)
class Seen:
    """What was seen of one study in one viewer; faults: none if all is as it should be."""

    faults: list[str] = field(default_factory=list)
    deviations: list[float] = field(default_factory=list)
    contrasts: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, object]:
        """The counts, with the largest deviation in percent of the film's width."""
        largest = max(self.deviations, default=None)
        return {
            "boxes": len(self.deviations),
            "largest_deviation_percent": None if largest is None else round(100 * largest, 2),
            "least_contrast": round(min(self.contrasts), 2) if self.contrasts else None,
            "faults": self.faults,
        }


def compare(seen: Seen, mask: Mask, boxes: Iterable[ReportedBox], placing: Placing, *, where: str) -> list[float]:
    """Find the boxes in a picture and note their deviations. Returns how much of each box's lines is drawn."""
    covered = []
    for expected in boxes:
        outline = pictures.find(mask, placing.to_screen(expected.box), width=placing.width)
        covered.append(outline.covered)
        if outline.deviation is None:
            seen.faults.append(f"{where}: the box of {expected.name} is not where it belongs")
            continue
        seen.deviations.append(outline.deviation)
        if outline.deviation > MOST_DEVIATION:
            seen.faults.append(f"{where}: the box of {expected.name} is {outline.deviation:.1%} off")
    return covered


def view_in_ohif(viewer: Ohif, study: Study, *, kinds: Sequence[str], folder: Path) -> Seen:
    """Open every structured report of some kinds and every answer, and compare what is drawn and said with report.json.

    The presentation states and whatever else the node writes for an archive lie beside it, as in a real study. Pictures
    go to `folder`.
    """
    seen, name = Seen(), f"{study.case.name}-{'-'.join(kinds)}"
    expected = _expected_in_ohif(study, kinds)
    viewer.store(*study.films, *(dataset for kind in kinds for dataset in study.objects[kind]))
    viewer.store(*expected.answers, *(dataset for kind in ("gsps", "sc") for dataset in study.objects.get(kind, ())))
    placings = {number: viewer.place(study.films[number - 1]) for number, _ in expected.drawn}
    with viewer.show(study.uid, count=len(study.films)) as page:
        _keep(folder, f"{name}-film", page.screen())
        shown = []
        for number, report in enumerate(page.reports(), 1):
            shown.append(report)
            _keep(folder, f"{name}-{number}", page.screen())
            if report.film is None:
                continue
            where = f"OHIF {name}, film {report.film}"
            boxes = next((boxes for film, boxes in expected.drawn if _is_of(report, film, boxes)), ())
            film = study.films[report.film - 1]
            drawn = [replace(expected, box=_as_ohif_draws(expected.box, film)) for expected in boxes]
            if boxes:
                compare(seen, pictures.colored(report.picture), drawn, placings[report.film], where=where)
            seen.faults += _faults_of_labels(report.labels, boxes, where)
        seen.faults += _faults_of_reach(name, expected, shown)
        seen.faults += [f"OHIF {name}: {fault}" for fault in page.faults]
        if page.ticks():
            seen.faults.append(f"OHIF {name}: {page.ticks()} films are ticked as measured")
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """What OHIF should show of a study.

    count: of reports and answers, each a series
    drawn: the film's number and the boxes of each report and answer that draws any
    texts: what is said where no box is drawn; answers: their objects
    """

    count: int
    drawn: Sequence[tuple[int, Sequence[ReportedBox]]]
    texts: Sequence[str]
    answers: Sequence[Dataset]


def _expected_in_ohif(study: Study, kinds: Sequence[str]) -> _Expected:
    films, draws = study.results, any(kind in ("sr", "sr3d") for kind in kinds)
    drawn = [(number, film.boxes) for number, film in enumerate(films, 1) if film.boxes and draws]
    texts = [line for film in films if "text" in kinds or not film.boxes for line in film.impression]
    if "text" in kinds:
        texts += [line for film in study.report.read_films for line in wording.cautions(film)]
    answers = study.answers(kinds[0]) if draws else []
    for asked in study.asked if draws else ():
        number = [str(film.SOPInstanceUID) for film in study.films].index(asked.film) + 1
        boxes = studies.boxes_of(asked)
        drawn += [(number, boxes)] if boxes else []
        texts += [] if boxes else [asked_question.question(asked)]
    reports = [*answers, *(dataset for kind in kinds for dataset in study.objects[kind])]
    count = len({dataset.SeriesInstanceUID for dataset in reports if dataset.Modality == "SR"})
    return _Expected(count=count, drawn=drawn, texts=texts, answers=answers)


def _is_of(report: ShownReport, film: int, boxes: Sequence[ReportedBox]) -> bool:
    """Whether a shown report is the one that draws these boxes: two on one film differ in what their labels name."""
    return report.film == film and any(box.name.lower() in label.lower() for label in report.labels for box in boxes)


def _as_ohif_draws(box: Box, film: Dataset) -> Box:
    """Return where OHIF 3.13.2 draws a box: it takes the spacing of rows for that of columns, and the reverse."""
    down, across = (float(value) for value in film.PixelSpacing)
    wider = down / across
    return Box(left=box.left * wider, top=box.top / wider, right=box.right * wider, bottom=box.bottom / wider)


def view_versions_in_ohif(viewer: Ohif, versions: Sequence[Study], *, kinds: Sequence[str], folder: Path) -> Seen:
    """Store all versions of a study, the newest last, and compare what is shown with the newest alone."""
    *before, newest = versions
    viewer.store(*(dataset for study in before for kind in kinds for dataset in study.objects[kind]))
    return view_in_ohif(viewer, newest, kinds=kinds, folder=folder)


def view_in_dicomscope(shown: Sequence[Study], folder: Path, *, scratch: Path) -> dict[str, Seen]:
    """Show every presentation state of the studies on its film. Returns what was seen of each study, by its name.

    A label is readable if its contrast with the film is `LEAST_CONTRAST`; a box to be reviewed has broken lines.
    """
    states = list(_states(shown))
    pairs = [
        pair
        for drawn in states
        for pair in (
            (pictures.calibration(drawn.film), dicomscope.calibrating(drawn.state)),
            (drawn.film, dicomscope.without_graphics(drawn.state)),
            (drawn.film, drawn.state),
        )
    ]
    pngs = dicomscope.show(scratch, pairs)
    seen = {study.case.name: Seen() for study in shown}
    for place, drawn in enumerate(states):
        _keep(folder / "dicomscope", f"{drawn.study}-{drawn.number}", pngs[3 * place + 2])
        _judge_state(seen[drawn.study], drawn, [pictures.read(png) for png in pngs[3 * place : 3 * place + 3]])
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _DrawnState:
    """A presentation state with its film: the film's number in the study, and what report.json says of it."""

    study: str
    number: int
    film: Dataset
    result: FilmResult
    state: Dataset


def _states(shown: Sequence[Study]) -> Iterator[_DrawnState]:
    for study in shown:
        states = {documents.film_of(state): state for state in study.objects["gsps"]}
        for number, (film, result) in enumerate(zip(study.films, study.results, strict=True), 1):
            if state := states.get(str(film.SOPInstanceUID)):
                yield _DrawnState(study=study.case.name, number=number, film=film, result=result, state=state)


def _judge_state(seen: Seen, drawn: _DrawnState, shown: Sequence[Picture]) -> None:
    """Compare boxes and labels with the film; shown: the calibration film, the film alone, the film with the state."""
    calibrated, bare, picture = shown
    placing, where = pictures.locate(calibrated, drawn.film), f"DICOMscope {drawn.study}, film {drawn.number}"
    boxes = drawn.result.boxes
    covered = compare(seen, pictures.changed(picture, bare), boxes, placing, where=where)
    seen.faults += [
        f"{where}: the box of {box.name} ({box.state}) has {share:.0%} of its lines"
        for box, share in zip(boxes, covered, strict=True)
        if (share < LEAST_SOLID) == (box.state == "present")
    ]
    seen.faults += _faults_of_marks(drawn, bare, placing, where)
    for text, place in _texts(drawn.state):
        value = pictures.contrast(picture, bare, placing.to_screen(place))
        seen.contrasts.append(value)
        if value < LEAST_CONTRAST:
            seen.faults.append(f"{where}: the contrast of {text!r} is {value:.2f}")


def _faults_of_marks(drawn: _DrawnState, bare: Picture, placing: Placing, where: str) -> list[str]:
    """A film with a side marker has it white, and black what its shutter hides; bare: without what the node draws."""
    if "ShutterShape" not in drawn.film:
        return []
    columns, rows, inset = int(drawn.film.Columns), int(drawn.film.Rows), cases.SHUTTER_INSET
    hidden = (
        Box(left=0, top=0, right=columns, bottom=inset),
        Box(left=0, top=rows - inset, right=columns, bottom=rows),
        Box(left=0, top=0, right=inset, bottom=rows),
        Box(left=columns - inset, top=0, right=columns, bottom=rows),
    )
    wrong = []
    if _within(bare, placing.to_screen(cases.MARKER)).min() < _DITHERED:
        wrong.append(f"{where}: the side marker is not white")
    if any(_within(bare, placing.to_screen(box)).max() > 0 for box in hidden):
        wrong.append(f"{where}: the shutter hides nothing")
    return wrong


def _within(picture: Picture, box: Box) -> Picture:
    """Return the part of a picture within a box, without the pixels at its edge."""
    left, top, right, bottom = (round(edge) for edge in box.edges)
    return picture[max(top, 0) + 2 : bottom - 2, max(left, 0) + 2 : right - 2]


def _texts(state: Dataset) -> Iterator[tuple[str, Box]]:
    """Yield the texts that a presentation state draws, with their places on the film."""
    for annotation in state.GraphicAnnotationSequence:
        for text in annotation.get("TextObjectSequence", ()):
            left, top = text.BoundingBoxTopLeftHandCorner
            right, bottom = text.BoundingBoxBottomRightHandCorner
            yield text.UnformattedTextValue, Box(left=left, top=top, right=right, bottom=bottom)


def _faults_of_labels(labels: Sequence[str], boxes: Sequence[ReportedBox], where: str) -> list[str]:
    """Each box has a label that begins with its finding, whatever stands before it, and says how sure it is.

    No label of what a reader moved or added names a percentage.
    """
    wrong = []
    left = list(labels)
    for expected in boxes:
        found = next((label for label in left if _says(label, expected)), None)
        if found is None:
            wrong.append(f"{where}: no label says {expected.name} {expected.sure}")
        else:
            left.remove(found)
    return [*wrong, *(f"{where}: a label of no box: {label}" for label in left)]


def _says(label: str, expected: ReportedBox) -> bool:
    is_review, says_percent = "review" in label or "possible" in label, "%" in label
    return (
        expected.name.lower() in label.lower()
        and expected.sure in label
        and is_review == (expected.state != "present")
        and says_percent == expected.sure.isdecimal()
    )


def _faults_of_reach(name: str, expected: _Expected, shown: Sequence[ShownReport]) -> list[str]:
    """Each report and answer is shown, with its boxes or as a text; the texts say all that they should."""
    wrong = []
    if len(shown) != expected.count:
        wrong.append(f"OHIF {name}: lists {len(shown)} of {expected.count} reports")
    drawn, due = sorted(report.film for report in shown if report.film), sorted(film for film, _ in expected.drawn)
    if drawn != due:
        wrong.append(f"OHIF {name}: draws boxes on the films {drawn}, findings are on {due}")
    texts = [report for report in shown if report.film is None]
    wrong += [f"OHIF {name}: a report shows no impression" for report in texts if "Impression" not in report.text]
    wrong += [f"OHIF {name}: a report has no letters" for report in texts if not pictures.has_letters(report.picture)]
    said = [" ".join(report.text.split()) for report in texts]
    wrong += [
        f"OHIF {name}: no text says {line!r}"
        for line in expected.texts
        if not any(" ".join(line.split()) in text for text in said)
    ]
    return wrong


def _keep(folder: Path, name: str, png: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.png").write_bytes(png)
