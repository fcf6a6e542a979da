"""Teaching the generator: features and the sentences that they are to become (SPEC.md 10)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from models.losses.language import logits_of, sentence_loss
from models.training.forward import Forward
from models.training.truths import Said

_TEXT_SENTENCES = 64
_TEXT_DROPOUT = 0.3
_MOST_REPEATS = 4


def of_regions(forward: Forward) -> Tensor:
    """Tell of regions what the report says about each, several sentences joined: "anat-gen"."""
    rows = [
        (film, place, " ".join(texts))
        for film, said in enumerate(forward.batch.said)
        for place, region in enumerate(forward.regions)
        if (texts := [one.text for one in said if region in one.regions])
    ]
    return _taught(forward, forward.told_regions, rows)


def of_sentences(forward: Forward) -> Tensor:
    """Tell a sentence again, by what it finds: "sent-gen"."""
    rows = [
        (film, place, one.text)
        for film, asked in enumerate(forward.batch.asked)
        for place, one in enumerate(asked)
        if one.is_sentence
    ]
    return _taught(forward, forward.told_sentences, rows)


def of_findings(forward: Forward) -> Tensor:
    """Tell of each drawn class what the report says about it, or that it is not there: "finding-gen"."""
    rows = []
    for film, said in enumerate(forward.batch.said):
        if said:
            rows += [
                (film, place, _about(said, forward.catalog.classes[number].negative[0], number))
                for place, number in enumerate(forward.classes)
                if forward.batch.known[film, number]
            ]
    return _taught(forward, forward.told_classes, rows)


def of_texts(forward: Forward) -> Tensor:
    """Tell sentences by their own vectors, which stand before them once or several times: "text-gen"."""
    texts = [one.text for said in forward.batch.said for one in said][:_TEXT_SENTENCES]
    repeats = int(forward.rng.integers(1, _MOST_REPEATS + 1))
    vectors = forward.embed(texts).unsqueeze(1).expand(-1, repeats, -1)
    return _loss(forward, functional.dropout(vectors, _TEXT_DROPOUT, forward.network.training), texts)


def _about(said: Sequence[Said], denial: str, number: int) -> str:
    """Choose what a report says of a class: what is there, else that nothing is, else a denial."""
    own = [one for one in said if number in one.findings]
    texts = [one.text for one in own if one.positive] or [one.text for one in own][:1] or [f"{denial}."]
    return " ".join(texts)


def _taught(forward: Forward, features: Tensor, rows: Sequence[tuple[int, int, str]]) -> Tensor:
    """Teach some of the rows: (film, place, text), with features [F, Q, dim]."""
    order = forward.rng.permutation(len(rows))[: forward.stage.drawing.told]
    chosen = [rows[place] for place in order]
    if not chosen:
        return features.sum() * 0
    films, places, texts = zip(*chosen, strict=True)
    return _loss(forward, features[list(films), list(places)], list(texts))


def _loss(forward: Forward, features: Tensor, texts: Sequence[str]) -> Tensor:
    if not texts:
        return features.sum() * 0
    taught = forward.tongue.lesson(texts)
    taught = taught._replace(ids=taught.ids.to(features.device), attended=taught.attended.to(features.device))
    logits = logits_of(forward.network.generator, features, taught)
    return sentence_loss(forward.tongue.sentence_words.weigh(logits.float()), taught.ids)
