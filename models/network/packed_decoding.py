"""Greedy decoding for a CPU, with the weights of `sentence_generator` in the form that oneDNN multiplies fastest.

Weights are reordered once, when the writer is made. Keys and values are written in
place into one tensor for each caller. Equal features are decoded once, and a sentence that has ended takes no further
part.
Sentences of several callers are generated together, each at its own place: their rows share the products, and attention
is computed for each caller. No bit of a sentence depends on the others (`products`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from models.network.attention import Mlp
from models.network.products import Form, Product, Products
from models.network.sentence_generator import GeneratorLayer, SentenceGenerator
from models.reading.tokenizers import SENTENCE_END

Span = tuple["Writing", slice]
"""The sentences of a caller, and their rows among those of all."""

_MOST_LOOKED_UP: Final = 32
"""Rows of the token table that are looked up before their memory is given back: Linux maps up to 1 MB around each."""


class PackedWriter:
    """Generates sentences on the CPU, with a copy of the weights.

    In form "int8" linear layers multiply 8-bit integers; all else is float32.
    """

    @torch.no_grad()
    def __init__(
        self,
        generator: SentenceGenerator,
        *,
        max_length: int,
        form: Form = "float32",
        release: Callable[[Tensor], None] = lambda _weight: None,
    ) -> None:
        """Copy the weights.

        release: is called with a weight of which nothing, or only few rows, will be used for a while
        Raises ValueError where the network has no such positions.
        """
        if not 1 <= max_length <= generator.sizes.positions:
            raise ValueError(f"max_length is {max_length}; it must lie in 1..{generator.sizes.positions}")
        self.dim = generator.dim
        self._sizes = generator.sizes
        self._max_length = max_length
        self._room = generator.sizes.prefix_length + max_length - 1  # no token follows the last one
        self._tokens = generator.tokens
        self._positions = generator.positions.weight
        self._norm_after = generator.norm_after
        self.products = products = Products(form, release=release)
        # The vocabulary first: it is the largest weight that is copied at once, while little else is in memory.
        self._vocabulary = products.product(generator.tokens.weight, None)
        self._looked_up = 0
        self._prefix = _Prefix(generator, products)
        self._layers = [_Layer(layer, products) for layer in generator.layers if isinstance(layer, GeneratorLayer)]

    def start(self, features: Tensor) -> Writing:
        """Return sentences of which nothing is computed yet. Raises ValueError for features of another size."""
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise ValueError(f"features have the shape {tuple(features.shape)}; it must be [sentence, {self.dim}]")
        return Writing(features, max_length=self._max_length)

    def bytes_of(self, writing: Writing) -> int:
        """Return the bytes of the keys and values of sentences at their greatest length."""
        sizes = self._sizes
        return len(writing.features) * sizes.layers * 2 * sizes.width * self._room * self._positions.element_size()

    @torch.inference_mode()
    def join(self, writings: Sequence[Writing]) -> Iterator[None]:
        """Compute the prefixes of sentences. Yields after every layer."""
        sizes = self._sizes
        shape = (sizes.heads, self._room, sizes.width // sizes.heads)
        spans = _spans(writings)
        if not spans:
            return
        hidden = self._prefix.expand(_gather(spans, [writing.features for writing in writings]))
        for writing in writings:
            writing.cache = hidden.new_empty((sizes.layers, 2, len(writing.features), *shape))
        yield
        for layer in range(sizes.layers):
            prefixes = self._prefix.of_layer(hidden, layer)
            for writing, rows in spans:
                writing.cache[layer, :, :, :, : sizes.prefix_length] = prefixes[:, rows]
            yield

    @torch.inference_mode()
    def step(self, writings: Sequence[Writing]) -> Iterator[None]:
        """Generate the next token of sentences whose prefixes are computed. Yields after every layer.

        Nothing has changed if it is left before its end, and it may be begun anew.
        """
        writings = [writing for writing in writings if not writing.is_over]
        spans = _spans(writings)
        if not spans:
            return
        places = [self._positions[writing.place].expand(len(writing.current), -1) for writing in writings]
        hidden = self._embedded(_gather(spans, [writing.current for writing in writings])) + _gather(spans, places)
        for index, layer in enumerate(self._layers):
            hidden = layer.forward(hidden, spans, index=index, prefix_length=self._sizes.prefix_length)
            yield
        chosen = self._tokens.likeliest(self._vocabulary(self._norm_after(hidden)))
        for writing, rows in spans:
            writing.add(chosen[rows])

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Look up tokens [row]: [row, width]. Gives back what the system has read of the table now and then."""
        self._looked_up += len(tokens)
        if self._looked_up > _MOST_LOOKED_UP:
            self._looked_up = 0
            self.products.release(self._tokens.weight)
        embedded: Tensor = self._tokens(tokens)
        return embedded


