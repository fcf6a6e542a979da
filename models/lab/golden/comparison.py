"""Compares every recorded array and text with what our network computes, or an engine: its stages and sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.contract import StageDifference
from models.engines import Engine, Patches
from models.errors import ModelError
from models.lab.golden import network, tasks
from models.lab.golden.recording import PHRASES, Array, Computed, RecordedNetwork, Recording, Texts

PARTS: Mapping[str, Callable[[RecordedNetwork], Computed]] = {
    "preprocessing": network.pictures,
    "image encoder": network.image_encoder,
    "prompt encoder": network.prompt_encoder,
    "report queries": network.report_queries,
    "detector": network.report_detector,
    "detector, prompts together": network.open_detector,
    "post decoder": network.report_post_decoder,
    "box queries": network.region_pooling,
    "sentences": network.report_sentences,
    "sentences, other selection": network.other_sentences,
    "sentences of regions": network.region_margins,
    "detection": tasks.detections,
    "grounding": tasks.groundings,
    "regions": tasks.regions,
    "positiveness": tasks.positiveness,
    "report selection": tasks.selections,
    "losses": tasks.losses,
}

# The first that fits (README of the recording). Ids, masks and texts are equal or not.
_TOLERANCES = (
    (r".*/roi_pooled", 1e-3),  # values reach 70
    (r"lm/.*|loss/.*|.*similarity01", 1e-5),
    (r".*(boxes\d?(_\d)?|boxes_unclipped|boxes_weights|roi_maps|cls_probs)", 1e-5),
    (r".*", 1e-4),
)
_DESCRIPTIONS = "stats/"
"""Texts that describe the recording and are not results."""

_UNUSABLE = (ModelError, ValueError, TypeError, KeyError, IndexError, RuntimeError)
"""The errors caused by a recorded input that is missing or does not fit the rest of the recording."""


def engine_part(engine: Engine) -> Callable[[RecordedNetwork], Computed]:
    """Return the part of a comparison that this engine computes; it must have the recorded weights."""

    def compute(ours: RecordedNetwork) -> Computed:
        """Run every function of the engine on recorded inputs."""
        for kind in PHRASES:
            tokens = ours.recording.take(f"txt/{kind}/ids").numpy().astype(np.int64)
            yield f"txt/{kind}/emb", engine.encode_prompts(tokens)
        patches = engine.encode_image(_floats(ours, "x"))
        yield "img/patch_features", patches.features
        yield "img/pos_embeddings", patches.positions
        yield "img/cls_features", patches.cls
        yield from _report(engine, ours, patches)
        yield from _boxes(engine, ours, patches)

    return compute


def _report(engine: Engine, ours: RecordedNetwork, patches: Patches) -> Computed:
    prompts = np.stack([_floats(ours, "rg/token_prompts")] * len(patches.cls))
    found = engine.find(patches, prompts)
    yield "rg/multiboxes", found.boxes
    yield "rg/multiboxes_weights", found.scores
    yield "rg/boxes_weights", found.aggregated_scores
    yield "rg/box_features_post", found.features
    for film, told in enumerate(ours.recording.take("rg/region_mask").numpy()):
        # The manifest may allow longer sentences than recorded; with greedy decoding their beginnings are equal.
        name = f"rg/gen{film}/token_ids"
        yield name, engine.write(found.features[film, told])[:, : ours.recording.extent(name, axis=1)]


def _boxes(engine: Engine, ours: RecordedNetwork, patches: Patches) -> Computed:
    """Describe the recorded boxes of the first film, each independently."""
    boxes = _floats(ours, "region/boxes")[:1]
    nothing = np.zeros((*boxes.shape[:2], ours.network.sizes.dim), dtype=np.float32)
    first = Patches(features=patches.features[:1], positions=patches.positions[:1], cls=patches.cls[:1])
    features = engine.describe(first, boxes=boxes, prompts=nothing, prompted=nothing[..., 0])
    yield "region/features_nomask0", features


def _floats(ours: RecordedNetwork, name: str) -> NDArray[np.float32]:
    return ours.recording.take(name).numpy().astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of a comparison.

    arrays: by name, the largest difference; infinite if shapes differ or a number is NaN
    given: arrays and texts that were inputs of our network; its outputs are compared
    parts: by part, the name of the array that came nearest to its tolerance
    texts: whether each is equal; exact: arrays of ids and masks
    missing: what is recorded and was not compared, and what was computed and is not recorded
    broken: by part, why it could not be computed completely
    """

    arrays: Mapping[str, StageDifference]
    given: frozenset[str]
    parts: Mapping[str, str]
    texts: Mapping[str, bool]
    exact: frozenset[str]
    missing: tuple[str, ...]
    broken: Mapping[str, str]

    @property
    def ids_equal(self) -> bool:
        """Return whether all ids and masks are the recorded ones."""
        return all(self.arrays[name].passed for name in self.exact)

    @property
    def texts_equal(self) -> bool:
        """Return whether all texts are the recorded ones."""
        return all(self.texts.values())

    @property
    def passed(self) -> bool:
        """Return whether everything was compared and is within its tolerance."""
        near = all(difference.passed for difference in self.arrays.values())
        return near and self.texts_equal and not self.missing and not self.broken


