"""Trains a view head on the features of a model's image encoder, and writes it into the model directory.

The encoder stays as it is, so every film is encoded once, and the head learns from what was kept of it. Films that the
head does not learn from give its temperature and its thresholds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Final

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from models.checkpoint.card import section
from models.checkpoint.files import CARD, file_sha256, verify
from models.checkpoint.weights import load_network, load_stored, save_weights
from models.contract import VIEWS, View
from models.errors import ModelError
from models.lab.phantoms import OTHER_KINDS, other_film, phantom
from models.lab.training.augment import vary
from models.lab.training.films import find_films, read_films
from models.lab.training.random_streams import seed_torch, stream
from models.lab.training.runfile import FilmSource, ViewRun
from models.lab.training.split import part_of
from models.manifest import WEIGHTS, Manifest, read_manifest, write_manifest
from models.network.view_head import ViewHead
from models.progress import ProgressReport
from models.reading.preprocess import prepare
from models.views import HEAD, ViewRule

Pixels = NDArray[np.uint8]

_PARTS: Final = 1000
_BOTH_WAYS: Final = (False, True)
"""A phantom's frontal film is shown as it is and mirrored, because this is the hardest to distinguish."""
_MIRRORED, _ROTATED = 0.45, 0.2
_CORNERS: Final = 0.15
"""How often only a corner of a real film is shown, which is no chest."""
_CALIBRATING: Final = 0.15
"""The share of patients and seeds that the head does not learn from: temperature and thresholds do."""
_CORNER: Final = (0.3, 0.45)
"""The side of a corner that is shown alone, as a share of the film's: too little of a chest to be read."""
FloatArray = NDArray[np.float32]

HEADING: Final = "## View head"
_ENCODED: Final = 32
"""How many films are encoded at once."""
_TEMPERATURES: Final = np.geomspace(0.25, 8.0, 61)
_LEAST_CERTAIN, _LEAST_MARK = 0.9, 0.5
_MOST: Final = 0.9999
"""The highest threshold; a probability may reach it."""
_FALSE_VIEWS, _FALSE_MARKS = 0.002, 0.005
"""The share of real frontal films that thresholds may call no frontal view, and mirrored or rotated, by mistake."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewFilm:
    """A film with its labels; None is unknown, or does not apply to such a film.

    gray: [size, size] in 0..1; views: one of them is shown
    is_real: whether it is a whole film of a person; calibrates: whether it is for temperature and thresholds
    """

    gray: FloatArray
    views: tuple[View, ...]
    mirrored: bool | None
    rotated: bool | None
    is_real: bool
    calibrates: bool


def view_films(run: ViewRun, *, size: int) -> Iterator[ViewFilm]:
    """Yield all films of a run, size: of the network's input. Raises ModelError if a picture cannot be read."""
    for number, source in enumerate(run.data.films):
        yield from _real(run, source, number, size=size)
    others = [kind for kind in OTHER_KINDS if kind != "lateral"]
    for seed in range(run.data.first_seed, run.data.first_seed + run.data.phantoms):
        rng = stream(run.seed, "view phantom", seed)
        calibrates = _calibrates(f"phantom {seed}")
        film = phantom(seed, size)
        views: tuple[View, ...] = ("AP",) if film.view == "AP" else ("PA",)
        for mirrored in _BOTH_WAYS:
            yield _film(run, film.pixels, views, rng, mirrored=mirrored, size=size, calibrates=calibrates)
        side, other = other_film(seed, "lateral", size), other_film(seed, others[rng.integers(len(others))], size)
        yield _film(run, side.pixels, ("lateral",), rng, size=size, calibrates=calibrates)
        yield _film(run, other.pixels, ("not_chest",), rng, size=size, calibrates=calibrates)


def count_films(run: ViewRun) -> int:
    """Return how many films `view_films` yields."""
    real = sum(len(find_films(source)) * source.repeat for source in run.data.films)
    return real + (len(_BOTH_WAYS) + 2) * run.data.phantoms


def lie(pixels: Pixels, *, mirrored: bool, turns: int) -> Pixels:
    """Mirror a film left to right, then turn it by quarters."""
    return np.ascontiguousarray(np.rot90(pixels[:, ::-1] if mirrored else pixels, turns))


def _real(run: ViewRun, source: FilmSource, number: int, *, size: int) -> Iterator[ViewFilm]:
    path = Path(source.file)
    for place, film in enumerate(read_films(path, find_films(source), side=size)):
        calibrates = _calibrates(film.patient)
        views: tuple[View, ...] = ("AP",) if film.view == "AP" else ("PA",) if film.view == "PA" else ("AP", "PA")
        for again in range(source.repeat):
            rng = stream(run.seed, "view film", number, place, again)
            if rng.random() < _CORNERS:
                corner = _corner(film.pixels, rng)
                yield _film(run, corner, ("not_chest",), rng, size=size, calibrates=calibrates)
            else:
                mirrored = bool(rng.random() < _MIRRORED)
                yield _film(
                    run, film.pixels, views, rng, mirrored=mirrored, is_real=True, size=size, calibrates=calibrates
                )


