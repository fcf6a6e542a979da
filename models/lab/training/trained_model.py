"""The model at the start of a run: network with initial weights, vocabulary, and `Heads`, the scales of decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.checkpoint.assembly import UNTRAINED, part_of
from models.checkpoint.weights import load_network
from models.errors import ModelError
from models.lab.training.catalog import Catalog, exchange_sides
from models.lab.training.forward import Heads
from models.lab.training.random_streams import seed_torch
from models.lab.training.runfile import Run
from models.lab.training.stages import Stage
from models.lab.training.text_encoding import Vocabulary
from models.manifest import NetworkSizes, read_manifest
from models.network.chex import Chex
from models.reading.tokenizers import SENTENCE_END, VOCABULARIES, PromptTokenizer, SentenceTokenizer, words_of


def free(network: Chex, stage: Stage) -> list[nn.Parameter]:
    """Enable gradients for the weights of a stage only. Returns them in the network's order. Raises ModelError."""
    names = [name for name, _ in network.named_parameters()]
    for key, beginnings in (("train", stage.train), ("frozen", stage.frozen)):
        for beginning in beginnings:
            if not any(begins_with(name, [beginning]) for name in names):
                raise ModelError(
                    f"stage {stage.name}: {key} names {beginning}, but no weight has a name that begins so"
                )
    learning = []
    for name, parameter in network.named_parameters():
        learns = begins_with(name, stage.train) and not begins_with(name, stage.frozen)
        parameter.requires_grad_(learns)
        if learns:
            learning.append(parameter)
    if not learning:
        raise ModelError(f"stage {stage.name}: all its weights are frozen; correct train and frozen")
    return learning


def begins_with(name: str, beginnings: Sequence[str]) -> bool:
    """Return whether the name of a weight or part begins with one of these dotted names of a run file."""
    return any(name == beginning or name.startswith(f"{beginning}.") for beginning in beginnings)


@torch.no_grad()
def start(network: Chex) -> None:
    """Initialize the embeddings as GPT-2 and CLIP do; PyTorch's default is far too large for them."""
    for embedding in (network.generator.tokens, network.generator.positions, network.prompt_encoder.tokens):
        embedding.weight.normal_(std=0.02)


