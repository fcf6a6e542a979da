"""The studies that are shown in viewers: every kind of film and answer that a viewer may treat in a way of its own.

Films are made of RG1, whose Pixel Spacing of 0 is replaced, for OHIF 3.13.2 shows no picture with it. The versions of a
report are shown on three: a phantom, the film of a person, and one whose rows and columns differ in spacing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, FindingState
from models.lab.phantoms import dicom as phantoms
from node.domain import derive_uid
from node.store.correction import CorrectionKind
from tests.support import films

Unit = tuple[float, float, float, float]

MARKER: Final = Box(left=640, top=120, right=700, bottom=200)
SHUTTER_INSET: Final = 50
"""Of the film `marked`: its side marker, and how far its shutter reaches over each edge, in pixels."""

_STEP: Final = 2
_TOP: Final = 2**15 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The scripted answer to one pathology prompt; boxes: center x, center y, width, height in the upright square."""

    prompt: str
    boxes: tuple[Unit, ...]
    state: FindingState = FindingState.PRESENT
    probability: float = 0.83


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a reader does with a finding; box: where it is drawn, as in `Shown`."""

    kind: CorrectionKind
    prompt: str
    box: Unit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """One film of a study and the answer to it; prompts that it does not name are absent.

    ratio: whether a cardiothoracic ratio was measured on it; said: what a reader then corrects; asked: answers to a
    person's questions, whose prompts are free text
    """

    film: Dataset
    answers: tuple[Shown, ...] = ()
    ratio: bool = False
    said: tuple[Said, ...] = ()
    asked: tuple[Shown, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A study: its films in the order of their series."""

    name: str
    exposures: tuple[Exposure, ...]


EFFUSION: Final = Shown(prompt="pleural_effusion", boxes=((0.22, 0.72, 0.2, 0.3),))
TO_REVIEW: Final = Shown(
    prompt="lung_opacity", boxes=((0.7, 0.42, 0.22, 0.2),), state=FindingState.INDETERMINATE, probability=0.41
)
BOTH: Final = (EFFUSION, TO_REVIEW)
BY_A_READER: Final = (
    Said(kind=CorrectionKind.ACCEPT, prompt="pleural_effusion"),
    Said(kind=CorrectionKind.MOVE, prompt="lung_opacity", box=(0.66, 0.62, 0.2, 0.2)),
    Said(kind=CorrectionKind.ADD, prompt="pneumothorax", box=(0.2, 0.22, 0.16, 0.2)),
)
UNPLACED: Final = replace(TO_REVIEW, boxes=())
MANY: Final = (
    EFFUSION,
    TO_REVIEW,
    Shown(prompt="cardiomegaly", boxes=((0.55, 0.66, 0.42, 0.3),)),
    Shown(prompt="atelectasis", boxes=((0.3, 0.6, 0.2, 0.07),), probability=0.66),
    Shown(prompt="pneumothorax", boxes=((0.18, 0.22, 0.16, 0.2),), probability=0.97),
    Shown(prompt="edema", boxes=((0.31, 0.45, 0.3, 0.5), (0.74, 0.5, 0.28, 0.52)), probability=0.58),
    Shown(prompt="support_devices", boxes=((0.48, 0.14, 0.06, 0.26),), probability=0.92),
    Shown(prompt="fracture", boxes=((0.86, 0.3, 0.12, 0.06),), state=FindingState.UNCALIBRATED, probability=0.51),
    Shown(prompt="lung_lesion", boxes=((0.66, 0.26, 0.05, 0.05),), probability=0.77),
    Shown(prompt="consolidation", boxes=((0.8, 0.75, 0.24, 0.2),), state=FindingState.INDETERMINATE, probability=0.44),
)


def chest(changes: Mapping[str, object] | None = None) -> Dataset:
    """Return RG1 at half its size as MONOCHROME2, with a spacing of 0.4 mm."""
    film = films.rg1()
    stored = film.pixel_array[::_STEP, ::_STEP].astype(np.int32)
    films.with_pixels(film, _TOP - stored, bits=15)
    return films.changed(
        film,
        {
            "PhotometricInterpretation": "MONOCHROME2",
            "WindowCenter": _TOP - 15000,
            "WindowWidth": 30000,
            "PixelSpacing": [0.4, 0.4],
            "DataSetTrailingPadding": None,
            **(changes or {}),
        },
    )


