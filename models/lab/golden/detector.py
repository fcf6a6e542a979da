"""Prompts into boxes, scores and region tokens, and region tokens past the post decoder (spec §4 to 6)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models import boxes as unit_boxes
from models.lab.golden.recording import Computed, RecordedNetwork, watched
from models.network.chex import whole_picture
from models.network.detector import Detection
from models.network.roi_pool import soft_boxes


def report_queries(ours: RecordedNetwork) -> Computed:
    """Embed what report generation asks, and the means that it judges by."""
    judged = len(ours.recording.sentences("txt/rg_neg/texts"))
    queries = _embedded(ours, "rg_queries")
    yield "rg/token_prompts", queries
    yield "rg/pos_prompt_mean", queries[:judged].mean(dim=0)
    yield "rg/neg_prompt_mean", _embedded(ours, "rg_neg").mean(dim=0)


def report_detector(ours: RecordedNetwork) -> Computed:
    """Locate the prompts of a report: the tokens of one prompt see each other only."""
    detector = ours.network.detector
    patches, positions, _ = ours.look()
    with watched(ours.network) as seen:
        found = detector(patches, positions, _queries(ours), group=detector.boxes_per_prompt)
    unclipped = torch.sigmoid(seen["detector.box"])
    yield from _stages(seen, "rg/det", ours)
    yield "rg/det/patch_projected", seen["detector.patch"]
    yield "rg/det/roi_pooled", detector.pool(patches, unclipped)
    maps = unclipped[:, : ours.recording.extent("rg/det/roi_maps", axis=1)]
    yield "rg/det/roi_maps", soft_boxes(maps, grid=detector.grid, beta=detector.beta)
    yield "rg/multiboxes_unclipped", detector.per_prompt(unclipped)
    yield "rg/multiboxes", found.boxes
    yield "rg/multiboxes_weights", found.scores
    yield "rg/boxes_weights", found.aggregated_scores
    yield "rg/box_features_aggregated", found.aggregated
    yield from _around(detector.per_prompt(unclipped), found.scores)
    yield from _without_skip(ours, patches, unclipped)


def report_post_decoder(ours: RecordedNetwork) -> Computed:
    """Run region tokens through the post decoder: as evaluated, with recorded random drops, and as in the paper."""
    network = ours.network
    picture = ours.look()
    memory = whole_picture(*picture)
    found: Detection = network.detector(*picture[:2], _queries(ours), group=network.detector.boxes_per_prompt)
    with watched(network) as seen:
        tokens = network.post_decoder.of_prompts(found.aggregated, found.tokens, memory)
    for layer in range(network.sizes.post_decoder.layers):
        yield f"rg/post/layer{layer}", seen[f"post_decoder.layers.{layer}"]
    yield "rg/box_features_post", tokens[:, :, 0]
    yield "rg/multiboxes_features_post", tokens[:, :, 1:]
    for draw in ("rg/drop10", "rg/drop50"):
        dropped = ~ours.recording.take(f"{draw}/keep_tokens")
        tokens = network.post_decoder.of_prompts(found.aggregated, found.tokens, memory, dropped=dropped)
        yield f"{draw}/box_features_post", tokens[:, :, 0]
    together = torch.cat([found.aggregated.unsqueeze(2), found.tokens], dim=2)
    apart = network.post_decoder(together.flatten(1, 2), memory, group=together.shape[2])
    yield "nonofficial/paper_restricted/box_features_post", apart.reshape(together.shape)[:, :, 0]


def open_detector(ours: RecordedNetwork) -> Computed:
    """Locate prompts that all see each other, as with the query masks of detection and grounding; layer by layer."""
    detector = ours.network.detector
    patches, positions, _ = ours.look()
    prompts = ours.recording.take("od/od_mscxr/box_prompt_emb").expand(len(patches), -1, -1)
    with watched(ours.network) as seen:
        detector(patches, positions, prompts, group=None)
    yield from _stages(seen, "od/od_mscxr/det", ours)
    yield "od/od_mscxr/det/roi_pooled", detector.pool(patches, torch.sigmoid(seen["detector.box"]))
    padding = ~ours.recording.take("sg/sentence_mask")
    with watched(ours.network) as seen:
        detector(patches, positions, ours.recording.take("sg/sentence_features"), group=None, padding=padding)
    yield from _stages(seen, "sg/det", ours)
    yield "sg/det/roi_pooled", detector.pool(patches, torch.sigmoid(seen["detector.box"]))


def region_pooling(ours: RecordedNetwork) -> Computed:
    """Pool patches under given boxes."""
    detector = ours.network.detector
    boxes = ours.recording.take("region/boxes")
    yield "region/roi_maps", soft_boxes(boxes, grid=detector.grid, beta=detector.beta)
    yield "region/roi_pooled", detector.pool(ours.look()[0], boxes)


def _stages(seen: Mapping[str, Tensor], recorded: str, ours: RecordedNetwork) -> Computed:
    among = seen[
        "detector.layers.0.self_attention"
    ]  # if tokens see their own prompt only, each prompt is a batch entry
    yield f"{recorded}/layer0_sa", among.reshape(ours.films, -1, among.shape[-1])
    yield f"{recorded}/layer0_ca", seen["detector.layers.0.cross_attention"]
    for layer in range(ours.network.sizes.detector.layers):
        yield f"{recorded}/layer{layer}", seen[f"detector.layers.{layer}"]
    yield f"{recorded}/box_logits", seen["detector.box"]
    yield f"{recorded}/roi_tokens", seen["detector.region"]
    yield f"{recorded}/score_logits", seen["detector.score"]


def _around(unclipped: Tensor, scores: Tensor) -> Computed:
    """Return the box around the boxes of a prompt, zeros if none is likely (spec §4.5)."""
    likely = scores > 0.5
    present = likely.any(dim=-1)
    around = unit_boxes.to_center_size(unit_boxes.enclosing(unit_boxes.to_corners(unclipped)))
    yield "rg/multiboxes_present", likely
    yield "rg/boxes_present", present
    yield "rg/boxes_unclipped", around * present.unsqueeze(-1)
    yield "rg/boxes", unit_boxes.clip(around) * present.unsqueeze(-1)


def _without_skip(ours: RecordedNetwork, patches: Tensor, unclipped: Tensor) -> Computed:
    """Return region tokens from the pooled boxes alone, which training uses for most of them (spec §4.5)."""
    detector = ours.network.detector
    tokens = detector.per_prompt(detector.gather(detector.pool(patches, unclipped)))
    scores = torch.sigmoid(detector.score(tokens))
    yield "rg/noskip/multiboxes_features", tokens
    yield "rg/noskip/box_features", (scores * tokens).sum(dim=2) / scores.sum(dim=2).clamp(min=1)


def _embedded(ours: RecordedNetwork, kind: str) -> Tensor:
    return ours.embed(ours.recording.sentences(f"txt/{kind}/texts"))


def _queries(ours: RecordedNetwork) -> Tensor:
    """Ask all recorded films the same [F, Q, dim]."""
    return ours.recording.take("rg/token_prompts").expand(ours.films, -1, -1)
