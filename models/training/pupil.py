"""The network as it is trained: with the words of its run alone, and scales beside it that become a temperature."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.checkpoint import load_network
from models.chex import Chex
from models.errors import ModelError
from models.manifest import NetworkSizes
from models.tokenizers import (
    PROMPT_VOCABULARY,
    SENTENCE_END,
    SENTENCE_MERGES,
    SENTENCE_VOCABULARY,
    VOCABULARIES,
    PromptTokenizer,
    SentenceTokenizer,
)
from models.training.catalog import Catalog, exchange_sides
from models.training.draws import seed_torch
from models.training.forward import Heads
from models.training.parts import start
from models.training.runfile import Run
from models.training.texts import Tongue
from models.training.vocabulary import Words, all_words, seen_words

PROMPT_TOKENS, SENTENCE_TOKENS = "prompt_encoder.tokens.weight", "generator.tokens.weight"
"""The embeddings whose rows are words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pupil:
    """What learns, and the words it knows."""

    network: Chex
    heads: Heads
    tongue: Tongue

    def state(self) -> dict[str, Tensor]:
        """Give the network's weights in its whole vocabularies."""
        state: dict[str, Tensor] = dict(self.network.state_dict())
        state[PROMPT_TOKENS] = self.tongue.prompt_words.spread(state[PROMPT_TOKENS])
        state[SENTENCE_TOKENS] = self.tongue.sentence_words.spread(state[SENTENCE_TOKENS])
        return state


def enroll(run: Run, catalog: Catalog, texts: Iterable[str]) -> Pupil:
    """Make the network of a run as it is before the first step.

    texts: all sentences of all reports; raises ModelError where the weights it starts with do not fit
    """
    tongue = _tongue(run, [*catalog.texts, *texts])
    sizes = replace(
        run.network,
        prompt_encoder=replace(run.network.prompt_encoder, vocabulary=tongue.prompt_words.size),
        generator=replace(run.network.generator, vocabulary=tongue.sentence_words.size),
    )
    seed_torch(run.seed, "weights")
    network = Chex(sizes)
    start(network)
    # Convolutions of few channels take two thirds of the time so on a CPU; what they compute is the same.
    network.image_encoder.stem.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # it is there
    if run.start:
        network.load_state_dict(_known_weights(Path(run.start), sizes))
    return Pupil(network=network.to(run.machine.device), heads=Heads().to(run.machine.device), tongue=tongue)


def _known_weights(directory: Path, sizes: NetworkSizes) -> dict[str, Tensor]:
    network = load_network(directory)
    if network.sizes != sizes:
        raise ModelError(f"{directory} holds a network of other sizes than the run file; correct start or network")
    return dict(network.state_dict())


def _tongue(run: Run, texts: Iterable[str]) -> Tongue:
    prompts = PromptTokenizer(VOCABULARIES / PROMPT_VOCABULARY)
    sentences = SentenceTokenizer(VOCABULARIES / SENTENCE_VOCABULARY, VOCABULARIES / SENTENCE_MERGES)
    prompt_words, sentence_words = (
        all_words(run.network.prompt_encoder.vocabulary),
        all_words(run.network.generator.vocabulary),
    )
    if run.data.words == "seen":
        prompt_words, sentence_words = _seen(run, texts, prompts, sentences)
    return Tongue(
        prompts=prompts,
        sentences=sentences,
        prompt_words=prompt_words,
        sentence_words=sentence_words,
        max_length=run.network.generator.max_length,
    )


def _seen(
    run: Run, texts: Iterable[str], prompts: PromptTokenizer, sentences: SentenceTokenizer
) -> tuple[Words, Words]:
    """Collect the tokens of texts, as they are and on mirrored films."""
    known = sorted({both for text in texts for both in (text, exchange_sides(text))})
    said = {SENTENCE_END}
    for text in known:
        # A sentence has other tokens behind another one than at the beginning, and a denial ends in a full stop.
        said.update(token for form in (text, f" {text}", f"{text}.") for token in sentences.encode(form))
    asked = np.unique(prompts.encode(known))
    return (
        seen_words(run.network.prompt_encoder.vocabulary, asked.tolist()),
        seen_words(run.network.generator.vocabulary, said),
    )
