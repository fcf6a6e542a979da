"""How alike generated and true texts are: BLEU-1, BLEU-4, ROUGE-L, METEOR, CIDEr, BERTScore, RadGraph F1, RaTEScore.

BLEU is of all texts together, by the counts of sacrebleu without smoothing; the others are means over texts. All are
fractions but CIDEr, which goes to 10. What cannot be computed is None, with the reason (`given_files`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU

from models.lab.evaluation import reports
from models.lab.evaluation.bootstrap import Figures, Indices
from models.lab.evaluation.published.cider import cider, words_of
from models.lab.evaluation.published.given_files import SCORES, NotComputed, scores_by_files

FIGURES: Final = ("bleu_1", "bleu_4", "rouge_l", "meteor", "cider", "bertscore_f1", "radgraph_f1", "ratescore")
_ORDER: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Likeness:
    """What each text adds to the figures.

    bleu: of each text the n-grams of 1 to 4 words that are right, those that there are, its length and the true one's
    scores: by figure, [text]; reasons: of the figures that were not computed
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
    scores, reasons = {"rouge_l": reports.rouge_l(true, generated), "cider": cider(own, said)}, {}
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