def compare(ours: RecordedNetwork, *, engine: Engine | None = None) -> Comparison:
    """Compute everything again and compare it with the recording.

    engine: compare the results of this engine, which must have the same weights; it offers few of the recorded stages
    """
    parts = PARTS if engine is None else {f"engine {engine.name}": engine_part(engine)}
    recording = ours.recording
    arrays: dict[str, StageDifference] = {}
    texts: dict[str, bool] = {}
    worst: dict[str, str] = {}
    missing: list[str] = []
    broken: dict[str, str] = {}
    for part, compute in parts.items():
        computed, reason = _computed(ours, compute)
        broken |= {part: reason} if reason else {}
        for name, value in computed.items():
            if isinstance(value, Tensor | np.ndarray) and name in recording.arrays:
                arrays[name] = difference(name, value, recording.arrays[name])
            elif name in recording.texts:
                texts[name] = same(value, recording.texts[name])
            else:
                missing.append(name)
        worst |= _worst(part, [name for name in computed if name in arrays], arrays)
    given = frozenset(recording.taken - arrays.keys() - texts.keys())
    if engine is None:
        missing += [name for name in _results(recording) if name not in {*arrays, *texts, *given}]
    fed = given & recording.arrays.keys()
    arrays |= {name: difference(name, recording.take(name), recording.arrays[name]) for name in fed}
    return Comparison(
        arrays=arrays,
        given=given,
        parts=worst,
        texts=texts,
        exact=frozenset(name for name in arrays if recording.arrays[name].dtype.kind in "biu"),
        missing=tuple(dict.fromkeys([*sorted(recording.absent), *missing])),
        broken=broken,
    )


def difference(name: str, ours: Tensor | Array, recorded: Array) -> StageDifference:
    """Measure one array. The recording may split one of our axes in two: patches in a grid, boxes by their prompt."""
    array = np.asarray(ours)
    tolerance = 0.0 if recorded.dtype.kind in "biu" else tolerance_of(name)
    if not (_is_number(array) and _is_number(recorded) and _fits(array.shape, recorded.shape)):
        return StageDifference(max_abs=float("inf"), tolerance=tolerance)
    apart = np.abs(array.reshape(recorded.shape).astype(np.float64) - recorded.astype(np.float64))
    largest = float(apart.max(initial=0.0))
    return StageDifference(max_abs=largest if np.isfinite(largest) else float("inf"), tolerance=tolerance)


def tolerance_of(name: str) -> float:
    """Say how far an array of numbers may be off."""
    return next(tolerance for pattern, tolerance in _TOLERANCES if re.fullmatch(pattern, name))


def same(ours: object, recorded: object, *, tolerance: float = 1e-5) -> bool:
    """Compare nested texts; numbers among them are scores, with a small tolerance."""
    if isinstance(ours, Mapping) and isinstance(recorded, Mapping):
        return ours.keys() == recorded.keys() and all(same(ours[key], recorded[key]) for key in ours)
    if isinstance(ours, list | tuple) and isinstance(recorded, list | tuple):
        return len(ours) == len(recorded) and all(same(*pair) for pair in zip(ours, recorded, strict=True))
    if isinstance(ours, float) or isinstance(recorded, float):
        return isinstance(ours, int | float) and isinstance(recorded, int | float) and abs(ours - recorded) <= tolerance
    return ours == recorded


def _computed(
    ours: RecordedNetwork, compute: Callable[[RecordedNetwork], Computed]
) -> tuple[dict[str, Tensor | Array | Texts], str | None]:
    """Compute a part as far as its inputs allow; returns the error that stopped it, too."""
    computed: dict[str, Tensor | Array | Texts] = {}
    try:
        with torch.inference_mode():
            computed.update(compute(ours))
    except _UNUSABLE as error:
        return computed, str(error).partition("\n")[0] or type(error).__name__
    return computed, None


def _is_number(array: Array) -> bool:
    return array.dtype.kind in "biuf"


def _fits(ours: tuple[int, ...], recorded: tuple[int, ...]) -> bool:
    """Return whether shapes are equal, ignoring axes of length 1 and one axis of ours that is recorded as two."""
    ours, recorded = (tuple(extent for extent in shape if extent != 1) for shape in (ours, recorded))
    joined = [
        (*recorded[:axis], recorded[axis] * recorded[axis + 1], *recorded[axis + 2 :])
        for axis in range(len(recorded) - 1)
    ]
    return ours in (recorded, *joined)


def _worst(part: str, names: Iterable[str], arrays: Mapping[str, StageDifference]) -> dict[str, str]:
    """Name the array of a part that is nearest to its tolerance; none if all are exact."""
    measured = [name for name in names if arrays[name].tolerance > 0]
    return {part: max(measured, key=lambda name: arrays[name].max_abs / arrays[name].tolerance)} if measured else {}


def _results(recording: Recording) -> list[str]:
    """List the recorded results, without descriptions."""
    return [*recording.arrays, *(name for name in recording.texts if not name.startswith(_DESCRIPTIONS))]
