"""The ChEX network: its parts joined into the six functions that an engine offers.

All but `write` are exported as they are: no control flow depends on data, and the numbers of films F, prompts Q and
boxes B are free. Patch features are passed between them, so a film is encoded once however often it is queried. P
patches, R boxes per prompt; boxes are center x, center y, width, height in 0..1 of the square that the network saw.
`without_numbers` makes a network whose parameters have shapes but no storage until loaded weights replace them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from models.manifest import NetworkSizes
from models.network.detector import Detector
from models.network.image_encoder import ImageEncoder
from models.network.post_decoder import PostDecoder
from models.network.prompt_encoder import PromptEncoder
from models.network.sentence_generator import SentenceGenerator
from models.network.view_head import ViewHead

_FILLS: Final = (init.normal_, init.uniform_, init.kaiming_uniform_, Tensor.normal_)


@contextmanager
def without_numbers() -> Iterator[None]:
    """Build modules on the meta device, where they take no memory, and leave out what would give them numbers.

    On that device PyTorch 2.13 answers `normal_` and a product with a number in Python, and imports its compiler and
    sympy to do so: 1.5 s at every start, for numbers that are never used.
    """
    with torch.device("meta"), _NoNumbers():
        yield


class _NoNumbers(TorchFunctionMode):
    """Returns a tensor unchanged instead of filling or scaling it."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        given = kwargs or {}
        if func in _FILLS:
            return args[0] if args else given["tensor"]
        if func is Tensor.mul and not isinstance(args[1], Tensor):
            return args[0]
        allowed: Callable[..., object] = torch.empty if func is torch.randn else func
        return allowed(*args, **given)


class Chex(nn.Module):
    """The network of spec §0 to 7, as evaluated: box tokens are never dropped at random (spec §6, BUG-6)."""

    def __init__(self, sizes: NetworkSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.image_encoder = ImageEncoder(sizes.image_encoder)
        self.prompt_encoder = PromptEncoder(sizes.prompt_encoder)
        self.detector = Detector(sizes.detector, grid=sizes.image_encoder.grid)
        self.post_decoder = PostDecoder(sizes.post_decoder, detector=sizes.detector)
        self.generator = SentenceGenerator(sizes.generator, dim=sizes.dim)
        self.view_head = (
            None if sizes.views is None else ViewHead(sizes.views, dim=sizes.dim, grid=sizes.image_encoder.grid)
        )

    def encode_image(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode films [F, side, side], float32, normalized.

        Returns patches [F, P, dim] row by row, positions [F, P, dim] (the same for every film) and cls [F, dim].
        """
        patches, positions, cls = self.image_encoder(pixels)
        return patches, positions, cls

    def encode_prompts(self, tokens: Tensor) -> Tensor:
        """Encode prompts [P, token], int64, into [P, dim], not of unit length (spec §3)."""
        vectors: Tensor = self.prompt_encoder(tokens)
        return vectors

    def find(
        self, patches: Tensor, positions: Tensor, cls: Tensor, prompts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Locate prompts [F, Q, dim] in films, as report generation does (spec §4, 6 and 9.1).

        Returns boxes [F, Q, R, 4] clipped to the square, their scores [F, Q, R], the aggregated score [F, Q] of each
        prompt and its feature [F, Q, dim] after the post decoder.
        """
        found = self.detector(patches, positions, prompts, group=self.detector.boxes_per_prompt)
        memory = whole_picture(patches, positions, cls)
        features = self.post_decoder.of_aggregated(found.aggregated, found.tokens, memory)
        return found.boxes, found.scores, found.aggregated_scores, features

    def describe(
        self, patches: Tensor, positions: Tensor, cls: Tensor, boxes: Tensor, prompts: Tensor, prompted: Tensor
    ) -> Tensor:
        """Compute the features of boxes [F, B, 4], each independently (spec §5 and 6).

        prompts, prompted: [F, B, dim] and [F, B]; where `prompted` is 1 the box and its prompt form one question, where
        it is 0 the prompt is ignored
        Returns features [F, B, dim].
        """
        pooled = self.detector.pool(patches, boxes)
        decoded = self.detector.decode(patches, positions, prompts, group=self.detector.boxes_per_prompt)
        asked = self.detector.per_prompt(decoded).mean(dim=2)
        pooled = torch.where(prompted.unsqueeze(-1) > 0, (asked + pooled) / 2, pooled)
        memory = whole_picture(patches, positions, cls)
        features: Tensor = self.post_decoder(self.detector.gather(pooled), memory, group=1)
        return features

    def view(self, patches: Tensor) -> Tensor:
        """Tell views from patches [F, P, dim]: outputs [F, 6] of `models.views`.

        Raises ValueError if this network has no view head.
        """
        if self.view_head is None:
            raise ValueError("this network has no view head")
        outputs: Tensor = self.view_head(patches)
        return outputs

    @torch.no_grad()
    def write(self, features: Tensor, max_length: int | None = None) -> Tensor:
        """Generate one sentence per feature [S, dim], greedily (spec §7.3).

        max_length: tokens of a sentence, the leading BOS included; the manifest's if None
        Returns token ids [S, T], int64, T <= max_length; a finished sentence is padded with 50256.
        """
        if max_length is None:
            max_length = self.sizes.generator.max_length
        return self.generator.write(features, max_length=max_length)


def whole_picture(patches: Tensor, positions: Tensor, cls: Tensor) -> Tensor:
    """Return the memory of the post decoder: [F, P + 1, dim], cls last and without a position (spec §6)."""
    return torch.cat([patches + positions, cls.unsqueeze(1)], dim=1)
