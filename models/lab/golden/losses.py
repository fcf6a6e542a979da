"""The losses of the published training (spec §10), of recorded random numbers and of the recorded sentences."""

from __future__ import annotations

import torch

from models.lab.golden.recording import Computed, RecordedNetwork
from models.lab.losses import contrast, language
from models.lab.losses.detection import box_cost, focal, giou_cost, l1_cost, match_evenly


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
    yield "loss/global_contrastive", contrast.global_contrast(take("loss/z1"), take("loss/z2"), temperature=0.2)
    regions, sentences, valid = take("loss/z_reg"), take("loss/z_sent"), take("region/mask")
    chosen = contrast.sentence_contrast(regions, sentences, valid, temperature=0.25)
    yield "loss/sentence_contrastive", chosen
    yield "loss/sentence_mse", contrast.squared_error(regions, sentences, valid)
    features, positive, negative = take("loss/patho_features"), take("loss/patho_pos"), take("loss/patho_neg")
    findings = take("loss/patho_targets").bool()
    losses_of_findings = contrast.finding_contrast(features, positive, negative, present=findings, temperature=0.2)
    yield "loss/pathology_contrastive", losses_of_findings
    losses_of_regions = contrast.anatomy_contrast(
        features,
        positive,
        negative,
        present=take("loss/anat_targets"),
        known=take("loss/anat_has"),
        drawn=torch.ones(len(positive), dtype=torch.bool),
        temperature=0.25,
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
