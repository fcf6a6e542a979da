"""Films and reports to write outputs from: headers of a few pixels, and answers that a network could have given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from pydicom import dcmread
from pydicom.data import get_charset_files
from pydicom.dataset import Dataset

from models.contract import Box, FindingState, PromptKind, PromptReading, ScoredBox, Side
from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, MeasuredError, MeasuredLine, View
from node.domain import (
    Code,
    Evidence,
    Film,
    Finding,
    FindingBox,
    GroundedSentence,
    ModelIdentity,
    Note,
    Reason,
    Report,
    derive_uid,
)
from node.outputs.source import Picture, Source
from node.outputs.writers import Writer
from node.read.decoding import Thumbnail, step_of
from node.read.framing import Framing

BERLIN = ZoneInfo("Europe/Berlin")
STUDY = "1.2.826.0.1.3680043.8.498.1"
COLUMNS, ROWS = 2000, 1760
SQUARE = Box(left=120, top=0, right=1880, bottom=1760)
MODEL = ModelIdentity(name="phantom", version="1.2.0", weights_sha256="ab" * 32, engine="onnx")
EFFUSION = Code(value="60046008", scheme="SCT", meaning="Pleural effusion")
PNEUMOTHORAX = Code(value="36118008", scheme="SCT", meaning="Pneumothorax")
EDEMA = Code(value="19242006", scheme="SCT", meaning="Pulmonary edema")
DEVICES = Code(value="SUPPORT_DEVICES", scheme="99CHEX", meaning="Support devices")
PLEURA = Code(value="3120008", scheme="SCT", meaning="Pleura")
RATIO_ERROR = MeasuredError(measured_on="phantoms", films=380, mean_absolute=0.018, lower=-0.036, upper=0.051)
LUNG = Code(value="39607008", scheme="SCT", meaning="Lung structure")
HEART = Code(value="80891009", scheme="SCT", meaning="Heart")
LOWER_ZONE = Evidence(
    zone="right_lower_lung_zone",
    extent=0.344,
    site=Code(value="281394001", scheme="SCT", meaning="Lower zone of lung"),
    side=Side.RIGHT,
)


def film_uid(number: int) -> str:
    """Name the films of the sample study."""
    return f"{STUDY}.1.{number}"


def cr(number: int = 1) -> Dataset:
    """Make the header of a computed radiograph as a careful modality writes it."""
    dataset = Dataset()
    dataset.SpecificCharacterSet = "ISO_IR 100"
    dataset.SOPClassUID = "1.2.840.10008.5.1.4.1.1.1"
    dataset.SOPInstanceUID = film_uid(number)
    dataset.StudyInstanceUID = STUDY
    dataset.SeriesInstanceUID = f"{STUDY}.1"
    dataset.Modality = "CR"
    dataset.PatientName = "Müller^Jörg"
    dataset.PatientID = "4711"
    dataset.IssuerOfPatientID = "CLINIC"
    dataset.PatientBirthDate = "19500229"  # no such day: must be left out, not copied
    dataset.PatientSex = "M"
    dataset.StudyDate = "20240131"
    dataset.StudyTime = "101530.5"
    dataset.StudyID = "1"
    dataset.AccessionNumber = "A-17"
    dataset.ReferringPhysicianName = "Haus^Greta"
    dataset.ViewPosition = "PA"
    dataset.BodyPartExamined = "CHEST"
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.Rows, dataset.Columns = ROWS, COLUMNS
    dataset.PixelRepresentation = 0
    dataset.PixelSpacing = [0.15, 0.15]
    dataset.RescaleSlope, dataset.RescaleIntercept, dataset.RescaleType = 1, 0, "US"
    dataset.WindowCenter, dataset.WindowWidth = 2048, 4096
    dataset.WindowCenterWidthExplanation = "WINDOW1"
    return dataset


def bare(number: int = 1) -> Dataset:
    """Make the least that is known of an object that could not be decoded."""
    dataset = Dataset()
    for keyword in ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID"):
        setattr(dataset, keyword, cr(number)[keyword].value)
    return dataset


def named(charset_file: str, number: int = 1) -> Dataset:
    """Read a header whose patient name is in another script, put into the sample study."""
    [path] = get_charset_files(charset_file)
    header = dcmread(path, stop_before_pixels=True)
    for keyword in ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID"):
        header[keyword].value = cr(number)[keyword].value
    return header


def finding(
    code: Code = EFFUSION,
    *,
    state: FindingState = FindingState.PRESENT,
    probability: float = 0.83,
    boxes: tuple[Box, ...] = (Box(left=150.25, top=900.5, right=700.125, bottom=1700),),
    sentence: int | None = 0,
    site: Code | None = PLEURA,
    side: Side | None = Side.RIGHT,
) -> Finding:
    """Make a finding; on the right it lies in the lower zone, elsewhere in none."""
    evidence = LOWER_ZONE if side is Side.RIGHT else None
    return Finding(
        prompt=code.meaning.lower().replace(" ", "_"),
        code=code,
        site=site,
        side=side,
        probability=probability,
        state=state,
        boxes=tuple(
            FindingBox(box=box, score=0.6, tracking_uid=derive_uid(code.value, str(box)), side=side, evidence=evidence)
            for box in boxes
        ),
        sentence=sentence,
        evidence=evidence,
    )


def absent(code: Code = PNEUMOTHORAX) -> Finding:
    """Make a finding that the network denies; it has no box."""
    return finding(code, state=FindingState.ABSENT, probability=0.04, boxes=(), sentence=None, site=None, side=None)


def left_out(code: Code = PNEUMOTHORAX) -> Finding:
    """Make a finding that the model leaves out; it has neither a number nor a box."""
    return replace(absent(code), state=FindingState.LEFT_OUT, probability=None)


def uncalibrated() -> Finding:
    """Make a finding above a threshold that nobody measured on such films."""
    return finding(EDEMA, state=FindingState.UNCALIBRATED, probability=0.91, site=LUNG, side=None)


def ratio(
    *,
    view: View | None = View.PA,
    objection: Incomparable | None = None,
    mm_per_pixel: float | None = None,
    error: MeasuredError | None = RATIO_ERROR,
) -> CardiothoracicRatio:
    """Make a cardiothoracic ratio of 0.48; by default it can be compared, and its error was measured."""
    return CardiothoracicRatio(
        heart=MeasuredLine(start=(620.5, 1100.0), end=(1340.5, 1100.0)),
        thorax=MeasuredLine(start=(250.0, 1400.25), end=(1750.0, 1400.25)),
        view=view,
        objection=objection,
        mm_per_pixel=mm_per_pixel,
        error=error,
    )


def ratio_on(framing: Framing) -> CardiothoracicRatio:
    """Make the ratio that a network measures in the middle of its square: 0.45, of a film whose header is not asked."""
    heart, thorax = (framing.line_to_image(left=0.5 - half, right=0.5 + half, height=0.6) for half in (0.18, 0.4))
    return CardiothoracicRatio(heart=heart, thorax=thorax, error=RATIO_ERROR)


def film(number: int = 1, *, findings: tuple[Finding, ...] = (), sentences: bool = True) -> Film:
    """Make the answer to a film that was read: one sentence for a finding, one for a region."""
    said = (
        GroundedSentence(
            text="Small right pleural effusion.",
            prompt="pleural_effusion",
            score=0.8,
            boxes=(ScoredBox(box=Box(left=150.25, top=900.5, right=700.125, bottom=1700), score=0.6),),
        ),
        GroundedSentence(
            text="The left lung is clear.",
            prompt="left_lung",
            score=0.71,
            boxes=(ScoredBox(box=Box(left=1000, top=200, right=1700, bottom=1500), score=0.9),),
        ),
    )
    return Film(
        source=film_uid(number),
        notes=(Note.VIEW_UNKNOWN,),
        columns=COLUMNS,
        rows=ROWS,
        analyzed=SQUARE,
        sentences=said if sentences else (),
        findings=findings,
    )


def unread(number: int, reason: Reason = Reason.UNDECODABLE) -> Film:
    """Make the answer to a film that was not read."""
    return Film(source=film_uid(number), reason=reason)


def report(*films: Film) -> Report:
    """Make the report of the sample study."""
    return Report(
        study_uid=STUDY,
        films=films,
        model=MODEL,
        prompts_name="chexpert14",
        prompts_version="1",
        prompts_sha256="cd" * 32,
        created_at=datetime(2024, 1, 31, 23, 30, 15, tzinfo=UTC),
    )


def several() -> Film:
    """Make a film with all kinds of findings."""
    two = (Box(left=130, top=60, right=900, bottom=1500), Box(left=1000, top=0, right=2000, bottom=1760))
    return film(
        findings=(
            finding(),
            finding(EDEMA, state=FindingState.INDETERMINATE, probability=0.41, boxes=two, site=LUNG, side=None),
            finding(DEVICES, site=None, side=None, probability=0.5, sentence=None),
            absent(),
        )
    )


def sources(*datasets: Dataset) -> dict[str, Dataset]:
    """Index headers as the writers of reports expect them."""
    return {str(dataset.SOPInstanceUID): dataset for dataset in datasets}


def datasets(write: Writer, of: Report, headers: Mapping[str, Dataset | Source], zone: ZoneInfo) -> list[Dataset]:
    """Have a writer write a report, and return the datasets."""
    films = {uid: film if isinstance(film, Source) else Source(header=film) for uid, film in headers.items()}
    return [written.dataset for written in write(of, films, zone)]


def received(*datasets: Dataset, picture: Picture | None = None) -> dict[str, Source]:
    """Index films as the writers of what is drawn expect them; picture: of all of them, None if none can be decoded."""
    return {uid: source(header, lambda: picture) for uid, header in sources(*datasets).items()}


def thumbnail_of(picture: Picture) -> Thumbnail:
    """Return the thumbnail of a film as displayed."""
    step = step_of(picture.shape)
    return Thumbnail(gray=picture[::step, ::step].copy(), step=step)


def source(header: Dataset, picture: Callable[[], Picture | None]) -> Source:
    """Return a film as writers get it, with the thumbnail of its picture."""

    def small() -> Thumbnail | None:
        return None if (shown := picture()) is None else thumbnail_of(shown)

    return Source(header=header, picture=picture, thumbnail=small)


def regions(boxes: Mapping[str, Box]) -> tuple[PromptReading, ...]:
    """What a network answers for regions, by prompt key."""
    return tuple(
        PromptReading(key=key, kind=PromptKind.REGION, boxes=(ScoredBox(box=box, score=1.0),))
        for key, box in boxes.items()
    )