@torch.no_grad()
def set_box_tokens(network: Chex, stage: Stage, *, catalog: Catalog, vocabulary: Vocabulary) -> None:
    """Initialize the box tokens from `stage.start_box_tokens`; do nothing if the stage has none.

    Each becomes the mean of the present ones, plus `strength` times the mean difference that its words make to the
    vectors of the classes' phrases.
    """
    rule, tokens = stage.start_box_tokens, network.detector.box_tokens
    if rule is None:
        return
    phrases = [entry.positive[0] for entry in catalog.classes]

    def mean_vector(texts: Sequence[str]) -> Tensor:
        ids = vocabulary.prompt_ids(texts).to(tokens.device)
        vector: Tensor = network.prompt_encoder(ids).mean(dim=0)
        return vector

    plain = mean_vector(phrases)
    changes = [mean_vector([f"{phrase} {words}".strip() for phrase in phrases]) - plain for words in rule.words]
    tokens.copy_(tokens.mean(dim=0) + rule.strength * torch.stack(changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The network in training, its heads, and the vocabulary it uses."""

    network: Chex
    heads: Heads
    vocabulary: Vocabulary


def build_model(run: Run, catalog: Catalog, texts: Iterable[str]) -> TrainedModel:
    """Build the network of a run as it is before the first step.

    texts: all sentences of all reports. Raises ModelError if the weights that it starts from do not fit.
    """
    starts = [words for stage in run.stages if stage.start_box_tokens for words in stage.start_box_tokens.words]
    is_full = run.data.words == "full"
    known = [] if is_full else _both_sides([*catalog.texts, *texts, *starts])
    vocabulary = Vocabulary(
        prompts=PromptTokenizer(VOCABULARIES),
        sentences=SentenceTokenizer(VOCABULARIES),
        max_length=run.network.generator.max_length,
        learned=_words_of_start(Path(run.start), known) if run.start and not is_full else learned_words(known),
    )
    sizes = run.network
    if run.start and not is_full:
        begun = read_manifest(Path(run.start)).sizes
        sizes = _with_tokens(sizes, asked=begun.prompt_encoder.own_tokens, said=begun.generator.own_tokens)
    elif not is_full:
        sizes = _sizes_for(sizes, known, vocabulary)
    seed_torch(run.seed, "weights")
    network = Chex(sizes)
    start(network)
    # This layout takes a third off the time of narrow convolutions on a CPU; the results are the same.
    network.image_encoder.stem.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # it is there
    if run.start:
        network.load_state_dict(network.state_dict() | trained_weights(Path(run.start), sizes))
    return TrainedModel(
        network=network.to(run.machine.device), heads=Heads().to(run.machine.device), vocabulary=vocabulary
    )


def trained_weights(directory: Path, sizes: NetworkSizes) -> dict[str, Tensor]:
    """Return the weights of a model directory by name, except the zeros that completed it.

    A network without layers in its post decoder takes the rest of one with layers; one
    with another prefix that was never trained, all but that. Raises ModelError if the network has other sizes.
    """
    network, origins = load_network(directory), read_manifest(directory).origins
    own = replace(network.sizes, views=None)
    if UNTRAINED in origins.get("generator.prefix", ""):
        of_prefix = {
            name: getattr(sizes.generator, name) for name in ("prefix_length", "prefix_hidden", "prefix_shared")
        }
        own = replace(own, generator=replace(own.generator, **of_prefix))
    if not sizes.post_decoder.layers:
        own = replace(own, post_decoder=sizes.post_decoder)
        network.post_decoder.layers = nn.ModuleList()
    if own != sizes:
        raise ModelError(
            f"{directory} holds a network whose sizes differ from the run file's; correct start or network"
        )
    network.view_head = None  # it fits the encoder as it was
    return {
        name: weight for name, weight in network.state_dict().items() if UNTRAINED not in origins.get(part_of(name), "")
    }


def learned_words(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct words of texts, sorted: all that a randomly initialized prompt encoder can learn."""
    return tuple(sorted({word for text in texts for word in words_of(text)}))


def _words_of_start(directory: Path, known: Sequence[str]) -> tuple[str, ...]:
    """Return the words of the model in a directory. Raises ModelError if texts of the run have others."""
    own = read_manifest(directory).vocabulary
    if others := sorted(set(learned_words(known)) - set(own)):
        raise ModelError(
            f"{directory} does not know these words of the run's films: {', '.join(others[:10])}; leave out the films "
            "that have them, or train from the beginning"
        )
    return own


def _both_sides(texts: Iterable[str]) -> list[str]:
    """Return texts, also as they read on mirrored films, each once."""
    return sorted({both for text in texts for both in (text, exchange_sides(text))})


def _sizes_for(sizes: NetworkSizes, known: Sequence[str], vocabulary: Vocabulary) -> NetworkSizes:
    """Give an embedding of its own to each token of these texts, and one to all others together."""
    said = {SENTENCE_END}
    for text in known:
        # After another sentence a text has other tokens than at the beginning, and a denial ends with a full stop.
        said.update(token for form in (text, f" {text}", f"{text}.") for token in vocabulary.sentences.encode(form))
    asked = np.unique(vocabulary.prompts.encode(known)).tolist()
    return _with_tokens(sizes, asked=tuple(asked), said=tuple(sorted(said)))


def _with_tokens(sizes: NetworkSizes, *, asked: tuple[int, ...], said: tuple[int, ...]) -> NetworkSizes:
    """Return sizes with the tokens of prompts and of sentences that have an embedding of their own."""
    return replace(
        sizes,
        prompt_encoder=replace(sizes.prompt_encoder, own_tokens=asked),
        generator=replace(sizes.generator, own_tokens=said),
    )
