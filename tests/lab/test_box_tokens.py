"""Box tokens that are set from words: to what, and where the boxes of the shipped model then are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.checkpoint.weights import load_network
from models.lab.phantoms import phantom
from models.lab.training.catalog import catalog_of
from models.lab.training.runfile import read_run
from models.lab.training.stages import BoxTokenStart, Stage
from models.lab.training.text_encoding import Vocabulary
from models.lab.training.trained_model import set_box_tokens
from models.network.chex import Chex
from models.reading.tokenizers import VOCABULARIES, PromptTokenizer, SentenceTokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

CATALOG = catalog_of(["chexpert"])
VOCABULARY = Vocabulary(prompts=PromptTokenizer(VOCABULARIES), sentences=SentenceTokenizer(VOCABULARIES), max_length=48)
SIDES = BoxTokenStart(words=("on the left", "on the right", ""), strength=1.0)


@pytest.fixture
def network(repository: Path) -> Chex:
    return load_network(repository / "models" / "weights" / "phantom").eval()


@pytest.fixture(scope="module")
def stage(repository: Path) -> Stage:
    stages = read_run(repository / "models" / "lab" / "training" / "runs" / "phantom.toml").stages
    return next(stage for stage in stages if stage.name == "boxes")


def tokens_after(network: Chex, stage: Stage, rule: BoxTokenStart | None) -> Tensor:
    """Return the box tokens as the stage would start with them."""
    set_box_tokens(network, replace(stage, start_box_tokens=rule), catalog=CATALOG, vocabulary=VOCABULARY)
    return network.detector.box_tokens.detach()


def test_tokens_become_what_their_words_change_in_a_phrase(network: Chex, stage: Stage) -> None:
    mean = network.detector.box_tokens.detach().mean(dim=0)
    phrases = [entry.positive[0] for entry in CATALOG.classes]

    left, right, either = tokens_after(network, stage, replace(SIDES, strength=0.5))

    with torch.no_grad():
        encoded = network.prompt_encoder(
            VOCABULARY.prompt_ids([*phrases, *(f"{phrase} on the left" for phrase in phrases)])
        )
    change = (encoded[len(phrases) :] - encoded[: len(phrases)]).mean(dim=0)
    torch.testing.assert_close(left, mean + 0.5 * change, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(either, mean)
    assert (left - right).norm() > change.norm() / 2


def test_a_box_is_where_its_words_say(network: Chex, stage: Stage) -> None:
    """The patient's left is on the right of the picture."""
    tokens_after(network, stage, SIDES)
    film = phantom(2_000_003, side=224)
    pixels = torch.from_numpy(film.pixels).float().unsqueeze(0) / 255
    prompts = network.prompt_encoder(VOCABULARY.prompt_ids(["Edema", "Pleural effusion"]))

    with torch.no_grad():
        patches, positions, _ = network.image_encoder((pixels - pixels.mean()) / pixels.std())
        found = network.detector(patches, positions, prompts.unsqueeze(0), group=3)

    left, right, _ = found.boxes[0, :, :, 0].unbind(dim=-1)
    assert (left - right > 0.1).all()
