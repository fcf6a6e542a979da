"""How alike generated and true texts are: BLEU-1, BLEU-4, ROUGE-L, METEOR, CIDEr, BERTScore.

BLEU is of all texts together, by the counts of sacrebleu without smoothing; the others are means over texts. All are
fractions but CIDEr, which goes to 10. What cannot be computed is None, with the reason: an evaluation, which may have
read films for hours, goes on.

METEOR and BERTScore need files of their own, from the folder of `--metric-files`; nothing is downloaded.
CIDEr-D (Vedantam, Zitnick, Parikh 2015, arXiv 1411.5726) is our own: pycocoevalcap, which the published code uses, has
had no release since 2020 and is 100 MB of Java programs; aac-metrics brings sentence-transformers. How many true texts
hold an n-gram is counted in the texts that are measured.
BERTScore (Zhang and others 2020, arXiv 1904.09675) is our own, too: bert-score has had no release since 2023 and fails
with tokenizers of `transformers` 5 that have no longest text; torchmetrics 1.9 compares texts of different lengths with
those of other pairs once it takes several at a time.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import exp, log, sqrt
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.bleu import BLEU

from models.errors import ModelError
from models.lab.evaluation.statistics import Figures, Indices

Words = Sequence[str]
_Gram = tuple[str, ...]

_LONGEST: Final = 4
_SPREAD: Final = 6.0
"""The standard deviation of the penalty for another length, in bigrams."""
FIGURES: Final = ("bleu_1", "bleu_4", "rouge_l", "meteor", "cider", "bertscore_f1")
_ORDER: Final = 4
_LAYER: Final = 17
"""The layer of roberta-large that bert-score takes; of a smaller network the last one is taken."""
_LONGEST_TEXT: Final = 512


def words_of(text: str) -> list[str]:
    """Cut a text into words, as published: at blanks, with a blank before each period; capitals are kept."""
    return text.replace(".", " .").split()


def rouge_l(true: Sequence[str], generated: Sequence[str]) -> list[float]:
    """Return the ROUGE-L of each text, 0..1."""
    scorer = RougeScorer(["rougeL"])
    return [float(scorer.score(*pair)["rougeL"].fmeasure) for pair in zip(true, generated, strict=True)]


def cider(true: Sequence[Words], generated: Sequence[Words]) -> list[float]:
    """Return the score of each text, 0 to 10; 0 for all if there is only one, for then no n-gram is rarer than others.

    For each length of n-grams: the cosine of the two texts' counts, weighted by rarity; of n-grams that the generated
    text has more often or with more weight, what the true one has. The score is the mean, times 10, times the penalty.
    """
    documents = Counter(gram for words in true for gram in _grams(words))
    rarest = log(len(true)) if true else 0.0

    def weighted(words: Words) -> list[dict[_Gram, float]]:
        weights: list[dict[_Gram, float]] = [{} for _ in range(_LONGEST)]
        for gram, count in _grams(words).items():
            weights[len(gram) - 1][gram] = count * (rarest - log(max(1, documents[gram])))
        return weights

    scores = []
    for own, said in zip(true, generated, strict=True):
        longer = max(0, len(said) - 1) - max(0, len(own) - 1)
        alike = [_alike(*pair) for pair in zip(weighted(said), weighted(own), strict=True)]
        scores.append(10 * sum(alike) / _LONGEST * exp(-(longer**2) / (2 * _SPREAD**2)))
    return scores


def _grams(words: Words) -> Counter[_Gram]:
    """Count the n-grams of one to four words."""
    return Counter(
        tuple(words[start : start + length])
        for length in range(1, _LONGEST + 1)
        for start in range(len(words) - length + 1)
    )


def _alike(said: Mapping[_Gram, float], own: Mapping[_Gram, float]) -> float:
    lengths = sqrt(sum(weight**2 for weight in said.values()) * sum(weight**2 for weight in own.values()))
    shared = sum(min(weight, own[gram]) * own[gram] for gram, weight in said.items() if gram in own)
    return shared / lengths if lengths else 0.0


class NotComputed(Exception):
    """A figure cannot be computed; the text says which package or file is missing, and what to do."""


class _Need(NamedTuple):
    """A folder that a figure needs, and a package; score: computes it; holds: the folder's content in words."""

    score: Callable[[Path, Sequence[str], Sequence[str]], list[float]]
    folder: str
    holds: str
    package: str


def check_folder(files: Path) -> None:
    """Raise ModelError unless a folder has the files of at least one figure; before hours of work."""
    wanted = [need.folder for need in SCORES.values()]
    if not any((files / folder).is_dir() for folder in wanted):
        raise ModelError(f"--metric-files: {files} has none of {', '.join(wanted)}; see docs/model/paper.md")


