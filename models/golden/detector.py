"""Prompts into boxes, scores and region tokens, and region tokens past the post decoder (SPEC.md 4 to 6)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models import boxes as unit_boxes
from models.chex import whole_picture
from models.detector import Detection
from models.golden.subject import Computed, Subject, watched
from models.roi_pool import soft_boxes


def report_queries(subject: Subject) -> Computed:
    """Embed what report generation asks, and the means that it judges by."""
    judged = len(subject.recording.sentences("txt/rg_neg/texts"))
    queries = _embedded(subject, "rg_queries")
    yield "rg/token_prompts", queries
    yield "rg/pos_prompt_mean", queries[:judged].mean(dim=0)
    yield "rg/neg_prompt_mean", _embedded(subject, "rg_neg").mean(dim=0)


def report_detector(subject: Subject) -> Computed:
    """Locate the prompts of a report: the tokens of one prompt see each other only."""
    detector = subject.network.detector
    patches, positions, _ = subject.look()
    with watched(subject.network) as seen:
        found = detector(patches, positions, _queries(subject), group=detector.boxes_per_prompt)
    unclipped = torch.sigmoid(seen["detector.box"])
    yield from _stages(seen, "rg/det", subject)
    yield "rg/det/patch_projected", seen["detector.patch"]
    yield "rg/det/roi_pooled", detector.pool(patches, unclipped)
    maps = unclipped[:, : subject.recording.extent("rg/det/roi_maps", axis=1)]
    yield "rg/det/roi_maps", soft_boxes(maps, grid=detector.grid, beta=detector.beta)
    yield "rg/multiboxes_unclipped", detector.per_prompt(unclipped)
    yield "rg/multiboxes", found.boxes
    yield "rg/multiboxes_weights", found.scores
    yield "rg/boxes_weights", found.aggregated_scores
    yield "rg/box_features_aggregated", found.aggregated
    yield from _around(detector.per_prompt(unclipped), found.scores)
    yield from _without_skip(subject, patches, unclipped)


def report_post_decoder(subject: Subject) -> Computed:
    """Let region tokens look at the whole picture: as evaluated, with recorded draws, and as the paper has it."""
    network = subject.network
    picture = subject.look()
    memory = whole_picture(*picture)
    found: Detection = network.detector(*picture[:2], _queries(subject), group=network.detector.boxes_per_prompt)
    with watched(network) as seen:
        tokens = network.post_decoder.of_prompts(found.aggregated, found.tokens, memory)
    for layer in range(network.sizes.post_decoder.layers):
        yield f"rg/post/layer{layer}", seen[f"post_decoder.layers.{layer}"]
    yield "rg/box_features_post", tokens[:, :, 0]
    yield "rg/multiboxes_features_post", tokens[:, :, 1:]
    for draw in ("rg/drop10", "rg/drop50"):
        dropped = ~subject.recording.take(f"{draw}/keep_tokens")
        tokens = network.post_decoder.of_prompts(found.aggregated, found.tokens, memory, dropped=dropped)
        yield f"{draw}/box_features_post", tokens[:, :, 0]
    together = torch.cat([found.aggregated.unsqueeze(2), found.tokens], dim=2)
    apart = network.post_decoder(together.flatten(1, 2), memory, group=together.shape[2])
    yield "nonofficial/paper_restricted/box_features_post", apart.reshape(together.shape)[:, :, 0]


def open_detector(subject: Subject) -> Computed:
    """Locate prompts that all see each other, as with the query masks of detection and grounding; layer by layer."""
    detector = subject.network.detector
    patches, positions, _ = subject.look()
    prompts = subject.recording.take("od/od_mscxr/box_prompt_emb").expand(len(patches), -1, -1)
    with watched(subject.network) as seen:
        detector(patches, positions, prompts, group=None)
    yield from _stages(seen, "od/od_mscxr/det", subject)
    yield "od/od_mscxr/det/roi_pooled", detector.pool(patches, torch.sigmoid(seen["detector.box"]))
    padding = ~subject.recording.take("sg/sentence_mask")
    with watched(subject.network) as seen:
        detector(patches, positions, subject.recording.take("sg/sentence_features"), group=None, padding=padding)
    yield from _stages(seen, "sg/det", subject)
    yield "sg/det/roi_pooled", detector.pool(patches, torch.sigmoid(seen["detector.box"]))


def region_pooling(subject: Subject) -> Computed:
    """Pool patches under given boxes."""
    detector = subject.network.detector
    boxes = subject.recording.take("region/boxes")
    yield "region/roi_maps", soft_boxes(boxes, grid=detector.grid, beta=detector.beta)
    yield "region/roi_pooled", detector.pool(subject.look()[0], boxes)


def _stages(seen: Mapping[str, Tensor], recorded: str, subject: Subject) -> Computed:
    among = seen["detector.layers.0.self_attention"]  # where tokens see their own prompt only, each is a film
    yield f"{recorded}/layer0_sa", among.reshape(subject.films, -1, among.shape[-1])
    yield f"{recorded}/layer0_ca", seen["detector.layers.0.cross_attention"]
    for layer in range(subject.network.sizes.detector.layers):
        yield f"{recorded}/layer{layer}", seen[f"detector.layers.{layer}"]
    yield f"{recorded}/box_logits", seen["detector.box"]
    yield f"{recorded}/roi_tokens", seen["detector.region"]
    yield f"{recorded}/score_logits", seen["detector.score"]


def _around(unclipped: Tensor, scores: Tensor) -> Computed:
    """Give the one box around the boxes of a prompt, nothing where none is likely (SPEC.md 4.5)."""
    likely = scores > 0.5
    present = likely.any(dim=-1)
    around = unit_boxes.to_center_size(unit_boxes.enclosing(unit_boxes.to_corners(unclipped)))
    yield "rg/multiboxes_present", likely
    yield "rg/boxes_present", present
    yield "rg/boxes_unclipped", around * present.unsqueeze(-1)
    yield "rg/boxes", unit_boxes.clip(around) * present.unsqueeze(-1)


def _without_skip(subject: Subject, patches: Tensor, unclipped: Tensor) -> Computed:
    """Give region tokens of what the boxes pool alone, which training uses for most of them (SPEC.md 4.5)."""
    detector = subject.network.detector
    tokens = detector.per_prompt(detector.gather(detector.pool(patches, unclipped)))
    scores = torch.sigmoid(detector.score(tokens))
    yield "rg/noskip/multiboxes_features", tokens
    yield "rg/noskip/box_features", (scores * tokens).sum(dim=2) / scores.sum(dim=2).clamp(min=1)


def _embedded(subject: Subject, kind: str) -> Tensor:
    return subject.embed(subject.recording.sentences(f"txt/{kind}/texts"))


def _queries(subject: Subject) -> Tensor:
    """Ask all recorded films the same [F, Q, dim]."""
    return subject.recording.take("rg/token_prompts").expand(subject.films, -1, -1)
