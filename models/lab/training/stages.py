"""One stage of a run file: the weights it trains, its losses and length, and its augmentation, noise and sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from models.documents import Rule
from models.lab.losses import Answerer

_ABOVE_ZERO: Final = Rule(lambda value: None if 0 < value < math.inf else f"must be above 0, got {value}")
_NOT_NEGATIVE: Final = Rule(lambda value: None if 0 <= value < math.inf else f"must not be negative, got {value}")
Share = Annotated[float, Rule(lambda value: None if 0 <= value <= 1 else f"must lie in 0..1, got {value}")]
Positive = Annotated[float, _ABOVE_ZERO]
NotNegative = Annotated[float, _NOT_NEGATIVE]
PositiveCount = Annotated[int, _ABOVE_ZERO]
Count = Annotated[int, _NOT_NEGATIVE]
Schedule = Literal["cosine", "late_decay"]
Objective = Literal[
    "patho-detect",
    "patho-cls",
    "anat-detect",
    "anat-cls",
    "anat-mse",
    "anat-gen",
    "sent-contr",
    "sent-mse",
    "sent-gen",
    "global-contr",
    "text-gen",
    "align",
    "box",
    "score",
    "presence",
    "region-presence",
    "sent-box",
    "sent-score",
    "finding-gen",
]
"""The names of the losses; see `objectives`. Those from "align" on are not the paper's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The noise that training adds to the network (spec §0, 4.5, 6, 10); zeros add none.

    dropout: after attention and after each layer of an MLP, in detector and post decoder; prefix: in the generator's
    prefix
    attention: dropout of attention weights; drop_path: of whole branches; box_drop: of box tokens before the post
    decoder
    skip: how often a token is added to what its box pools, and skip_dropout: its dropout then; the evaluation has 1 and
    0
    words: how often a token of a prompt is replaced by the token for unseen words
    """

    dropout: Share = 0.0
    attention: Share = 0.0
    drop_path: Share = 0.0
    prefix: Share = 0.0
    box_drop: Share = 0.0
    skip: Share = 1.0
    skip_dropout: Share = 0.0
    words: Share = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """How films are changed before each use; the defaults change nothing (spec §1).

    flip: how often left and right are exchanged, words and regions included
    area: share of the film that is cut out; aspect: the largest ratio of its width to its height, or of its height to
    its width
    scale, shift, rotate: applied afterwards, at most; shift as a share of the side, rotate in degrees
    brightness, contrast: factors within 1 +- this; gamma: the logarithm of the exponent at most
    invert, equalize, blur, coarse, jpeg: how often black and white are exchanged, the contrast is equalized locally,
    the film blurred (sigma in pixels at most), its resolution reduced, or the film stored as JPEG; noise: its deviation
    at most, of gray values 0..1
    leads, clips, margin, letters: how often they are drawn onto the film, see `augment`
    exchange_sides: a mirrored film has its sides exchanged in words and regions; the published training leaves them
    forget_cropped: labels of boxes that were removed become unknown; in the published training they stay as they are
    """

    flip: Share = 0.0
    area: tuple[float, float] = (1.0, 1.0)
    aspect: float = 1.0
    scale: tuple[float, float] = (1.0, 1.0)
    shift: Share = 0.0
    rotate: float = 0.0
    brightness: Share = 0.0
    contrast: Share = 0.0
    gamma: NotNegative = 0.0
    invert: Share = 0.0
    equalize: Share = 0.0
    blur: Share = 0.0
    blur_sigma: Positive = 1.0
    coarse: Share = 0.0
    noise: Share = 0.0
    jpeg: Share = 0.0
    leads: Share = 0.0
    clips: Share = 0.0
    margin: Share = 0.0
    letters: Share = 0.0
    exchange_sides: bool = True
    forget_cropped: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.area[0] <= self.area[1] <= 1 or self.aspect < 1 or not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError("area must rise within 0..1, scale rise above 0, and aspect be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The random sample of prompts and texts in one training step.

    classes, regions: their expected number; sentences, hints: the most for one film; told: the most features with a
    generated text
    answerer: see `losses.detection`; together: how often prompts see each other in the post decoder, as published
    padded: sentences of a film see each other and their padding in the detector (spec §4.2, BUG-2), as published
    """

    classes: Positive = 10
    regions: Positive = 20
    sentences: PositiveCount = 8
    hints: Count = 0
    told: PositiveCount = 32
    answerer: Answerer = "first"
    together: Share = 1.0
    padded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedLabels:
    """How often labels mined from reports are wrong, as the loss of presence assumes.

    missed: false negative rate of the labels; invented: their false positive rate
    invented_by_class: false positive rate by class key, where it is another
    A class whose labels are not given more often than `invented` is not learned from them, see `mined`.
    """

    missed: Share = 0.0
    invented: Share = 0.0
    invented_by_class: Mapping[str, Share] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxTokenStart:
    """The initial box tokens of the detector in a stage, see `trained_model.set_box_tokens`.

    words: for each box of a prompt, words that follow a phrase, such as "on the left"; one entry may be blank
    strength: factor on the mean difference between the vector of a phrase with the words and that of the phrase alone
    """

    words: tuple[str, ...]
    strength: Positive = 1.0

    def __post_init__(self) -> None:
        if not self.words or len(set(self.words)) < len(self.words):
            raise ValueError("words must have different entries, one for each box of a prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a run, with its own optimizer.

    train, frozen: beginnings of the names of weights: those to train, and exceptions among them that stay frozen
    epochs or steps: its length; a step is one update, an epoch uses every film once
    batch: films of one batch, over all processes; accumulation: batches per update
    schedule: "cosine" from batch to batch as timm computes it, or "late_decay", constant until the last 30 %; warm_up:
    in batches, for both
    losses: the weight of each loss
    start_box_tokens: what the box tokens are set to before the first step; None keeps them
    """

    name: str
    train: tuple[str, ...]
    frozen: tuple[str, ...] = ()
    epochs: Count = 0
    steps: Count = 0
    batch: PositiveCount
    accumulation: PositiveCount = 1
    learning_rate: Positive
    warm_up: Count = 0
    weight_decay: NotNegative
    schedule: Schedule = "cosine"
    clip: Positive = 1.0
    losses: Mapping[Objective, Positive]
    noise: Noise = field(default_factory=Noise)
    augmentation: Augmentation = field(default_factory=Augmentation)
    drawing: Drawing = field(default_factory=Drawing)
    mined: MinedLabels = field(default_factory=MinedLabels)
    start_box_tokens: BoxTokenStart | None = None

    def __post_init__(self) -> None:
        if (self.epochs > 0) == (self.steps > 0):
            raise ValueError("epochs or steps must be above 0, and not both")
        if not self.losses or not self.train:
            raise ValueError("losses and train must not be empty")
