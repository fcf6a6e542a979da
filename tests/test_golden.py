"""The network against numbers recorded from the published one (SPEC.md 14): the proof that it is ChEX."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from models import boxes as unit_boxes
from models import published
from models.chex import Chex
from models.manifest import InputRule
from models.preprocess import prepare
from models.roi_pool import soft_boxes
from models.tokenizers import (
    PROMPT_VOCABULARY,
    SENTENCE_END,
    SENTENCE_MERGES,
    SENTENCE_VOCABULARY,
    VOCABULARIES,
    PromptTokenizer,
    SentenceTokenizer,
)

GOLDEN = Path(os.environ.get("CHEX_GOLDEN", Path(__file__).parent / "golden"))

# Float32 on a CPU; pooled values reach 70, the others about 5.
FEATURES, POOLED, BOXES = 1e-4, 1e-3, 1e-5

FloatArray = NDArray[np.float32]
Arrays = dict[str, FloatArray]  # whatever the recorded type: ids and masks are only looked up and compared
Resize = Literal["direct", "via_256"]
Texts = dict[str, list[str]]
Stage = tuple[Tensor | FloatArray, FloatArray, float]
Stages = dict[str, Stage]


@pytest.fixture(scope="module")
def golden() -> Arrays:
    with np.load(GOLDEN / "golden.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def texts() -> Texts:
    recorded: Texts = json.loads((GOLDEN / "golden_text.json").read_text(encoding="utf-8"))
    return recorded


@pytest.fixture(scope="module")
def network() -> Chex:
    config = json.loads((GOLDEN / "config.json").read_text(encoding="utf-8"))
    with np.load(GOLDEN / "state_dict.npz") as arrays:
        state = published.rename({key: torch.from_numpy(arrays[key]) for key in arrays.files})
    sizes = published.sizes_of(
        state,
        heads=config["chex"]["n_head"],
        generator_heads=config["gpt2"]["n_head"],
        max_length=config["max_length_used"],
    )
    network = Chex(sizes).eval().requires_grad_(False)
    network.load_state_dict(state)
    return network


@pytest.fixture(scope="module")
def picture(network: Chex, golden: Arrays) -> tuple[Tensor, Tensor, Tensor]:
    return network.encode_image(torch.from_numpy(golden["x"]))


@pytest.fixture(scope="module")
def sentence_tokenizer() -> SentenceTokenizer:
    return SentenceTokenizer(VOCABULARIES / SENTENCE_VOCABULARY, VOCABULARIES / SENTENCE_MERGES)


@pytest.fixture
def outputs(network: Chex) -> Iterator[dict[str, Tensor]]:
    """What every part of the network last computed, by the part's name."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> torch.utils.hooks.RemovableHandle:
        def hook(_: nn.Module, __: object, output: Tensor) -> None:
            seen[name] = output

        return network.get_submodule(name).register_forward_hook(hook)

    handles = [keep(name) for name, _ in network.named_modules() if name]
    yield seen
    for handle in handles:
        handle.remove()


def difference(got: Tensor | FloatArray, wanted: FloatArray) -> float:
    """Largest absolute difference, after our [F, P, dim] took the recorded [F, row, column, dim] or vice versa."""
    array = got.numpy() if isinstance(got, Tensor) else got
    assert array.size == wanted.size, f"{array.shape} against {wanted.shape}"
    return float(np.abs(array.reshape(wanted.shape).astype(np.float64) - wanted).max())


@pytest.mark.parametrize(("recorded", "resize"), [("x", "via_256"), ("x_direct", "direct")])
@pytest.mark.parametrize("number", [0, 1])
def test_preprocessing_makes_the_recorded_input(golden: Arrays, number: int, recorded: str, resize: Resize) -> None:
    rule = InputRule(size=224, mean=0.505, std=0.248, resize=resize)
    raw = golden[f"image{number}/raw_uint8"]

    pixels = prepare((raw / 255).astype(np.float32), rule)

    assert difference(pixels, golden[f"image{number}/{recorded}"]) < FEATURES


def check(**stages: Stage) -> None:
    """Compare stages (got, wanted, tolerance) and name every one that differs."""
    found = {stage: difference(got, wanted) for stage, (got, wanted, _) in stages.items()}
    assert {stage: value for stage, value in found.items() if not value < stages[stage][2]} == {}


