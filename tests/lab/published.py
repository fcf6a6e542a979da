"""A small network for the tasks of the paper, with the shipped vocabularies, and its training made small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from models.lab.evaluation.published.model import PublishedModel
from models.lab.training.runfile import FilmSource, Machine, Run
from models.manifest import NetworkSizes
from models.reading.tokenizers import VOCABULARIES, PromptTokenizer, SentenceTokenizer
from tests.models.test_chex import small_network


def small_model(*, seed: int) -> PublishedModel:
    """A model with random weights."""
    network = small_network(seed=seed)
    return PublishedModel(
        network=network,
        phrases=PromptTokenizer(VOCABULARIES),
        sentences=SentenceTokenizer(VOCABULARIES),
        picture=lambda gray: network.encode_image(torch.from_numpy(gray[np.newaxis])),
    )


def small_sizes(sizes: NetworkSizes) -> NetworkSizes:
    """The same layers, boxes and vocabularies, with widths of 16."""
    return replace(
        sizes,
        image_encoder=replace(sizes.image_encoder, width=16, heads=2, output=16),
        prompt_encoder=replace(sizes.prompt_encoder, width=16, heads=2, output=16),
        detector=replace(sizes.detector, dim=16, heads=2, feedforward=32),
        generator=replace(sizes.generator, width=16, heads=2, layers=2, prefix_hidden=16),
    )


def shortened(run: Run, films: Path) -> Run:
    """A run of the paper that takes one step of eight films, which lie in a folder."""
    [stage] = run.stages
    return replace(
        run,
        start="",
        machine=Machine(),
        network=small_sizes(run.network),
        data=replace(
            run.data,
            store=str(films / "store"),
            films=tuple(
                FilmSource(file=str(films / source.file), balanced=source.balanced) for source in run.data.films
            ),
        ),
        stages=(replace(stage, batch=4, accumulation=2, epochs=0, steps=1, warm_up=0),),
    )
