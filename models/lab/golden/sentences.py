"""Features into sentences (spec §7), and sentences into embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from models.lab.golden.recording import Computed, RecordedNetwork
from models.lab.tasks.batch import fill_up
from models.reading.tokenizers import SENTENCE_END


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
    yield from _embedded(ours, texts)


def other_sentences(ours: RecordedNetwork) -> Computed:
    """Write the sentences of the reports where every class is judged by itself."""
    features = [_selected_features(ours, film, "rg_noavg/region_mask") for film in range(ours.films)]
    yield "rg_noavg/pred_sentences_before_dedup", [ours.decode(ours.network.write(film)) for film in features]


def region_margins(ours: RecordedNetwork) -> Computed:
    """Return how clearly every token of the regions' sentences won."""
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


def _embedded(ours: RecordedNetwork, texts: list[list[str]]) -> Computed:
    """Encode the sentences of all films, rows filled up with zeros."""
    features, padding = fill_up([ours.embed(of_film) for of_film in texts])
    yield "rg/sentence_features", features
    yield "rg/sentence_mask", ~padding
