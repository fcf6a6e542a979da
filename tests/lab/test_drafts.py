"""What drafts of sentences would gain: what a book of sentences proposes, and how many tokens a pass writes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.lab.evaluation.drafts import PASSES, Book, Ids, main, tokens_a_pass
from models.reading.tokenizers import SENTENCE_END as END

pytestmark = pytest.mark.drill(part="laboratory")

BOOK = Book([(1, 2, 3, 4, END), (1, 2, 3, 4, END), (1, 2, 5, 6, END), (7, END)])


@pytest.mark.parametrize(
    ("written", "proposed"),
    [
        pytest.param((), (1, 2, 3), id="how most sentences begin"),
        pytest.param((1, 2, 5), (6, END), id="nothing after the end"),
        pytest.param((9, 2, 3, 4), (END,), id="after the last tokens where no sentence begins so"),
        pytest.param((9, 9, 3), (), id="nothing that no sentence has"),
    ],
)
def test_a_book_proposes_how_most_sentences_go_on(written: Ids, proposed: Ids) -> None:
    assert BOOK.proposed(written, 3) == proposed


@pytest.mark.parametrize(
    ("ids", "checked", "tokens"),
    [
        pytest.param((1, 2, 3, 4, END), 2, 5 / 3, id="one proposed and one more"),
        pytest.param((1, 2, 3, 4, END), 8, 5.0, id="a whole sentence"),
        pytest.param((1, 2, 5, 6, END), 4, 5 / 2, id="another word, then the rest"),
        pytest.param((8, 8, END), 4, 1.0, id="nothing right"),
    ],
)
def test_a_pass_writes_what_was_right_and_one_token(ids: Ids, checked: int, tokens: float) -> None:
    assert tokens_a_pass(BOOK, [ids, ids], checked=checked) == pytest.approx(tokens)


def test_the_command_estimates_each_precision(
    phantom_model: Path, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(phantom_model)

    assert main(["--model", model, "--data", "phantoms:1000000:2", "--timed", model, "--threads", "1"]) == 0

    count, *lines = capsys.readouterr().out.splitlines()
    assert "of 1 films" in count
    written, timed = lines[: len(PASSES)], lines[len(PASSES) :]
    assert all(1 <= float(line.split()[-1]) <= checked for line, checked in zip(written, PASSES, strict=True))
    assert [line.partition(":")[0] for line in timed] == [
        f"{name}, {checked} tokens" for name in ("float32", "int4") for checked in PASSES
    ]