def test_image_encoder_agrees_at_every_stage(network: Chex, golden: Arrays, outputs: dict[str, Tensor]) -> None:
    patches, positions, cls = network.encode_image(torch.from_numpy(golden["x"]))

    after = outputs["image_encoder.norm_after"]
    layers = range(network.sizes.image_encoder.layers)
    check(
        norm_before=(outputs["image_encoder.norm_before"], golden["img/ln_pre"], FEATURES),
        **{f"layer{i}": (outputs[f"image_encoder.layers.{i}"], golden[f"img/block{i}"], FEATURES) for i in layers},
        cls_norm_after=(after[:, 0], golden["img/cls_ln_post"], FEATURES),
        patch_norm_after=(after[:, 1:], golden["img/patch_ln_post"], FEATURES),
        patches=(patches, golden["img/patch_features"], FEATURES),
        positions=(positions, golden["img/pos_embeddings"], FEATURES),
        cls=(cls, golden["img/cls_features"], FEATURES),
    )


@pytest.mark.parametrize("kind", ["rg_queries", "rg_neg", "odd"])
def test_prompts_have_the_recorded_ids_and_embeddings(network: Chex, golden: Arrays, texts: Texts, kind: str) -> None:
    tokens = PromptTokenizer(VOCABULARIES / PROMPT_VOCABULARY).encode(texts[f"txt/{kind}/texts"])

    embeddings = network.encode_prompts(torch.from_numpy(tokens))

    np.testing.assert_array_equal(tokens, golden[f"txt/{kind}/ids"])
    check(embeddings=(embeddings, golden[f"txt/{kind}/emb"], FEATURES))


def test_prompt_encoder_agrees_before_and_after_its_last_norm(
    network: Chex, golden: Arrays, outputs: dict[str, Tensor]
) -> None:
    network.encode_prompts(torch.from_numpy(golden["txt/rg_queries/ids"][:3]).long())

    last = f"prompt_encoder.layers.{network.sizes.prompt_encoder.layers - 1}"
    check(
        transformer=(outputs[last], golden["txt/rg_queries/transformer_out"], FEATURES),
        norm_after=(outputs["prompt_encoder.norm_after"], golden["txt/rg_queries/ln_final"], FEATURES),
    )


def queries(golden: Arrays, name: str) -> Tensor:
    """The same prompts for both recorded films."""
    return torch.from_numpy(golden[name]).expand(2, -1, -1)


def detector_stages(outputs: dict[str, Tensor], golden: Arrays, task: str, layers: int) -> Stages:
    return {
        "self_attention": (outputs["detector.layers.0.self_attention"], golden[f"{task}/det/layer0_sa"], FEATURES),
        "cross_attention": (outputs["detector.layers.0.cross_attention"], golden[f"{task}/det/layer0_ca"], FEATURES),
        **{
            f"layer{i}": (outputs[f"detector.layers.{i}"], golden[f"{task}/det/layer{i}"], FEATURES)
            for i in range(layers)
        },
        "box_logits": (outputs["detector.box"], golden[f"{task}/det/box_logits"], FEATURES),
        "regions": (outputs["detector.region"], golden[f"{task}/det/roi_tokens"], FEATURES),
        "score_logits": (outputs["detector.score"], golden[f"{task}/det/score_logits"], FEATURES),
    }


def test_detector_agrees_at_every_stage_of_report_generation(
    network: Chex, golden: Arrays, picture: tuple[Tensor, Tensor, Tensor], outputs: dict[str, Tensor]
) -> None:
    patches, positions, _ = picture
    detector = network.detector

    found = detector(patches, positions, queries(golden, "rg/token_prompts"), group=detector.boxes_per_prompt)

    unclipped = torch.sigmoid(outputs["detector.box"])
    maps = soft_boxes(unclipped[:, :6], grid=detector.grid, beta=detector.beta)
    check(
        **detector_stages(outputs, golden, "rg", network.sizes.detector.layers),
        patch_projected=(outputs["detector.patch"], golden["rg/det/patch_projected"], FEATURES),
        unclipped=(unclipped, golden["rg/multiboxes_unclipped"], BOXES),
        boxes=(found.boxes, golden["rg/multiboxes"], BOXES),
        scores=(found.scores, golden["rg/multiboxes_weights"], BOXES),
        maps=(maps, golden["rg/det/roi_maps"], FEATURES),
        pooled=(detector.pool(patches, unclipped), golden["rg/det/roi_pooled"], POOLED),
        aggregated_scores=(found.aggregated_scores, golden["rg/boxes_weights"], BOXES),
        aggregated=(found.aggregated, golden["rg/box_features_aggregated"], FEATURES),
    )


def test_box_around_the_boxes_of_a_prompt_agrees(golden: Arrays) -> None:
    around = unit_boxes.to_center_size(unit_boxes.enclosing(unit_boxes.to_corners(golden["rg/multiboxes_unclipped"])))
    present = golden["rg/multiboxes_present"].any(axis=-1, keepdims=True)

    check(
        unclipped=(around * present, golden["rg/boxes_unclipped"], BOXES),
        clipped=(unit_boxes.clip(around) * present, golden["rg/boxes"], BOXES),
    )


