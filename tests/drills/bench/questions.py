"""A question about a film that was seen: its answer, alone and while films are read, its wait, and its sentence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from statistics import median
from threading import Event
from typing import Final

import numpy as np

from models.contract import Box, Question
from models.engines.turns import for_person
from models.reading.tokenizers import SENTENCE_END
from tests.drills.bench.networks import Network, Networks, drawn_film, precisions, scheduler_of
from tests.drills.bench.results import Found
from tests.drills.bench.turns import PLAIN, apart, in_turns, spread, timed

FILMS: Final = 4
"""Films that are read at the same time, one after another in each of so many threads."""
_DRAWN: Final = 8
"""Features, the sentence of one of which is generated."""
WAITS: Final = 5
"""Of a round."""
_BOX: Final = Box(left=0.3, top=0.35, right=0.5, bottom=0.65)
QUESTIONS: Final = (
    Question(prompt="opacity in the left lower zone"),
    Question(box=_BOX),
    Question(prompt="opacity in the left lower zone", box=_BOX),
    Question(prompt="Cardiomegaly"),
)
"""A phrase, a box, both together, and a judged prompt of the set."""


def measure(networks: Networks, *, rounds: int, limit_seconds: float) -> Found:
    """Ask every question in every round, alone and while films are read; the plain way answers alone.

    A sentence alone is generated in float32 and int8 in turns.
    """
    plain = apart(partial(_answers, networks, networks.network(PLAIN), rounds=rounds))
    figures = dict[str, object]({PLAIN: {"alone": spread(plain, "seconds")}})
    held = dict[str, float]()
    for precision in precisions():
        networks.say(f"questions: {precision}")
        network = networks.network(precision)
        alone = _answers(networks, network, rounds=rounds)
        with _read_without_end(networks, network):
            waits = list(_waits(network, count=WAITS * rounds))
            company = _answers(networks, network, rounds=rounds)
        held |= {
            f"question_{precision}_beside_films_ratio": max(company) / max(alone),
            f"question_{precision}_wait_ratio": max(waits) / max(alone),
        }
        figures[precision] = {
            "alone": spread(alone, "seconds") | {"longest_plain_ratio": round(max(alone) / max(plain), 2)},
            "beside_films": spread(company, "seconds"),
            "wait": spread(waits, "seconds"),
        }
    sentence = _sentence(networks, rounds=rounds, limit_seconds=limit_seconds)
    figures["sentence"] = sentence.figures
    return Found(figures=figures, held={**held, **sentence.held})


def _sentence(networks: Networks, *, rounds: int, limit_seconds: float) -> Found:
    """Generate a long sentence in each precision: seconds and those beside float32.

    Ratios are taken in each round; of the core's time too, which changes least with other work on the machine.
    """
    features = np.random.default_rng(3).standard_normal((_DRAWN, networks.sizes.dim), dtype=np.float32)
    names: tuple[str, ...] = precisions()
    writers = {name: networks.network(name).engine.write for name in names}
    lengths = [(write(features)[:, 1:] != SENTENCE_END).sum(axis=1) for write in writers.values()]
    longest = np.min(lengths, axis=0).argmax()
    feature = features[longest : longest + 1]
    runs = {name: partial(apart, partial(write, feature)) for name, write in writers.items()}
    taken = in_turns(runs, rounds=rounds, limit_seconds=limit_seconds)
    figures, ratios = dict[str, object](), dict[str, list[float]]()
    for name in writers:
        ratios[name] = [each[name].seconds / each["float32"].seconds for each in taken]
        figures[name] = {
            "tokens": taken[0][name].result.shape[1] - 1,
            **spread([each[name].seconds for each in taken], "seconds"),
            **spread(ratios[name], "ratio"),
            **spread([each[name].core_seconds / each["float32"].core_seconds for each in taken], "core_ratio"),
        }
    held = {f"question_{name}_by_float32": median(ratios[name]) for name in writers if name != "float32"}
    return Found(figures=figures, held=held)


def _answers(networks: Networks, network: Network, *, rounds: int) -> list[float]:
    """Ask each question by itself: the seconds of each answer, those of a first round left out."""
    look = network.look(drawn_film(0))

    def ask(question: Question) -> float:
        with for_person():
            return timed(lambda: network.reader.ask(look, [question], reference=networks.prompts)).seconds

    return [ask(question) for _ in range(rounds + 1) for question in QUESTIONS][len(QUESTIONS) :]


def _waits(network: Network, *, count: int) -> Iterator[float]:
    """Ask for nothing at drawn moments: the seconds until it is done, and so behind running work."""
    scheduler = scheduler_of(network.engine.engine)
    for pause in np.random.default_rng(7).uniform(0.05, 0.4, count):
        time.sleep(pause)
        with for_person():
            began = time.perf_counter()
            yield scheduler.call(time.perf_counter) - began


@contextmanager
def _read_without_end(networks: Networks, network: Network) -> Iterator[None]:
    """Read films in the background as long as the block runs, from the time when one was read."""
    is_over, has_read = Event(), Event()

    def read(number: int) -> None:
        for film in cycle((drawn_film(number), drawn_film(number + FILMS))):
            network.report(film, networks.prompts)
            has_read.set()
            if is_over.is_set():
                return

    with ThreadPoolExecutor(FILMS) as pool:
        reading = [pool.submit(read, number) for number in range(FILMS)]
        try:
            while not has_read.wait(timeout=1.0) and not any(film.done() for film in reading):
                pass
            yield
        finally:
            is_over.set()
        for film in reading:
            film.result()
