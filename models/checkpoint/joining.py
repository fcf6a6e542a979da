"""A model directory that joins the results of two trainings: regions from one, sentences from the other (spec §10).

Stage 3 of the published training starts with the image encoder, detector and post decoder of stage 2, and with the
generator that the text-only pre-training made. The generator learned to put vectors of the prompt encoder into words,
so both trainings must have had the same prompt encoder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from models.checkpoint.assembly import INITIAL, PARTS, UNTRAINED, Network, Rest, origin_of, part_of, shapes_of
from models.checkpoint.card import complete, section
from models.checkpoint.files import write_stream
from models.checkpoint.importer import check_place, new_directory, open_rest
from models.errors import ModelError
from models.manifest import WEIGHTS, Manifest, NetworkSizes
from models.program import command_for
from models.progress import ProgressReport

_OF_TEXT = ("generator", "generator.prefix")
"""The parts that the text-only pre-training gives; stage 2 gives all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What was written."""

    directory: Path
    name: str
    version: str
    parameters: int
    weights_sha256: str


def join(stage_2: Path, text: Path, directory: Path, *, report: ProgressReport) -> Joined:
    """Join two model directories into a new one.

    Raises ModelError where they do not fit together, OSError where the disk fails. Both leave nothing behind.
    """
    check_place(directory)
    first, second = open_rest(stage_2), open_rest(text)
    _check_trained(stage_2, first, "post_decoder")
    _check_trained(text, second, "generator")
    _check_prompt_encoders(stage_2, first, text, second)
    network = _network(first, second)
    manifest = replace(
        first.manifest,
        name=f"{first.manifest.name}-and-text"[:64],
        trained_on=f"{first.manifest.trained_on}; the generator on {second.manifest.trained_on}",
        sizes=network.sizes,
        origins=network.origins,
    )
    with new_directory(directory) as aside:
        weights_sha256 = write_stream(aside / WEIGHTS, network.shapes, network.numbers(report))
        complete(aside, manifest, card=_card(manifest, network))
    return Joined(
        directory=directory,
        name=manifest.name,
        version=manifest.version,
        parameters=network.parameters,
        weights_sha256=weights_sha256,
    )


def _check_trained(directory: Path, rest: Rest, part: str) -> None:
    """Refuse a model that was not trained in the parts it is to provide, as after exchanging the two directories."""
    if any(mark in rest.manifest.origins.get(part, "") for mark in (INITIAL, UNTRAINED)):
        raise ModelError(
            f"{directory}: its {part} was not trained; "
            "name the model of stage 2 first and that of the text-only pre-training second"
        )


def _check_prompt_encoders(stage_2: Path, first: Rest, text: Path, second: Rest) -> None:
    names = [name for name in first.state if part_of(name) == "prompt_encoder"]
    if any(name not in second.state or not torch.equal(first.state[name], second.state[name]) for name in names):
        raise ModelError(
            f"{stage_2} and {text} have different prompt encoders, so the generator does not know the vectors that it "
            "would get; start both trainings with the same one "
            f"({command_for('models.checkpoint')} GPT2 DIR --rest CHEXZERO)"
        )


def _network(first: Rest, second: Rest) -> Network:
    try:
        sizes: NetworkSizes = replace(first.manifest.sizes, generator=second.manifest.sizes.generator)
    except ValueError as error:
        raise ModelError(f"the two models do not fit together: {error}") from error
    shapes = shapes_of(sizes)
    state = {name: (second if part_of(name) in _OF_TEXT else first).state[name] for name in shapes}
    givers = {part: (second if part in _OF_TEXT else first).manifest for part in PARTS}
    origins = {part: giver.origins.get(part, origin_of(giver)) for part, giver in givers.items()}
    return Network(sizes=sizes, shapes=shapes, state=state, origins=origins)


def _card(manifest: Manifest, network: Network) -> str:
    parameters, origins = network.parameters, network.origins
    return section("joined", name=manifest.name, version=manifest.version, parameters=parameters, origins=origins)