def monochrome1() -> Dataset:
    """Return the film as RG1 stores it, low values white."""
    film = chest({"PhotometricInterpretation": "MONOCHROME1", "WindowCenter": 15000})
    return films.with_pixels(film, _TOP - film.pixel_array.astype(np.int32), bits=15)


def mirrored() -> Dataset:
    """Return the film with the patient's right on the right side of the picture."""
    film = chest({"PatientOrientation": ["R", "F"]})
    return films.with_pixels(film, film.pixel_array[:, ::-1], bits=15)


def rotated() -> Dataset:
    """Return the film lying on its side, head to the left."""
    film = chest({"PatientOrientation": ["F", "R"]})
    return films.with_pixels(film, np.rot90(film.pixel_array), bits=15)


def signed_with_padding() -> Dataset:
    """Return the film with 16 signed bits, its left and right margin filled with a padding value."""
    film = chest({"WindowCenter": -17233, "WindowWidth": 30000, "PixelPaddingValue": -32768})
    pixels = film.pixel_array.astype(np.int32) + (-(2**15) + 1)
    pixels[:, :60] = pixels[:, -90:] = -(2**15)
    films.with_pixels(film, pixels, bits=16, signed=True)
    film["PixelPaddingValue"].VR = "SS"
    return film


def marked() -> Dataset:
    """Return the film with a side marker in an overlay plane, behind a rectangular shutter."""
    film = chest()
    marker = np.zeros((film.Rows, film.Columns), dtype=np.uint8)
    marker[int(MARKER.top) : int(MARKER.bottom), int(MARKER.left) : int(MARKER.right)] = 1
    packed = np.packbits(marker.ravel(), bitorder="little").tobytes()
    for element, vr, value in (
        (0x0010, "US", film.Rows),
        (0x0011, "US", film.Columns),
        (0x0040, "CS", "G"),
        (0x0050, "SS", [1, 1]),
        (0x0100, "US", 1),
        (0x0102, "US", 0),
        (0x3000, "OW", packed + b"\0" * (len(packed) % 2)),
    ):
        film.add_new((0x6000, element), vr, value)
    edges = (SHUTTER_INSET + 1, film.Columns - SHUTTER_INSET, SHUTTER_INSET + 1, film.Rows - SHUTTER_INSET)
    names = ("LeftVertical", "RightVertical", "UpperHorizontal", "LowerHorizontal")
    shutter = {f"Shutter{name}Edge": edge for name, edge in zip(names, edges, strict=True)}
    return films.changed(film, {"ShutterShape": "RECTANGULAR", "ShutterPresentationValue": 0, **shutter})


def wide() -> Dataset:
    """Return a film three times as wide as it is high, the chest in its middle."""
    film = chest()
    pixels = film.pixel_array[160:800]
    margin = (3 * pixels.shape[0] - pixels.shape[1]) // 2
    return films.with_pixels(film, np.pad(pixels, ((0, 0), (margin, margin))), bits=15)


def oblong_pixels() -> Dataset:
    """Return a film whose pixels are wider than they are high, by little: OHIF's picture still has all boxes."""
    film = chest({"PixelSpacing": [0.4, 0.44]})
    columns = np.arange(0, int(film.Columns), 1.1).astype(int)
    return films.with_pixels(film, film.pixel_array[:, columns], bits=15)


def phantom() -> Dataset:
    """Return a phantom of the size of the other films."""
    stored = phantoms.Format(modality="CR", photometric="MONOCHROME2", bits=12, columns=900, rows=1000)
    return films.changed(phantoms.film(7, stored).dataset, {"PixelSpacing": [0.4, 0.4]})


def person() -> Dataset:
    """Return the NIH film, a secondary capture of 8 bits, with the view that it does not name; skip without it."""
    view = {"ViewPosition": "PA", "BodyPartExamined": "CHEST", "PatientOrientation": ["L", "F"]}
    return films.changed(dcmread(films.shared("chest/nih_google_dx_sc.dcm")), {**view, "PixelSpacing": [0.4, 0.4]})


def bright_abdomen() -> Dataset:
    """Return the film with its lower half nearly white, as under an abdomen that covers the lower field."""
    film = chest()
    pixels = film.pixel_array.astype(np.float64)
    ramp = np.clip((np.arange(pixels.shape[0]) - 0.45 * pixels.shape[0]) / (0.15 * pixels.shape[0]), 0, 1)
    return films.with_pixels(film, np.rint(np.maximum(pixels, 0.93 * _TOP * ramp[:, None])).astype(np.int64), bits=15)


