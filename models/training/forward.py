"""What the network computes for one step of training: each part once, and only if an objective asks for it.

Boxes are not clipped, as losses need them (SPEC.md 10). "Told" features are those after the post decoder, which
sentences and decisions are made of.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.chex import Chex, whole_picture
from models.detector import Detection
from models.losses.detection import FindingLoss, finding_detection, likelihood
from models.training.batch import Batch
from models.training.catalog import Catalog
from models.training.stages import Noise, Stage
from models.training.texts import Speech, Tongue


class Heads(nn.Module):
    """Scales and offsets of decisions, learned beside the network; the manifest's temperature is what remains of them.

    A logit is scale * (cosine to the phrase - cosine to its opposite) + offset; `align_*` are for single patches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(10.0).log())
        self.offset = nn.Parameter(torch.tensor(-0.5))
        self.align_scale = nn.Parameter(torch.tensor(10.0).log())
        self.align_offset = nn.Parameter(torch.tensor(-1.0))

    def decide(self, features: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Give logits of features [..., dim] for classes [C, dim]: [..., C]."""
        apart = functional.normalize(positive, dim=-1) - functional.normalize(negative, dim=-1)
        return self.scale.exp() * (functional.normalize(features, dim=-1) @ apart.T) + self.offset

    def align(self, patches: Tensor, texts: Tensor) -> Tensor:
        """Give logits of patches [F, P, dim] for texts [F, Q, dim] or [Q, dim]: [F, Q, P]."""
        cosines = functional.normalize(texts, dim=-1) @ functional.normalize(patches, dim=-1).transpose(1, 2)
        return self.align_scale.exp() * cosines + self.align_offset


class Forward:
    """One batch in one stage.

    classes: the numbers of the C' classes that were drawn; judged: of the C'' that regions are judged for
    regions: of the A' regions with one box; counted_regions: [A], whose boxes count
    by_boxes: whether regions are looked at by their boxes, or asked for by their names
    """

    def __init__(
        self,
        network: Chex,
        heads: Heads,
        speech: Speech,
        tongue: Tongue,
        batch: Batch,
        *,
        catalog: Catalog,
        stage: Stage,
        rng: np.random.Generator,
    ) -> None:
        self.network, self.heads, self.tongue, self.batch = network, heads, tongue, batch
        self.catalog, self.stage, self.rng = catalog, stage, rng
        self.by_boxes = bool(rng.random() < 0.5)
        self._together = bool(rng.random() < stage.drawing.together)
        self._after = any(name.startswith("post_decoder") for name in stage.train)
        self.classes = self._some(len(catalog.classes), stage.drawing.classes)
        drawn = self._some(len(catalog.regions), stage.drawing.regions)
        self.counted_regions = torch.zeros(len(catalog.regions), dtype=torch.bool, device=batch.pixels.device)
        self.counted_regions[drawn] = True
        # As published, what regions hold is learned of all of them, and the draw concerns their boxes (SPEC.md 10).
        self.regions = list(range(len(catalog.regions))) if "anat-cls" in stage.losses else drawn
        # So are all classes: of absent ones the loss draws some itself.
        self.judged = list(range(len(catalog.classes))) if "anat-cls" in stage.losses else self.classes
        self._own = [self.judged.index(number) for number in self.classes]
        self._phrases = self._draw_phrases()
        self._vectors = speech.vectors([*self._phrases, *self._texts()])

    @property
    def noise(self) -> Noise:
        """Of the stage."""
        return self.stage.noise

    @cached_property
    def picture(self) -> tuple[Tensor, Tensor, Tensor]:
        """Patches [F, P, dim], positions and cls."""
        return self.network.encode_image(self.batch.pixels)

    @cached_property
    def asked_boxes(self) -> tuple[Tensor, Tensor, Tensor]:
        """What is asked in words: boxes, which of them are there, and which questions are padding; see `Batch`."""
        return self.batch.asked_boxes()

    @cached_property
    def positive(self) -> Tensor:
        """[C', dim], of the drawn classes."""
        return self.judged_positive[self._own]

    @cached_property
    def negative(self) -> Tensor:
        """[C', dim]."""
        return self.judged_negative[self._own]

    @cached_property
    def judged_positive(self) -> Tensor:
        """[C'', dim], of the classes that regions are judged for."""
        return self.embed(self._phrases[: len(self.judged)])

    @cached_property
    def judged_negative(self) -> Tensor:
        """[C'', dim]."""
        return self.embed(self._phrases[len(self.judged) : 2 * len(self.judged)])

    @cached_property
    def region_vectors(self) -> Tensor:
        """[A' + B, dim], of the regions with one box, then of all with two."""
        return self.embed(self._phrases[2 * len(self.judged) :])

    @cached_property
    def sentences(self) -> Tensor:
        """[F, S, dim], of what is asked in words; zeros where a film has fewer."""
        longest = self.asked_boxes[2].shape[1]
        blank = torch.zeros(longest, self.network.sizes.dim, device=self.batch.pixels.device)
        rows = [
            torch.cat([self.embed([one.text for one in asked]), blank[len(asked) :]]) if asked else blank
            for asked in self.batch.asked
        ]
        return torch.stack(rows)

    @cached_property
    def is_sentence(self) -> Tensor:
        """[F, S], True for questions that are sentences of the report."""
        marks = torch.zeros(self.sentences.shape[:2], dtype=torch.bool)
        for film, asked in enumerate(self.batch.asked):
            marks[film, : len(asked)] = torch.tensor([one.is_sentence for one in asked], dtype=torch.bool)
        return marks.to(self.batch.pixels.device)

    @cached_property
    def found(self) -> Detection:
        """What classes and then regions find, each prompt for itself: Q = C' + A' + B."""
        prompts = torch.cat([self.positive, self.region_vectors])
        films = len(self.batch.pixels)
        return self._detect(prompts.expand(films, -1, -1), padding=None)

    @cached_property
    def found_sentences(self) -> Detection:
        """What sentences find."""
        padding = self.asked_boxes[2]
        return self._detect(self.sentences, padding=padding if self.stage.drawing.padded else None)

    @cached_property
    def finding_loss(self) -> FindingLoss:
        """Of the boxes and scores of the drawn classes."""
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
        """Of the boxes and scores of questions in words."""
        boxes, valid, padding = self.asked_boxes
        scores = self.found_sentences.scores
        return finding_detection(
            self.found_sentences.boxes,
            scores,
            # A question has no opposite to be weighed against; a constant decides nothing.
            likely=torch.full_like(scores, 0.5),
            target=boxes,
            valid=valid,
            labeled=~padding,
            answerer=self.stage.drawing.answerer,
        )

    @cached_property
    def told_classes(self) -> Tensor:
        """[F, C', dim]."""
        return self._told_prompts[:, : len(self.classes)]

    @cached_property
    def told_regions(self) -> Tensor:
        """[F, A', dim], of the regions with one box; before the post decoder where the stage does not train it."""
        end = len(self.classes) + len(self.regions)
        if not self._after:
            return self.found.aggregated[:, len(self.classes) : end]
        if not self.by_boxes:
            return self._told_prompts[:, len(self.classes) : end]
        detector = self.network.detector
        tokens = detector.gather(detector.pool(self.picture[0], self.batch.regions[:, self.regions]))
        told: Tensor = self.network.post_decoder(tokens, whole_picture(*self.picture), group=1)
        return told

    @cached_property
    def told_sentences(self) -> Tensor:
        """[F, S, dim]; before the post decoder where the stage does not train it."""
        if not self._after:
            return self.found_sentences.aggregated
        return self._tell(self.found_sentences, together=self.stage.drawing.padded)

    def embed(self, texts: list[str]) -> Tensor:
        """Give the vectors [text, dim] of texts that this step knows."""
        return torch.stack([self._vectors[text] for text in texts])

    @cached_property
    def _told_prompts(self) -> Tensor:
        return self._tell(self.found, together=self._together)

    def _some(self, count: int, expected: float) -> list[int]:
        """Draw some of a number of things, one at least."""
        drawn = np.flatnonzero(self.rng.random(count) < expected / count)
        return [int(number) for number in (drawn if len(drawn) else [self.rng.integers(count)])]

    def _draw_phrases(self) -> list[str]:
        """Draw a wording of each class, of its opposite, and of each region."""
        classes = [self.catalog.classes[number] for number in self.judged]
        pairs = range(len(self.catalog.regions), len(self.catalog.region_phrases))
        regions = [self.catalog.region_phrases[number] for number in (*self.regions, *pairs)]
        groups = [one.positive for one in classes] + [one.negative for one in classes] + regions
        return [str(self.rng.choice(group)) for group in groups]

    def _texts(self) -> list[str]:
        """List the other texts of this step."""
        texts = [one.text for asked in self.batch.asked for one in asked]
        if {"anat-mse", "text-gen"} & self.stage.losses.keys():
            texts += [one.text for said in self.batch.said for one in said]
        return texts

    def _detect(self, prompts: Tensor, *, padding: Tensor | None) -> Detection:
        """Find prompts [F, Q, dim], as `Detector.forward` but with what training draws (SPEC.md 4.5)."""
        detector, noise = self.network.detector, self.noise
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

    def _tell(self, found: Detection, *, together: bool) -> Tensor:
        """Let the post decoder look once more: [F, Q, dim].

        together: every token of a film sees every other, as in reports; else each prompt is alone, as a question is
        """
        post, memory = self.network.post_decoder, whole_picture(*self.picture)
        if not together:
            tokens = torch.cat([found.aggregated.unsqueeze(2), found.tokens], dim=2)
            apart: Tensor = post(tokens.flatten(1, 2), memory, group=tokens.shape[2])
            return apart.reshape(tokens.shape)[:, :, 0]
        dropped = torch.rand(found.scores.shape, device=memory.device) < self.noise.box_drop
        told = post.of_prompts(found.aggregated, found.tokens, memory, dropped=dropped if self.noise.box_drop else None)
        return told[:, :, 0]
