"""The losses of the sentence generator: which sentence each feature is to produce (spec §10)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from models.lab.losses.language import logits_of, sentence_loss
from models.lab.training.forward import Forward

_TEXT_SENTENCES = 64
_TEXT_DROPOUT = 0.3
_MOST_REPEATS = 4


def of_regions(forward: Forward) -> Tensor:
    """Generate for each drawn region the joined sentences that the report has about it: "anat-gen"."""
    rows = [
        (film, place, " ".join(texts))
        for film, said in enumerate(forward.batch.said)
        for place, region in enumerate(forward.regions)
        if region in forward.drawn_regions
        and (texts := [sentence.text for sentence in said if region in sentence.regions])
    ]
    return _taught(forward, forward.decoded_regions, rows)


def of_sentences(forward: Forward) -> Tensor:
    """Generate each sentence from the features that it located: "sent-gen"."""
    rows = [
        (film, place, question.text)
        for film, asked in enumerate(forward.batch.asked)
        for place, question in enumerate(asked)
        if question.is_sentence
    ]
    return _taught(forward, forward.decoded_sentences, rows)


def of_findings(forward: Forward) -> Tensor:
    """Generate for each drawn class what the report says about it, or that it is absent: "finding-gen"."""
    # One copy from a GPU instead of one for each label.
    known, present = forward.batch.known.tolist(), forward.batch.present.tolist()
    rows = [
        (film, place, text)
        for film in range(len(forward.batch.said))
        for place, number in enumerate(forward.classes)
        if known[film][number] and (text := _about(forward, film, number, present=present[film][number]))
    ]
    return _taught(forward, forward.decoded_classes, rows)


def of_texts(forward: Forward) -> Tensor:
    """Generate sentences from their own vectors, which are repeated as prefix once or several times: "text-gen"."""
    texts = [sentence.text for said in forward.batch.said for sentence in said][:_TEXT_SENTENCES]
    repeats = int(forward.rng.integers(1, _MOST_REPEATS + 1))
    vectors = forward.embed(texts).unsqueeze(1).expand(-1, repeats, -1)
    return _loss(forward, functional.dropout(vectors, _TEXT_DROPOUT, forward.network.training), texts)


def _about(forward: Forward, film: int, number: int, *, present: bool) -> str:
    """Choose what the report of a film says about a class.

    If it is present, all sentences that report it, or "" if there are none; else the first denial, or a fixed one.
    """
    own = [sentence for sentence in forward.batch.said[film] if number in sentence.findings]
    if present:
        return " ".join(sentence.text for sentence in own if sentence.positive)
    denials = [sentence.text for sentence in own if not sentence.positive]
    return (denials or [f"{forward.catalog.classes[number].negative[0]}."])[0]


def _taught(forward: Forward, features: Tensor, rows: Sequence[tuple[int, int, str]]) -> Tensor:
    """Compute the loss for some of the rows (film, place, text); features: [F, Q, dim]."""
    order = forward.rng.permutation(len(rows))[: forward.stage.drawing.told]
    chosen = [rows[place] for place in order]
    if not chosen:
        return features.sum() * 0
    films, places, texts = zip(*chosen, strict=True)
    return _loss(forward, features[list(films), list(places)], list(texts))


def _loss(forward: Forward, features: Tensor, texts: Sequence[str]) -> Tensor:
    if not texts:
        return features.sum() * 0
    taught = forward.vocabulary.lesson(texts)
    taught = taught._replace(ids=taught.ids.to(features.device), attended=taught.attended.to(features.device))
    logits = logits_of(forward.network.generator, features, taught)
    tokens = forward.network.generator.tokens
    return sentence_loss(tokens.weighed(logits.float()), tokens.rows_of(taught.ids))
