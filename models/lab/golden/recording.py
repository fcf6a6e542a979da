"""A recording of the published network, and our network with the same weights.

A recording is a folder with `golden.npz` (arrays), `golden_text.json` (texts), `config.json` (what shapes do not show)
and `state_dict.npz` (the weights under their published names). Sizes are the recording's own.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.checkpoint import published
from models.errors import ModelError
from models.network.chex import Chex
from models.reading.tokenizers import VOCABULARIES, PromptTokenizer, SentenceTokenizer

_T = TypeVar("_T")

PHRASES = ("rg_queries", "rg_neg", "odd")
"""The recorded texts of the prompt encoder: prompts of reports, their negatives, and odd strings."""

Array = NDArray[np.generic]
Texts = list[str] | list[list[str]] | dict[str, object]
Computed = Iterator[tuple[str, Tensor | Array | Texts]]
"""Our network's results by their recorded names: arrays, or the texts of `golden_text.json`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recording:
    """The recorded results of the published network.

    folder: where `image0.png`, `image1.png`, ... are, the recorded films
    taken: names of the recorded inputs given to our network, filled by `take` and `text`
    absent: names of inputs that the recording lacks
    """

    folder: Path
    arrays: Mapping[str, Array]
    texts: Mapping[str, object]
    taken: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)

    def take(self, name: str) -> Tensor:
        """Give a recorded array to our network. Raises ModelError if the recording lacks it."""
        if name not in self.arrays:
            self.absent.add(name)
            raise ModelError(f"golden.npz lacks {name}, from which others are computed; restore the folder")
        self.taken.add(name)
        return torch.from_numpy(np.asarray(self.arrays[name]))

    def extent(self, name: str, axis: int = 0) -> int | None:
        """Return how much of a stage is recorded along an axis; None, which keeps everything, if none of it is."""
        return self.arrays[name].shape[axis] if name in self.arrays else None

    def sentences(self, name: str) -> list[str]:
        """Return a recorded list of texts."""
        return cast("list[str]", self.text(name))

    def sentences_of_films(self, name: str) -> list[list[str]]:
        """Return recorded texts, one list per film."""
        return cast("list[list[str]]", self.text(name))

    def text(self, name: str) -> object:
        """Return an entry of `golden_text.json`. Raises ModelError if it is missing."""
        if name not in self.texts:
            self.absent.add(name)
            raise ModelError(f"golden_text.json lacks {name}, from which others are computed; restore the folder")
        self.taken.add(name)
        return self.texts[name]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedNetwork:
    """Our network with the recorded weights, and the recording it must agree with."""

    recording: Recording
    network: Chex
    phrases: PromptTokenizer
    sentences: SentenceTokenizer

    @property
    def films(self) -> int:
        """How many films are recorded."""
        return len(self.recording.take("x"))

    def embed(self, texts: list[str]) -> Tensor:
        """Encode phrases or sentences into [text, dim]."""
        return self.network.encode_prompts(torch.from_numpy(self.phrases.encode(texts)))

    def look(self) -> tuple[Tensor, Tensor, Tensor]:
        """Encode the recorded films: patches [F, P, dim], positions and cls."""
        return self.network.encode_image(self.recording.take("x"))

    def decode(self, ids: Tensor) -> list[str]:
        """Put generated ids [sentence, token] into words."""
        return [self.sentences.decode(row) for row in ids.tolist()]


def open_network(folder: Path) -> RecordedNetwork:
    """Build our network at the recorded sizes, with the recorded weights.

    Raises ModelError that names the absent or damaged file.
    """
    recording = Recording(
        folder=folder,
        arrays=_read(folder / "golden.npz", _arrays),
        texts=_read(folder / "golden_text.json", _table),
    )
    config = _read(folder / "config.json", _table)
    state = published.rename(
        {key: torch.from_numpy(np.asarray(value)) for key, value in _read(folder / "state_dict.npz", _arrays).items()}
    )
    try:
        sizes = published.sizes_of(
            state,
            heads=config["chex"]["n_head"],
            generator_heads=config["gpt2"]["n_head"],
            max_length=config["max_length_used"],
            beta=config["chex"]["detector"]["soft_roi_beta"],
        )
        network = Chex(sizes).eval().requires_grad_(False)
        network.load_state_dict(state)
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise ModelError(f"{folder}: state_dict.npz and config.json are no ChEX network: {error!r}") from error
    return RecordedNetwork(
        recording=recording,
        network=network,
        phrases=PromptTokenizer(VOCABULARIES),
        sentences=SentenceTokenizer(VOCABULARIES),
    )


@contextmanager
def watched(network: nn.Module) -> Iterator[Mapping[str, Tensor]]:
    """Record the latest output of every part of a network, by the part's name."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(_: nn.Module, __: object, output: Tensor) -> None:
            seen[name] = output

        return hook

    handles = [part.register_forward_hook(keep(name)) for name, part in network.named_modules() if name]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _arrays(path: Path) -> dict[str, Array]:
    # Opened here, for the library leaves a damaged file open.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def _table(path: Path) -> dict[str, Any]:
    table = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(table, dict):
        raise ValueError("not a table")
    return table


def _read(path: Path, read: Callable[[Path], dict[str, _T]]) -> dict[str, _T]:
    try:
        return read(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); name a folder with a recording") from error
    except (ValueError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path} is damaged ({type(error).__name__}); restore the folder") from error
