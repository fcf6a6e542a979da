"""Facts of a model that its manifest alone gives: its input, and measurements or thresholds chosen again."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.contract import ChangeError, PromptKind, Trusted
from node.config import CHEX
from node.errors import InputError
from node.prompt_set import PromptSet
from node.read.model import as_input_error, open_named

if TYPE_CHECKING:
    from models.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmRule:
    """A model's requirements on a film, as in `RadiographReader`.

    measured: keys of the findings with a measured threshold, not left out
    left_out: keys of the findings that the model never reports on patient films
    """

    gray: str
    square: Callable[[int, int], tuple[float, float, float, float]]
    ages: Container[int] | None = None
    measured: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def not_calibrated(directory: Path, prompts: PromptSet, *, reader: str = CHEX) -> str | None:
    """Name the pathologies without a threshold measured on patient films, and the command that measures one.

    Returns None if there are none, and for another network than ChEX; those that the model leaves out do not count.
    Raises InputError if the manifest cannot be read.
    """
    thresholds = read_thresholds(directory, prompts, trusted="real", reader=reader)
    missing = [each.prompt for each in thresholds if each.possible is not None and not each.is_measured]
    if not missing:
        return None
    names = ", ".join(key.replace("_", " ") for key in missing)
    how = f"python -m models.calibrate --model {directory} FILMS measures thresholds"
    return f"not calibrated here: {names}; {how}"


def read_change_error(directory: Path, *, reader: str = CHEX) -> ChangeError | None:
    """Read how far answers differ between two films of a model; None if it does not state that, or is not ChEX.

    Raises InputError if the manifest cannot be read.
    """
    return None if reader != CHEX else _read(directory).change


def read_threshold_changes(directory: Path) -> str:
    """Return the thresholds that were chosen again, the last first; "" if none was, or there is no manifest."""
    try:
        history = _read(directory).history
    except InputError:
        return ""
    return "; ".join(change.described for change in reversed(history))


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The probabilities from which reports call a finding on a patient film possible, and present.

    possible: None if the model leaves the finding out
    present: None if it is never present, because it is left out, or its threshold is not trusted
    is_measured: whether it was measured on patient films
    """

    prompt: str
    possible: float | None
    present: float | None
    is_measured: bool


def read_thresholds(
    directory: Path, prompts: PromptSet, *, trusted: Trusted, reader: str = CHEX
) -> tuple[Threshold, ...]:
    """Read the thresholds of the pathologies that are asked about; none for another network than ChEX.

    Raises InputError if the manifest cannot be read.
    """
    if reader != CHEX:
        return ()
    from models.reading.decision import is_trusted

    decisions = _read(directory).decisions
    keys = [prompt.key for prompt in prompts.prompts if prompt.kind is PromptKind.PATHOLOGY]
    return tuple(
        Threshold(
            prompt=key,
            possible=None if decisions.leaves_out(key) else decisions.lower(key),
            present=decisions.threshold(key) if is_trusted(decisions, key, trusted) else None,
            is_measured=is_trusted(decisions, key, "real"),
        )
        for key in keys
    )


def read_film_rule(directory: Path, *, reader: str = CHEX) -> FilmRule:
    """Read a model's requirements on films from its manifest; another network than ChEX states its own.

    Raises InputError if the manifest cannot be read, or the network not opened.
    """
    if reader != CHEX:
        network = open_named(reader, directory)
        return FilmRule(
            gray=network.gray,
            square=network.square,
            ages=network.ages,
            measured=tuple(network.measured),
            left_out=tuple(network.left_out),
        )
    from models.reading.preprocess import square

    manifest = _read(directory)
    return FilmRule(
        gray=str(manifest.gray),
        square=lambda columns, rows: square(columns, rows, manifest.input),
        ages=manifest.ages,
        measured=manifest.decisions.measured_keys,
        left_out=manifest.decisions.left_out,
    )


def _read(directory: Path) -> Manifest:
    from models.manifest import read_manifest

    with as_input_error():
        return read_manifest(directory)
