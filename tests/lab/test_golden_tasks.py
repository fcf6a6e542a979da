"""The paper's tasks against the recorded numbers of the published code."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from models.lab.golden import tasks
from models.lab.golden.comparison import difference, same
from models.lab.golden.recording import Recording, open_network
from tests.paths import GOLDEN

RECORDED = Path(os.environ.get("CHEX_GOLDEN", GOLDEN))

# What other parts of the recording show: stages inside of the network, and what was written.
ELSEWHERE = re.compile(r"(od|sg)/.*det/.*|region/(roi_.*|margins)|rg_noavg/pred_sentences.*")

Done = tuple[Recording, dict[str, object]]


@pytest.fixture(scope="module")
def done() -> Done:
    """The recording, and everything that the tasks compute of what is recorded."""
    ours = open_network(RECORDED)
    recorded = {*ours.recording.arrays, *ours.recording.texts}
    parts = (tasks.detections, tasks.groundings, tasks.regions, tasks.positiveness, tasks.selections)
    with torch.inference_mode():
        computed = {name: value for part in parts for name, value in part(ours)}
    return ours.recording, {name: value for name, value in computed.items() if name in recorded}


def test_every_task_gives_the_recorded_numbers(done: Done) -> None:
    recording, computed = done
    arrays = {name: np.asarray(value) for name, value in computed.items() if name in recording.arrays}

    assert {name for name, ours in arrays.items() if ours.shape != recording.arrays[name].shape} == set()
    apart = {name: difference(name, ours, recording.arrays[name]) for name, ours in arrays.items()}
    assert {name: off for name, off in apart.items() if not off.passed} == {}


def test_every_task_gives_the_recorded_texts(done: Done) -> None:
    recording, computed = done

    texts = {name: ours for name, ours in computed.items() if name in recording.texts}
    assert {name for name, ours in texts.items() if not same(ours, recording.texts[name])} == set()


def test_nothing_that_is_recorded_of_a_task_is_left_out(done: Done) -> None:
    recording, computed = done

    of_tasks = {
        name
        for name in (*recording.arrays, *recording.texts)
        if name.startswith(("od/", "sg/", "region/", "rg_noavg/", "rg/postprocess/")) and not ELSEWHERE.fullmatch(name)
    }
    # Which sentences to ground is the question, not the answer.
    assert of_tasks - computed.keys() == {"sg/sentences"}
    assert {"rg/cls_probs", "rg/region_mask", "rg/sentence_similarity01"} <= computed.keys()
