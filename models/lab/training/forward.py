"""The forward pass of one training step. Each output is computed once, and only if an objective needs it.

Boxes are not clipped, because the losses need them so (spec §10). Decoded features are those that the post
decoder returns; sentences and decisions are made from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.lab.losses.detection import FindingLoss, finding_detection, likelihood
from models.lab.training.batch import AskedBoxes, Batch
from models.lab.training.catalog import Catalog
from models.lab.training.stages import Objective, Stage
from models.lab.training.text_encoding import TextEncoder, Vocabulary
from models.network.chex import Chex, whole_picture
from models.network.detector import Detection

_CLASS_LOSSES: Final[frozenset[Objective]] = frozenset(
    {
        "patho-detect",
        "patho-cls",
        "align",
        "box",
        "score",
        "presence",
        "region-presence",
        "finding-gen",
    }
)
"""Losses that need class prompts. Without any of them no class is among the prompts that see each other."""


class Heads(nn.Module):
    """Scales and offsets of the decisions, trained with the network; the manifest's temperature is derived from them.

    A logit is scale * (cosine to the phrase - cosine to its opposite) + offset; `align_*` are for single patches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0).log())
        self.offset = nn.Parameter(torch.tensor(-0.5))
        self.align_scale = nn.Parameter(torch.tensor(10.0).log())
        self.align_offset = nn.Parameter(torch.tensor(-1.0))

    def decide(self, features: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the logits of features [..., dim] for classes [C, dim]: [..., C]."""
        apart = functional.normalize(positive, dim=-1) - functional.normalize(negative, dim=-1)
        return self.scale.exp() * (functional.normalize(features, dim=-1) @ apart.T) + self.offset

    def align(self, patches: Tensor, texts: Tensor) -> Tensor:
        """Return the logits of patches [F, P, dim] for texts [F, Q, dim] or [Q, dim]: [F, Q, P]."""
        cosines = functional.normalize(texts, dim=-1) @ functional.normalize(patches, dim=-1).transpose(1, 2)
        return self.align_scale.exp() * cosines + self.align_offset


class Forward:
    """The forward pass of one batch in one stage.

    classes: the numbers of the C' drawn classes; judged: these and the C'' classes that regions are labeled for
    regions: the A' regions with one box; drawn_regions: those whose boxes and sentences count in the losses
    positive, negative: the vectors of the drawn classes' phrases, [C', dim], and of their opposites; judged_positive,
    judged_negative: those of the classes in `judged`, [C'', dim]
    region_vectors: those of A' regions with one box, then of B with two if the stage has "anat-detect", [A' + B, dim]
    by_boxes: whether region features come from the true boxes or from prompts with the region's name
    """

    def __init__(
        self,
        network: Chex,
        heads: Heads,
        text_encoder: TextEncoder,
        vocabulary: Vocabulary,
        batch: Batch,
        *,
        catalog: Catalog,
        stage: Stage,
        rng: np.random.Generator,
    ) -> None:
        self.network, self.heads, self.vocabulary, self.batch = network, heads, vocabulary, batch
        self.catalog, self.stage, self.rng = catalog, stage, rng
        self.by_boxes = bool(rng.random() < 0.5)
        self._together = bool(rng.random() < stage.drawing.together)
        self._after = any(name.startswith("post_decoder") for name in stage.train)
        self.classes = self._draw_classes()
        drawn = self._some(range(len(catalog.regions)), stage.drawing.regions)
        self.drawn_regions = frozenset(drawn)
        # As published, the contents of all regions are learned; boxes and sentences of drawn ones only (spec §10).
        self.regions = list(range(len(catalog.regions))) if "anat-cls" in stage.losses else drawn
        # The loss itself draws some of the absent classes that regions are judged for.
        judged = _numbers(batch.region_known.any(dim=0).any(dim=0)) if "anat-cls" in stage.losses else []
        self.judged = sorted({*self.classes, *judged}) or [0]
        phrases = self._draw_phrases()
        self._vectors = text_encoder.vectors([*phrases, *self._texts()])
        ends = [len(self.judged), 2 * len(self.judged)]
        self.judged_positive, self.judged_negative, self.region_vectors = self.embed(phrases).tensor_split(ends)
        own = [self.judged.index(number) for number in self.classes]
        self.positive, self.negative = self.judged_positive[own], self.judged_negative[own]

    @cached_property
    def picture(self) -> tuple[Tensor, Tensor, Tensor]:
        """Patches [F, P, dim], their positions, and the CLS token, of `Chex.encode_image`."""
        return self.network.encode_image(self.batch.pixels)

    @cached_property
    def asked_boxes(self) -> AskedBoxes:
        """The text questions as arrays."""
        return self.batch.asked_boxes()

    @cached_property
    def sentences(self) -> Tensor:
        """The vectors of the text questions, [F, S, dim]; zeros where a film has fewer."""
        longest = self.asked_boxes.padding.shape[1]
        blank = torch.zeros(longest, self.network.sizes.dim, device=self.batch.pixels.device)
        rows = [
            torch.cat([self.embed([question.text for question in asked]), blank[len(asked) :]]) if asked else blank
            for asked in self.batch.asked
        ]
        return torch.stack(rows)

    @cached_property
    def found(self) -> Detection:
        """The detections of classes and then regions; each prompt sees only its own tokens: Q = C' + A' + B."""
        prompts = torch.cat([self.positive, self.region_vectors])
        films = len(self.batch.pixels)
        return self._detect(prompts.expand(films, -1, -1), padding=None)

    @cached_property
    def found_sentences(self) -> Detection:
        """The detections of the text questions."""
        padding = self.asked_boxes.padding if self.stage.drawing.padded else None
        return self._detect(self.sentences, padding=padding)

    @cached_property
    def finding_loss(self) -> FindingLoss:
        """The loss of the drawn classes' boxes and scores."""
        batch, found, count = self.batch, self.found, len(self.classes)
        return finding_detection(
            found.boxes[:, :count],
            found.scores[:, :count],
            likely=likelihood(found.tokens[:, :count], self.positive, self.negative),
            target=batch.boxes[:, self.classes],
            valid=batch.valid[:, self.classes],
            labeled=batch.located[:, self.classes],
            answerer=self.stage.drawing.answerer,
        )

    @cached_property
    def sentence_loss(self) -> FindingLoss:
        """The loss of the boxes and scores of the text questions."""
        scores = self.found_sentences.scores
        return finding_detection(
            self.found_sentences.boxes,
            scores,
            # A question has no opposite to compare with; a constant does not affect the matching.
            likely=torch.full_like(scores, 0.5),
            target=self.asked_boxes.boxes,
            valid=self.asked_boxes.valid,
            labeled=self.asked_boxes.is_placed,
            answerer=self.stage.drawing.answerer,
        )

    @cached_property
    def decoded_classes(self) -> Tensor:
        """The features of the drawn classes after the post decoder, [F, C', dim]."""
        return self._decoded_prompts[:, : len(self.classes)]

    @cached_property
    def decoded_regions(self) -> Tensor:
        """The features of regions with one box, [F, A', dim]; before the post decoder if that is not trained."""
        end = len(self.classes) + len(self.regions)
        if not self._after:
            return self.found.aggregated[:, len(self.classes) : end]
        if not self.by_boxes:
            return self._decoded_prompts[:, len(self.classes) : end]
        detector = self.network.detector
        tokens = detector.gather(detector.pool(self.picture[0], self.batch.regions[:, self.regions]))
        decoded: Tensor = self.network.post_decoder(tokens, whole_picture(*self.picture), group=1)
        return decoded

    @cached_property
    def decoded_sentences(self) -> Tensor:
        """[F, S, dim]; without the post decoder if the stage does not train it."""
        if not self._after:
            return self.found_sentences.aggregated
        return self._decode(self.found_sentences, together=self.stage.drawing.padded)

    def embed(self, texts: list[str]) -> Tensor:
        """Return the vectors [text, dim] of texts that were encoded for this step."""
        if not texts:
            return torch.zeros(0, self.network.sizes.dim, device=self.batch.pixels.device)
        return torch.stack([self._vectors[text] for text in texts])

    @cached_property
    def _decoded_prompts(self) -> Tensor:
        return self._decode(self.found, together=self._together)

    def _draw_classes(self) -> list[int]:
        """Draw the expected number of classes from each data set, among those with labels on some film of the batch.

        The published sampler does the same: if films are labelled for the classes of one data set only, classes of
        another are neither asked for nor counted as absent.
        Without labels one class is drawn, which contributes nothing to a loss.
        """
        losses, batch = self.stage.losses.keys(), self.batch
        if not losses & _CLASS_LOSSES:
            return []
        labelled = (batch.known | batch.located).any(dim=0)
        if "region-presence" in losses:
            labelled = labelled | batch.region_known.any(dim=0).any(dim=0)
        asked = set(_numbers(labelled))
        pools = [[number for number in numbers if number in asked] for numbers in self.catalog.sets]
        drawn = [number for pool in pools if pool for number in self._some(pool, self.stage.drawing.classes)]
        return drawn or self._some(range(len(self.catalog.classes)), 1)

    def _some(self, pool: Sequence[int], expected: float) -> list[int]:
        """Draw a random part of a pool, at least one element."""
        drawn = np.flatnonzero(self.rng.random(len(pool)) < expected / len(pool))
        return [pool[int(place)] for place in (drawn if len(drawn) else [self.rng.integers(len(pool))])]

    def _draw_phrases(self) -> list[str]:
        """Draw a wording of each class, of its opposite, and of each region."""
        classes = [self.catalog.classes[number] for number in self.judged]
        # Only the loss of boxes uses regions with two boxes. The post decoder must not see them (spec §6 and 10).
        pairs = range(len(self.catalog.regions), len(self.catalog.region_phrases))
        asked = (*self.regions, *pairs) if "anat-detect" in self.stage.losses else self.regions
        regions = [self.catalog.region_phrases[number] for number in asked]
        groups = [phrases.positive for phrases in classes] + [phrases.negative for phrases in classes] + regions
        return [str(self.rng.choice(group)) for group in groups]

    def _texts(self) -> list[str]:
        """List the other texts that this step encodes."""
        texts = [question.text for asked in self.batch.asked for question in asked]
        if {"anat-mse", "text-gen"} & self.stage.losses.keys():
            texts += [sentence.text for said in self.batch.said for sentence in said]
        return texts

    def _detect(self, prompts: Tensor, *, padding: Tensor | None) -> Detection:
        """Detect prompts [F, Q, dim] as `Detector.forward` does, with the random draws of training (spec §4.5)."""
        detector, noise = self.network.detector, self.stage.noise
        patches, positions, _ = self.picture
        group = None if padding is not None else detector.boxes_per_prompt
        decoded = detector.decode(patches, positions, prompts, group=group, padding=padding)
        proposed = detector.propose(decoded)
        pooled = detector.pool(patches, proposed)
        joined = (functional.dropout(decoded, noise.skip_dropout, self.network.training) + pooled) / 2
        if noise.skip < 1:
            skips = torch.rand(decoded.shape[:2], device=decoded.device) < noise.skip
            joined = torch.where(skips.unsqueeze(-1), joined, pooled)
        return detector.conclude(proposed, detector.gather(joined), padding=padding)

    def _decode(self, found: Detection, *, together: bool) -> Tensor:
        """Run the post decoder: [F, Q, dim].

        together: all tokens of a film see each other, as in reports; otherwise each prompt is alone, as an interactive
        question is
        """
        post, memory = self.network.post_decoder, whole_picture(*self.picture)
        if not together:
            tokens = torch.cat([found.aggregated.unsqueeze(2), found.tokens], dim=2)
            apart: Tensor = post(tokens.flatten(1, 2), memory, group=tokens.shape[2])
            return apart.reshape(tokens.shape)[:, :, 0]
        dropped = torch.rand(found.scores.shape, device=memory.device) < self.stage.noise.box_drop
        drops = dropped if self.stage.noise.box_drop else None
        return post.of_prompts(found.aggregated, found.tokens, memory, dropped=drops)[:, :, 0]


def _numbers(marks: Tensor) -> list[int]:
    numbers: list[int] = marks.nonzero().flatten().tolist()
    return numbers