@pytest.mark.parametrize("task", ["od_vindrcxr", "od_nih8", "od_mscxr"])
def test_detector_agrees_when_all_prompts_of_a_film_see_each_other(
    network: Chex, golden: Arrays, picture: tuple[Tensor, Tensor, Tensor], outputs: dict[str, Tensor], task: str
) -> None:
    patches, positions, _ = picture

    found = network.detector(patches, positions, queries(golden, f"od/{task}/box_prompt_emb"), group=None)

    recorded = f"od/{task}"
    stages = detector_stages(outputs, golden, recorded, network.sizes.detector.layers) if task == "od_mscxr" else {}
    check(
        **stages,
        boxes=(found.boxes, golden[f"{recorded}/multiboxes"], BOXES),
        scores=(found.scores, golden[f"{recorded}/multiboxes_weights"], BOXES),
        tokens=(found.tokens, golden[f"{recorded}/multiboxes_features"], FEATURES),
    )


def test_find_gives_the_recorded_features_boxes_and_scores(
    network: Chex, golden: Arrays, picture: tuple[Tensor, Tensor, Tensor], outputs: dict[str, Tensor]
) -> None:
    boxes, scores, aggregated_scores, features = network.find(*picture, queries(golden, "rg/token_prompts"))

    films, prompts = features.shape[:2]
    tokens = outputs["post_decoder"].reshape(films, prompts, -1, features.shape[-1])
    layers = range(network.sizes.post_decoder.layers)
    check(
        **{f"layer{i}": (outputs[f"post_decoder.layers.{i}"], golden[f"rg/post/layer{i}"], FEATURES) for i in layers},
        boxes=(boxes, golden["rg/multiboxes"], BOXES),
        scores=(scores, golden["rg/multiboxes_weights"], BOXES),
        aggregated_scores=(aggregated_scores, golden["rg/boxes_weights"], BOXES),
        features=(features, golden["rg/box_features_post"], FEATURES),
        box_features=(tokens[:, :, 1:], golden["rg/multiboxes_features_post"], FEATURES),
    )


def test_describe_agrees_where_each_box_sees_itself_only(
    network: Chex, golden: Arrays, picture: tuple[Tensor, Tensor, Tensor], outputs: dict[str, Tensor]
) -> None:
    boxes = torch.from_numpy(golden["region/boxes"])
    prompts = torch.zeros(*boxes.shape[:2], network.sizes.dim)
    mask = golden["region/mask"][..., np.newaxis]

    features = network.describe(*picture, boxes, prompts, torch.zeros(boxes.shape[:2]))

    check(
        maps=(
            soft_boxes(boxes, grid=network.detector.grid, beta=network.detector.beta),
            golden["region/roi_maps"],
            FEATURES,
        ),
        pooled=(network.detector.pool(picture[0], boxes), golden["region/roi_pooled"], POOLED),
        tokens=(outputs["detector.region"].numpy() * mask, golden["region/features_nopost"], FEATURES),
        features=(features[:1], golden["region/features_nomask0"], FEATURES),
    )


def test_post_decoder_agrees_where_all_boxes_of_a_film_see_each_other(
    network: Chex, golden: Arrays, picture: tuple[Tensor, Tensor, Tensor]
) -> None:
    patches, positions, cls = picture
    memory = torch.cat([patches + positions, cls.unsqueeze(1)], dim=1)

    features = network.post_decoder(torch.from_numpy(golden["region/features_nopost"]), memory, group=None)

    check(features=(features[:1], golden["region/features_masked"][:1], FEATURES))


def chosen_features(golden: Arrays, film: int) -> Tensor:
    return torch.from_numpy(golden["rg/box_features_post"][film][golden["rg/region_mask"][film]])


def test_prefix_and_first_logits_agree(network: Chex, golden: Arrays) -> None:
    generator = network.generator
    features = chosen_features(golden, 0)

    prefix = generator.prefix_key_values(features)
    start = torch.full((3, 1), SENTENCE_END)
    logits = generator(start, torch.zeros_like(start), generator.remember(features[:3], room=1))

    check(
        flat=(generator.prefix(features), golden["rg/gen0/prefix_flat"], FEATURES),
        prefix=(prefix, golden["rg/gen0/prefix_key_values"], FEATURES),
        logits=(logits, golden["rg/gen0/first_step_logits"], FEATURES),
    )