class Writing:
    """The sentences of one caller, and the keys and values of those that have not ended.

    features: the distinct ones; cache: [layer, key or value, row, head, place, width of a head]
    current: the last token of each row
    """

    cache: Tensor

    def __init__(self, features: Tensor, *, max_length: int) -> None:
        """Take features [S, dim]; a sentence has at most so many tokens."""
        distinct, self._sentence_of = _distinct(features)
        # By numpy here and in `ids`, in a caller's thread: PyTorch would start helpers that live as long as it does.
        self.features = torch.from_numpy(features.numpy()[distinct])
        self._ids = torch.full((len(distinct), max_length), SENTENCE_END, dtype=torch.int64)
        self._sentences = torch.arange(len(distinct))
        self._written = 1
        self.current = self._ids[:, 0].clone()

    @property
    def place(self) -> int:
        """The place of the current tokens, the first of which has place 0."""
        return self._written - 1

    @property
    def is_over(self) -> bool:
        """Whether all sentences have ended."""
        return not len(self.current) or self._written >= self._ids.shape[1]

    @property
    def ids(self) -> Tensor:
        """The tokens so far: [S, token], for all features in their order."""
        return torch.from_numpy(self._ids.numpy()[self._sentence_of, : self._written])

    def add(self, chosen: Tensor) -> None:
        """Append a token to each row. A row whose sentence has ended is dropped; the last rows take these places."""
        self._ids[self._sentences, self._written] = chosen
        self._written += 1
        goes_on = chosen != SENTENCE_END
        count = int(goes_on.sum())
        if count < len(chosen):
            freed = (~goes_on[:count]).nonzero().flatten()
            moved = goes_on[count:].nonzero().flatten() + count
            for place, row in zip(freed.tolist(), moved.tolist(), strict=True):  # all at once would need memory for all
                self.cache[:, :, place] = self.cache[:, :, row]
            chosen = chosen.clone()
            for held in (self._sentences, chosen):
                held[freed] = held[moved]
            self._sentences = self._sentences[:count]
        self.current = chosen[:count]


class _Prefix:
    """The prefix network, with the products of each layer's keys and values apart."""

    def __init__(self, generator: SentenceGenerator, products: Products) -> None:
        sizes, prefix = generator.sizes, generator.prefix
        contract = prefix.contract if isinstance(prefix, Mlp) else prefix
        self._heads, self._length = sizes.heads, sizes.prefix_length
        self.expand: Product = (
            products.linear(prefix.expand, activation="gelu") if isinstance(prefix, Mlp) else lambda features: features
        )
        weights = contract.weight.view(sizes.prefix_length, generator.prefixes, 2 * sizes.width, -1)
        biases = contract.bias.view(sizes.prefix_length, generator.prefixes, 2 * sizes.width)
        # In the file, the weights of a layer are in separate places, one for each position. They are put together,
        # because one product is faster than five. New memory for each layer would take longer than the copy.
        room = torch.empty_like(weights[:, 0])
        self._layers = [
            products.product(
                room.copy_(weights[:, layer]).flatten(0, 1), biases[:, layer].flatten(), parts=weights[:, layer]
            )
            for layer in range(generator.prefixes)
        ]

    def of_layer(self, hidden: Tensor, layer: int) -> Tensor:
        """Return the prefix of a layer: [key or value, S, head, prefix position, width of a head]."""
        flat = self._layers[layer % len(self._layers)](hidden)
        return flat.view(len(hidden), self._length, 2, self._heads, -1).permute(2, 0, 3, 1, 4)


class _Layer:
    """A layer of `sentence_generator` for one token of each sentence."""

    def __init__(self, layer: GeneratorLayer, products: Products) -> None:
        self._heads = layer.heads
        self._norm_attention, self._norm_mlp = layer.norm_attention, layer.norm_mlp
        self._packed = products.linear(layer.packed)
        self._out = products.linear(layer.out)
        self._expand = products.linear(layer.expand, activation="gelu_tanh")
        self._contract = products.linear(layer.contract)

    def forward(self, hidden: Tensor, spans: Sequence[Span], *, index: int, prefix_length: int) -> Tensor:
        """Map hidden states [row, width], and write the keys and values of this layer into the caches."""
        width = hidden.shape[-1]
        packed = self._packed(self._norm_attention(hidden)).view(-1, 3, self._heads, width // self._heads)
        mixed = torch.empty_like(hidden)
        for writing, rows in spans:
            cache, end = writing.cache[index, :, : len(writing.current)], prefix_length + writing.place
            cache[:, :, :, end] = packed[rows, 1:].transpose(0, 1)
            keys, values = cache[:, :, :, : end + 1]
            query = packed[rows, 0].unsqueeze(2)
            mixed[rows] = functional.scaled_dot_product_attention(query, keys, values).reshape(-1, width)
        hidden = hidden + self._out(mixed)
        return hidden + self._contract(self._expand(self._norm_mlp(hidden)))


def _spans(writings: Sequence[Writing]) -> list[Span]:
    """Place the rows of all callers one after another; a caller without rows has none."""
    spans, first = list[Span](), 0
    for writing in writings:
        rows = slice(first, first + len(writing.current))
        if rows.start < rows.stop:
            spans.append((writing, rows))
        first = rows.stop
    return spans


def _gather(spans: Sequence[Span], parts: Sequence[Tensor]) -> Tensor:
    """Put the parts [row, ...] of the callers one after another."""
    if len(parts) == 1:
        return parts[0]
    whole = parts[0].new_empty((spans[-1][1].stop, *parts[0].shape[1:]))
    parts = [part for part in parts if len(part)]
    for (_, rows), part in zip(spans, parts, strict=True):
        whole[rows] = part
    return whole


def _distinct(features: Tensor) -> tuple[list[int], list[int]]:
    """Return where each distinct feature of [S, dim] occurs first, and for each feature its place among these."""
    first: dict[bytes, int] = {}
    sentence_of = [first.setdefault(row.tobytes(), len(first)) for row in features.numpy()]
    return [sentence_of.index(place) for place in range(len(first))], sentence_of
