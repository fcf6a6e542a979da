"""The network part by part: films, phrases, boxes and scores, region tokens, and sentences (spec §1 to 7)."""

from __future__ import annotations

from collections.abc import Mapping

import cv2
import numpy as np
import torch
from torch import Tensor

from models import boxes as unit_boxes
from models.errors import ModelError
from models.lab.golden.recording import PHRASES, Computed, RecordedNetwork, watched
from models.lab.tasks.batch import fill_up
from models.manifest import PUBLISHED_MEAN, PUBLISHED_STD, InputRule
from models.network.chex import whole_picture
from models.network.detector import Detection, soft_boxes
from models.reading.preprocess import prepare
from models.reading.tokenizers import SENTENCE_END

_STAGE_SIDE = 256


def pictures(ours: RecordedNetwork) -> Computed:
    """Prepare every recorded film on both paths, and the batch of them all."""
    side = ours.network.sizes.image_encoder.image_size
    ready = InputRule(size=side, mean=PUBLISHED_MEAN, std=PUBLISHED_STD, resize="via_256")
    # The published training stored the cropped film, before it was resized and normalized.
    stage = InputRule(size=_STAGE_SIDE, mean=0, std=1, resize="via_256")
    direct = InputRule(size=side, mean=PUBLISHED_MEAN, std=PUBLISHED_STD, resize="direct")
    batch = []
    count = sum(name.endswith("/raw_uint8") for name in ours.recording.arrays)
    for name in (f"image{number}" for number in range(count)):
        path = ours.recording.folder / f"{name}.png"
        raw = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        if raw is None:
            raise ModelError(f"{path} cannot be read; restore the folder")
        gray = (raw / 255).astype(np.float32)
        batch.append(prepare(gray, ready))
        yield f"{name}/raw_uint8", raw
        yield f"{name}/stage1_256", prepare(gray, stage)
        yield f"{name}/x", batch[-1]
        yield f"{name}/x_direct", prepare(gray, direct)
    yield "x", np.stack(batch)


def image_encoder(ours: RecordedNetwork) -> Computed:
    """Encode the films; every layer on the way."""
    with watched(ours.network) as seen:
        patches, positions, cls = ours.look()
    after = seen["image_encoder.norm_after"]
    yield "img/ln_pre", seen["image_encoder.norm_before"]
    for layer in range(ours.network.sizes.image_encoder.layers):
        yield f"img/block{layer}", seen[f"image_encoder.layers.{layer}"]
    yield "img/cls_ln_post", after[:, 0]
    yield "img/patch_ln_post", after[:, 1:]
    yield "img/patch_features", patches
    yield "img/pos_embeddings", positions
    yield "img/cls_features", cls


def prompt_encoder(ours: RecordedNetwork) -> Computed:
    """Split phrases into tokens and encode them; the last layer on the way for the first few."""
    for kind in PHRASES:
        tokens = ours.phrases.encode(ours.recording.sentences(f"txt/{kind}/texts"))
        yield f"txt/{kind}/ids", tokens
        with watched(ours.network) as seen:
            yield f"txt/{kind}/emb", ours.network.encode_prompts(torch.from_numpy(tokens))
        if kind == "rg_queries":
            few = ours.recording.extent("txt/rg_queries/ln_final")
            last = ours.network.sizes.prompt_encoder.layers - 1
            yield "txt/rg_queries/transformer_out", seen[f"prompt_encoder.layers.{last}"][:few]
            yield "txt/rg_queries/ln_final", seen["prompt_encoder.norm_after"][:few]


def report_queries(ours: RecordedNetwork) -> Computed:
    """Embed the prompts of report generation, and the mean vectors for positiveness."""
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


def report_sentences(ours: RecordedNetwork) -> Computed:
    """Write the sentences of the reports, greedily, and encode them again."""
    texts = []
    for film in range(ours.films):
        features = _selected_features(ours, film, "rg/region_mask")
        ids = ours.network.write(features)
        texts.append(ours.decode(ids))
        yield f"rg/gen{film}/token_ids", ids
        yield f"rg/gen{film}/margins", _margins(ours, features, ids)
        if film == 0:
            yield from _first_step(ours, features)
    yield "rg/pred_sentences_before_dedup", texts
    yield from _embedded_again(ours, texts)


def other_sentences(ours: RecordedNetwork) -> Computed:
    """Write the sentences of the reports where every class is judged by itself."""
    features = [_selected_features(ours, film, "rg_noavg/region_mask") for film in range(ours.films)]
    yield "rg_noavg/pred_sentences_before_dedup", [ours.decode(ours.network.write(film)) for film in features]


def region_margins(ours: RecordedNetwork) -> Computed:
    """Return the margin between the best and the second token at each position of the regions' sentences."""
    features = ours.recording.take("region/features_masked")[ours.recording.take("region/mask")]
    yield "region/margins", _margins(ours, features, ours.recording.take("region/token_ids").long())


def _selected_features(ours: RecordedNetwork, film: int, mask: str) -> Tensor:
    """Choose the features [S, dim] of the prompts of a film that get a sentence."""
    return ours.recording.take("rg/box_features_post")[film][ours.recording.take(mask)[film]]


def _first_step(ours: RecordedNetwork, features: Tensor) -> Computed:
    """Start the sentences of the first film."""
    generator, recorded = ours.network.generator, "rg/gen0"
    few = features[: ours.recording.extent(f"{recorded}/first_step_logits")]
    start = torch.full((len(few), 1), SENTENCE_END)
    yield f"{recorded}/prefix_flat", generator.prefix(features)
    yield f"{recorded}/prefix_key_values", generator.prefix_key_values(features)
    logits = generator(start, torch.zeros_like(start), generator.remember(few, room=1))
    yield f"{recorded}/first_step_logits", logits


def _margins(ours: RecordedNetwork, features: Tensor, ids: Tensor) -> Tensor:
    """Return by how much every token of given sentences [S, T] beat the next likely one: [S, T - 1].

    Step by step with the cache, as they were generated; a finished sentence continues with padding.
    """
    generator = ours.network.generator
    caches = generator.remember(features, room=ids.shape[1])
    margins = []
    for place in range(ids.shape[1] - 1):
        position = torch.full_like(ids[:, :1], place)
        best = generator(ids[:, place : place + 1], position, caches)[:, -1].topk(2).values
        margins.append(best[:, 0] - best[:, 1])
    return torch.stack(margins, dim=1)


def _embedded_again(ours: RecordedNetwork, texts: list[list[str]]) -> Computed:
    """Encode the sentences of all films, rows filled up with zeros."""
    features, padding = fill_up([ours.embed(of_film) for of_film in texts])
    yield "rg/sentence_features", features
    yield "rg/sentence_mask", ~padding
