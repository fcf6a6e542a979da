"""The network and its words, as the paper's tasks use them: every class of a film is asked together (spec §4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from models.engines import FloatArray
from models.lab.evaluation.boxes_file import FileFilms
from models.lab.evaluation.cases import EvaluationCase
from models.lab.tasks.batch import Picture
from models.network.chex import Chex
from models.progress import ProgressReport
from models.reading.tokenizers import PromptTokenizer, SentenceTokenizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublishedModel:
    """picture: encodes a film, gray [row, column] in 0..1."""

    network: Chex
    phrases: PromptTokenizer
    sentences: SentenceTokenizer
    picture: Callable[[FloatArray], Picture]


def looked_at(
    model: PublishedModel, films: FileFilms, report: ProgressReport, *, stage: str
) -> Iterator[tuple[EvaluationCase, Picture]]:
    """Encode the films one by one, in inference mode. Raises ModelError if one cannot be read."""
    for index in range(len(films)):
        case = films.load(index)
        with torch.inference_mode():
            yield case, model.picture(case.gray)
        report(stage, index + 1, len(films))
