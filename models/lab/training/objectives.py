"""The losses, by their names in the run file: each is a scalar of one forward pass.

The first group is the paper's (spec §10). The second is for the small model, which has no pre-trained encoders: it
aligns patches with the words of what they show, and trains the decisions that the reader makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from models import boxes as unit_boxes
from models.lab.losses import contrast
from models.lab.losses.detection import anatomy_detection, mean_by_film, mean_of
from models.lab.losses.language import logits_of, sentence_loss
from models.lab.training.forward import Forward
from models.lab.training.stages import Objective

_TEXT_SENTENCES = 64
_TEXT_DROPOUT = 0.3
_MOST_REPEATS = 4
Loss = Callable[[Forward], Tensor]

_LEAST_LIKELY = 1e-6
_NOWHERE = 1e-7
"""The sampling weight of a class that is in no region of the batch, as published."""


def of_regions(forward: Forward) -> Tensor:
    """Loss "anat-gen": token cross-entropy of the joined sentences about each drawn region, from its feature."""
    rows = [
        (film, place, " ".join(texts))
        for film, said in enumerate(forward.batch.said)
        for place, region in enumerate(forward.regions)
        if region in forward.drawn_regions
        and (texts := [sentence.text for sentence in said if region in sentence.regions])
    ]
    return _taught(forward, forward.decoded_regions, rows)


def of_sentences(forward: Forward) -> Tensor:
    """Loss "sent-gen": token cross-entropy of each sentence, from the feature that it located."""
    rows = [
        (film, place, question.text)
        for film, asked in enumerate(forward.batch.asked)
        for place, question in enumerate(asked)
        if question.is_sentence
    ]
    return _taught(forward, forward.decoded_sentences, rows)


def of_findings(forward: Forward) -> Tensor:
    """Loss "finding-gen": token cross-entropy of the sentences about each drawn class, or of its denial."""
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
    """Loss "text-gen": token cross-entropy of sentences from their own vectors, repeated 1 to 4 times as prefix."""
    every = [sentence.text for said in forward.batch.said for sentence in said]
    texts = [every[place] for place in forward.rng.permutation(len(every))[:_TEXT_SENTENCES]]
    repeats = int(forward.rng.integers(1, _MOST_REPEATS + 1))
    vectors = forward.embed(texts).unsqueeze(1).expand(-1, repeats, -1)
    return _loss(forward, functional.dropout(vectors, _TEXT_DROPOUT, forward.network.training), texts)


def _about(forward: Forward, film: int, number: int, *, present: bool) -> str:
    """Return the sentences of a film's report about a class.

    If it is present, all sentences that report it, or "" if there are none; else the first denial, or a fixed one.
    """
    own = [sentence for sentence in forward.batch.said[film] if number in sentence.findings]
    if present:
        return " ".join(sentence.text for sentence in own if sentence.positive)
    denials = [sentence.text for sentence in own if not sentence.positive]
    return (denials or [f"{forward.catalog.classes[number].negative[0]}."])[0]


def _taught(forward: Forward, features: Tensor, rows: Sequence[tuple[int, int, str]]) -> Tensor:
    """Compute the generator's loss for at most `Drawing.told` rows (film, prompt, text); features: [F, Q, dim]."""
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


def losses_of(forward: Forward) -> dict[str, Tensor]:
    """Compute all losses of the stage, unweighted."""
    return {name: LOSSES[name](forward) for name in LOSSES if name in forward.stage.losses}


def patho_cls(forward: Forward) -> Tensor:
    """Loss "patho-cls": cross-entropy of each class's aggregated token over the phrases of all drawn classes."""
    losses = contrast.finding_contrast(
        forward.found.aggregated[:, : len(forward.classes)],
        forward.positive,
        forward.negative,
        present=forward.batch.present[:, forward.classes],
    )
    known = forward.batch.known & ~forward.batch.mined
    return mean_by_film(losses, known[:, forward.classes])


