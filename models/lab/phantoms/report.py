"""A film's labels in words: findings present and absent, and clear regions. Every sentence is true of its film.

There is at least one sentence for each of the ten findings, and one for each region of the published report set that
holds nothing. No sentence is uncertain, because a phantom is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from models.lab.phantoms.anatomy import SIDES
from models.lab.phantoms.random_streams import RandomStream
from models.lab.phantoms.truth import FINDINGS, FindingInstance, FindingKey, Hint, Phantom, PhantomSentence, UnitBox

_SIZES = {"mild": "small", "moderate": "moderate", "severe": "large"}
_SPOKEN_REGIONS = (
    "upper lung zone",
    "mid lung zone",
    "lower lung zone",
    "hilar structures",
    "apical zone",
    "clavicle",
    "mediastinum",
    "cardiac silhouette",
    "abdomen",
)

# {size} small, moderate, large; {degree} mild, moderate, severe; {side}; {zone} "upper lung zone" or "lung"; {bone}
_PRESENT: Mapping[str, tuple[str, ...]] = {
    "pleural_effusion": (
        "There is a {size} {side} pleural effusion.",
        "A {size} pleural effusion is seen on the {side}.",
        "{Size} {side} pleural effusion.",
        "The {side} costophrenic angle is obscured by a {size} pleural effusion.",
    ),
    "pneumothorax apical": (
        "There is a {size} {side} apical pneumothorax.",
        "A {size} pneumothorax is seen at the {side} apex.",
        "{Size} {side} pneumothorax.",
    ),
    "pneumothorax large": (
        "There is a large {side} pneumothorax.",
        "A large pneumothorax is seen on the {side}, with collapse of the lung.",
        "Large {side} pneumothorax.",
    ),
    "pneumothorax deep sulcus": (
        "There is a {size} {side} basal pneumothorax with a deep costophrenic sulcus.",
        "A {size} pneumothorax is seen at the {side} base.",
        "{Size} {side} pneumothorax.",
    ),
    "atelectasis plate": (
        "There is plate-like atelectasis at the {side} lung base.",
        "Linear atelectasis is seen in the {side} lower lung zone.",
        "{Degree} {side} basilar atelectasis.",
    ),
    "atelectasis lobar": (
        "There is atelectasis of the {side} {zone} with loss of volume.",
        "Collapse is seen in the {side} {zone}, consistent with atelectasis.",
        "{Degree} {side} {zone} atelectasis.",
    ),
    "consolidation": (
        "There is {degree} consolidation in the {side} {zone}.",
        "Consolidation with air bronchograms is seen in the {side} {zone}.",
        "{Degree} {side} {zone} consolidation.",
    ),
    "lung_lesion nodule": (
        "There is a nodule in the {side} {zone}.",
        "A lung nodule is seen in the {side} {zone}.",
        "Nodule in the {side} {zone}.",
    ),
    "lung_lesion mass": (
        "There is a mass in the {side} {zone}.",
        "A {size} lung mass is seen in the {side} {zone}.",
        "Mass in the {side} {zone}.",
    ),
    "lung_opacity": (
        "There is a patchy opacity in the {side} {zone}.",
        "{Degree} hazy opacity is seen in the {side} {zone}.",
        "Patchy {side} {zone} opacity.",
    ),
    "edema": (
        "There is {degree} pulmonary edema.",
        "{Degree} perihilar pulmonary edema is seen.",
        "{Degree} pulmonary edema with interstitial thickening.",
    ),
    "cardiomegaly": (
        "The heart is {degree}ly enlarged.",
        "There is {degree} cardiomegaly.",
        "{Degree} enlargement of the cardiac silhouette.",
    ),
    "fracture": (
        "There is a displaced fracture of {a bone}.",
        "Displaced {bone} fracture.",
        "A {bone} fracture is seen.",
    ),
    "tracheal tube": ("An endotracheal tube ends above the carina.", "There is an endotracheal tube in the trachea."),
    "central line": ("A {side} central venous line is in place.", "There is a {side} central line in the vena cava."),
    "feeding tube": ("A nasogastric tube ends in the stomach.", "There is a nasogastric tube in the stomach."),
    "chest tube": ("A {side} chest tube is in place.", "There is a {side} chest tube."),
    "pacemaker": ("A {side} chest wall pacemaker is in place.", "There is a {side} pacemaker with leads in the heart."),
}
"""The keys are a finding, a finding and its kind, or the kind of a device."""

_BOTH: Mapping[FindingKey, tuple[str, ...]] = {
    "pleural_effusion": ("There are bilateral pleural effusions.", "Pleural effusions are seen on both sides."),
    "pneumothorax": ("There are bilateral pneumothoraces.", "Pneumothoraces are seen on both sides."),
    "atelectasis": ("There is bilateral atelectasis.", "Atelectasis is seen on both sides."),
    "consolidation": ("There is bilateral consolidation.", "Consolidations are seen in both lungs."),
    "lung_lesion": ("There are lesions in both lungs.", "Lung lesions are seen on both sides."),
    "lung_opacity": ("There are bilateral patchy opacities.", "Patchy opacities are seen in both lungs."),
}

_ABSENT: Mapping[FindingKey, tuple[str, ...]] = {
    "pleural_effusion": ("There is no pleural effusion.", "No pleural effusion is seen.", "No effusion."),
    "pneumothorax": ("There is no pneumothorax.", "No pneumothorax is seen.", "No pneumothorax."),
    "atelectasis": ("There is no atelectasis.", "No atelectasis is seen.", "No collapse of the lungs."),
    "consolidation": ("There is no consolidation.", "No focal consolidation is seen.", "No consolidation."),
    "lung_lesion": ("There is no lung nodule or mass.", "No lung lesion is seen.", "No nodule or mass."),
    "lung_opacity": (
        "There is no patchy opacity.",
        "No patchy opacity is seen.",
        "No patchy opacity.",
    ),
    "edema": ("There is no pulmonary edema.", "No pulmonary edema is seen.", "No edema."),
    "cardiomegaly": ("The heart is not enlarged.", "The heart size is normal.", "No cardiomegaly."),
    "fracture": ("There is no displaced fracture.", "No fracture is seen.", "The bones are intact."),
    "support_devices": ("There are no support devices.", "No tubes or lines are seen.", "No support devices."),
}

_CLEAR = ("The {region} is clear.", "No abnormality is seen in the {region}.", "The {region} is normal.")
_CLEAR_OF_MANY = ("The {region} are clear.", "No abnormality is seen in the {region}.", "The {region} are normal.")

_NAMES: Mapping[FindingKey, str] = {key: key.replace("_", " ") for key in FINDINGS}
_HINTS = ("{finding} in the {side} lung", "{side} {finding}", "{finding} on the {side}", "{side}-sided {finding}")
_UNTAUGHT_HINTS = ("{finding} of the {side} hemithorax", "on the patient's {side} side: {finding}")


def sentences_of(
    instances: Sequence[FindingInstance], regions: Mapping[str, UnitBox], stream: RandomStream
) -> tuple[PhantomSentence, ...]:
    """Put findings and clear regions into sentences: findings in a fixed order, then regions in their order."""
    told: list[PhantomSentence] = []
    for key in FINDINGS:
        own = [instance for instance in instances if instance.finding == key]
        told.extend(_of_present(key, own, stream) if own else [_of_absent(key, stream)])
    held = {region for instance in instances for region in instance.regions}
    told.extend(
        _of_clear(region, regions[region], stream) for region in regions if _is_spoken(region) and region not in held
    )
    return tuple(told)


def hints_of(film: Phantom, *, untaught: bool = False) -> tuple[Hint, ...]:
    """Ask for each finding that both sides have, on each side; except for devices, which may cross the midline.

    untaught: use wordings that training never uses
    """
    stream = RandomStream(film.seed, "hints")
    wordings = _UNTAUGHT_HINTS if untaught else _HINTS
    return tuple(
        Hint(
            text=stream.pick(wordings).format(finding=_NAMES[key], side=side),
            finding=key,
            side=side,
            boxes=film.boxes_of(key, side),
            others=film.boxes_of(key, other),
        )
        for key in FINDINGS
        if key != "support_devices" and all(len(film.boxes_of(key, side)) for side in SIDES)
        for side, other in (SIDES, SIDES[::-1])
    )


def _of_present(key: FindingKey, own: Sequence[FindingInstance], stream: RandomStream) -> Iterator[PhantomSentence]:
    both = {instance.side for instance in own} >= set(SIDES)
    if key == "edema" or (both and key in _BOTH and stream.chance(0.4)):
        text = stream.pick(_BOTH[key]) if key in _BOTH else _words(own[0], stream)
        yield _sentence(text, key, own)
        return
    for instance in own:
        yield _sentence(_words(instance, stream), key, [instance])


def _words(instance: FindingInstance, stream: RandomStream) -> str:
    named = f"{instance.finding} {instance.kind}"
    template = stream.pick(_PRESENT.get(named) or _PRESENT.get(instance.finding) or _PRESENT[instance.kind])
    bone = f"{instance.side} {instance.kind}"
    size, degree = _SIZES[instance.severity], instance.severity
    return (
        template.replace("{a bone}", f"a {bone}" if instance.kind == "rib" else f"the {bone}")
        .replace("{bone}", bone)
        .replace("{side}", instance.side or "")
        .replace("{zone}", f"{instance.zone} lung zone" if instance.zone else "lung")
        .replace("{size}", size)
        .replace("{Size}", size.capitalize())
        .replace("{degree}", degree)
        .replace("{Degree}", degree.capitalize())
    )


def _sentence(text: str, key: FindingKey, own: Sequence[FindingInstance]) -> PhantomSentence:
    regions = dict.fromkeys(region for instance in own for region in instance.regions)
    boxes = np.stack([instance.box for instance in own])
    return PhantomSentence(text=text, findings=(key,), positive=True, regions=tuple(regions), boxes=boxes)


def _of_absent(key: FindingKey, stream: RandomStream) -> PhantomSentence:
    nowhere = np.zeros((0, 4), dtype=np.float32)
    return PhantomSentence(text=stream.pick(_ABSENT[key]), findings=(key,), positive=False, regions=(), boxes=nowhere)


def _of_clear(region: str, box: UnitBox, stream: RandomStream) -> PhantomSentence:
    wordings = _CLEAR_OF_MANY if region.endswith("structures") else _CLEAR
    text = stream.pick(wordings).format(region=region)
    return PhantomSentence(text=text, findings=(), positive=False, regions=(region,), boxes=box[np.newaxis])


def _is_spoken(region: str) -> bool:
    return region.removeprefix("right ").removeprefix("left ") in _SPOKEN_REGIONS
