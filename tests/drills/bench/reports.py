"""Whole reports and their stages, beside the plain way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from models.contract import FilmReading, ReaderPrompt
from models.lab.evaluation.evaluated_model import read_questions
from models.progress import ProgressReport
from tests.drills.bench.alone import PROMPTS
from tests.drills.bench.networks import STAGES, Network, at_once, drawn_film, open_all, precisions
from tests.drills.bench.results import Found
from tests.drills.bench.turns import PLAIN, Round, apart, in_turns, ratios


class Reports(NamedTuple):
    """The reports of films that were read at once, and the seconds of each stage of the engine."""

    readings: Sequence[FilmReading]
    stages: Mapping[str, float]


def measure(
    directory: Path, *, engine: str, threads: int, films: Sequence[int], rounds: int, say: ProgressReport
) -> Found:
    """Read whole films, from gray values to sentences, so many at once; of one also the stages are compared."""
    networks, prompts = open_all(directory, engine=engine, threads=threads, say=say), read_questions(PROMPTS).prompts
    figures, held = dict[str, object](), dict[str, float]()
    for count in films:
        say(f"reports, films at once: {count}")
        runs: dict[str, Callable[[], Reports]] = {
            name: partial(apart, partial(_read, network, count, prompts)) for name, network in networks.items()
        }
        taken = in_turns(runs, rounds=rounds)
        for precision in precisions():
            figures[f"{precision}, {count} films"] = row = _compared(taken, precision, count)
            held[f"report_{precision}_ratio_{count}_films"] = row["ratio"]
        if count == 1:
            stages = {precision: _stages(taken, precision) for precision in precisions()}
            figures["stages of 1 film"] = stages
            held |= {f"report_{stage}_ratio": row["ratio"] for stage, row in stages["float32"].items()}
    return Found(figures=figures, held=held)


def _read(network: Network, count: int, prompts: Sequence[ReaderPrompt]) -> Reports:
    network.engine.take()
    readings = at_once(lambda number: network.report(drawn_film(number), prompts), count)
    return Reports(readings, network.engine.take())


def _compared(taken: Sequence[Round[Reports]], precision: str, count: int) -> dict[str, float]:
    """Compare seconds a film in all rounds, and sentences in the first one."""
    ours, plain = taken[0][precision].result.readings, taken[0][PLAIN].result.readings
    said = [(_said(own), _said(theirs)) for own, theirs in zip(ours, plain, strict=True)]
    sentences = sum(len(theirs) for _, theirs in said)
    same = sum(own.get(key) == text for own, theirs in said for key, text in theirs.items())
    row = _beside(*([each[name].seconds / count for each in taken] for name in (precision, PLAIN)))
    return row | {"sentences_a_film": sentences / count, "same_sentences": round(same / max(sentences, 1), 4)}


def _said(reading: FilmReading) -> dict[str, str]:
    return {prompt.key: prompt.generated for prompt in reading.prompts if prompt.generated}


def _stages(taken: Sequence[Round[Reports]], precision: str) -> dict[str, dict[str, float]]:
    """Compare the stages of one film."""
    ours, plain = ([each[name].result.stages for each in taken] for name in (precision, PLAIN))
    return {
        stage: _beside([each[stage] for each in ours], [each[stage] for each in plain])
        for stage in STAGES
        if median(each[stage] for each in plain)
    }


def _beside(ours: Sequence[float], plain: Sequence[float]) -> dict[str, float]:
    """Compare seconds of each round with those of the plain way."""
    medians = {"seconds": round(median(ours), 4), "plain_seconds": round(median(plain), 4)}
    return {**medians, **ratios(plain, ours), "rounds": len(ours)}
