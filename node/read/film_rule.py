"""What a manifest alone says of a model: what it needs of a film, and which of its thresholds were measured."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

from models.contract import PromptKind
from node.config import CHEX
from node.errors import InputError
from node.prompt_set import PromptSet
from node.read.model import open_named


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmRule:
    """What a model needs of a film, as in `Reader`.

    measured: keys of the findings with a measured threshold, not left out
    left_out: keys of the findings that the model never reports on films of people
    """

    gray: str
    square: Callable[[int, int], tuple[float, float, float, float]]
    ages: Container[int] | None = None
    measured: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def not_calibrated(directory: Path, prompts: PromptSet) -> str | None:
    """Name the pathologies for which ChEX has no threshold measured on films of people, and the command that does that.

    Returns None if there are none; those that the model leaves out do not count. Raises InputError if the manifest
    cannot be read.
    """
    rule = read_film_rule(directory)
    keys = [prompt.key for prompt in prompts.prompts if prompt.kind is PromptKind.PATHOLOGY]
    names = [key.replace("_", " ") for key in keys if key not in (*rule.measured, *rule.left_out)]
    if not names:
        return None
    how = f"python -m models.calibrate --model {directory} FILMS measures thresholds"
    return f"not calibrated here: {', '.join(names)}; {how}"


def read_film_rule(directory: Path, *, reader: str = CHEX) -> FilmRule:
    """Read what a model needs of a film from its manifest; another network than ChEX says so itself.

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
    from models.errors import ModelError
    from models.manifest import read_manifest
    from models.reading.preprocess import square

    try:
        manifest = read_manifest(directory)
    except ModelError as error:
        raise InputError(str(error)) from error
    return FilmRule(
        gray=str(manifest.gray),
        square=lambda columns, rows: square(columns, rows, manifest.input),
        ages=manifest.ages,
        measured=manifest.decisions.measured_keys,
        left_out=manifest.decisions.left_out,
    )