def _film(
    run: ViewRun,
    pixels: Pixels,
    views: tuple[View, ...],
    rng: np.random.Generator,
    *,
    size: int,
    calibrates: bool,
    mirrored: bool | None = None,
    is_real: bool = False,
) -> ViewFilm:
    """Mirror, turn and augment a film; mirrored: None for no frontal view, which alone tells its sides."""
    turns = int(rng.integers(1, 4)) if rng.random() < _ROTATED else 0
    lain = lie(pixels, mirrored=bool(rng.random() < 0.5) if mirrored is None else mirrored, turns=turns)
    return ViewFilm(
        gray=vary(lain, run.augmentation, rng, size=size),
        views=views,
        # Sides are lost on a film that lies on its side or head; that it is rotated is said anyway.
        mirrored=None if turns else mirrored,
        rotated=None if views == ("not_chest",) else turns > 0,
        is_real=is_real,
        calibrates=calibrates,
    )


def _corner(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    side = round(pixels.shape[0] * rng.uniform(*_CORNER))
    rows, columns = (slice(None, side) if rng.random() < 0.5 else slice(-side, None) for _ in range(2))
    return np.ascontiguousarray(pixels[rows, columns])


def _calibrates(name: str) -> bool:
    return part_of(f"view {name}", parts=_PARTS) < _CALIBRATING * _PARTS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedFilms:
    """The encoded films: pooled patches [film, cell, dim] as float16, and labels.

    views: [film, 4], 1 for each view that the film may show; marks: mirrored and rotated [film, 2], NaN if unknown
    is_real, calibrates: see `ViewFilm`, [film]
    """

    pooled: Tensor
    views: Tensor
    marks: Tensor
    is_real: NDArray[np.bool_]
    calibrates: NDArray[np.bool_]


def train_views(run: ViewRun, report: ProgressReport, stop: Event) -> Path | None:
    """Train the head, and write weights, card and manifest of the model. Returns its directory, None if stopped.

    Raises ModelError if the directory is damaged or a picture cannot be read, OSError if a file cannot be written.
    """
    directory = Path(run.model)
    manifest = read_manifest(directory)
    verify(directory, manifest)
    torch.set_num_threads(run.threads)
    seed_torch(run.seed, "view head")
    # Checked by the sizes before the first film is encoded.
    sizes = _sized(manifest, run)
    head = ViewHead(run.head, dim=sizes.sizes.dim, grid=sizes.sizes.image_encoder.grid).to(run.device)
    encoded = encode(run, manifest, head, report, stop)
    if encoded is None or not learn(run, head, encoded, report, stop):
        return None
    rule = choose_rule(head, encoded, device=run.device)
    _write(directory, replace(sizes, views=rule), head, run, encoded)
    return directory


def _sized(manifest: Manifest, run: ViewRun) -> Manifest:
    """Return the manifest with the sizes of the head, and a rule that stands until one is chosen."""
    until = ViewRule(temperature=1.0, certain=_LEAST_CERTAIN, mirrored=_LEAST_MARK, rotated=_LEAST_MARK)
    try:
        return replace(manifest, sizes=replace(manifest.sizes, views=run.head), views=until)
    except ValueError as error:
        raise ModelError(f"head does not fit {run.model}: {error}; correct head") from error


def encode(
    run: ViewRun, manifest: Manifest, head: ViewHead, report: ProgressReport, stop: Event
) -> EncodedFilms | None:
    """Encode all films of a run. Returns None if it was stopped."""
    encoder = load_network(Path(run.model)).image_encoder.to(run.device)
    pooled, views, marks, real, calibrates = list[Tensor](), list[list[float]](), list[list[float]](), [], []
    waiting, count = list[FloatArray](), count_films(run)

    def flush() -> None:
        if waiting:
            with torch.inference_mode():
                patches = encoder(torch.from_numpy(np.stack(waiting)).to(run.device))[0]
                pooled.append(head.pool(patches).to("cpu", torch.float16))
            waiting.clear()

    for film in view_films(run, size=manifest.input.size):
        if stop.is_set():
            return None
        waiting.append(_input(film, manifest))
        views.append([float(view in film.views) for view in VIEWS])
        marks.append([math.nan if mark is None else float(mark) for mark in (film.mirrored, film.rotated)])
        real.append(film.is_real)
        calibrates.append(film.calibrates)
        if len(waiting) == _ENCODED:
            flush()
            report("encoding films", len(views), count)
    flush()
    return EncodedFilms(
        pooled=torch.cat(pooled),
        views=torch.tensor(views),
        marks=torch.tensor(marks),
        is_real=np.array(real),
        calibrates=np.array(calibrates),
    )


def _input(film: ViewFilm, manifest: Manifest) -> FloatArray:
    gray = film.gray
    if manifest.gray == "mimic_jpg":
        equalized = cv2.equalizeHist((gray * 255 + 0.5).astype(np.uint8))
        gray = np.asarray(equalized, dtype=np.float32) / np.float32(255)
    return prepare(gray, manifest.input)


def learn(run: ViewRun, head: ViewHead, encoded: EncodedFilms, report: ProgressReport, stop: Event) -> bool:
    """Train the head on the films that do not calibrate. Returns False if it was stopped."""
    own = np.flatnonzero(~encoded.calibrates)
    rule, rng = run.training, stream(run.seed, "view batches")
    optimizer = torch.optim.AdamW(head.parameters(), lr=rule.learning_rate, weight_decay=rule.weight_decay)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rule.steps)
    for step in range(rule.steps):
        if stop.is_set():
            return False
        batch = torch.from_numpy(rng.choice(own, rule.batch))
        outputs = head.judge(encoded.pooled[batch].float().to(run.device))
        loss = view_loss(outputs, encoded.views[batch].to(run.device), encoded.marks[batch].to(run.device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch has no type for it
        optimizer.step()
        falling.step()
        report("training", step + 1, rule.steps)
    return True


def view_loss(outputs: Tensor, views: Tensor, marks: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of known views and marks; outputs: [film, 6]; see `EncodedFilms`."""
    scores = outputs[:, : len(VIEWS)]
    allowed = scores.masked_fill(views == 0, -math.inf)
    shown = scores.logsumexp(dim=1) - allowed.logsumexp(dim=1)
    known = ~marks.isnan()
    wrong = functional.binary_cross_entropy_with_logits(
        outputs[:, len(VIEWS) :], marks.nan_to_num(), weight=known.float(), reduction="sum"
    )
    return shown.mean() + wrong / known.sum().clamp(min=1)


def choose_rule(head: ViewHead, encoded: EncodedFilms, *, device: str) -> ViewRule:
    """Choose temperature and thresholds on the calibration films, by the error rates on real frontal films."""
    own = torch.from_numpy(np.flatnonzero(encoded.calibrates))
    with torch.inference_mode():
        parts = torch.split(encoded.pooled[own], 256)
        outputs = torch.cat([head.judge(part.float().to(device)).cpu() for part in parts])
    views, marks = encoded.views[own], encoded.marks[own]
    losses = [float(view_loss(outputs / temperature, views, marks)) for temperature in _TEMPERATURES]
    temperature = float(_TEMPERATURES[int(np.argmin(losses))])
    shares = (outputs[:, : len(VIEWS)] / temperature).softmax(dim=1).numpy()
    marked = (outputs[:, len(VIEWS) :] / temperature).sigmoid().numpy()
    real = encoded.is_real[own.numpy()]
    return ViewRule(
        temperature=round(temperature, 4),
        certain=_above(shares[real, 2:].max(axis=1), share=_FALSE_VIEWS, least=_LEAST_CERTAIN),
        mirrored=_above(marked[real & (marks[:, 0] == 0).numpy(), 0], share=_FALSE_MARKS, least=_LEAST_MARK),
        rotated=_above(marked[real & (marks[:, 1] == 0).numpy(), 1], share=_FALSE_MARKS, least=_LEAST_MARK),
    )


def _above(probabilities: NDArray[np.floating], *, share: float, least: float) -> float:
    """Return the lowest threshold that at most this share of probabilities reaches."""
    if not len(probabilities):
        return least
    reached = float(np.quantile(probabilities, 1 - share, method="higher"))
    return round(min(max(reached + 1e-4, least), _MOST), 4)


def _write(directory: Path, manifest: Manifest, head: ViewHead, run: ViewRun, encoded: EncodedFilms) -> None:
    """Write weights and card, and at last the manifest with their hashes."""
    stored = load_stored(directory / WEIGHTS)
    state: Mapping[str, Tensor] = {
        **{name: weight for name, weight in stored.items() if not name.startswith(HEAD)},
        **{HEAD + name: weight for name, weight in head.state_dict().items()},
    }
    card = (directory / CARD).read_text(encoding="utf-8")
    save_weights(directory / WEIGHTS, state)
    text = section(
        "view_head",
        run=run,
        sources=[f"`{Path(source.file).name}`" for source in run.data.films],
        films=len(encoded.views),
        set_aside=int(encoded.calibrates.sum()),
    )
    (directory / CARD).write_text(_with_section(card, text), encoding="utf-8")
    hashes = {name: file_sha256(directory / name) for name in (WEIGHTS, CARD)}
    write_manifest(directory, replace(manifest, files={**manifest.files, **hashes}))


def _with_section(card: str, text: str) -> str:
    """Put the section before the figures, which `models.lab.evaluation.card` replaces, or at the end."""
    sections = [own for own in re.split(r"^(?=## )", card, flags=re.MULTILINE) if not own.startswith(HEADING)]
    place = next((number for number, own in enumerate(sections) if own.startswith("## Measured")), len(sections))
    sections[place - 1] = f"{sections[place - 1].rstrip()}\n\n"
    return "".join([*sections[:place], text, *sections[place:]]).rstrip() + "\n"
