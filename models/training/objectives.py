"""What a stage minimizes, by the names of the run file: each a scalar of one forward pass.

The first group is the paper's (SPEC.md 10). The second is of the small model, which has no pre-trained encoders:
patches are drawn to the words of what lies in them, and decisions are those that a reader makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from models import boxes as unit_boxes
from models.losses import contrast
from models.losses.detection import anatomy_detection
from models.losses.means import mean_by_film, mean_of
from models.training import telling
from models.training.forward import Forward
from models.training.stages import Objective

Loss = Callable[[Forward], Tensor]


def losses_of(forward: Forward) -> dict[str, Tensor]:
    """Compute all losses of the stage, unweighted."""
    return {name: LOSSES[name](forward) for name in LOSSES if name in forward.stage.losses}


def patho_detect(forward: Forward) -> Tensor:
    """Boxes and scores of findings, weighted as published."""
    return forward.finding_loss.total


def patho_cls(forward: Forward) -> Tensor:
    """Choose each class's phrase by its aggregated token, among those of all drawn classes."""
    losses = contrast.finding_contrast(
        forward.found.aggregated[:, : len(forward.classes)],
        forward.positive,
        forward.negative,
        present=forward.batch.present[:, forward.classes],
        temperature=forward.stage.temperatures.findings,
    )
    return mean_by_film(losses, forward.batch.known[:, forward.classes])


def anat_detect(forward: Forward) -> Tensor:
    """Boxes of regions."""
    batch, start = forward.batch, len(forward.classes)
    pairs = torch.tensor(forward.catalog.pairs, device=batch.pixels.device)
    return anatomy_detection(
        forward.found.boxes[:, start:],
        forward.found.scores[:, start:],
        target=batch.regions[:, forward.regions],
        present=batch.seen[:, forward.regions] & forward.counted_regions[forward.regions],
        pairs=batch.regions[:, pairs],
        pairs_present=batch.seen[:, pairs],
    )


def anat_cls(forward: Forward) -> Tensor:
    """Draw regions to the phrases of what they hold; classes whose absence counts are drawn by their number.

    The published reduction contradicts itself (SPEC.md 10): here it is the mean over the known regions of the batch.
    """
    present = forward.batch.region_present[:, forward.regions][:, :, forward.judged]
    known = forward.batch.region_known[:, forward.regions][:, :, forward.judged]
    counts = (present & known).sum(dim=(0, 1)).float()
    share = counts * (forward.stage.drawing.classes / counts.sum().clamp(min=1))
    drawn = torch.rand(share.shape, device=share.device) < share
    losses = contrast.anatomy_contrast(
        forward.told_regions,
        forward.judged_positive,
        forward.judged_negative,
        present=present,
        known=known,
        drawn=drawn,
        temperature=forward.stage.temperatures.anatomy,
    )
    return mean_of(losses, known.any(dim=-1))


def anat_mse(forward: Forward) -> Tensor:
    """Draw regions to the mean vector of the sentences about them."""
    targets = torch.zeros_like(forward.told_regions)
    valid = torch.zeros(targets.shape[:2], dtype=torch.bool, device=targets.device)
    for film, said in enumerate(forward.batch.said):
        for place, region in enumerate(forward.regions):
            if texts := [one.text for one in said if region in one.regions]:
                targets[film, place], valid[film, place] = forward.embed(texts).mean(dim=0), True
    return contrast.squared_error(forward.told_regions, targets, valid)


def sent_contr(forward: Forward) -> Tensor:
    """Choose the sentence that a sentence's own place is about."""
    temperature = forward.stage.temperatures.sentences
    return contrast.sentence_contrast(
        forward.told_sentences, forward.sentences, forward.is_sentence, temperature=temperature
    )


def sent_mse(forward: Forward) -> Tensor:
    """Draw what a sentence finds to its own vector."""
    return contrast.squared_error(forward.told_sentences, forward.sentences, forward.is_sentence)


def global_contr(forward: Forward) -> Tensor:
    """Choose the report of a film and the film of a report, among films that have one."""
    marks = forward.is_sentence.unsqueeze(-1)
    texts = forward.sentences.masked_fill(~marks, 0).sum(dim=1) / marks.sum(dim=1).clamp(min=1)
    told = forward.is_sentence.any(dim=1)
    films = forward.picture[0].mean(dim=1)
    return contrast.global_contrast(films[told], texts[told], temperature=forward.stage.temperatures.films)


