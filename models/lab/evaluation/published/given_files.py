"""Figures of texts that need files of their own, from the folder of `--metric-files`. Nothing is downloaded.

The packages radgraph and RaTEScore are used where they are installed. They are in no extra of this project: radgraph
brings pytest and a copy of AllenNLP, RaTEScore names none of the packages that it imports, and one of these, medspacy,
asks for a spaCy of 2024. A figure that cannot be computed does not end an evaluation, which may have read films for
hours: its reason stands in its place.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import torch

from models.errors import ModelError
from models.lab.evaluation.published.cider import words_of

_INSTALL: Final = "run pip install -c constraints.txt '.[paper]'"


class NotComputed(Exception):
    """A figure cannot be computed; the text says which package or file is missing, and what to do."""


class _Need(NamedTuple):
    """score: of the folder, true and generated texts; folder: below that of the option; holds: what; install: how."""

    score: Callable[[Path, Sequence[str], Sequence[str]], list[float]]
    folder: str
    holds: str
    packages: tuple[str, ...]
    install: str


def check_folder(files: Path) -> None:
    """Raise ModelError unless a folder has the files of at least one figure; before hours of work."""
    wanted = [need.folder for need in SCORES.values()]
    if not any((files / folder).is_dir() for folder in wanted):
        raise ModelError(f"--metric-files: {files} has none of {', '.join(wanted)}; see docs/model/paper.md")


def scores_by_files(name: str, files: Path | None, true: Sequence[str], generated: Sequence[str]) -> list[float]:
    """Compute a figure of `SCORES` for each text. Raises NotComputed."""
    need = SCORES[name]
    if missing := [package for package in need.packages if find_spec(package) is None]:
        raise NotComputed(f"{' and '.join(missing)} not installed; {need.install}")
    if files is None:
        raise NotComputed(f"needs {need.holds}; give it as DIR/{need.folder}, with --metric-files DIR")
    if not (files / need.folder).is_dir():
        raise NotComputed(f"{need.folder} is missing in the folder of --metric-files; put {need.holds} there")
    try:
        with redirect_stdout(sys.stderr):  # radgraph prints there, where the document goes
            return need.score(files / need.folder, true, generated)
    except Exception as error:  # a boundary: other people's packages and files; hours of reading films must not be lost
        cause = " ".join(str(error).split())[:200]
        raise NotComputed(f"{need.packages[0]} failed on {need.folder} ({type(error).__name__}: {cause})") from error


def _meteor(folder: Path, true: Sequence[str], generated: Sequence[str]) -> list[float]:
    from nltk import data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader
    from nltk.translate.meteor_score import single_meteor_score

    root = str(folder.parent.parent)
    data.path.append(root)  # NLTK opens no file outside of these folders
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other languages, and of files that stay open until it is collected
            words = WordNetCorpusReader(str(folder), None)
            scores = [
                float(single_meteor_score(words_of(own), words_of(said), wordnet=words))
                for own, said in zip(true, generated, strict=True)
            ]
            del words
            gc.collect()
            return scores
    finally:
        data.path.remove(root)


def _bertscore(folder: Path, true: Sequence[str], generated: Sequence[str]) -> list[float]:
    from models.lab.evaluation.published.bertscore import bertscore

    return bertscore(folder, true, generated)


def _radgraph(folder: Path, true: Sequence[str], generated: Sequence[str]) -> list[float]:
    from radgraph import F1RadGraph

    score = F1RadGraph(reward_level="partial", model_type=folder.name, model_cache_dir=str(folder.parent))
    return [float(value) for value in score(refs=list(true), hyps=list(generated))[1]]


def _ratescore(folder: Path, true: Sequence[str], generated: Sequence[str]) -> list[float]:
    from RaTEScore import RaTEScore

    score = RaTEScore(
        bert_model=str(folder / "ner"), eval_model=str(folder / "embedding"), use_gpu=torch.cuda.is_available()
    )
    return [float(value) for value in score.compute_score(list(generated), list(true))]


SCORES: Final = {
    "meteor": _Need(_meteor, "nltk/corpora/wordnet", "NLTK's wordnet.zip, unpacked", ("nltk",), _INSTALL),
    "bertscore_f1": _Need(
        _bertscore, "bertscore", "roberta-large in the form of transformers", ("transformers",), _INSTALL
    ),
    "radgraph_f1": _Need(
        _radgraph, "radgraph/radgraph-xl", "radgraph-xl.tar.gz, unpacked", ("radgraph",), "run pip install radgraph"
    ),
    "ratescore": _Need(
        _ratescore,
        "rate",
        "RaTE-NER-Deberta as ner and BioLORD-2023-C as embedding",
        ("RaTEScore", "medspacy"),
        "run pip install RaTEScore medspacy",
    ),
}
