"""Functions that highdicom 0.28.2 lacks, one for each gap.

Delete a function when a release of highdicom makes it needless. Where its maintainers could add it, the docstring has
the wording of a proposal.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from highdicom import LUT
from highdicom.pr import GraphicLayer, GraphicObject, TextObject
from highdicom.sr import (
    Comprehensive3DSR,
    ComprehensiveSR,
    ContainerContentItem,
    ContentItem,
    ContentSequence,
    EnhancedSR,
    ImageContentItem,
    RelationshipTypeValues,
    TextContentItem,
)
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code as Concept
from pydicom.tag import Tag
from pydicom.uid import BasicTextSRStorage

from node.dicom import overlays
from node.dicom.overlays import DisplayShutter

SHORT_LABEL: Final = Concept("125309", "DCM", "Short Label")
_SOURCE: Final = Concept("260753009", "SCT", "Source")


class _WithoutPatient:
    """Makes a document without a patient; `document.complete` copies the patient, valid or empty, afterwards.

    highdicom copies the patient by the SOP class of the first object that is evidence, and raises KeyError if the class
    is private, as that of an object that was not read may be.

    Proposal: "SR documents: copy the patient and study attributes that an object has if its SOP class is unknown".
    """

    def copy_patient_and_study_information(self, dataset: Dataset) -> None:
        """Copy nothing."""


class ComprehensiveReport(_WithoutPatient, ComprehensiveSR):
    """A Comprehensive SR."""


class Comprehensive3DReport(_WithoutPatient, Comprehensive3DSR):
    """A Comprehensive 3D SR."""


class TextReport(_WithoutPatient, EnhancedSR):
    """An Enhanced SR that `call_basic_text` turns into a Basic Text SR."""


def call_basic_text(document: Dataset) -> None:
    """Give a report of texts, codes and references the class Basic Text SR (PS3.3 A.35.1), which highdicom lacks.

    Proposal: "Add highdicom.sr.BasicTextSR, which refuses NUM, SCOORD, SCOORD3D and TCOORD".
    """
    document.SOPClassUID = BasicTextSRStorage


def name_device(document: Dataset, device_uid: str) -> None:
    """Give the first contributing equipment a Device UID (0018,1002), and leave out highdicom's own item.

    `ContributingEquipment` has no such argument. highdicom adds itself with the time of the clock, with which the same
    input would give another object each time.

    Proposal: "ContributingEquipment: an argument device_uid; let callers of for_highdicom give contribution_datetime".
    """
    [own, *_] = document.ContributingEquipmentSequence
    own.DeviceUID = device_uid
    document.ContributingEquipmentSequence = [own]


def heading(root: ContainerContentItem) -> ContainerContentItem:
    """Return the root of a content tree with its first item alone; the document gets its content afterwards.

    A document class copies the whole tree twice and searches it three times: half of the time that a report takes. A
    test
    checks for every report what the class searches for: that the evidence has each object of the tree.

    Proposal: "SR documents: keep the content that is handed over without a copy, and search it once".
    """
    alone = ContainerContentItem(root.name, is_content_continuous=False, template_id=root.template_id)
    alone.ContentSequence = ContentSequence([root.ContentSequence[0]])
    return alone


def separate(item: Dataset) -> None:
    """Say of each container that its items are separate (PS3.3 C.18.8): all templates of highdicom say CONTINUOUS.

    Proposal: "MeasurementReport, measurement groups and KeyObjectSelection: let ContinuityOfContent be SEPARATE".
    """
    if item.get("ValueType") == "CONTAINER":
        item.ContinuityOfContent = "SEPARATE"
        for inner in item.get("ContentSequence", ()):
            separate(inner)


def observed(item: ContentItem, at: datetime) -> None:
    """Set the observation time of an item, if it differs from the report's (PS3.3 C.17.3); at: aware.

    Proposal: "ContentItem: an argument observation_datetime".
    """
    item.add_new("ObservationDateTime", "DT", f"{at:%Y%m%d%H%M%S}{f'{at:%z}'[:5]}")


def label(group: ContainerContentItem, words: str) -> None:
    """Add a Short Label to a measurement group: what dwv 0.36 draws beside a box.

    TID 1410 and TID 1501 of PS3.16 2024d do not have it, so there is nothing to propose.
    """
    group.ContentSequence.append(TextContentItem(SHORT_LABEL, words, RelationshipTypeValues.HAS_CONCEPT_MOD))


def image_library(source: Dataset, descriptors: Iterable[ContentItem]) -> ContainerContentItem:
    """Make an image library of one film (TID 1600) with the film's known descriptors.

    `ImageLibrary` raises an error for a film of modality CR or DX without Patient Orientation or Imager Pixel Spacing,
    which many films lack.

    Proposal: "ImageLibraryEntryDescriptors: leave out the descriptors of TID 1603 whose attributes the image has not".
    """
    names = str(source.SOPClassUID), str(source.SOPInstanceUID)
    entry = ImageContentItem(_SOURCE, *names, relationship_type=RelationshipTypeValues.CONTAINS)
    entry.ContentSequence = ContentSequence(list(descriptors))
    group, library = (
        ContainerContentItem(name, relationship_type=RelationshipTypeValues.CONTAINS)
        for name in (codes.DCM.ImageLibraryGroup, codes.DCM.ImageLibrary)
    )
    group.ContentSequence, library.ContentSequence = ContentSequence([entry]), ContentSequence([group])
    return library


def recommend_gray(layer: GraphicLayer, gray: int) -> GraphicLayer:
    """Recommend the gray value of a layer (PS3.3 C.10.7), 0 to 65535: `GraphicLayer` takes a color alone.

    DICOMscope 3.6 draws texts in this gray.

    Proposal: "GraphicLayer: an argument display_grayscale".
    """
    layer.GraphicLayerRecommendedDisplayGrayscaleValue = gray
    return layer


def style(drawn: GraphicObject | TextObject, of: DataElement) -> None:
    """Give a graphic or a text its style (PS3.3 C.10.5.1.1, C.10.5.1.2): color, shadow, thickness.

    Proposal: "GraphicObject and TextObject: arguments line_style and text_style".
    """
    drawn.add(of)


def leave_open(line: GraphicObject) -> None:
    """Say nothing of the inside of an open line, which has none (PS3.3 C.10.5).

    Proposal: "GraphicObject: set GraphicFilled for closed graphics alone".
    """
    del line.GraphicFilled


def show_whole(state: Dataset, pixel_shape: tuple[int, int]) -> None:
    """Set the Presentation Pixel Aspect Ratio of a state to its film's, height to width (PS3.3 C.10.4).

    highdicom always says 1 to 1, and names a Pixel Origin Interpretation, which only tiled images have.

    Proposal: "Presentation states: take the aspect ratio from the images, and leave Pixel Origin Interpretation out".
    """
    [area] = state.DisplayedAreaSelectionSequence
    area.PresentationPixelAspectRatio = list(pixel_shape)
    del area.PixelOriginInterpretation


def map_from(table: LUT, first: int) -> None:
    """Give a LUT its first mapped value and the representation of its numbers (PS3.3 C.11.1.1); pad it (PS3.5 8.1.1).

    `LUT` refuses a negative first value, which a film with signed pixels needs. Its numbers are US, or SS with a
    negative first value.

    Proposal: "LUT: allow a negative first_mapped_value".
    """
    count, _, bits = table.LUTDescriptor
    if first < 0:
        numbers = [count - 0x10000 if count > 0x7FFF else count, first, bits]
        table.add_new("LUTDescriptor", "SS", numbers)
    else:
        table.add_new("LUTDescriptor", "US", [count, first, bits])
    table.add_new("LUTData", "OW", table.LUTData + b"\0" * (len(table.LUTData) % 2))


def keep_film(source: Dataset, state: Dataset, *, layer: str) -> bool:
    """Activate a film's overlay planes in a layer and copy its shutter; return whether the layer is needed.

    A presentation state replaces the display of its film as a whole (PS3.3 C.11), so that a plane which it does not
    activate, such as a side marker, and a shutter which it does not have vanish. Planes stay in the film, and the state
    names the layer of each: dciodvfy of 2022 takes no copy whose group is not 6000, and a plane in the pixel cells has
    no copy. A plane that cannot be drawn is not displayed: its layer is empty (C.11.7).

    Proposal: "Presentation states: arguments for overlay activation and display shutter".
    """
    shown = {plane.group for plane in overlays.find_planes(source)}
    for group in overlays.groups_of(source):
        state.add_new(Tag(group, 0x1001), "CS", layer if group in shown else None)
    if (shutter := overlays.find_shutter(source)) is not None:
        _copy_shutter(shutter, state)
    return bool(shown)


def _copy_shutter(shutter: DisplayShutter, state: Dataset) -> None:
    """Copy a shutter (PS3.3 C.7.6.11, C.11.12)."""
    state.ShutterShape = [*shutter.shapes]
    for numbers in shutter.shapes.values():
        for keyword, several in numbers.items():
            setattr(state, keyword, list(several))
    state.ShutterPresentationValue = shutter.value


def describe_capture(capture: Dataset) -> None:
    """Describe a secondary capture (PS3.3 C.7.6.1, C.8.6): drawn at a workstation, without a time of capture.

    `SCImage` insists on directions, each a single letter; a text has none, and films have some of two letters.
    Its conversion type is always DI, its image type ends with OTHER, and the time of the capture is that of the clock.

    Proposal: "SCImage: arguments conversion_type, image_type and the date and time of the capture; let the patient
    orientation be empty or of several letters".
    """
    capture.PatientOrientation = ""
    capture.ConversionType = "WSD"
    capture.ImageType = ["DERIVED", "SECONDARY"]
    del capture.DateOfSecondaryCapture, capture.TimeOfSecondaryCapture
