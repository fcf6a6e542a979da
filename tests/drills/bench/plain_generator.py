"""The plain way to generate sentences: GPT-2 of Hugging Face's `transformers` with the prefix as past keys and values.

It has the weights of a `SentenceGenerator` and generates greedily, one token of all sentences at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from models.network.sentence_generator import SentenceGenerator
from models.reading.tokenizers import SENTENCE_END


class PlainGenerator:
    """A GPT-2 with a copy of the weights of a generator, and its prefix network as it is.

    Its vocabulary is the rows of the generator's token table; there are fewer rows than ids where ids share a row.
    """

    @torch.no_grad()
    def __init__(self, generator: SentenceGenerator) -> None:
        sizes = generator.sizes
        config = GPT2Config(
            vocab_size=len(generator.tokens.weight),
            n_positions=sizes.positions,
            n_embd=sizes.width,
            n_layer=sizes.layers,
            n_head=sizes.heads,
            attn_implementation="sdpa",
            bos_token_id=None,  # 50256, the default, may lie beyond the rows; only its own loop needs both
            eos_token_id=None,
        )
        self._generator = generator
        network = GPT2LMHeadModel(config)
        network.eval()
        self._network = network.requires_grad_(False)
        self._copy(self._network.transformer)
        nn.Module.to(self._network, generator.tokens.weight.device, generator.tokens.weight.dtype)

    def write(self, features: Tensor, *, max_length: int) -> Tensor:
        """Generate ids as `SentenceGenerator.write` does."""
        cache = DynamicCache()
        for layer, (key, value) in enumerate(self._generator.prefix_key_values(features)):
            cache.update(key.contiguous(), value.contiguous(), layer)
        device, tokens = features.device, self._generator.tokens
        ids = torch.full((len(features), max_length), SENTENCE_END, device=device)
        finished = torch.zeros(len(features), dtype=torch.bool, device=device)
        for place in range(max_length - 1):
            position = torch.full((len(features), 1), place, device=device)
            rows = tokens.rows_of(ids[:, place : place + 1])
            step = self._network(rows, past_key_values=cache, position_ids=position, use_cache=True)
            chosen = tokens.likeliest(step.logits[:, -1]).masked_fill(finished, SENTENCE_END)
            ids[:, place + 1] = chosen
            finished |= chosen == SENTENCE_END
            if finished.all():
                return ids[:, : place + 2]
        return ids

    def _copy(self, theirs: nn.Module) -> None:
        """Copy the weights; their linear layers store the matrix turned."""
        ours, state = self._generator.state_dict(), theirs.state_dict()
        names = {"norm_attention": "ln_1", "packed": "attn.c_attn", "out": "attn.c_proj", "norm_mlp": "ln_2"}
        names |= {"expand": "mlp.c_fc", "contract": "mlp.c_proj"}
        pairs = {"tokens.weight": "wte.weight", "positions.weight": "wpe.weight"}
        pairs |= {f"norm_after.{kind}": f"ln_f.{kind}" for kind in ("weight", "bias")}
        for layer in range(self._generator.sizes.layers):
            for name, their_name in names.items():
                for kind in ("weight", "bias"):
                    pairs[f"layers.{layer}.{name}.{kind}"] = f"h.{layer}.{their_name}.{kind}"
        for name, their_name in pairs.items():
            is_turned = ours[name].dim() == 2 and name.startswith("layers.")
            state[their_name].copy_(ours[name].T if is_turned else ours[name])