def anat_detect(forward: Forward) -> Tensor:
    """Loss "anat-detect": the regions' boxes."""
    batch, start = forward.batch, len(forward.classes)
    pairs = torch.tensor(forward.catalog.pairs, device=batch.pixels.device)
    drawn = torch.tensor([region in forward.drawn_regions for region in forward.regions], device=batch.pixels.device)
    return anatomy_detection(
        forward.found.boxes[:, start:],
        forward.found.scores[:, start:],
        target=batch.regions[:, forward.regions],
        present=batch.seen[:, forward.regions] & drawn,
        pairs=batch.regions[:, pairs],
        pairs_present=batch.seen[:, pairs],
    )


def anat_cls(forward: Forward) -> Tensor:
    """Loss "anat-cls": contrast of region features with the phrases of their classes; absent classes by `draw_absent`.

    The published reduction contradicts itself (spec §10): this is the mean over the known regions of the batch.
    """
    present = forward.batch.region_present[:, forward.regions][:, :, forward.judged]
    known = forward.batch.region_known[:, forward.regions][:, :, forward.judged]
    drawn = draw_absent(present & known, expected=round(forward.stage.drawing.classes))
    losses = contrast.anatomy_contrast(
        forward.decoded_regions,
        forward.judged_positive,
        forward.judged_negative,
        present=present,
        known=known,
        drawn=drawn,
    )
    return mean_of(losses, known.any(dim=-1))


def draw_absent(there: Tensor, *, expected: int) -> Tensor:
    """Sample the classes whose absence counts, in proportion to how often each is present in the batch (spec §10).

    there: [F, A, C], presence; expected: number of classes, without replacement
    Returns a mask [C]. A class that is nowhere present is drawn only if there are too few others.
    """
    # So small that an absent class is never drawn before a present one.
    weights = there.sum(dim=(0, 1)).float() + _NOWHERE
    drawn = torch.multinomial(weights, min(expected, len(weights)))
    return torch.zeros(len(weights), dtype=torch.bool, device=there.device).index_fill(0, drawn, True)


def anat_mse(forward: Forward) -> Tensor:
    """Loss "anat-mse": squared error between drawn regions' features and the mean vector of their sentences."""
    targets = torch.zeros_like(forward.decoded_regions)
    valid = torch.zeros(targets.shape[:2], dtype=torch.bool, device=targets.device)
    for film, said in enumerate(forward.batch.said):
        for place, region in enumerate(forward.regions):
            texts = [sentence.text for sentence in said if region in sentence.regions]
            if texts and region in forward.drawn_regions:
                targets[film, place], valid[film, place] = forward.embed(texts).mean(dim=0), True
    return contrast.squared_error(forward.decoded_regions, targets, valid)


def global_contr(forward: Forward) -> Tensor:
    """Loss "global-contr": CLIP's loss between films and their reports, among films with a report."""
    is_sentence = forward.asked_boxes.is_sentence
    marks = is_sentence.unsqueeze(-1)
    texts = forward.sentences.masked_fill(~marks, 0).sum(dim=1) / marks.sum(dim=1).clamp(min=1)
    told = is_sentence.any(dim=1)
    films = forward.picture[0].mean(dim=1)
    return contrast.global_contrast(films[told], texts[told])


def align(forward: Forward) -> Tensor:
    """Loss "align": binary cross-entropy of patches against texts; positive inside the boxes of a text.

    For every film and text the patches inside its boxes have the same total weight as those outside; a patch that a box
    covers in part counts on both sides in proportion.
    The texts are phrases of located classes and of regions, and the text questions.
    """
    batch, patches = forward.batch, forward.picture[0]
    start = len(forward.regions)
    phrases = torch.cat([forward.positive, forward.region_vectors[:start]])
    boxes = batch.boxes[:, forward.classes]
    regions = functional.pad(batch.regions[:, forward.regions].unsqueeze(2), (0, 0, 0, boxes.shape[2] - 1))
    seen = batch.seen[:, forward.regions]
    first = functional.pad(seen.unsqueeze(2), (0, boxes.shape[2] - 1))
    asked = forward.asked_boxes
    grid = forward.network.sizes.image_encoder.grid
    covered = coverage(
        torch.cat([boxes, regions, asked.boxes], dim=1),
        torch.cat([batch.valid[:, forward.classes], first, asked.valid], dim=1),
        grid=grid,
    )
    logits = torch.cat([forward.heads.align(patches, phrases), forward.heads.align(patches, forward.sentences)], dim=1)
    counted = torch.cat([batch.located[:, forward.classes], seen, asked.is_placed], dim=1)
    inside = (functional.softplus(-logits) * covered).sum(dim=-1) / covered.sum(dim=-1).clamp(min=1)
    outside = (functional.softplus(logits) * (1 - covered)).sum(dim=-1) / (1 - covered).sum(dim=-1).clamp(min=1)
    return mean_by_film(inside + outside, counted)


