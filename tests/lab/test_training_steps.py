"""Steps of training: which weights learn, losses as recorded, and what noise, short vocabularies and box tokens do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models.checkpoint.weights import load_network
from models.errors import ModelError
from models.lab.phantoms import phantom
from models.lab.training.catalog import catalog_of
from models.lab.training.loop import StageTrainer, open_trainer, take_step
from models.lab.training.noise import disturbed
from models.lab.training.objectives import coverage
from models.lab.training.runfile import Run, read_run
from models.lab.training.stages import BoxTokenStart, Noise, Stage
from models.lab.training.store import FilmStore, open_film_store
from models.lab.training.text_encoding import Vocabulary
from models.lab.training.trained_model import TrainedModel, build_model, free, set_box_tokens
from models.network.attention import Attention, DecoderLayer
from models.network.chex import Chex
from models.network.token_table import TokenTable
from models.reading.tokenizers import VOCABULARIES, PromptTokenizer, SentenceTokenizer
from tests.paths import REPOSITORY
from tests.support import recorded
from tests.support.training import STAGES, stocked, write_run

pytestmark = pytest.mark.usefixtures("one_thread")

CATALOG = catalog_of(["chexpert"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    store = stocked(tmp_path_factory.mktemp("films") / "films")
    return read_run(write_run(store.parent / "run.toml", store=store))


@pytest.fixture(scope="module")
def film_store(run: Run) -> FilmStore:
    return open_film_store(run.data, run.store, CATALOG)


def model_of(run: Run, film_store: FilmStore) -> TrainedModel:
    return build_model(run, CATALOG, film_store.texts())


def trainer_of(run: Run, film_store: FilmStore, name: str) -> StageTrainer:
    number = list(STAGES).index(name)
    return open_trainer(run, number=number, catalog=CATALOG, film_store=film_store, model=model_of(run, film_store))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_trains_its_weights_and_no_others(run: Run, film_store: FilmStore, name: str) -> None:
    trainer = trainer_of(run, film_store, name)
    # Behind a gate that is closed no gradient would flow in the first step.
    torch.nn.init.constant_(trainer.model.network.post_decoder.gate, 0.5)
    before = {key: weight.clone() for key, weight in trainer.model.network.state_dict().items()}

    # Without noise: what PyTorch draws is not the same on every machine.
    outcomes = [take_step(trainer, step, trainer.batches(step), stop=False) for step in range(2)]

    made = [
        {"gradient": own.gradient, **dict(zip(trainer.stage.losses, own.losses.tolist(), strict=True))}
        for own in outcomes
    ]
    recorded.check(f"training_steps_{name}", made, tolerance=2e-3)
    weights = trainer.model.network.state_dict()
    for part in {key.split(".")[0] for key in before}:
        own = [key for key in before if key.startswith(f"{part}.")]
        changed = sum(not torch.equal(weights[key], before[key]) for key in own)
        assert changed > 0.9 * len(own) if part in trainer.stage.train else changed == 0, part
    decays = [group["weight_decay"] for group in trainer.optimizer.param_groups]
    assert decays == [trainer.stage.weight_decay, 0.0], "the heads are no weights of the model"


def test_frozen_weights_are_exceptions(run: Run, film_store: FilmStore) -> None:
    network = model_of(run, film_store).network
    frozen = ("image_encoder.stem", "image_encoder.layers.0")

    free(network, replace(run.stages[1], train=("image_encoder",), frozen=frozen))

    learning = {name for name, weight in network.named_parameters() if weight.requires_grad}
    own = {name for name, _ in network.named_parameters() if name.startswith("image_encoder.")}
    assert learning == {name for name in own if not name.startswith(tuple(f"{part}." for part in frozen))}


def test_a_loss_that_is_no_number_ends_the_run(run: Run, film_store: FilmStore) -> None:
    trainer = trainer_of(run, film_store, "contrast")
    torch.nn.init.constant_(trainer.model.heads.align_scale, torch.inf)

    with pytest.raises(ModelError, match="the loss of step 0 is NaN or infinite"):
        take_step(trainer, 0, trainer.batches(0), stop=False)


@pytest.mark.parametrize("name", ["contrast", "joint"])
def test_losses_in_mixed_precision_are_near(run: Run, film_store: FilmStore, name: str) -> None:
    mixed = replace(run, machine=replace(run.machine, mixed_precision=True))

    trainers = [trainer_of(each, film_store, name) for each in (run, mixed)]
    exact, near = (take_step(trainer, 0, trainer.batches(0), stop=False).losses for trainer in trainers)

    torch.testing.assert_close(near, exact, rtol=0.05, atol=0.01)
    assert not torch.equal(near, exact)


def test_noise_leaves_no_trace(run: Run, film_store: FilmStore) -> None:
    network = model_of(run, film_store).network
    films, prompts = torch.rand(2, 64, 64), torch.randn(2, 3, 16)
    torch.nn.init.constant_(network.post_decoder.gate, 0.5)

    def found() -> torch.Tensor:
        features: torch.Tensor = network.find(*network.encode_image(films), prompts)[-1]
        return features

    with torch.no_grad():
        calm = found()
        noise = Noise(dropout=0.3, attention=0.1, drop_path=0.2, prefix=0.3)
        with disturbed(network.train(), noise):
            first, second = found(), found()
            network.eval()
            evaluated = found()
        network.train()
        after = found()

    assert not torch.allclose(first, second)
    assert torch.equal(evaluated, calm)
    assert torch.equal(after, calm)


def test_attention_drops_in_all_layers_of_both_decoders_and_nowhere_else(run: Run, film_store: FilmStore) -> None:
    network = model_of(run, film_store).network
    attending = {name: module for name, module in network.named_modules() if isinstance(module, Attention)}

    with disturbed(network, Noise(attention=0.2)):
        dropping = {name for name, module in attending.items() if module.dropout == 0.2}

    assert dropping == {name for name in attending if name.startswith(("detector.layers.", "post_decoder.layers."))}
    assert {name.split(".")[0] for name in dropping} == {"detector", "post_decoder"}
    assert {module.dropout for module in attending.values()} == {0.0}


def test_a_dropped_branch_is_dropped_for_a_whole_film(run: Run, film_store: FilmStore) -> None:
    network = model_of(run, film_store).network
    layer = network.detector.layers[0]
    assert isinstance(layer, DecoderLayer)
    tokens, memory = torch.randn(40, 6, 16), torch.randn(40, 16, 16)
    torch.nn.init.constant_(layer.scale_mlp, 0.0)
    torch.nn.init.constant_(layer.scale_cross, 0.0)

    with torch.no_grad(), disturbed(network.train(), Noise(drop_path=0.5)):
        changed = (layer(tokens, memory, group=3) != tokens).any(dim=2)

    assert (changed.all(dim=1) | ~changed.any(dim=1)).all()
    assert 5 < changed.any(dim=1).sum() < 35


def test_one_embedding_for_all_unseen_tokens_is_exact() -> None:
    torch.manual_seed(0)
    table = TokenTable(50, 8, own=[3, 17, 49])
    hidden, wanted = torch.randn(6, 8), torch.tensor([3, 17, 49, 3, 17, 49])

    cut = functional.cross_entropy(table.weighed(table.logits(hidden)), table.rows_of(wanted))

    whole = functional.cross_entropy(hidden @ table(torch.arange(50)).T, wanted)
    assert cut.item() == pytest.approx(whole.item(), rel=1e-6)
    assert (len(table.weight), table.shared, table.shared_id) == (4, 47, 0)


def test_a_network_with_few_embeddings_answers_as_with_all(run: Run, film_store: FilmStore) -> None:
    few = model_of(run, film_store).network
    every = Chex(run.network)
    state = dict(few.state_dict())
    for part in ("prompt_encoder", "generator"):
        table = getattr(few, part).tokens
        state[f"{part}.tokens.weight"] = table(torch.arange(getattr(run.network, part).vocabulary))

    every.load_state_dict(state)

    ids = torch.from_numpy(PromptTokenizer(VOCABULARIES).encode(["Pleural effusion", "Tuberculosis of the clavicle"]))
    assert torch.allclose(every.encode_prompts(ids), few.encode_prompts(ids), atol=1e-6)
    features = torch.randn(5, run.network.dim)
    assert torch.equal(every.write(features), few.write(features))
    assert few.prompt_encoder.tokens.shared > 49_000 and few.generator.tokens.shared > 49_000


def test_a_patch_is_covered_by_the_part_of_it_that_lies_in_a_box() -> None:
    boxes = torch.tensor([[[[0.25, 0.25, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]], [[0.5, 0.25, 0.5, 0.5], [0, 0, 0, 0]]]])
    valid = torch.tensor([[[True, False], [True, True]]])

    shares = coverage(boxes, valid, grid=2)

    assert shares[0].tolist() == [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]


VOCABULARY = Vocabulary(prompts=PromptTokenizer(VOCABULARIES), sentences=SentenceTokenizer(VOCABULARIES), max_length=48)
SIDES = BoxTokenStart(words=("on the left", "on the right", ""), strength=1.0)


@pytest.fixture
def shipped() -> Chex:
    return load_network(VOCABULARIES.parent).eval()


@pytest.fixture(scope="module")
def boxes_stage() -> Stage:
    stages = read_run(REPOSITORY / "models" / "lab" / "training" / "runs" / "phantom.toml").stages
    return next(stage for stage in stages if stage.name == "boxes")


def tokens_after(shipped: Chex, boxes_stage: Stage, rule: BoxTokenStart | None) -> Tensor:
    """Return the box tokens as the stage would start with them."""
    set_box_tokens(shipped, replace(boxes_stage, start_box_tokens=rule), catalog=CATALOG, vocabulary=VOCABULARY)
    return shipped.detector.box_tokens.detach()


def test_tokens_become_what_their_words_change_in_a_phrase(shipped: Chex, boxes_stage: Stage) -> None:
    mean = shipped.detector.box_tokens.detach().mean(dim=0)
    phrases = [entry.positive[0] for entry in CATALOG.classes]

    left, right, either = tokens_after(shipped, boxes_stage, replace(SIDES, strength=0.5))

    with torch.no_grad():
        encoded = shipped.prompt_encoder(
            VOCABULARY.prompt_ids([*phrases, *(f"{phrase} on the left" for phrase in phrases)])
        )
    change = (encoded[len(phrases) :] - encoded[: len(phrases)]).mean(dim=0)
    torch.testing.assert_close(left, mean + 0.5 * change, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(either, mean)
    assert (left - right).norm() > change.norm() / 2


def test_a_box_is_where_its_words_say(shipped: Chex, boxes_stage: Stage) -> None:
    """The patient's left is on the right of the picture."""
    tokens_after(shipped, boxes_stage, SIDES)
    film = phantom(2_000_003, side=224)
    pixels = torch.from_numpy(film.pixels).float().unsqueeze(0) / 255
    prompts = shipped.prompt_encoder(VOCABULARY.prompt_ids(["Edema", "Pleural effusion"]))

    with torch.no_grad():
        patches, positions, _ = shipped.image_encoder((pixels - pixels.mean()) / pixels.std())
        found = shipped.detector(patches, positions, prompts.unsqueeze(0), group=3)

    left, right, _ = found.boxes[0, :, :, 0].unbind(dim=-1)
    assert (left - right > 0.1).all()
