"""`manifest.toml`: everything about a model that is not in its weights (design §4).

Sizes, input rule, decision values and file hashes, in dataclasses that refuse invalid values. Every size of the network
is read from here, so the same program runs the published network and a small one. Keys are the field names; an unknown
or missing key is an error, because a silent default would change the network's answers.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import tomli_w

from models.bounds import require_divisible, require_positive, require_rising, require_size, require_unit
from models.contract import ChangeError
from models.decisions import Decisions, RatioError, ThresholdChange
from models.documents import from_file, read_toml
from models.errors import ModelError
from models.files import replacing
from models.views import ViewRule

MANIFEST = "manifest.toml"
WEIGHTS = "weights.safetensors"

_LONGEST = 1 << 20
"""The greatest size of a manifest in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageEncoderSizes:
    """The vision transformer (spec §2). `image_size` is the side of its input in pixels, `output` the shared dim.

    stem: how pixels become patches: "patch" by one linear layer, as published; "conv" by convolutions of stride 2,
    which keep small lesions in sight; "residual" by these with a residual block after each but the first
    """

    stem: Literal["patch", "conv", "residual"] = "patch"
    patch_size: int
    image_size: int
    width: int
    layers: int
    heads: int
    output: int

    def __post_init__(self) -> None:
        require_size(self)
        require_divisible("image_size", self.image_size, "patch_size", self.patch_size)
        require_divisible("width", self.width, "heads", self.heads)
        if self.stem != "patch":
            if self.patch_size < 2 or self.patch_size.bit_count() != 1:
                raise ValueError(f"patch_size ({self.patch_size}) must be a power of 2 with stem {self.stem}")
            require_divisible("width", self.width, "patch_size / 2", self.patch_size // 2)

    @property
    def grid(self) -> int:
        """Patches along one side of the square."""
        return self.image_size // self.patch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEncoderSizes:
    """The text transformer (spec §3). `context` is the token count of every prompt, padding included.

    own_tokens: ids with an embedding of their own, rising; all others share one. If empty, each id has its own
    """

    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int
    output: int
    own_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_size(self)
        require_divisible("width", self.width, "heads", self.heads)
        require_rising("own_tokens", self.own_tokens, below=self.vocabulary)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorSizes:
    """The prompt detector (spec §4). `beta` is the exponent of the soft boxes; 2 is a Gaussian.

    pooling: "sum" adds up the patches of a box, as published; "scaled_sum" scales the sum to that of 49 patches, so
    that a finer grid gives numbers of the same size
    """

    dim: int
    heads: int
    layers: int
    boxes_per_prompt: int
    feedforward: int
    beta: float
    pooling: Literal["sum", "scaled_sum"] = "sum"

    def __post_init__(self) -> None:
        require_size(self)
        require_divisible("dim", self.dim, "heads", self.heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostDecoderSizes:
    """The post decoder (spec §6). All other sizes of its layers are those of the detector.

    layers: 0 leaves nothing of it but the norm of its output
    """

    layers: int

    def __post_init__(self) -> None:
        if self.layers:
            require_size(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSizes:
    """The sentence generator (spec §7). `max_length` counts tokens of a sentence, the leading BOS included.

    prefix_hidden: the inner width of what makes the prefix of a feature; 0: one linear layer makes it
    prefix_shared: all layers have the same keys and values of the prefix; as published each has its own
    own_tokens: as in the prompt encoder
    """

    vocabulary: int
    positions: int
    width: int
    layers: int
    heads: int
    prefix_length: int
    prefix_hidden: int
    max_length: int
    own_tokens: tuple[int, ...] = ()
    prefix_shared: bool = False

    def __post_init__(self) -> None:
        require_size(self, may_be_zero=("prefix_hidden", "prefix_shared"))
        require_divisible("width", self.width, "heads", self.heads)
        require_rising("own_tokens", self.own_tokens, below=self.vocabulary)
        if self.max_length > self.positions:
            raise ValueError(f"max_length ({self.max_length}) must not exceed positions ({self.positions})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSizes:
    """The view head (`network.view_head`): `cells` along one side of its grid, and the `width` of its inner layer."""

    cells: int
    width: int

    def __post_init__(self) -> None:
        require_size(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSizes:
    """Every size of the network. The outputs of image and prompt encoder have the detector's dim.

    views: None without a view head, as published
    """

    image_encoder: ImageEncoderSizes
    prompt_encoder: PromptEncoderSizes
    detector: DetectorSizes
    post_decoder: PostDecoderSizes
    generator: GeneratorSizes
    views: ViewSizes | None = None

    def __post_init__(self) -> None:
        outputs = (self.image_encoder.output, self.prompt_encoder.output)
        if outputs != (self.detector.dim, self.detector.dim):
            raise ValueError(f"image_encoder.output, prompt_encoder.output {outputs} must equal {self.detector.dim}")
        if self.views is not None:
            require_divisible("image_encoder grid", self.image_encoder.grid, "views.cells", self.views.cells)

    @property
    def dim(self) -> int:
        """The length of the features that are passed between the parts."""
        return self.detector.dim


PUBLISHED_SIZES = NetworkSizes(
    image_encoder=ImageEncoderSizes(patch_size=32, image_size=224, width=768, layers=12, heads=12, output=512),
    prompt_encoder=PromptEncoderSizes(vocabulary=49408, context=77, width=512, layers=12, heads=8, output=512),
    detector=DetectorSizes(dim=512, heads=8, layers=6, boxes_per_prompt=3, feedforward=2048, beta=2.0),
    post_decoder=PostDecoderSizes(layers=3),
    generator=GeneratorSizes(
        vocabulary=50257,
        positions=1024,
        width=1024,
        layers=24,
        heads=16,
        prefix_length=5,
        prefix_hidden=2048,
        max_length=128,
    ),
)
PUBLISHED_MEAN, PUBLISHED_STD = 0.505, 0.248
"""Mean and standard deviation of the gray values that the published network was trained with (spec §1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRule:
    """How a gray film becomes the network's input (spec §1).

    size: side of the input in pixels
    mean, std: of gray values 0..1
    resize: "direct" crops the central square and resizes it; "via_256" first brings the shorter side to 256
    """

    size: int
    mean: float
    std: float
    resize: Literal["direct", "via_256"]

    def __post_init__(self) -> None:
        require_positive(self, "size", "std")
        if not math.isfinite(self.mean):
            raise ValueError(f"mean ({self.mean}) must be finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionRule:
    """How boxes are scored and suppressed when detection is measured (spec §9.2).

    What the node reports is not changed by it: `Decisions` says how those boxes are merged.

    scored_by: the comparison of a box's content with the prompt; the detector's own score of the box; or the product of
    both
    scales: factors for width and height, by prompt key; 1 for every other key
    overlap: if two boxes of a finding overlap by more, only the better one stays
    """

    scored_by: Literal["prompts", "weights", "both"] = "both"
    temperature: float = 0.5
    scales: Mapping[str, float] = field(default_factory=dict)
    overlap: float = 0.25

    def __post_init__(self) -> None:
        require_positive(self, "temperature")
        require_unit(self, "overlap")
        for key, scale in self.scales.items():
            if not 0 < scale < math.inf:
                raise ValueError(f"scales.{key} ({scale}) must be above 0 and finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRule:
    """How findings are put into words, and when two sentences count as duplicates (spec §9.1.6).

    remove_above: duplicates at or above this similarity are always removed; similarities are (cosine + 1) / 2
    soft_remove_above: and at or above this one while more than `max_sentences` are left
    emphasis: how far a feature is moved toward the decision before its sentence is generated: a share of the feature's
    length, along the line between the two prompts of a finding. Sentences of different decisions are then never
    duplicates. 0 as published
    """

    remove_above: float = 0.95
    soft_remove_above: float = 0.9
    max_sentences: int = 10
    emphasis: float = 0.0

    def __post_init__(self) -> None:
        require_unit(self, "remove_above", "soft_remove_above", "emphasis")
        require_positive(self, "max_sentences")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """The ages of patients that a model is for, in completed years; most: None for no limit."""

    least: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.least <= (200 if self.most is None else self.most):
            raise ValueError(f"least ({self.least}) must be 0 or more, and not above most ({self.most})")

    def __contains__(self, age: object) -> bool:
        """Return whether the model is for an age."""
        return isinstance(age, int) and age >= self.least and (self.most is None or age <= self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a model directory says about itself.

    gray: how the film's gray values are made: "voi" as displayed, "mimic_jpg" as in MIMIC-CXR-JPG (spec §15)
    views: how the outputs of the view head are read; None without that head
    ages: of the patients whose films it is for; None for any
    cardiothoracic: the measured error of the cardiothoracic ratio; None if nobody measured it
    change: the measured error of a change between two films; None if nobody measured it
    origins: where the weights of each part came from, by the beginning of their names, if not all from one place
    vocabulary: the words, in lower case, that the prompt encoder learned; empty if it knows any word, as the published
    one, which began with CLIP's
    history: thresholds that were chosen again for this model directory, the oldest first
    chosen_on: what the films of people are recognized by that decisions were chosen on; no patient can be told from it
    files: sha256 of every other file, by its path inside the directory with forward slashes
    """

    name: str
    version: str
    licence: str
    trained_on: str
    intended_use: str
    gray: Literal["voi", "mimic_jpg"]
    input: InputRule
    sizes: NetworkSizes
    decisions: Decisions
    report: ReportRule = field(default_factory=ReportRule)
    detection: DetectionRule = field(default_factory=DetectionRule)
    views: ViewRule | None = None
    ages: Ages | None = None
    cardiothoracic: RatioError | None = None
    change: ChangeError | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    vocabulary: tuple[str, ...] = ()
    history: tuple[ThresholdChange, ...] = ()
    chosen_on: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("name", "version"):
            if not getattr(self, key).strip():
                raise ValueError(f"{key} must not be blank")
        if (self.views is None) != (self.sizes.views is None):
            raise ValueError("views and sizes.views belong together; give both or neither")
        if self.input.size != self.sizes.image_encoder.image_size:
            raise ValueError(
                f"input.size ({self.input.size}) must equal sizes.image_encoder.image_size "
                f"({self.sizes.image_encoder.image_size})"
            )

    def on_phantoms(self) -> Manifest:
        """Return the manifest with the decisions for phantoms."""
        return replace(self, decisions=self.decisions.on_phantoms())


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a model directory. Raises ModelError that lists every mistake in it."""
    path = directory / MANIFEST
    try:
        if path.exists() and not path.is_file():  # opening a named pipe waits for a writer
            raise ModelError(f"{path} is not a regular file; restore the model directory")
        if path.stat().st_size > _LONGEST:
            raise ModelError(f"{path} has more than {_LONGEST} bytes; restore the model directory")
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); name a model directory") from error
    table = read_toml(path, name="a model directory")
    if unprinted := sorted({repr(place) for place, text in _texts(table) if not _is_printed(text)}):
        raise ModelError(
            f"{path}: {', '.join(unprinted)}: a text has control characters, or some that nobody sees; remove them"
        )
    return from_file(Manifest, table, path=path)


def _texts(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a TOML value, keys too, with the keys that lead to it."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry, place)
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield place or "a key", key
            yield from _texts(entry, f"{place}.{key}" if place else key)


def _is_printed(text: str) -> bool:
    """Return whether a text has neither control nor format characters: outputs, pages and logs repeat it."""
    return not any(unicodedata.category(letter) in ("Cc", "Cf") for letter in text)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest of a model directory atomically."""
    table = asdict(manifest)
    for key in ("origins", "vocabulary", "history", "chosen_on"):
        if not table[key]:
            del table[key]
    for part in ("prompt_encoder", "generator"):
        if not table["sizes"][part]["own_tokens"]:
            del table["sizes"][part]["own_tokens"]
    for key in ("measurements", "phantoms"):
        if not table["decisions"][key]:
            del table["decisions"][key]
    if manifest.decisions.merge_overlap == 1:
        del table["decisions"]["merge_overlap"]
    if manifest.detection == DetectionRule():
        del table["detection"]
    with replacing(directory / MANIFEST) as file:
        file.write(tomli_w.dumps(_stated(table)).encode())


def _stated(table: Mapping[str, object]) -> dict[str, object]:
    """Leave out what is None, which TOML cannot say."""
    stated = {key: value for key, value in table.items() if value is not None}
    return {key: _stated(value) if isinstance(value, Mapping) else value for key, value in stated.items()}