def lateral() -> Dataset:
    """Return a lateral film."""
    film = chest({"ViewPosition": "LL", "PatientOrientation": ["A", "F"]})
    return films.with_pixels(film, film.pixel_array[:, ::2], bits=15)


def named(character_set: str, name: str) -> Dataset:
    """Return the film of a patient whose name is in another script, too."""
    return chest({"SpecificCharacterSet": ["", character_set], "PatientName": name})


def shown(film: Callable[[], Dataset], *answers: Shown) -> Exposure:
    """Pair a film with its answer."""
    return Exposure(film=film(), answers=answers)


MAKERS: Final[Mapping[str, Callable[[], tuple[Exposure, ...]]]] = {
    "many": lambda: (shown(chest, *MANY),),
    "corrected": lambda: (replace(shown(chest, *BOTH, MANY[2]), said=BY_A_READER),),
    "unplaced": lambda: (shown(chest, EFFUSION, UNPLACED), shown(mirrored, UNPLACED)),
    "none": lambda: (shown(chest),),
    "not-processed": lambda: (shown(lateral),),
    "two-films": lambda: (shown(chest, *BOTH), shown(mirrored, *MANY[2:5])),
    "three-films": lambda: (shown(chest, *BOTH), shown(monochrome1), shown(lateral)),
    "mirrored": lambda: (shown(mirrored, *BOTH),),
    "rotated": lambda: (shown(rotated, *BOTH),),
    "monochrome1": lambda: (shown(monochrome1, *BOTH),),
    "signed": lambda: (shown(signed_with_padding, *BOTH),),
    "marked": lambda: (shown(marked, *BOTH),),
    "wide": lambda: (shown(wide, *BOTH),),
    "oblong-pixels": lambda: (shown(oblong_pixels, *BOTH),),
    "abdomen": lambda: (shown(bright_abdomen, *MANY[:5]),),
    "japanese": lambda: (shown(partial(named, "ISO 2022 IR 87", "Yamada^Tarou=山田^太郎=やまだ^たろう"), *BOTH),),
    "korean": lambda: (shown(partial(named, "ISO 2022 IR 149", "Hong^Gildong=洪^吉洞=홍^길동"), *BOTH),),
}
"""The films of each study; of `unplaced` one finding has no place."""

_SEVEN: Final = tuple((replace(EFFUSION, probability=0.5 + number / 100),) for number in range(1, 8))
VERSIONS: Final[Mapping[str, tuple[Callable[[], Dataset], tuple[tuple[Shown, ...], ...]]]] = {
    "seven-phantom": (phantom, _SEVEN),
    "seven-person": (person, _SEVEN),
    "seven-oblong": (oblong_pixels, _SEVEN),
    "taken-back": (chest, ((EFFUSION,), BOTH, ())),
    "missed": (chest, ((), (EFFUSION,))),
}
"""A film and the answers of the versions of its report, oldest first, by the name of the study."""
QUESTIONS: Final = (
    Shown(prompt="Air at the apex", boxes=((0.24, 0.2, 0.2, 0.14),), probability=0.61),
    Shown(prompt="Rib fracture", boxes=(), state=FindingState.ABSENT, probability=0.09),
)
"""What is asked about a film with versions: a question with a place, and one without."""


def make(name: str) -> Case:
    """Make a study by its name."""
    return with_identity(Case(name=name, exposures=MAKERS[name]()))


def draws_in_all_versions(name: str) -> bool:
    """Whether every version has a box, so that a destination with `text` gets one beside each."""
    return all(VERSIONS[name][1])


def versions(name: str) -> list[Case]:
    """Make the versions of a study by its name, oldest first; questions are asked about each."""
    film, versions_of_answers = VERSIONS[name]
    return [
        with_identity(Case(name=name, exposures=(replace(shown(film, *answers), asked=QUESTIONS),)))
        for answers in versions_of_answers
    ]


def with_identity(case: Case) -> Case:
    """Give each film UIDs and a series of its own, and the study a patient unless its name is what it is about."""
    for number, exposure in enumerate(case.exposures, 1):
        film = films.as_another(exposure.film, f"conformance {case.name} {number}", study=f"conformance {case.name}")
        film.SeriesInstanceUID = derive_uid("conformance series", case.name, str(number))
        film.SeriesNumber, film.SeriesDescription = number, f"Film {number}"
        if film.get("PatientID") == "9RG1":
            film.PatientID = f"CONFORM-{case.name.upper()}"
        if film.get("PatientName") == "CompressedSamples^RG1":
            film.PatientName = f"Conformance^{case.name.capitalize()}"
    return case
