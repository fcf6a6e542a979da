"""The two byte-pair tokenizers, without torch: CLIP's for prompts, GPT-2's for sentences (spec §3 and 7.3)."""

from __future__ import annotations

import gzip
import html
import re
from collections.abc import Sequence
from pathlib import Path

import ftfy
import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from models.errors import ModelError

VOCABULARIES = Path(__file__).parents[1] / "weights" / "phantom" / "vocab"
"""The vocabularies that new model directories get."""

PROMPT_VOCABULARY = "bpe_simple_vocab_16e6.txt.gz"
SENTENCE_VOCABULARY = "gpt2_encoder.json"
SENTENCE_MERGES = "gpt2_vocab.bpe"

CONTEXT = 77
PROMPT_LIMIT = CONTEXT - 2
"""Tokens of a prompt that the network reads, beside the marks around them."""

SENTENCE_END = 50256
"""Begins, ends and pads every sentence."""

_PROMPT_START, _PROMPT_END = "<|startoftext|>", "<|endoftext|>"
_MERGES = 48_894
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_SIGNS, _ENDINGS = (".", "?", "!", ","), ("n't", "'m", "'s", "'ve", "'re")
_CLEAN_UP = (*((f" {sign}", sign) for sign in _SIGNS), (" ' ", "'"), *((f" {ending}", ending) for ending in _ENDINGS))


class PromptTokenizer:
    """CLIP's tokenizer: lower case, 49,408 ids, always 77 of them."""

    def __init__(self, folder: Path) -> None:
        """Read `bpe_simple_vocab_16e6.txt.gz`. Raises ModelError if it is missing or something else."""
        merges = _read_merges(folder / PROMPT_VOCABULARY)
        characters = _byte_characters()
        pieces = [*characters, *(f"{character}</w>" for character in characters), *map("".join, merges)]
        ids = {piece: number for number, piece in enumerate([*pieces, _PROMPT_START, _PROMPT_END])}
        self._start, self._end = ids[_PROMPT_START], ids[_PROMPT_END]
        self._whole = {_PROMPT_START: self._start, _PROMPT_END: self._end}
        self._model = models.BPE(ids, merges, end_of_word_suffix="</w>")
        self._words = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    def encode(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Encode texts into ids [P, 77], padded with zeros; longer texts are truncated before the end token."""
        rows = np.zeros((len(texts), CONTEXT), dtype=np.int64)
        for row, text in zip(rows, texts, strict=True):
            ids = [self._start, *self._pieces(text)[:PROMPT_LIMIT], self._end]
            row[: len(ids)] = ids
        return rows

    def count(self, text: str) -> int:
        """Count the tokens of a text without start and end token; more than PROMPT_LIMIT would be truncated."""
        return len(self._pieces(text))

    def _pieces(self, text: str) -> list[int]:
        """Encode one text. Special tokens written out in it are whole words, which byte pairs alone would split."""
        ids: list[int] = []
        for word, _ in self._words.pre_tokenize_str(_cleaned(text)):
            whole = self._whole.get(word)
            ids.extend([token.id for token in self._model.tokenize(word)] if whole is None else [whole])
        return ids


class SentenceTokenizer:
    """GPT-2's tokenizer, 50,257 ids, with the clean-up of the published decoding."""

    def __init__(self, folder: Path) -> None:
        """Read `gpt2_encoder.json` and `gpt2_vocab.bpe`. Raises ModelError if they are missing or something else."""
        vocabulary = folder / SENTENCE_VOCABULARY
        try:
            model = models.BPE.from_file(str(vocabulary), str(folder / SENTENCE_MERGES))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises nothing narrower, and is written in Rust
            raise ModelError(
                f"{vocabulary} and {SENTENCE_MERGES} cannot be read; restore the model directory"
            ) from error
        self._tokenizer = Tokenizer(model)
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = decoders.ByteLevel()
        self._tokenizer.add_special_tokens([_PROMPT_END])

    def encode(self, text: str) -> list[int]:
        """Encode a sentence, without the token that begins and ends it."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode one sentence; special tokens are removed, a leading blank stays."""
        text: str = self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=True)
        for spaced, joined in _CLEAN_UP:
            text = text.replace(spaced, joined)
        return text


def _read_merges(vocabulary: Path) -> list[tuple[str, str]]:
    try:
        lines = gzip.decompress(vocabulary.read_bytes()).decode("utf-8").split("\n", 1 + _MERGES)[1 : 1 + _MERGES]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ModelError(f"{vocabulary} cannot be read; restore the model directory") from error
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    if len(merges) != _MERGES or merges[-1] != ("jeky", "ll</w>"):
        raise ModelError(f"{vocabulary} is not the vocabulary of CLIP; restore the model directory")
    return merges


def _byte_characters() -> list[str]:
    """List the character that stands for each byte, in the order of their ids: the visible ones first."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(code) for code in visible] + [chr(256 + number) for number in range(256 - len(visible))]


def words_of(text: str) -> list[str]:
    """Return the words of a prompt as the tokenizer reads them: lower case, without signs."""
    return re.findall(r"[^\W_]+", _cleaned(text))


def _cleaned(text: str) -> str:
    """Repair and flatten a text as CLIP did before it learned its vocabulary."""
    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return re.sub(r"\s+", " ", text.strip()).strip().lower()
