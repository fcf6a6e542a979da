"""What the network finds for prompts of which only some see each other, or only some boxes count (`Analysis`)."""

from __future__ import annotations

import torch
from torch import Tensor

from models.errors import ModelError
from models.lab.evaluation.published.analysis import Analysis
from models.lab.tasks.batch import Picture
from models.network.chex import Chex, whole_picture
from models.network.detector import Detection, aggregated


def find(network: Chex, picture: Picture, prompts: Tensor, how: Analysis) -> tuple[Tensor, Tensor]:
    """Locate prompts [Q, dim] on a film as `Chex.find` does, but for what an analysis says.

    Returns the aggregated scores [1, Q] and the features [1, Q, dim]. Raises ModelError for more boxes than there are.
    """
    most = network.detector.boxes_per_prompt
    if how.boxes > most:
        raise ModelError(f"boxes is {how.boxes}, but this network gives {most} of each prompt; set it to 1 to {most}")
    size = how.together or len(prompts)
    parts = [_find(network, picture, some, boxes=how.boxes or most) for some in torch.split(prompts, size)]
    scores, features = zip(*parts, strict=True)
    return torch.cat(scores, dim=1), torch.cat(features, dim=1)


def _find(network: Chex, picture: Picture, prompts: Tensor, *, boxes: int) -> tuple[Tensor, Tensor]:
    """Locate prompts that see each other, with so many of their boxes."""
    patches, positions, _ = picture
    every = network.detector.boxes_per_prompt
    found: Detection = network.detector(patches, positions, prompts.unsqueeze(0), group=every)
    if boxes < every:
        found = _likeliest(found, boxes)
    features = network.post_decoder.of_aggregated(found.aggregated, found.tokens, whole_picture(*picture))
    return found.aggregated_scores, features


def _likeliest(found: Detection, count: int) -> Detection:
    """Keep the likeliest boxes of each prompt, in their order, and aggregate these anew (spec §4.5)."""
    places = found.scores.topk(count, dim=-1).indices.sort(dim=-1).values
    scores = found.scores.gather(-1, places)
    boxes, tokens = (
        part.gather(2, places.unsqueeze(-1).expand(-1, -1, -1, part.shape[-1])) for part in (found.boxes, found.tokens)
    )
    return aggregated(boxes, scores, tokens)
