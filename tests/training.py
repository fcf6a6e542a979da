"""A run that is over in seconds: tiny phantoms, a tiny network, a few steps of every stage."""

from __future__ import annotations

from pathlib import Path

from models.progress import quiet
from models.training.runfile import read_run
from models.training.store import stock

_RUN = """
output = "{output}"
seed = 5

[model]
name = "tiny"
version = "1"
licence = "Apache-2.0"
trained_on = "twelve phantoms"
intended_use = "tests"
store = "half"

[machine]
processes = {processes}
checkpoint = {checkpoint}
log = 1

[data]
phantoms = 12
side = 64
store = "{store}"

[network.image_encoder]
stem = "conv"
patch_size = 16
image_size = 64
width = 16
layers = 1
heads = 2
output = 16

[network.prompt_encoder]
vocabulary = 49408
context = 77
width = 16
layers = 1
heads = 2
output = 16

[network.detector]
dim = 16
heads = 2
layers = 1
boxes_per_prompt = 3
feedforward = 32
beta = 2.0
pooling = "scaled_sum"

[network.post_decoder]
layers = 1

[network.generator]
vocabulary = 50257
positions = 64
width = 16
layers = 1
heads = 2
prefix_length = 2
prefix_hidden = 16
max_length = 24
"""

_STAGE = """
[[stages]]
name = "{name}"
train = {train}
steps = {steps}
batch = 4
learning_rate = {rate}
weight_decay = 1e-4
losses = {{ {losses} }}
noise = {{ {noise} }}
augmentation = {{ {augmentation} }}
drawing = {{ classes = 8, regions = 8, sentences = 3, hints = 1, told = 6, answerer = "cheapest", {drawing} }}
"""

STAGES = {
    "contrast": ('["image_encoder", "prompt_encoder"]', "align = 6, global-contr = 1"),
    "detect": (
        '["detector", "image_encoder"]',
        "patho-detect = 10, patho-cls = 1, anat-detect = 0.1, anat-cls = 0.005, sent-contr = 0.005, global-contr = 1",
    ),
    "look": ('["post_decoder"]', "anat-cls = 0.01, sent-contr = 0.005, anat-mse = 0.04, sent-mse = 0.02"),
    "text": ('["generator"]', "text-gen = 1"),
    "tell": ('["post_decoder", "generator"]', "anat-mse = 0.04, sent-mse = 0.02, anat-gen = 1, sent-gen = 0.5"),
    "joint": (
        '["image_encoder", "prompt_encoder", "detector", "post_decoder", "generator"]',
        "align = 6, box = 1, score = 20, presence = 2, patho-cls = 1, anat-detect = 1, region-presence = 3, "
        "sent-box = 1, sent-score = 5, finding-gen = 0.5, sent-gen = 0.25",
    ),
}
"""What each stage trains, and its losses: those of the paper, and the two of the small model."""

NOISE = (
    "dropout = 0.1, attention = 0.1, drop_path = 0.1, prefix = 0.1, box_drop = 0.1, skip = 0.5, skip_dropout = 0.1, "
    "words = 0.02"
)
AUGMENTATION = "flip = 0.5, area = [0.6, 1.0], aspect = 1.2, shift = 0.02, rotate = 5.0, contrast = 0.2, blur = 0.5"


def write_run(
    path: Path,
    *,
    store: Path,
    stages: tuple[str, ...] = tuple(STAGES),
    steps: int = 2,
    processes: int = 1,
    checkpoint: int = 100,
    rate: float = 1e-3,
    noise: str = NOISE,
    augmentation: str = AUGMENTATION,
    drawing: str = "padded = false, together = 0.5",
) -> Path:
    """Write a run file, whose output is a folder beside it."""
    output = path.with_suffix("")
    text = _RUN.format(output=output.as_posix(), store=store.as_posix(), processes=processes, checkpoint=checkpoint)
    for name in stages:
        train, losses = STAGES[name]
        text += _STAGE.format(
            name=name,
            train=train,
            steps=steps,
            rate=rate,
            losses=losses,
            noise=noise,
            augmentation=augmentation,
            drawing=drawing,
        )
    path.write_text(text, encoding="utf-8")
    return path


def stocked(store: Path) -> Path:
    """Make the films of these runs, if they are not there; returns their folder."""
    run = read_run(write_run(store.with_suffix(".toml"), store=store))
    stock(run.data, run.store, renderers=1, report=quiet)
    return store
