"""Both tokenizers, beside the recorded ids of `tests/lab/test_golden.py`: what every text becomes, and known ones."""

from __future__ import annotations

import gzip
import re
import shutil
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
from tests.support.scripted_engine import PROMPTS, SENTENCES

START, END = 49406, 49407


@given(st.lists(st.text(max_size=200), max_size=4))
def test_every_text_becomes_one_row_from_start_to_end(texts: list[str]) -> None:
    ids = PROMPTS.encode(texts)

    assert ids.shape == (len(texts), CONTEXT) and ids.dtype == np.int64
    for row in ids:
        end = int(row.argmax())
        assert row[0] == START and row[end] == END


def test_digits_stand_alone_and_marks_split_words() -> None:
    joined, other = PROMPTS.encode(["t12-l1's", "t 1 2 - l 1 's"])
    start, after_a_word, after_a_sign = PROMPTS.encode(["<|startoftext|>", "heart<|endoftext|>", "!<|endoftext|>"])

    assert joined.tolist() == other.tolist()
    assert start[:3].tolist() == [START, START, END]
    assert after_a_word[2:4].tolist() == [END, END]
    assert after_a_sign.tolist().count(END) == 1, "a mark is a single token only where a word starts"


@given(st.lists(st.sampled_from(["heart", "4", "no", "<|endoftext|>", "?"]), max_size=90))
def test_a_text_is_cut_exactly_when_its_tokens_do_not_fit(words: list[str]) -> None:
    text = " ".join(words)

    assert PROMPTS.count(text) == len(words)
    assert int((PROMPTS.encode([text]) != 0).sum()) == 2 + min(len(words), PROMPT_LIMIT)


@pytest.mark.parametrize(
    ("spaced", "joined"),
    [
        ("is n't it ? yes , I 'm .", "isn't it? yes, I'm."),
        ("the ' test ' x", "the'test'x"),
        ("We 've seen the patient 's film !", "We've seen the patient's film!"),
        (" No pneumothorax .", " No pneumothorax."),
    ],
)
def test_decoding_joins_spaced_words_and_keeps_a_leading_blank(spaced: str, joined: str) -> None:
    marked = [SENTENCE_END, *SENTENCES.encode(spaced), SENTENCE_END, SENTENCE_END]

    assert SENTENCES.decode(marked) == joined


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
