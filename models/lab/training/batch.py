"""The films of one training step: read, augmented, as tensors, and the text questions drawn for each of them.

A batch depends only on the run, the stage and its number. So other processes, the loaders, can make batches before the
steps need them. A GPU needs that: it computes a step in less time than one process takes to read and augment the films.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from models.lab.training.augment import augment
from models.lab.training.catalog import Catalog, hint_text
from models.lab.training.labels import BoolArray, FilmLabels, FloatArray, Said
from models.lab.training.random_streams import film_numbers, stream
from models.lab.training.runfile import Run
from models.lab.training.stages import Drawing
from models.lab.training.store import FilmStore
from models.manifest import PUBLISHED_MEAN, PUBLISHED_STD

AHEAD: Final = 4
"""How many batches each loader makes ahead."""

# Phantoms show these in the middle, so no question about a side asks for them.
_UNSIDED = frozenset({"cardiomegaly", "support_devices", None})


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnQuestion:
    """A text question. boxes: [n, 4], all boxes that answer it, possibly none; is_sentence: it is from the report.

    is_placed: False for a sentence that reports a finding without saying where: nothing is known of its boxes
    """

    text: str
    boxes: FloatArray
    is_sentence: bool
    is_placed: bool = True


class AskedBoxes(NamedTuple):
    """The questions of F films as arrays.

    boxes: [F, S, T, 4]; valid: [F, S, T], which of them exist; padding: [F, S], which are no questions
    is_sentence, is_placed: [F, S], see `DrawnQuestion`; False for padding
    """

    boxes: Tensor
    valid: Tensor
    padding: Tensor
    is_sentence: Tensor
    is_placed: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """F films and their labels; see `labels.FilmLabels` for the arrays.

    pixels: [F, side, side], normalized; asked: the questions drawn for each film; said: all sentences of each film
    """

    pixels: Tensor
    present: Tensor
    known: Tensor
    mined: Tensor
    target: Tensor
    boxes: Tensor
    valid: Tensor
    located: Tensor
    regions: Tensor
    seen: Tensor
    region_present: Tensor
    region_known: Tensor
    asked: tuple[tuple[DrawnQuestion, ...], ...]
    said: tuple[tuple[Said, ...], ...]

    def to(self, device: str) -> Batch:
        """Return the batch with all arrays on a device."""
        moved: dict[str, Any] = {
            field.name: array.to(device)
            for field in fields(self)
            if isinstance(array := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)

    def asked_boxes(self) -> AskedBoxes:
        """Return the questions as arrays.

        T is the T of the classes' boxes; further boxes of a question are dropped. S is at least 2: if a film's only
        question were padding, attention would have nothing to attend to (spec §4.2).
        """
        most = max(2, *(len(asked) for asked in self.asked))
        room = self.boxes.shape[2]
        boxes = torch.zeros(len(self.asked), most, room, 4)
        valid = torch.zeros(len(self.asked), most, room, dtype=torch.bool)
        padding = torch.ones(len(self.asked), most, dtype=torch.bool)
        is_sentence, is_placed = ~padding, ~padding
        for film, asked in enumerate(self.asked):
            for place, question in enumerate(asked):
                padding[film, place] = False
                is_sentence[film, place], is_placed[film, place] = question.is_sentence, question.is_placed
                rows = question.boxes[:room]
                boxes[film, place, : len(rows)] = torch.from_numpy(rows)
                valid[film, place, : len(rows)] = True
        made = (boxes, valid, padding, is_sentence, is_placed)
        return AskedBoxes(*(array.to(self.pixels.device) for array in made))


class StageFilms(Dataset[Batch]):
    """The part of each batch of a stage that one of several processes trains on, by the number of the batch."""

    def __init__(
        self, run: Run, *, number: int, catalog: Catalog, film_store: FilmStore, part: int = 0, parts: int = 1
    ) -> None:
        """Take the number of the stage, and which part of each batch is meant, of how many."""
        self._run, self._number, self._part, self._parts = run, number, part, parts
        self._catalog, self._film_store = catalog, film_store

    def __getitem__(self, place: int) -> Batch:
        """Read and augment the films of a batch, on the CPU."""
        run, stage = self._run, self._run.stages[self._number]
        own = stage.batch // self._parts
        first = place * stage.batch + self._part * own
        numbers = film_numbers(run.seed, self._number, first=first, count=own, films=len(self._film_store))
        size = run.network.image_encoder.image_size
        shown = []
        for film, number in enumerate(numbers, first):
            rng = stream(run.seed, "film", self._number, film)
            pixels, labels = self._film_store.film(number)
            shown.append(augment(pixels, labels, stage.augmentation, rng, catalog=self._catalog, size=size))
        return collate(
            shown,
            catalog=self._catalog,
            drawing=stage.drawing,
            rng=stream(run.seed, "questions", self._number, first),
        )


def load(films: StageFilms, places: range, *, loaders: int) -> Iterator[Batch]:
    """Yield the batches of these numbers, made by so many loaders, or by this process if there are none.

    Raises what reading their films raises, and RuntimeError if a loader ends unexpectedly.
    """
    if not loaders:
        return (films[place] for place in places)
    return iter(
        DataLoader(
            films,
            batch_size=None,
            sampler=places,
            num_workers=loaders,
            prefetch_factor=AHEAD,
            multiprocessing_context="spawn",
            worker_init_fn=_begin_loader,
        )
    )


def _begin_loader(_number: int) -> None:
    """Leave Ctrl-C to the process that trains, and use one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(1)


