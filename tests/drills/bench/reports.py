"""Sentences, whole reports with their stages, and graphs, beside the plain way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Final, NamedTuple

import numpy as np
import torch

from models.contract import FilmReading
from models.engines import FloatArray, IntArray, Patches
from models.errors import ModelError
from models.manifest import read_manifest
from models.reading.preprocess import prepare
from models.reading.tokenizers import SENTENCE_END
from tests.drills.bench.networks import STAGES, Network, Networks, at_once, drawn_film, precisions
from tests.drills.bench.results import Found
from tests.drills.bench.turns import PLAIN, Round, Taken, apart, beside, beside_plain, in_turns

SENTENCES: Final = 29
"""The prompts of the published report: as many sentences are generated for a film."""


def generator(networks: Networks, *, films: Sequence[int], rounds: int, limit_seconds: float) -> Found:
    """Generate the sentences of drawn features, those of all films at once."""
    figures, same = dict[str, object](), list[float]()
    for count in films:
        networks.say(f"sentences, films at once: {count}")
        features = [_drawn(SENTENCES, networks.sizes.dim, seed=seed) for seed in range(count)]
        runs = {name: partial(apart, partial(_write, network, features)) for name, network in networks.all.items()}
        taken = in_turns(runs, rounds=rounds, limit_seconds=limit_seconds)
        for precision in precisions():
            share = shared(taken[0][PLAIN].result, taken[0][precision].result)
            same += [share] if precision == "float32" else []
            row = beside_plain(taken, precision) | {"same_tokens": round(share, 4)}
            figures[f"{precision}, {_films(count)}"] = row
    return Found(figures=figures, held={"generator_float32_same_tokens": min(same)})


def report(networks: Networks, *, films: Sequence[int], rounds: int, limit_seconds: float) -> Found:
    """Read whole films, from gray values to sentences."""
    figures, held = dict[str, object](), dict[str, float]()
    for count in films:
        networks.say(f"reports, films at once: {count}")
        runs: dict[str, Callable[[], Reports]] = {
            name: partial(apart, partial(_read, networks, network, count)) for name, network in networks.all.items()
        }
        taken = in_turns(runs, rounds=rounds, limit_seconds=limit_seconds)
        for precision in precisions():
            figures[f"{precision}, {_films(count)}"] = _compared(taken, precision, count)
            if (precision, count) in {("float32", 1), ("float32", 4), ("int8", 1)}:
                held[f"report_{precision}_ratio_{_films(count).replace(' ', '_')}"] = beside_plain(taken, precision)[
                    "ratio"
                ]
        if count == 1:
            figures["stages of 1 film"] = {precision: _stages(taken, precision) for precision in precisions()}
    return Found(figures=figures, held=held)


def graphs(networks: Networks, *, rounds: int, limit_seconds: float) -> Found:
    """Measure image encoder and detector in ONNX Runtime beside eager PyTorch, one film at a time.

    Raises ModelError if the engine runs no graphs.
    """
    ours, plain = networks.network("float32").engine.engine, networks.network(PLAIN).engine.engine
    if not ours.name.startswith("onnx"):
        raise ModelError("graphs are measured with engine onnx")
    networks.say("graphs")
    pixels = prepare(drawn_film(0), read_manifest(networks.directory).input)[np.newaxis]
    patches: Patches = plain.encode_image(pixels)
    prompts = np.random.default_rng(3).standard_normal((1, len(networks.prompts), networks.sizes.dim), dtype=np.float32)
    figures, held = dict[str, object](), dict[str, float]()
    for stage, inputs in {"encode_image": (pixels,), "find": (patches, prompts)}.items():
        runs = {name: partial(getattr(engine, stage), *inputs) for name, engine in {"ours": ours, PLAIN: plain}.items()}
        in_turns(runs, rounds=2, limit_seconds=limit_seconds)
        figures[stage] = row = beside_plain(in_turns(runs, rounds=4 * rounds, limit_seconds=limit_seconds), "ours")
        held[f"graph_{stage}_ratio"] = row["ratio"]
    return Found(figures=figures, held=held)


class Reports(NamedTuple):
    """The reports of films that were read at once, and the seconds of each stage of the engine."""

    readings: Sequence[FilmReading]
    stages: Mapping[str, float]


def shared(expected: IntArray, found: IntArray) -> float:
    """Return the share of the expected tokens [S, T] that stand at the same place of the same sentence."""
    return float((expected == found).mean())


def _write(network: Network, features: Sequence[FloatArray]) -> IntArray:
    """Generate the sentences of films at once, each film's by a caller of its own."""

    def write(number: int) -> IntArray:
        with network.film():
            return network.engine.write(features[number])

    parts, length = at_once(write, len(features)), network.reader.manifest.sizes.generator.max_length
    return np.concatenate([_padded(part, length) for part in parts])


def _padded(ids: IntArray, length: int) -> IntArray:
    """Pad ids [S, T] to a length: a batch ends with its longest sentence, which is another where films are apart."""
    return np.pad(ids, ((0, 0), (0, length - ids.shape[1])), constant_values=SENTENCE_END)


def _read(networks: Networks, network: Network, count: int) -> Reports:
    network.engine.take()
    readings = at_once(lambda number: network.report(drawn_film(number), networks.prompts), count)
    return Reports(readings, network.engine.take())


def _compared(taken: Sequence[Round[Reports]], precision: str, count: int) -> dict[str, float]:
    """Compare seconds a film in all rounds, and sentences in the first one."""
    ours, plain = taken[0][precision].result.readings, taken[0][PLAIN].result.readings
    said = [(_said(own), _said(theirs)) for own, theirs in zip(ours, plain, strict=True)]
    sentences = sum(len(theirs) for _, theirs in said)
    same = sum(own.get(key) == text for own, theirs in said for key, text in theirs.items())
    row = beside_plain(taken, precision, count=count)
    return row | {"sentences_a_film": sentences / count, "same_sentences": round(same / max(sentences, 1), 4)}


def _said(reading: FilmReading) -> dict[str, str]:
    return {prompt.key: prompt.generated for prompt in reading.prompts if prompt.generated}


def _stages(taken: Sequence[Round[Reports]], precision: str) -> Mapping[str, Mapping[str, float]]:
    """Compare the stages of one film; the rest is what the reader does around the engine."""
    stages = [{name: _parts(each[name]) for name in (precision, PLAIN)} for each in taken]
    return {
        stage: beside([(each[precision][stage], each[PLAIN][stage]) for each in stages])
        for stage in (*STAGES, "rest")
        if median(each[PLAIN][stage] for each in stages)
    }


def _parts(taken: Taken[Reports]) -> dict[str, float]:
    seconds = taken.result.stages
    return {**seconds, "rest": taken.seconds - sum(seconds.values())}


def _films(count: int) -> str:
    return "1 film" if count == 1 else f"{count} films"


def _drawn(count: int, dim: int, *, seed: int) -> FloatArray:
    """Draw features [S, dim] of the size that the network's have."""
    drawn: FloatArray = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)).numpy()
    return drawn