def coverage(boxes: Tensor, valid: Tensor, *, grid: int) -> Tensor:
    """Return the share of each patch that one of the boxes [F, Q, T, 4] covers, the largest of all: [F, Q, P]."""
    edges = torch.arange(grid + 1, device=boxes.device, dtype=boxes.dtype) / grid
    left, top, right, bottom = unit_boxes.to_corners(boxes).unsqueeze(-1).unbind(dim=-2)
    across = (torch.minimum(right, edges[1:]) - torch.maximum(left, edges[:-1])).clamp(min=0)
    down = (torch.minimum(bottom, edges[1:]) - torch.maximum(top, edges[:-1])).clamp(min=0)
    shares = (down.unsqueeze(-1) * across.unsqueeze(-2)).flatten(-2) * grid**2
    return shares.masked_fill(~valid.unsqueeze(-1), 0).amax(dim=2).clamp(max=1)


def presence(forward: Forward) -> Tensor:
    """Loss "presence": cross-entropy of each class's label, by the reader's decision.

    The likelihood of a mined label includes its error rates (`stages.MinedLabels`).
    """
    # Of each class by its own feature.
    logits = forward.heads.decide(forward.decoded_classes, forward.positive, forward.negative)
    decided = torch.sigmoid(logits.diagonal(dim1=1, dim2=2))
    rates, classes = forward.stage.mined, [forward.catalog.classes[number].name for number in forward.classes]
    invented = decided.new_tensor([rates.invented_by_class.get(name, rates.invented) for name in classes])
    labelled = decided * (1 - rates.missed) + (1 - decided) * invented
    batch = forward.batch
    likely = torch.where(batch.mined[:, forward.classes], labelled, decided)
    target = batch.target[:, forward.classes]
    there, absent = (chance.clamp(min=_LEAST_LIKELY).log() for chance in (likely, 1 - likely))
    losses = -(target * there + (1 - target) * absent)
    return mean_by_film(losses, batch.known[:, forward.classes])


def region_presence(forward: Forward) -> Tensor:
    """Loss "region-presence": binary cross-entropy of each class in each region, by the reader's decision."""
    logits = forward.heads.decide(forward.decoded_regions, forward.positive, forward.negative)
    present = forward.batch.region_present[:, forward.regions][:, :, forward.classes]
    known = forward.batch.region_known[:, forward.regions][:, :, forward.classes]
    losses = functional.binary_cross_entropy_with_logits(logits, present.float(), reduction="none")
    return mean_by_film(losses.flatten(1), known.flatten(1))


LOSSES: Mapping[Objective, Loss] = {
    "patho-detect": lambda forward: forward.finding_loss.total,
    "patho-cls": patho_cls,
    "anat-detect": anat_detect,
    "anat-cls": anat_cls,
    "anat-mse": anat_mse,
    "anat-gen": of_regions,
    "sent-contr": lambda forward: contrast.sentence_contrast(
        forward.decoded_sentences, forward.sentences, forward.asked_boxes.is_sentence
    ),
    "sent-mse": lambda forward: contrast.squared_error(
        forward.decoded_sentences, forward.sentences, forward.asked_boxes.is_sentence
    ),
    "sent-gen": of_sentences,
    "global-contr": global_contr,
    "text-gen": of_texts,
    "align": align,
    "box": lambda forward: forward.finding_loss.box,
    "score": lambda forward: forward.finding_loss.score,
    "presence": presence,
    "region-presence": region_presence,
    "sent-box": lambda forward: forward.sentence_loss.box,
    "sent-score": lambda forward: forward.sentence_loss.score,
    "finding-gen": of_findings,
}