def collate(
    films: Sequence[tuple[FloatArray, FilmLabels]],
    *,
    catalog: Catalog,
    drawing: Drawing,
    rng: np.random.Generator,
) -> Batch:
    """Join films, gray values 0..1, into a batch on the CPU, and draw the questions for each film."""
    film_labels = [labels for _, labels in films]
    names = ("present", "known", "mined", "target", "located", "regions", "seen", "region_present", "region_known")
    pixels = (np.stack([gray for gray, _ in films]) - np.float32(PUBLISHED_MEAN)) / np.float32(PUBLISHED_STD)

    room = max(labels.valid.shape[1] for labels in film_labels)

    def roomy(boxes: FloatArray | BoolArray) -> Tensor:
        """Pad boxes [C, T, ...] to the largest T of the batch."""
        padding = [(0, 0), (0, room - boxes.shape[1]), *[(0, 0)] * (boxes.ndim - 2)]
        return torch.from_numpy(np.pad(boxes, padding))

    return Batch(
        pixels=torch.from_numpy(pixels),
        boxes=torch.stack([roomy(labels.boxes) for labels in film_labels]),
        valid=torch.stack([roomy(labels.valid) for labels in film_labels]),
        **{name: torch.from_numpy(np.stack([getattr(labels, name) for labels in film_labels])) for name in names},
        asked=tuple(_questions(labels, catalog, drawing, rng) for labels in film_labels),
        said=tuple(labels.said for labels in film_labels),
    )


def _questions(
    labels: FilmLabels, catalog: Catalog, drawing: Drawing, rng: np.random.Generator
) -> tuple[DrawnQuestion, ...]:
    """Draw sentences of the report, those that report a finding first, and questions about one side."""
    order = rng.permutation(len(labels.said))
    found = [place for place in order if labels.said[place].positive]
    # Half of the questions are reserved for findings that are present, so that denials do not take all places.
    first = found[: (drawing.sentences + 1) // 2]
    chosen = [*first, *(place for place in order if place not in first)][: drawing.sentences]
    sentences = (labels.said[place] for place in chosen)
    asked = [
        DrawnQuestion(
            text=sentence.text,
            boxes=sentence.boxes,
            is_sentence=True,
            is_placed=bool(len(sentence.boxes)) or not sentence.positive,
        )
        for sentence in sentences
    ]
    hints = list(_hints(labels, catalog, rng)) if drawing.hints else []
    asked += [hints[place] for place in rng.permutation(len(hints))[: drawing.hints]]
    return tuple(asked)


def _hints(labels: FilmLabels, catalog: Catalog, rng: np.random.Generator) -> Iterator[DrawnQuestion]:
    """Yield a question for each finding on each side where it is present, and one for a side where it is absent."""
    absent = []
    for number, phrases in enumerate(catalog.classes):
        if phrases.finding in _UNSIDED or not labels.located[number]:
            continue
        for side in ("right", "left"):
            here = [found for found in labels.sides if (found.finding, found.side) == (number, side)]
            if not here:
                absent.append((number, side))
                continue
            zones = sorted({found.zone for found in here if found.zone is not None})
            zone = str(rng.choice(zones)) if zones else ""
            wordings = [wording for wording in catalog.hints if zone or "{zone}" not in wording]
            wording = str(rng.choice(wordings))
            meant = [found.box for found in here if "{zone}" not in wording or found.zone == zone]
            text = hint_text(wording, str(rng.choice(phrases.positive)), side=side, zone=zone)
            yield DrawnQuestion(text=text, boxes=np.stack(meant), is_sentence=False)
    if absent:
        number, side = absent[int(rng.integers(len(absent)))]
        wording = str(rng.choice([wording for wording in catalog.hints if "{zone}" not in wording]))
        text = hint_text(wording, str(rng.choice(catalog.classes[number].positive)), side=side, zone="")
        yield DrawnQuestion(text=text, boxes=np.zeros((0, 4), dtype=np.float32), is_sentence=False)
