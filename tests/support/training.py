"""A run that is over in seconds: tiny phantoms, a tiny network, a few steps of every stage."""

from __future__ import annotations

from pathlib import Path

from models.lab.training.catalog import catalog_of
from models.lab.training.labels import Line
from models.lab.training.runfile import read_run
from models.lab.training.store import stock
from models.progress import quiet

_RUN = """
output = "{output}"
seed = 5
start = "{start}"

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
words = "{words}"

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
learning_rate = 0.001
weight_decay = 1e-4
losses = {{ {losses} }}
noise = {{ {noise} }}
augmentation = {{ {augmentation} }}
drawing = {{ {drawing} }}
"""

_BOX_TOKENS = 'start_box_tokens = { words = ["on the left", "on the right", ""] }\n'
"""For the stage that trains everything; see `models.lab.training.trained_model`."""

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

_NOISE = """dropout = 0.1, attention = 0.1, drop_path = 0.1, prefix = 0.1, box_drop = 0.1, skip = 0.5, \
skip_dropout = 0.1, words = 0.02"""
_AUGMENTATION = "flip = 0.5, area = [0.6, 1.0], aspect = 1.2, shift = 0.02, rotate = 5.0, contrast = 0.2, blur = 0.5"
_DRAWING = """classes = 8, regions = 8, sentences = 3, hints = 1, told = 6, answerer = "cheapest", padded = false, \
together = 0.5"""

PUBLISHED = catalog_of(["vindr", "cig"])
PUBLISHED_NAMES = [phrases.name for phrases in PUBLISHED.classes]
"""The 22 classes of VinDr-CXR, then the 53 of Chest ImaGenome."""


def write_run(
    path: Path,
    *,
    store: Path,
    stages: tuple[str, ...] = tuple(STAGES),
    steps: int = 2,
    processes: int = 1,
    checkpoint: int = 100,
    start: Path | None = None,
    words: str = "seen",
) -> Path:
    """Write a run file, whose output is a folder beside it."""
    text = _RUN.format(
        output=path.with_suffix("").as_posix(),
        start="" if start is None else start.as_posix(),
        store=store.as_posix(),
        words=words,
        processes=processes,
        checkpoint=checkpoint,
    )
    for name in stages:
        train, losses = STAGES[name]
        drawn = {"noise": _NOISE, "augmentation": _AUGMENTATION, "drawing": _DRAWING}
        text += _STAGE.format(name=name, train=train, steps=steps, losses=losses, **drawn)
        text += _BOX_TOKENS if name == "joint" else ""
    path.write_text(text, encoding="utf-8")
    return path


def stocked(store: Path) -> Path:
    """Make the films of these runs, if they are not there; returns their folder."""
    run = read_run(write_run(store.with_suffix(".toml"), store=store))
    stock(run.data, run.store, renderers=1, report=quiet)
    return store


def vindr_film() -> Line:
    """Every class of VinDr-CXR is labelled on each of its films, with all boxes."""
    own = PUBLISHED_NAMES[:22]
    there = own[::5]
    # Of one class more than the detector has boxes for.
    boxes = {
        name: [[0.2 + 0.1 * place, 0.5, 0.2, 0.2] for place in range(5 if name == there[0] else 1)] for name in there
    }
    return {"present": {name: name in there for name in own}, "boxes": boxes, "located": own}


def cig_film() -> Line:
    """Regions have labels of every class of Chest ImaGenome; the film as a whole has none."""
    own = PUBLISHED_NAMES[22:]
    return {
        "regions": {name: [0.5, 0.5, 0.3, 0.3] for name in PUBLISHED.regions},
        "region_present": {name: own[:12] for name in PUBLISHED.regions[:6]},
        "region_known": own,
        "said": [{"text": "Edema.", "positive": True, "findings": [], "regions": ["right lung"], "boxes": []}],
    }
