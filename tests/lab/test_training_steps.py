"""Steps of training: which weights learn, that losses fall, and what noise and short vocabularies leave as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.errors import ModelError
from models.lab.training.catalog import catalog_of
from models.lab.training.loop import StageTrainer, open_trainer, take_step
from models.lab.training.noise import disturbed
from models.lab.training.objectives import coverage
from models.lab.training.runfile import Run, read_run
from models.lab.training.stages import Noise
from models.lab.training.store import FilmStore, open_film_store
from models.lab.training.trained_model import TrainedModel, build_model, free
from models.network.attention import DecoderLayer
from models.network.chex import Chex
from models.network.token_table import TokenTable
from models.reading.tokenizers import VOCABULARIES, PromptTokenizer
from tests.support.training import STAGES, stocked, write_run

pytestmark = pytest.mark.usefixtures("one_thread")

CATALOG = catalog_of(["chexpert"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stocked(tmp_path_factory.mktemp("films") / "films")


@pytest.fixture(scope="module")
def run(store: Path) -> Run:
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

    with disturbed(trainer.model.network.train(), trainer.stage.noise):
        outcomes = [take_step(trainer, step, trainer.batches(step), stop=False) for step in range(2)]

    assert all(outcome.losses.isfinite().all() and outcome.losses.min() > 0 for outcome in outcomes)
    changed = {
        key for key, weight in trainer.model.network.state_dict().items() if not torch.equal(weight, before[key])
    }
    parts = {key.split(".")[0] for key in before}
    trained = set(trainer.stage.train)
    for part in parts:
        own = {key for key in before if key.startswith(f"{part}.")}
        if part in trained:
            assert len(changed & own) > 0.9 * len(own), part
        else:
            assert not changed & own, part


def test_frozen_weights_are_exceptions(run: Run, film_store: FilmStore) -> None:
    network = model_of(run, film_store).network
    stage = replace(run.stages[1], train=("image_encoder",), frozen=("image_encoder.stem", "image_encoder.layers.0"))

    free(network, stage)

    learning = {name for name, weight in network.named_parameters() if weight.requires_grad}
    assert "image_encoder.projection" in learning
    assert not any(name.startswith(("image_encoder.stem.", "image_encoder.layers.0.")) for name in learning)
    assert all(name.startswith("image_encoder.") for name in learning)


@pytest.mark.drill(part="laboratory")
def test_losses_fall_where_the_same_films_come_again(store: Path, tmp_path: Path, film_store: FilmStore) -> None:
    path = write_run(
        tmp_path / "run.toml",
        store=store,
        stages=("joint",),
        steps=40,
        rate=5e-3,
        noise="",
        augmentation="",
        drawing="padded = false, together = 0.0",
    )
    run = read_run(path)
    trainer = open_trainer(run, number=0, catalog=CATALOG, film_store=film_store, model=model_of(run, film_store))

    losses = torch.stack([take_step(trainer, step, trainer.batches(step), stop=False).losses for step in range(40)])

    first, last = losses[:5].mean(dim=0), losses[-5:].mean(dim=0)
    fallen = {name: float(last[place] / first[place]) for place, name in enumerate(trainer.stage.losses)}
    for name in ("align", "box", "anat-detect", "finding-gen", "sent-gen"):
        assert fallen[name] < 0.9, fallen


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


def test_a_step_does_not_depend_on_what_was_computed_before(run: Run, film_store: FilmStore) -> None:
    first, second = (trainer_of(run, film_store, "joint") for _ in range(2))
    take_step(second, 1, second.batches(1), stop=False)
    second.model.network.load_state_dict(first.model.network.state_dict())
    second.model.heads.load_state_dict(first.model.heads.state_dict())

    losses = [take_step(trainer, 0, trainer.batches(0), stop=False).losses for trainer in (first, second)]

    assert np.allclose(losses[0], losses[1], rtol=1e-5)
