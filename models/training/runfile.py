"""The run file: all that decides what a run becomes, as values that refuse to be wrong.

What is not in the run file is in the code; nothing is read from the environment. Paths are relative to the folder in
which the command runs. `Machine` alone may differ when a run goes on, as far as it does not change what is computed.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from models.errors import ModelError
from models.manifest import PUBLISHED_MEAN, PUBLISHED_STD, NetworkSizes
from models.training.settings import from_table, require
from models.training.stages import Stage

ClassSet = Literal["chexpert", "vindr", "cig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the finished model directory says of itself, how its weights are stored, and how films become its input."""

    name: str
    version: str
    licence: str
    trained_on: str
    intended_use: str
    store: Literal["float32", "half_embeddings", "half"] = "float32"
    gray: Literal["voi", "mimic_jpg"] = "voi"
    resize: Literal["direct", "via_256"] = "direct"
    mean: float = PUBLISHED_MEAN
    std: float = PUBLISHED_STD

    def __post_init__(self) -> None:
        require(self, above_zero="std")


@dataclass(frozen=True, slots=True, kw_only=True)
class Films:
    """Real films: a file of lines (see `films`), how often each takes part in an epoch, and what is kept for tests.

    held_out: share of the patients that training never sees, chosen by a hash of their names
    """

    file: str
    repeat: int = 1
    held_out: float = 0.0

    def __post_init__(self) -> None:
        require(self, above_zero="repeat", share="held_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What is learned from. Phantoms have the seeds first_seed ... first_seed + phantoms - 1.

    side: of stored films, in pixels; films are cut to their central square
    store: the folder of stored films, which runs may share; blank is `films` in the run's own
    words: "seen" trains one embedding for all tokens that no text of the run has (see `vocabulary`), "full" one each
    """

    classes: tuple[ClassSet, ...] = ("chexpert",)
    phantoms: int = 0
    first_seed: int = 0
    films: tuple[Films, ...] = ()
    side: int = 224
    store: str = ""
    words: Literal["seen", "full"] = "seen"

    def __post_init__(self) -> None:
        require(self, not_negative="phantoms first_seed", above_zero="side")
        if not self.phantoms and not self.films:
            raise ValueError("phantoms and films: at least one must be there")
        if self.first_seed + self.phantoms > 1_000_000:
            raise ValueError("first_seed + phantoms must not exceed 1000000: later seeds are for tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What computes. checkpoint, log: every so many steps; renderers: processes that make phantoms.

    mixed_precision: float16 with a scaled loss, on a GPU only; events: files for TensorBoard
    """

    device: Literal["cpu", "cuda"] = "cpu"
    processes: int = 1
    threads: int = 1
    renderers: int = 1
    checkpoint: int = 500
    log: int = 50
    mixed_precision: bool = False
    events: bool = False

    def __post_init__(self) -> None:
        require(self, above_zero="processes threads renderers checkpoint log")
        if self.device == "cpu" and self.mixed_precision:
            raise ValueError("mixed_precision needs device cuda: CPUs are slower and less exact with it")
        if self.device == "cuda" and self.processes > 1:
            raise ValueError("processes must be 1 with device cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole run.

    output: its folder: films, checkpoint, logs, and at the end `model`, the model directory
    start: a model directory whose weights it begins with, blank for random ones
    """

    output: str
    seed: int
    start: str = ""
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
            raise ValueError("stages must not be empty, and each must have a name of its own")
        if self.start and self.data.words != "full":
            raise ValueError('start needs data.words = "full"')

    @property
    def fingerprint(self) -> str:
        """Tell runs apart that compute something else: all that decides the losses, hashed."""
        table = asdict(self)
        table["machine"] = {"processes": self.machine.processes, "mixed_precision": self.machine.mixed_precision}
        del table["output"], table["data"]["store"]
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def read_run(path: Path) -> Run:
    """Read a run file. Raises ModelError with every mistake in it."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); name a run file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not TOML ({error})") from error
    run, mistakes = from_table(Run, table)
    if run is None:
        raise ModelError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return run