@pytest.mark.parametrize("film", [0, 1])
def test_sentences_of_a_report_are_the_recorded_ones(
    network: Chex,
    golden: Arrays,
    texts: Texts,
    picture: tuple[Tensor, Tensor, Tensor],
    sentence_tokenizer: SentenceTokenizer,
    film: int,
) -> None:
    *_, features = network.find(*picture, queries(golden, "rg/token_prompts"))

    ids = network.write(features[film][torch.from_numpy(golden["rg/region_mask"][film])])

    np.testing.assert_array_equal(ids.numpy(), golden[f"rg/gen{film}/token_ids"])
    recorded: object = texts["rg/pred_sentences_before_dedup"][film]
    assert [sentence_tokenizer.decode(row) for row in ids.tolist()] == recorded


@pytest.mark.parametrize("film", [0, 1])
def test_every_step_prefers_its_token_by_the_recorded_margin(network: Chex, golden: Arrays, film: int) -> None:
    ids = torch.from_numpy(golden[f"rg/gen{film}/token_ids"]).long()

    best = logits_of_all(network, chosen_features(golden, film), ids[:, :-1]).topk(2, dim=-1).values

    check(margins=(best[..., 0] - best[..., 1], golden[f"rg/gen{film}/margins"], FEATURES))


def test_sentences_of_boxes_are_the_recorded_ones(
    network: Chex, golden: Arrays, texts: Texts, sentence_tokenizer: SentenceTokenizer
) -> None:
    ids = network.write(torch.from_numpy(golden["region/features_masked"][golden["region/mask"]]))

    np.testing.assert_array_equal(ids.numpy(), golden["region/token_ids"])
    recorded = [sentence for film in texts["region/sentences"] for sentence in film]
    assert [sentence_tokenizer.decode(row) for row in ids.tolist()] == recorded


def test_generated_sentences_have_the_recorded_embeddings(network: Chex, golden: Arrays, texts: Texts) -> None:
    tokenizer = PromptTokenizer(VOCABULARIES / PROMPT_VOCABULARY)
    sentences = [text for film in texts["rg/pred_sentences_before_dedup"] for text in film]

    embeddings = network.encode_prompts(torch.from_numpy(tokenizer.encode(sentences)))

    check(embeddings=(embeddings, golden["rg/sentence_features"][golden["rg/sentence_mask"]], FEATURES))


def logits_of_all(
    network: Chex, features: Tensor, ids: Tensor, *, positions: Tensor | None = None, attended: Tensor | None = None
) -> Tensor:
    """Logits of given sentences in one pass; attended: [S, T], False at padding."""
    count, length = ids.shape
    prefix = network.sizes.generator.prefix_length
    visible = torch.ones(length, prefix + length, dtype=torch.bool).tril(prefix).expand(count, 1, -1, -1)
    if attended is not None:
        visible = visible & functional.pad(attended, (prefix, 0), value=True)[:, None, None, :]
    positions = torch.arange(length).expand(count, -1) if positions is None else positions
    logits: Tensor = network.generator(ids, positions, network.generator.remember(features, room=length), visible)
    return logits


def test_language_model_has_the_recorded_training_loss(
    network: Chex, golden: Arrays, texts: Texts, sentence_tokenizer: SentenceTokenizer
) -> None:
    ids = torch.from_numpy(golden["lm/train_input_ids"]).long()
    attended = torch.from_numpy(golden["lm/train_attention_mask"]).bool()
    positions = (attended.cumsum(dim=1) - 1).masked_fill(~attended, 1)
    features = torch.from_numpy(golden["region/features_masked"][golden["region/mask"]])

    logits = logits_of_all(network, features, ids, positions=positions, attended=attended)

    # SPEC.md 10: padding is trained on, BUG-10.
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    check(loss=(loss, golden["lm/train_loss"], 1e-5))
    for row, mask, text in zip(ids, attended, texts["lm/train_targets"], strict=True):
        assert row[mask].tolist() == [SENTENCE_END, *sentence_tokenizer.encode(text), SENTENCE_END]


@pytest.mark.parametrize("name", ["image_encoder.layers.0.contract.weight", "post_decoder.layers.0.mlp.expand.weight"])
def test_one_wrong_number_in_a_weight_is_noticed(network: Chex, golden: Arrays, name: str) -> None:
    prompts = queries(golden, "rg/token_prompts")
    weight = network.get_parameter(name)
    kept = weight.view(-1)[0].item()
    weight.view(-1)[0] = kept + 1e-2
    try:
        picture = network.encode_image(torch.from_numpy(golden["x"]))
        boxes, scores, _, features = network.find(*picture, prompts)
    finally:
        weight.view(-1)[0] = kept

    worst = max(
        difference(boxes, golden["rg/multiboxes"]) / BOXES,
        difference(scores, golden["rg/multiboxes_weights"]) / BOXES,
        difference(features, golden["rg/box_features_post"]) / FEATURES,
    )
    print("DIFF planted", name, worst)
    assert worst > 1