def scores_by_files(name: str, files: Path | None, true: Sequence[str], generated: Sequence[str]) -> list[float]:
    """Compute a figure of `SCORES` for each text. Raises NotComputed."""
    need = SCORES[name]
    if find_spec(need.package) is None:
        raise NotComputed(f"{need.package} not installed; run pip install -c constraints.txt '.[paper]'")
    if files is None:
        raise NotComputed(f"needs {need.holds}; give it as DIR/{need.folder}, with --metric-files DIR")
    if not (files / need.folder).is_dir():
        raise NotComputed(f"{need.folder} is missing in the folder of --metric-files; put {need.holds} there")
    try:
        return need.score(files / need.folder, true, generated)
    except Exception as error:  # a boundary: other people's packages and files; hours of reading films must not be lost
        cause = " ".join(str(error).split())[:200]
        raise NotComputed(f"{need.package} failed on {need.folder} ({type(error).__name__}: {cause})") from error


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
    """Return the F1 of each pair of texts by the model in a folder; 0 if one is empty.

    It is without weights of rarity and without rescaling.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval().to(device)
    layer = min(_LAYER, model.config.num_hidden_layers)
    # RoBERTa's words begin with a blank, the first one too. Its positions count from 2.
    before = " " if model.config.model_type == "roberta" else ""
    longest = min(_LONGEST_TEXT, model.config.max_position_embeddings - 2)

    @lru_cache(maxsize=4096)
    def vectors(text: str) -> torch.Tensor:
        """Return the vectors of the tokens [token, dim], of length 1, with those of begin and end."""
        ids = tokenizer(before + text.strip(), truncation=True, max_length=longest, return_tensors="pt").to(device)
        with torch.inference_mode():
            (hidden,) = model(**ids, output_hidden_states=True).hidden_states[layer]
        return torch.nn.functional.normalize(hidden.float(), dim=-1)

    def score(own: str, said: str) -> float:
        if not (own.strip() and said.strip()):
            return 0.0
        # As in bert-score begin and end have no say, but a word may be like them.
        cosines = vectors(said) @ vectors(own).T
        precision, recall = cosines.amax(dim=1)[1:-1].mean(), cosines.amax(dim=0)[1:-1].mean()
        return float(2 * precision * recall / (precision + recall))

    return [score(*pair) for pair in zip(true, generated, strict=True)]


SCORES: Final = {
    "meteor": _Need(_meteor, "nltk/corpora/wordnet", "NLTK's wordnet.zip, unpacked", "nltk"),
    "bertscore_f1": _Need(_bertscore, "bertscore", "roberta-large in the form of transformers", "transformers"),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Likeness:
    """What each text adds to the figures.

    bleu: for each text the matching and the total n-grams of 1 to 4 words, its length and the reference's
    scores: by figure, [text]; reasons: why figures were not computed
    """

    bleu: NDArray[np.int64]
    scores: Mapping[str, NDArray[np.float64]]
    reasons: Mapping[str, str]

    def figures(self, texts: Indices) -> Figures:
        """Compute the figures of these texts, in the order of `FIGURES`; None for those that were not computed."""
        counts = self.bleu[texts].sum(axis=0).tolist()
        made: dict[str, float | None] = {"bleu_1": _bleu(counts, 1), "bleu_4": _bleu(counts, _ORDER)}
        made |= {name: float(scores[texts].mean()) for name, scores in self.scores.items()}
        return {name: made.get(name) for name in FIGURES}


def likeness_of(true: Sequence[str], generated: Sequence[str], files: Path | None) -> Likeness:
    """Compare texts; files: the folder with what some figures need, None if there is none."""
    own, said = [words_of(text) for text in true], [words_of(text) for text in generated]
    scores, reasons = {"rouge_l": rouge_l(true, generated), "cider": cider(own, said)}, {}
    for name in SCORES:
        try:
            scores[name] = scores_by_files(name, files, true, generated)
        except NotComputed as reason:
            reasons[name] = str(reason)
    return Likeness(
        bleu=_counts(own, said),
        scores={name: np.array(values, dtype=np.float64) for name, values in scores.items()},
        reasons=reasons,
    )


def _counts(true: Sequence[Sequence[str]], generated: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    # "Effective order" concerns the score of a text, which is not used; without it sacrebleu advises to set it.
    bleu = BLEU(tokenize="none", smooth_method="none", effective_order=True)
    told = [bleu.sentence_score(" ".join(said), [" ".join(own)]) for own, said in zip(true, generated, strict=True)]
    return np.array([[*text.counts, *text.totals, text.sys_len, text.ref_len] for text in told], dtype=np.int64)


def _bleu(counts: Sequence[int], order: int) -> float:
    made = BLEU.compute_bleu(
        list(counts[:order]),
        list(counts[_ORDER : _ORDER + order]),
        sys_len=counts[-2],
        ref_len=counts[-1],
        smooth_method="none",
        max_ngram_order=order,
    )
    return float(made.score) / 100