def align(forward: Forward) -> Tensor:
    """Draw patches to the words of what lies in them, and away from those of what does not.

    Of every film and text the patches inside its boxes count as much as those outside; one that a box covers in part is
    a part of both. Texts are phrases of located classes and of regions, and questions in words.
    """
    batch, patches = forward.batch, forward.picture[0]
    start = len(forward.regions)
    phrases = torch.cat([forward.positive, forward.region_vectors[:start]])
    boxes = batch.boxes[:, forward.classes]
    regions = functional.pad(batch.regions[:, forward.regions].unsqueeze(2), (0, 0, 0, boxes.shape[2] - 1))
    seen = batch.seen[:, forward.regions]
    first = functional.pad(seen.unsqueeze(2), (0, boxes.shape[2] - 1))
    asked, asked_valid, padding = forward.asked_boxes
    grid = forward.network.sizes.image_encoder.grid
    covered = coverage(
        torch.cat([boxes, regions, asked], dim=1),
        torch.cat([batch.valid[:, forward.classes], first, asked_valid], dim=1),
        grid=grid,
    )
    logits = torch.cat([forward.heads.align(patches, phrases), forward.heads.align(patches, forward.sentences)], dim=1)
    counted = torch.cat([batch.located[:, forward.classes], seen, ~padding], dim=1)
    inside = (functional.softplus(-logits) * covered).sum(dim=-1) / covered.sum(dim=-1).clamp(min=1)
    outside = (functional.softplus(logits) * (1 - covered)).sum(dim=-1) / (1 - covered).sum(dim=-1).clamp(min=1)
    return mean_by_film(inside + outside, counted)


def coverage(boxes: Tensor, valid: Tensor, *, grid: int) -> Tensor:
    """Give the share of each patch that the boxes [F, Q, T, 4] cover, the largest of one box: [F, Q, P]."""
    edges = torch.arange(grid + 1, device=boxes.device, dtype=boxes.dtype) / grid
    left, top, right, bottom = unit_boxes.to_corners(boxes).unsqueeze(-1).unbind(dim=-2)
    across = (torch.minimum(right, edges[1:]) - torch.maximum(left, edges[:-1])).clamp(min=0)
    down = (torch.minimum(bottom, edges[1:]) - torch.maximum(top, edges[:-1])).clamp(min=0)
    shares = (down.unsqueeze(-1) * across.unsqueeze(-2)).flatten(-2) * grid**2
    return shares.masked_fill(~valid.unsqueeze(-1), 0).amax(dim=2).clamp(max=1)


def presence(forward: Forward) -> Tensor:
    """Decide whether a film shows each class, as a reader does."""
    logits = _decisions(forward, forward.told_classes)
    losses = functional.binary_cross_entropy_with_logits(
        logits, forward.batch.present[:, forward.classes].float(), reduction="none"
    )
    return mean_by_film(losses, forward.batch.known[:, forward.classes])


def region_presence(forward: Forward) -> Tensor:
    """Decide whether a region holds each class, as a reader does."""
    logits = forward.heads.decide(forward.told_regions, forward.positive, forward.negative)
    present = forward.batch.region_present[:, forward.regions][:, :, forward.classes]
    known = forward.batch.region_known[:, forward.regions][:, :, forward.classes]
    losses = functional.binary_cross_entropy_with_logits(logits, present.float(), reduction="none")
    return mean_by_film(losses.flatten(1), known.flatten(1))


def _decisions(forward: Forward, features: Tensor) -> Tensor:
    """Give the logit of each class by its own feature: [F, C', dim] to [F, C']."""
    return forward.heads.decide(features, forward.positive, forward.negative).diagonal(dim1=1, dim2=2)


LOSSES: Mapping[Objective, Loss] = {
    "patho-detect": patho_detect,
    "patho-cls": patho_cls,
    "anat-detect": anat_detect,
    "anat-cls": anat_cls,
    "anat-mse": anat_mse,
    "anat-gen": telling.of_regions,
    "sent-contr": sent_contr,
    "sent-mse": sent_mse,
    "sent-gen": telling.of_sentences,
    "global-contr": global_contr,
    "text-gen": telling.of_texts,
    "align": align,
    "box": lambda forward: forward.finding_loss.box,
    "score": lambda forward: forward.finding_loss.score,
    "presence": presence,
    "region-presence": region_presence,
    "sent-box": lambda forward: forward.sentence_loss.box,
    "sent-score": lambda forward: forward.sentence_loss.score,
    "finding-gen": telling.of_findings,
}
