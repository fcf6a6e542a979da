"""Both tokenizers: against a plain byte-pair encoder written from spec §3, and against known sentences."""

from __future__ import annotations

import gzip
import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import ModelError
from models.reading.tokenizers import (
    CONTEXT,
    PROMPT_LIMIT,
    PROMPT_VOCABULARY,
    SENTENCE_END,
    SENTENCE_MERGES,
    SENTENCE_VOCABULARY,
    VOCABULARIES,
    PromptTokenizer,
    SentenceTokenizer,
)

START, END = 49406, 49407


@pytest.fixture(scope="module")
def prompts() -> PromptTokenizer:
    return PromptTokenizer(VOCABULARIES)


@pytest.fixture(scope="module")
def sentences() -> SentenceTokenizer:
    return SentenceTokenizer(VOCABULARIES)


@pytest.fixture(scope="module")
def merges() -> dict[tuple[str, str], int]:
    lines = gzip.decompress((VOCABULARIES / PROMPT_VOCABULARY).read_bytes()).decode().split("\n")[1:48895]
    return {(line.split()[0], line.split()[1]): rank for rank, line in enumerate(lines)}


def plain_ids(word: str, merges: dict[tuple[str, str], int]) -> list[int]:
    """Encode one ASCII word by merging the best pair until none is left."""
    characters = [*map(chr, range(33, 127)), *map(chr, range(161, 173)), *map(chr, range(174, 256))]
    characters += [chr(256 + number) for number in range(68)]
    pieces = [*characters, *(f"{c}</w>" for c in characters), *("".join(pair) for pair in merges)]
    symbols = [*word[:-1], f"{word[-1]}</w>"]
    while len(symbols) > 1:
        ranked = [(merges.get(pair, len(merges)), place) for place, pair in enumerate(pairwise(symbols))]
        rank, place = min(ranked)
        if rank == len(merges):
            break
        symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
    return [pieces.index(symbol) for symbol in symbols]


@pytest.mark.parametrize(
    "text",
    [
        "pleural effusion",
        "hydropneumothorax with subcutaneous emphysema",
        "cardiomediastinal silhouette unremarkable",
        "xqzvw kjhgf",
        "a 4 cm mass",
    ],
)
def test_words_are_merged_as_a_plain_encoder_merges_them(
    prompts: PromptTokenizer, merges: dict[tuple[str, str], int], text: str
) -> None:
    ids = prompts.encode([text])[0]

    expected = [START, *(number for word in text.split() for number in plain_ids(word, merges)), END]
    assert ids[: len(expected)].tolist() == expected
    assert not ids[len(expected) :].any()


@given(st.lists(st.text(max_size=200), max_size=4))
def test_every_text_becomes_one_row_from_start_to_end(prompts: PromptTokenizer, texts: list[str]) -> None:
    ids = prompts.encode(texts)

    assert ids.shape == (len(texts), CONTEXT) and ids.dtype == np.int64
    for row in ids:
        end = int(row.argmax())
        assert row[0] == START and row[end] == END


def test_digits_stand_alone_and_marks_split_words(prompts: PromptTokenizer) -> None:
    joined, other = prompts.encode(["t12-l1's", "t 1 2 - l 1 's"])

    assert joined.tolist() == other.tolist()


def test_marks_in_a_text_are_single_tokens_where_a_word_starts(prompts: PromptTokenizer) -> None:
    start, after_a_word, after_a_sign = prompts.encode(["<|startoftext|>", "heart<|endoftext|>", "!<|endoftext|>"])

    assert start[:3].tolist() == [START, START, END]
    assert after_a_word[2:4].tolist() == [END, END]
    assert after_a_sign.tolist().count(END) == 1


def test_a_text_that_is_too_long_keeps_its_end_token(prompts: PromptTokenizer) -> None:
    ids = prompts.encode(["heart " * 100])[0]

    assert ids[-1] == END and (ids != 0).all()


@given(st.lists(st.sampled_from(["heart", "4", "no", "<|endoftext|>", "?"]), max_size=90))
def test_a_text_is_cut_exactly_when_its_tokens_do_not_fit(prompts: PromptTokenizer, words: list[str]) -> None:
    text = " ".join(words)

    assert prompts.count(text) == len(words)
    assert int((prompts.encode([text]) != 0).sum()) == 2 + min(len(words), PROMPT_LIMIT)


@pytest.mark.parametrize(
    ("spaced", "joined"),
    [
        ("is n't it ? yes , I 'm .", "isn't it? yes, I'm."),
        ("the ' test ' x", "the'test'x"),
        ("We 've seen the patient 's film !", "We've seen the patient's film!"),
        (" No pneumothorax .", " No pneumothorax."),
    ],
)
def test_decoding_joins_spaced_words_and_keeps_a_leading_blank(
    sentences: SentenceTokenizer, spaced: str, joined: str
) -> None:
    assert sentences.decode(sentences.encode(spaced)) == joined


def test_marks_are_left_out_of_a_decoded_sentence(sentences: SentenceTokenizer) -> None:
    ids = sentences.encode("The heart is enlarged.")

    assert sentences.decode([SENTENCE_END, *ids, SENTENCE_END, SENTENCE_END]) == "The heart is enlarged."


def test_a_damaged_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / PROMPT_VOCABULARY).write_bytes(gzip.compress(b"header\na b\n"))
    (tmp_path / SENTENCE_VOCABULARY).write_text("{")
    shutil.copy(VOCABULARIES / SENTENCE_MERGES, tmp_path)

    with pytest.raises(ModelError, match=re.escape(PROMPT_VOCABULARY)):
        PromptTokenizer(tmp_path)
    with pytest.raises(ModelError, match="absent"):
        PromptTokenizer(tmp_path / "absent")
    with pytest.raises(ModelError, match=re.escape(SENTENCE_VOCABULARY)):
        SentenceTokenizer(tmp_path)
