"""What is written: about given boxes of MS-CXR and Chest ImaGenome, and reports of MIMIC-CXR (spec §9.1 and 9.4).

Generated texts are compared with the true ones by the classes that a labeler finds in both, and by their words, as
published. A report is made and selected as published, with its error (BUG-8), but without leaving out boxes at random
(BUG-6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.contract import PromptKind, ReaderPrompt
from models.lab.evaluation.published.analysis import PUBLISHED, Analysis
from models.lab.evaluation.published.classification import features_of, regions_asked
from models.lab.evaluation.published.clinical_efficacy import Marked, Told, counts_of, efficacy_of
from models.lab.evaluation.published.labels import PublishedLabels
from models.lab.evaluation.published.model import PublishedModel
from models.lab.evaluation.published.text_metrics import likeness_of
from models.lab.evaluation.statistics import Bootstrap, Figures, Indices
from models.lab.tasks import sentence_selection
from models.lab.tasks.batch import Picture, as_array
from models.lab.tasks.prompts import embed
from models.manifest import ReportRule
from models.reading.deduplicate import similarity_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportQuestions:
    """The prompt vectors of a report [prompt, dim], and which of them are pathologies.

    positive, negative: vectors of all pathologies and of their opposites, also if an analysis does not ask for them
    findings: which of these are a finding, not "no finding"
    """

    prompts: Tensor
    pathologies: tuple[bool, ...]
    positive: Tensor
    negative: Tensor
    findings: tuple[bool, ...]


def of_phrases(model: PublishedModel, labels: PublishedLabels, picture: Picture) -> Told | None:
    """Generate a sentence for each box of each phrase (RE on MS-CXR); None if the film has no phrase with a box."""
    pairs = [(phrase.text, box) for phrase in labels.phrases for box in phrase.boxes]
    if not pairs:
        return None
    features = features_of(model, picture, [box for _, box in pairs])
    return Told(tuple(text for text, _ in pairs), _written(model, features[0]))


def of_regions(
    model: PublishedModel, labels: PublishedLabels, picture: Picture, how: Analysis = PUBLISHED
) -> Told | None:
    """Generate a sentence for each region that the report mentions (RE), with all regions as prompts; None if none."""
    names = list(labels.regions)
    told = [place for place, name in enumerate(names) if labels.region_texts.get(name)]
    if not told:
        return None
    features = regions_asked(model, picture, labels.regions, how)
    return Told(tuple(labels.region_texts[names[place]] for place in told), _written(model, features[0, told]))


def report_questions(
    model: PublishedModel, prompts: Sequence[ReaderPrompt], how: Analysis = PUBLISHED
) -> ReportQuestions:
    """Embed the prompts of a report."""
    judged = [prompt for prompt in prompts if prompt.kind is not PromptKind.REGION]
    others = [prompt for prompt in prompts if prompt.kind is PromptKind.REGION]
    asked = {"all": prompts, "pathologies": judged, "regions": others}[how.prompts]
    with torch.inference_mode():
        return ReportQuestions(
            prompts=embed(model.network, model.phrases, [prompt.phrases for prompt in asked]),
            pathologies=tuple(prompt.kind is not PromptKind.REGION for prompt in asked),
            positive=embed(model.network, model.phrases, [prompt.phrases for prompt in judged]),
            negative=embed(model.network, model.phrases, [prompt.negatives for prompt in judged]),
            findings=tuple(prompt.kind is PromptKind.PATHOLOGY for prompt in judged),
        )


def of_report(
    model: PublishedModel,
    asked: ReportQuestions,
    labels: PublishedLabels,
    picture: Picture,
    how: Analysis = PUBLISHED,
) -> Told | None:
    """Write the report of a film; None if it has no true one. An analysis may leave nothing to write."""
    if not labels.report:
        return None
    _, _, preference, features = model.network.find(*picture, asked.prompts.unsqueeze(0))
    if how.filter == "mean":
        noted = sentence_selection.positiveness(features, asked.positive, asked.negative)
    else:
        findings = torch.tensor(asked.findings)
        noted = sentence_selection.greatest_positiveness(features, asked.positive[findings], asked.negative[findings])
    chosen = sentence_selection.gets_sentence(
        noted,
        asked.pathologies,
        ignore_negative_pathologies=how.positive_only,
        all_regions=how.all_regions,
    )[0]
    if not chosen.any():
        return Told((labels.report,), ("",))
    sentences = _written(model, features[0, torch.from_numpy(chosen)])
    similarity = similarity_of(as_array(embed(model.network, model.phrases, [(text,) for text in sentences])))
    kept = sentence_selection.published_selection(similarity, as_array(preference)[0], rule=ReportRule())
    return Told((labels.report,), (" ".join(sentences[number] for number in kept),))


def measure(
    films: Sequence[Told], marked: Marked, bootstrap: Bootstrap, *, metric_files: Path | None = None
) -> dict[str, object]:
    """Compare the texts of all films; deviations are over resampled films.

    metric_files: the folder with what some figures need
    """
    own = np.split(np.arange(len(marked.true)), np.cumsum([len(film.true) for film in films])[:-1])
    true, generated = ([text for film in films for text in film[side]] for side in (0, 1))
    counts = counts_of(
        [number for number, film in enumerate(films) for _ in film.true],
        marked.true,
        marked.generated,
    )
    likeness = likeness_of(true, generated, metric_files)

    def figures(some: Indices) -> Figures:
        texts = np.concatenate([own[film] for film in some])
        return {**efficacy_of(counts, some), **likeness.figures(texts)}

    return {
        **figures(np.arange(len(films))),
        "not_computed": dict(likeness.reasons),
        "labeler": marked.labeler,
        "films": len(films),
        "texts": len(true),
        "deviations": bootstrap.deviations(figures, len(films)),
    }


def _written(model: PublishedModel, features: Tensor) -> tuple[str, ...]:
    """Generate a sentence for each feature [sentence, dim], greedily."""
    return tuple(model.sentences.decode(ids) for ids in model.network.write(features).tolist())
