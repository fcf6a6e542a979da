"""What a presentation state keeps of its film beside the gray values: overlay planes and display shutter.

A presentation state replaces the display of its film as a whole (PS3.3 C.11), so that a plane which it does not
activate, such as a side marker, and a shutter which it does not have vanish. Planes stay in the film, and the state
names the layer of each: dciodvfy of 2022 takes no copy whose group is not 6000, and a plane in the pixel cells has no
copy. Only a bitmap shutter must be in the state itself (PS3.3 C.7.6.15).
"""

from __future__ import annotations

from pydicom.dataset import Dataset
from pydicom.tag import Tag

from node.dicom import display_shutter, overlay_planes
from node.dicom.display_shutter import DisplayShutter
from node.dicom.overlay_planes import OverlayPlane


def describe(source: Dataset, state: Dataset, *, layer: str) -> bool:
    """Activate the overlay planes of a film in a layer and copy its shutter; say whether the layer is needed.

    A plane that cannot be drawn, or is the bitmap of the shutter, is not displayed: its layer is empty (C.11.7).
    """
    shutter = display_shutter.find(source)
    bitmap = None if shutter is None else shutter.bitmap
    shown = {plane.group for plane in overlay_planes.find(source) if plane != bitmap}
    for group in overlay_planes.groups_of(source):
        state.add_new(Tag(group, 0x1001), "CS", layer if group in shown else None)
    if shutter is not None:
        _describe_shutter(shutter, state)
    return bool(shown)


def _describe_shutter(shutter: DisplayShutter, state: Dataset) -> None:
    """Copy a shutter (PS3.3 C.7.6.11, C.7.6.15, C.11.12)."""
    state.ShutterShape = [*shutter.shapes] or "BITMAP"
    for numbers in shutter.shapes.values():
        for keyword, several in numbers.items():
            setattr(state, keyword, list(several))
    if shutter.bitmap is not None:
        state.ShutterOverlayGroup = shutter.bitmap.group
        _copy(shutter.bitmap, state)
    state.ShutterPresentationValue = shutter.value


def _copy(plane: OverlayPlane, state: Dataset) -> None:
    """Copy an overlay plane (PS3.3 C.9.2)."""
    packed = plane.packed or b""
    for element, vr, value in (
        (0x0010, "US", plane.rows),
        (0x0011, "US", plane.columns),
        (0x0040, "CS", "R" if plane.is_region else "G"),
        (0x0050, "SS", list(plane.origin)),
        (0x0100, "US", 1),
        (0x0102, "US", 0),
        (0x3000, "OW", packed + b"\0" * (len(packed) % 2)),
    ):
        state.add_new(Tag(plane.group, element), vr, value)
