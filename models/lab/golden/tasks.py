"""The paper's tasks (detection, grounding, regions, the selection of a report; spec §9), and its losses (spec §10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from models.engines import FloatArray
from models.errors import ModelError
from models.lab.golden.recording import Computed, RecordedNetwork
from models.lab.losses import contrast, language
from models.lab.losses.detection import box_cost, focal, giou_cost, l1_cost, match_evenly
from models.lab.tasks import detection, sentence_selection
from models.lab.tasks import regions as boxes_of_films
from models.lab.tasks.batch import Picture, as_array, fill_up
from models.lab.tasks.detection import SHIPPED, DetectionSettings
from models.lab.tasks.prompts import ClassPrompt, DataSet, class_prompts, embed_classes
from models.manifest import ReportRule
from models.reading.deduplicate import similarity_of, unit_length

_DETECTIONS: Mapping[str, DataSet] = {"od_vindrcxr": "vindr", "od_nih8": "nih8", "od_mscxr": "mscxr"}
_RULES = ("official", "hi", "lo", "soft", "soft_positiveness")
_SCALES_OF_SENTENCES = {"official": 1.0, "scaled": 1.3}


def losses(ours: RecordedNetwork) -> Computed:
    """Compute every recorded loss, with the temperatures of the published training."""
    yield from _matching(ours)
    yield from _contrasts(ours)
    yield from _language(ours)


def _matching(ours: RecordedNetwork) -> Computed:
    take = ours.recording.take
    proposed, target = take("loss/pred_boxes"), take("loss/target_boxes")
    assigned, matched = match_evenly(box_cost(proposed, target), take("loss/target_mask"))
    yield "loss/l1_cost", l1_cost(proposed, target)
    yield "loss/giou_cost", giou_cost(proposed, target)
    yield "loss/assign_mask", assigned
    yield "loss/matches", matched
    yield "loss/focal_auto", focal(take("loss/probs"), matched)


def _contrasts(ours: RecordedNetwork) -> Computed:
    take = ours.recording.take
    yield "loss/global_contrastive", contrast.global_contrast(take("loss/z1"), take("loss/z2"))
    regions, sentences, valid = take("loss/z_reg"), take("loss/z_sent"), take("region/mask")
    chosen = contrast.sentence_contrast(regions, sentences, valid)
    yield "loss/sentence_contrastive", chosen
    yield "loss/sentence_mse", contrast.squared_error(regions, sentences, valid)
    features, positive, negative = take("loss/patho_features"), take("loss/patho_pos"), take("loss/patho_neg")
    findings = take("loss/patho_targets").bool()
    losses_of_findings = contrast.finding_contrast(features, positive, negative, present=findings)
    yield "loss/pathology_contrastive", losses_of_findings
    losses_of_regions = contrast.anatomy_contrast(
        features,
        positive,
        negative,
        present=take("loss/anat_targets"),
        known=take("loss/anat_has"),
        drawn=torch.ones(len(positive), dtype=torch.bool),
    )
    yield "loss/anat_contrastive", losses_of_regions


def _language(ours: RecordedNetwork) -> Computed:
    texts = ours.recording.sentences("lm/train_targets")
    generator = ours.network.generator
    taught = language.lesson([ours.sentences.encode(text) for text in texts], max_length=generator.sizes.positions)
    yield "lm/train_input_ids", taught.ids
    yield "lm/train_attention_mask", taught.attended
    features = ours.recording.take("region/features_masked")[ours.recording.take("region/mask")]
    yield "lm/train_loss", language.sentence_loss(language.logits_of(generator, features, taught), taught.ids)


def detections(ours: RecordedNetwork) -> Computed:
    """Detect the classes of every data set, with the settings that were recorded."""
    picture = ours.look()
    for task, data_set in _DETECTIONS.items():
        yield from _detection(ours, picture, f"od/{task}", data_set)


def _detection(ours: RecordedNetwork, picture: Picture, recorded: str, data_set: DataSet) -> Computed:
    chosen = _chosen(class_prompts(data_set), ours.recording.sentences(f"{recorded}/class_names"))
    classes = embed_classes(ours.network, ours.phrases, chosen)
    yield f"{recorded}/class_names", [prompt.name for prompt in chosen]
    yield f"{recorded}/box_prompt_emb", classes.located_by
    yield f"{recorded}/pos_prompt_emb", classes.positive
    yield f"{recorded}/neg_prompt_emb", classes.negative
    found = detection.locate(ours.network, picture, classes.located_by)
    yield f"{recorded}/multiboxes", found.boxes
    yield f"{recorded}/multiboxes_weights", found.scores
    yield f"{recorded}/multiboxes_features", found.tokens
    for variant, settings in _variants(SHIPPED[data_set], count=len(chosen)):
        for film, rows in enumerate(detection.detections(found, classes, settings)):
            yield f"{recorded}/{variant}/pred_boxes{film}", rows


def _chosen(prompts: tuple[ClassPrompt, ...], names: list[str]) -> list[ClassPrompt]:
    by_name = {prompt.name: prompt for prompt in prompts}
    if unknown := [name for name in names if name not in by_name]:
        raise ModelError(f"golden_text.json names the class {unknown[0]}, which no prompt asks for")
    return [by_name[name] for name in names]


def _variants(shipped: DetectionSettings, *, count: int) -> Iterator[tuple[str, DetectionSettings]]:
    """Return the recorded settings: the published ones, and variants of each."""
    yield "official", shipped
    yield "scaled", replace(shipped, scales=tuple(0.8 + 0.1 * number for number in range(count)))
    yield "weights_and_prompts", replace(shipped, by_prompts=True, by_weights=True, temperature=0.25)
    yield "weights_only", replace(shipped, by_prompts=False, by_weights=True)
    yield "prompts_sigmoid", replace(shipped, by_prompts=True, by_weights=False, temperature=1.0)


def groundings(ours: RecordedNetwork) -> Computed:
    """Ground the recorded sentences, in the order in which they were asked, which is not sorted."""
    picture = ours.look()
    sentences = ours.recording.sentences_of_films("sg/sentences")
    features, padding = fill_up([ours.embed(film) for film in sentences])
    found = detection.locate(ours.network, picture, features, padding)
    yield "sg/sentence_features", features
    yield "sg/sentence_mask", ~padding
    yield "sg/multiboxes", found.boxes
    yield "sg/multiboxes_weights", found.scores
    for variant, scale in _SCALES_OF_SENTENCES.items():
        for film, grounded in enumerate(detection.groundings(found, padding, scale=scale)):
            for sentence, rows in enumerate(grounded):
                yield f"sg/{variant}/pred_boxes{film}_{sentence}", rows


def regions(ours: RecordedNetwork) -> Computed:
    """Classify and explain the recorded boxes, without the recorded padding."""
    network, picture = ours.network, ours.look()
    given, mask = ours.recording.take("region/boxes"), ours.recording.take("region/mask")
    boxes, padding = fill_up([film[valid] for film, valid in zip(given, mask, strict=True)])
    yield "region/boxes", boxes
    yield "region/mask", ~padding
    yield "region/features_nopost", boxes_of_films.tokens_of(network, picture, boxes, padding)
    features = boxes_of_films.features_together(network, picture, boxes, padding)
    yield "region/features_masked", features
    # Recorded without a mask: the padding is treated like any other box.
    apart = boxes_of_films.features_apart(network, picture, boxes, torch.zeros_like(padding))
    yield "region/features_nomask0", apart[:1]
    yield "region/token_ids", network.write(features[~padding])
    yield "region/sentences", boxes_of_films.explain(network, ours.sentences, features, padding)
    single = embed_classes(network, ours.phrases, class_prompts("mscxr"))
    yield from zip(_judged("mscxr"), boxes_of_films.classify_one(features, single.positive), strict=True)
    each = embed_classes(network, ours.phrases, class_prompts("cig"))
    yield from zip(_judged("cig"), boxes_of_films.classify_each(features, each.positive, each.negative), strict=True)


def _judged(data_set: DataSet) -> tuple[str, str]:
    return f"region/rc_{data_set}/cls_probs", f"region/rc_{data_set}/pred"


def positiveness(ours: RecordedNetwork) -> Computed:
    """Choose the prompts that get a sentence, in both published ways."""
    pathologies = _pathologies(ours)
    features, negative = ours.recording.take("rg/box_features_post"), ours.recording.take("txt/rg_neg/emb")
    positive = ours.recording.take("rg/token_prompts")[torch.tensor(pathologies)]
    noted = sentence_selection.positiveness(features, positive, negative)
    yield "rg/cls_probs", noted
    yield "rg/region_mask", sentence_selection.gets_sentence(noted, pathologies)
    greatest = sentence_selection.greatest_positiveness(features, positive, negative)
    yield "rg_noavg/cls_probs", greatest
    yield (
        "rg_noavg/region_mask",
        sentence_selection.gets_sentence(greatest, pathologies, ignore_negative_pathologies=True),
    )


def selections(ours: RecordedNetwork) -> Computed:
    """Remove duplicate sentences by every recorded rule, with the published shift of numbers."""
    recording = ours.recording
    features, mask = (recording.take(f"rg/sentence_{part}") for part in ("features", "mask"))
    yield "rg/sentence_similarity01", np.stack([_similarity(film) for film in features])
    similarities = [similarity_of(as_array(film[selected])) for film, selected in zip(features, mask, strict=True)]
    others = [name for name in recording.texts if name.startswith("rg/postprocess/")]
    for name in dict.fromkeys([*(f"rg/postprocess/{rule}" for rule in _RULES), *others]):
        config = cast("dict[str, dict[str, float | str]]", recording.text(name))["config"]
        yield name, {"config": config, **_reports(ours, similarities, config)}


def _similarity(features: Tensor) -> FloatArray:
    """Compare sentences [S, dim]; the recording still has what each has in common with itself."""
    itself = (np.square(unit_length(as_array(features))).sum(axis=-1) + 1) / 2
    with_itself: FloatArray = similarity_of(as_array(features)) + np.diag(itself)
    return with_itself


def _reports(
    ours: RecordedNetwork, similarities: list[FloatArray], config: Mapping[str, float | str]
) -> dict[str, list[object]]:
    """Select sentences by one recorded rule, for each film: those that stay, and the prompts shown with them."""
    recording = ours.recording
    names, kinds = (recording.sentences(f"rg/prompt_{part}") for part in ("texts", "types"))
    sentences = recording.sentences_of_films("rg/pred_sentences_before_dedup")
    by_positiveness = config.get("sentence_preference") == "positiveness"
    preferences = recording.take("rg/cls_probs" if by_positiveness else "rg/boxes_weights")
    scores = recording.take("rg/multiboxes_weights")
    reports: dict[str, list[object]] = {}
    for film, similarity in enumerate(similarities):
        selected = sentence_selection.published_selection(similarity, as_array(preferences[film]), rule=_rule(config))
        texts = [sentences[film][number] for number in selected]
        parts: dict[str, object] = {
            "pred_sentences": texts,
            "pred_prompt_names": [names[number] for number in selected],
            "pred_prompt_types": [kinds[number] for number in selected],
            "kept_indices": selected,
            "pred_boxes_weights": [scores[film, number].tolist() for number in selected],
            "report": " ".join(texts),
        }
        for part, value in parts.items():
            reports.setdefault(part, []).append(value)
    return reports


def _rule(config: Mapping[str, float | str]) -> ReportRule:
    """Read a recorded rule; missing keys are as published."""
    published = ReportRule()
    return ReportRule(
        remove_above=float(config.get("synonym_removal_thres", published.remove_above)),
        soft_remove_above=float(config.get("synonyme_soft_removal_thres", published.soft_remove_above)),
        max_sentences=int(config.get("max_sentences", published.max_sentences)),
    )


def _pathologies(ours: RecordedNetwork) -> list[bool]:
    return [kind == "pathology" for kind in ours.recording.sentences("rg/prompt_types")]
