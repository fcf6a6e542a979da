"""The run file: every setting that decides the result of a run.

`Run` is that of a whole training, `ViewRun` that of a view head alone.

What is not in the run file is fixed in the code; the environment is not read. Paths are relative to the folder in which
the command runs. When a run is continued, two things may differ: settings of `Machine` that do not change the results,
and `start_share`, which changes no step, only the weights that are written at the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from models.documents import from_file, read_toml
from models.errors import ModelError
from models.lab.training.stages import Augmentation, Count, NotNegative, Positive, PositiveCount, Share, Stage
from models.manifest import Ages, NetworkSizes, ViewSizes

PROGRAM: Final = 4
"""The version of what a run computes and keeps: one that another version began cannot go on."""
ClassSet = Literal["chexpert", "vindr", "cig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The identity of the model directory, the storage of its weights, and how films become its input."""

    name: str
    version: str
    licence: str
    trained_on: str
    intended_use: str
    store: Literal["float32", "half"] = "float32"
    gray: Literal["voi", "mimic_jpg"] = "voi"
    resize: Literal["direct", "via_256"] = "direct"
    ages: Ages | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmSource:
    """A file of real films (see `films`), how often each film is used in an epoch, and which patients are held out.

    most: use at most so many films, evenly spaced over the file; 0 for all
    balanced: multiply `repeat` so that an epoch has about as many of these films as the largest source has
    held_out: the patients that training never uses, a share or the path of a file, see `split`; blank for none
    """

    file: str
    repeat: PositiveCount = 1
    most: Count = 0
    balanced: bool = False
    held_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The training data of a run. Phantoms have the seeds first_seed ... first_seed + phantoms - 1.

    side: side of stored films in pixels; films are cut to their central square
    jpeg: store films as JPEG and read them again, so that films of all sources have gone the same way; not as published
    store: the folder of stored films, which runs may share; if blank, `films` in the run's own output folder
    words: "seen" trains one embedding for all tokens that are in no text of the run, or keeps the vocabulary of the
    model that the run starts from; "full" trains one for each token
    """

    classes: tuple[ClassSet, ...] = ("chexpert",)
    phantoms: Count = 0
    first_seed: Count = 0
    films: tuple[FilmSource, ...] = ()
    side: PositiveCount = 224
    jpeg: bool = True
    store: str = ""
    words: Literal["seen", "full"] = "seen"

    def __post_init__(self) -> None:
        if not self.phantoms and not self.films:
            raise ValueError("phantoms and films: give at least one of them")
        if self.first_seed + self.phantoms > 1_000_000:
            raise ValueError("first_seed + phantoms must not exceed 1000000: later seeds are reserved for tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The hardware to use. checkpoint, log: after how many steps each; renderers: processes that make films ready.

    loaders: processes that read and augment films before the steps need them; 0: the training process does it itself
    mixed_precision: float16 with a scaled loss on a GPU; bfloat16 on a CPU, which gains where it has products of these
    (AMX)
    """

    device: Literal["cpu", "cuda"] = "cpu"
    processes: PositiveCount = 1
    threads: PositiveCount = 1
    renderers: PositiveCount = 1
    loaders: Count = 0
    checkpoint: PositiveCount = 500
    log: PositiveCount = 50
    mixed_precision: bool = False

    def __post_init__(self) -> None:
        if self.device == "cuda" and self.processes > 1:
            raise ValueError("processes must be 1 with device cuda")
        if self.loaders and self.processes > 1:
            raise ValueError(
                "loaders must be 0 with several processes, which load their own films; or set processes = 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A complete run.

    output: its folder, which gets the films, the checkpoint, the log, and at the end `model`, the model directory
    start: a model directory whose weights it starts from; blank for random weights
    start_share: the share of the weights of `start` in those that the run writes; the others are the trained ones. An
    average of both may keep more of what few films taught (Wortsman et al., CVPR 2022)
    """

    output: str
    seed: int
    start: str = ""
    start_share: Share = 0.0
    model: Model
    network: NetworkSizes
    data: Data
    stages: tuple[Stage, ...]
    machine: Machine = field(default_factory=Machine)

    @property
    def store(self) -> Path:
        """The folder of stored films."""
        return Path(self.data.store) if self.data.store else Path(self.output) / "films"

    def __post_init__(self) -> None:
        wrong = [stage.name for stage in self.stages if stage.batch % self.machine.processes]
        if wrong:
            raise ValueError(f"stages: batch of {wrong[0]} must be a multiple of machine.processes")
        if not self.stages or len({stage.name for stage in self.stages}) < len(self.stages):
            raise ValueError("stages must not be empty, and each must have its own name")
        boxes = self.network.detector.boxes_per_prompt
        for stage in self.stages:
            if stage.start_box_tokens is not None and len(stage.start_box_tokens.words) != boxes:
                raise ValueError(
                    f"stages: start_box_tokens.words of {stage.name} must have {boxes} entries, one for each box of a "
                    "prompt; one may be blank"
                )
        if self.network.views is not None:
            raise ValueError("network.views: a view head is trained by a run file of its own; remove it here")
        if self.start_share and not self.start:
            raise ValueError("start_share needs start, the model whose weights are averaged with the trained ones")

    @property
    def fingerprint(self) -> str:
        """The hash of all settings that affect the losses: two runs with the same fingerprint compute the same."""
        table = asdict(self) | {"program": PROGRAM}
        table["machine"] = {"processes": self.machine.processes, "mixed_precision": self.machine.mixed_precision}
        del table["output"], table["start_share"], table["data"]["store"]
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def read_run(path: Path) -> Run:
    """Read a run file, and the one that it extends. Raises ModelError that lists every mistake in it."""
    table = read_toml(path, name="a run file")
    base = table.pop("extends", None)
    if base is None:
        return from_file(Run, table, path=path)
    if not isinstance(base, str):
        raise ModelError(f"{path}: extends is {base!r}; it must be the name of a run file beside this one")
    under = read_toml(path.parent / base, name="a run file")
    if "extends" in under:
        raise ModelError(f"{path}: {base} extends another run file itself; extend that one")
    return from_file(Run, _extended(under, table, path=path), path=path)


def _extended(under: Mapping[str, object], own: Mapping[str, object], *, path: Path) -> dict[str, object]:
    """Return a table with the keys of another in it, key by key; losses, lists and values are replaced as a whole."""
    merged = dict(under)
    for key, value in own.items():
        below = under.get(key)
        if key == "stages" and isinstance(value, list) and isinstance(below, list):
            merged[key] = _extended_stages(below, value, path=path)
        elif key != "losses" and isinstance(value, dict) and isinstance(below, dict):
            merged[key] = _extended(below, value, path=path)
        else:
            merged[key] = value
    return merged


def _extended_stages(
    under: Sequence[Mapping[str, object]], own: Sequence[Mapping[str, object]], *, path: Path
) -> list[Mapping[str, object]]:
    """Return stages with the keys of the stages of the same name in them."""
    changes = {stage.get("name"): stage for stage in own}
    if unknown := [name for name in changes if name not in [stage.get("name") for stage in under]]:
        raise ModelError(f"{path}: the run file that it extends has no stage named {unknown[0]!r}; name one of its own")
    return [_extended(stage, changes.get(stage.get("name"), {}), path=path) for stage in under]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewData:
    """The training data of the head: real frontal films; of each phantom a frontal, a lateral and a non-chest film."""

    phantoms: PositiveCount
    first_seed: Count = 0
    films: tuple[FilmSource, ...] = ()

    def __post_init__(self) -> None:
        if self.first_seed + self.phantoms > 1_000_000:
            raise ValueError("first_seed + phantoms must not exceed 1000000: later seeds are reserved for tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewTraining:
    """How the head learns. Weight decay is decoupled (AdamW); the learning rate falls to 0 along a cosine."""

    steps: PositiveCount
    batch: PositiveCount
    learning_rate: Positive
    weight_decay: NotNegative = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRun:
    """A complete run of a view head. model: the directory that gets the head; an earlier head is replaced.

    Its key `model`, the name of a model directory, distinguishes it from the run file of a whole training.
    """

    model: str
    seed: int
    head: ViewSizes
    data: ViewData
    training: ViewTraining
    augmentation: Augmentation = field(default_factory=Augmentation)
    device: Literal["cpu", "cuda"] = "cpu"
    threads: PositiveCount = 1

    def __post_init__(self) -> None:
        if self.augmentation.flip:
            raise ValueError("augmentation.flip must be 0: the head learns what is mirrored")


def is_view_run(path: Path) -> bool:
    """Return whether a run file is that of a view head; False if it cannot be read."""
    try:
        return isinstance(read_toml(path, name="a run file").get("model"), str)
    except ModelError:
        return False


def read_view_run(path: Path) -> ViewRun:
    """Read a run file that `is_view_run` accepts. Raises ModelError that lists every mistake in it."""
    return from_file(ViewRun, read_toml(path, name="a run file"), path=path)
