"""Texts as the paper measures them: figures by hand on made-up texts, and how the published report is made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from language.labels import RuleLabeler
from models.lab.evaluation.evaluated_model import read_questions
from models.lab.evaluation.published.labels import Phrase, PublishedLabels
from models.lab.evaluation.published.marks import Marked, Told, mark
from models.lab.evaluation.published.model import PublishedModel
from models.lab.evaluation.published.texts import measure, of_phrases, of_regions, of_report, report_questions
from models.lab.evaluation.request import DEFAULT
from models.lab.evaluation.statistics import Bootstrap
from models.lab.tasks.batch import Picture
from models.progress import quiet
from tests.lab.published import small_model
from tests.models.test_chex import picture_of

LEFT, RIGHT = (np.array([x, 0.5, 0.3, 0.6], dtype=np.float32) for x in (0.3, 0.7))


def by_rules(films: list[Told]) -> Marked:
    return mark(RuleLabeler(), "report_mimic", [("film", told) for told in films], quiet)


@pytest.fixture(scope="module")
def model() -> PublishedModel:
    return small_model(seed=17)


@pytest.fixture(scope="module")
def picture(model: PublishedModel) -> Picture:
    patches, positions, cls = picture_of(model.network, seed=9)
    return patches[:1], positions[:1], cls[:1]


def test_figures_agree_with_numbers_computed_by_hand() -> None:
    films = [
        Told(("There is a small left pleural effusion.",), ("There is a left pleural effusion.",)),
        Told(("No pneumothorax.",), ("Pneumothorax on the right.",)),
    ]

    made = measure(films, by_rules(films), Bootstrap(resamples=0))

    # Right: an effusion. Wrong: a pneumothorax, and that there is no finding was missed.
    assert made["ce_14_micro_f1"] == pytest.approx(2 / (2 + 1 + 1))
    assert made["ce_14_micro_precision"] == made["ce_14_micro_recall"] == 0.5
    # Six of seven and six of six words in order; one of two and one of four.
    assert made["rouge_l"] == pytest.approx((12 / 13 + 1 / 3) / 2)
    assert (made["films"], made["texts"]) == (2, 2)


def test_every_box_of_a_phrase_is_explained(model: PublishedModel, picture: Picture) -> None:
    labels = PublishedLabels(phrases=(Phrase("edema", np.stack([LEFT, RIGHT])), Phrase("mass", LEFT[np.newaxis])))

    told = of_phrases(model, labels, picture)

    assert told is not None and told.true == ("edema", "edema", "mass")
    assert len(told.generated) == 3 and told.generated[0] == told.generated[2], "of one box"
    assert of_phrases(model, PublishedLabels(), picture) is None


def test_regions_that_no_sentence_speaks_of_are_seen_only(model: PublishedModel, picture: Picture) -> None:
    labels = PublishedLabels(regions={"spine": LEFT, "right lung": RIGHT}, region_texts={"right lung": "Clear."})

    told = of_regions(model, labels, picture)

    assert told is not None and told.true == ("Clear.",) and len(told.generated) == 1
    assert of_regions(model, PublishedLabels(regions={"spine": LEFT}), picture) is None


def test_a_report_is_made_as_a_second_program_makes_it(model: PublishedModel, picture: Picture) -> None:
    prompts = read_questions(DEFAULT).prompts
    asked = report_questions(model, prompts)
    assert asked.pathologies == (True,) * 14 + (False,) * 15

    told = of_report(model, asked, PublishedLabels(report="The lungs are clear."), picture)

    _, _, weights, (features,) = model.network.find(*picture, asked.prompts[np.newaxis])
    cosines = [
        torch.cosine_similarity(features, words.mean(dim=0), dim=-1) for words in (asked.positive, asked.negative)
    ]
    chosen = [n for n in range(29) if n < 14 or torch.sigmoid(cosines[0][n] - cosines[1][n]) > 0.5]
    texts = [model.sentences.decode(model.network.write(features[[n]])[0].tolist()) for n in chosen]
    tokens = torch.from_numpy(model.phrases.encode(texts))
    unit = torch.nn.functional.normalize(model.network.encode_prompts(tokens), dim=-1)
    alike = (unit @ unit.T).fill_diagonal_(-1.0).numpy()
    kept = list(range(len(texts)))
    while len(kept) > 1:
        among = alike[np.ix_(kept, kept)]
        first, second = (kept[place] for place in np.unravel_index(among.argmax(), among.shape))
        if among.max() < (0.8 if len(kept) > 10 else 0.9):
            break
        kept.remove(first if weights[0, first] < weights[0, second] else second)
    assert told == (("The lungs are clear.",), (" ".join(texts[n] for n in kept),))
    assert of_report(model, asked, PublishedLabels(), picture) is None
