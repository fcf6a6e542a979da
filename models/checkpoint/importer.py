"""Makes a model directory from a published checkpoint, completely or not at all.

Everything is written into a temporary folder beside it, synced, and renamed. If the import fails or is stopped, that
folder is removed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from models.checkpoint.assembly import UNTRAINED, Network, Rest, assemble
from models.checkpoint.card import complete, section
from models.checkpoint.files import verify, write_stream
from models.checkpoint.source import Contents, Found, Kind, find, open_weights, recognize
from models.checkpoint.weights import load_weights
from models.decisions import Decisions
from models.errors import ModelError
from models.files import sync
from models.manifest import PUBLISHED_MEAN, PUBLISHED_STD, WEIGHTS, InputRule, Manifest, read_manifest
from models.progress import ProgressReport
from models.views import HEAD

# Not calibrated. Above one half is positive in the published code, boxes and regions alike (spec §4.5, 8 and 9.1).
# The temperature is the one that it ships for MS-CXR, films of the same hospital as those of training (spec §9.2).
PUBLISHED_DECISIONS = Decisions(
    temperature=0.1, default_threshold=0.5, review_band=0.1, box_threshold=0.5, region_threshold=0.5
)
_WHAT: Mapping[Kind, str] = {
    "ChEX": "ChEX: Interactive Localization and Region Description in Chest X-rays (Müller et al., ECCV 2024).",
    "CheXzero": "The two encoders of CheXzero (Tiu et al., 2022) in a network of the architecture of ChEX.",
    "GPT-2": "A GPT-2 language model in a network of the architecture of ChEX.",
}
_LICENCE = "that of the publisher of the weights; see the model card"
_NAME_LENGTH = 64
"""As long as a name may be in the objects that carry it (DICOM PS3.5 6.2, LO), where no control or backslash may be."""


def bring(
    source: Path,
    directory: Path,
    *,
    gpt2_heads: int | None = None,
    rest: Path | None = None,
    report: ProgressReport,
) -> None:
    """Turn a published checkpoint into a model directory.

    gpt2_heads: None for what the source says
    rest: the model directory that provides what the source lacks; otherwise that is zeros
    Raises ModelError if the source or an option is wrong, OSError if a file cannot be written. Neither leaves files
    behind.
    """
    check_place(directory)
    other = open_rest(rest) if rest is not None else None
    with new_directory(directory) as aside, tempfile.TemporaryDirectory(dir=aside, prefix=".source-") as work:
        found = find(source, work=Path(work), report=report)
        content = open_weights(found.path, place=found.place, report=report)
        try:
            contents = recognize(content, path=found.path)
            if contents.kind == "ChEX" and other is not None:
                raise ModelError("it holds a whole ChEX network; leave --rest out")
            network = assemble(contents, place=found.place, rest=other, generator_heads=gpt2_heads)
        except ModelError as error:
            raise ModelError(f"{found.place}: {error}") from error
        manifest = _manifest(found, contents, network, rest=other)
        write_stream(aside / WEIGHTS, network.shapes, network.numbers(report))
        complete(aside, manifest, card=_card(manifest, found, contents, network))


def check_place(directory: Path) -> None:
    """Refuse early a place to which the finished folder could not be renamed. Raises ModelError."""
    if os.path.lexists(directory):
        raise ModelError(f"{directory} exists already; name a new directory, or delete it first")
    above = next(parent for parent in directory.absolute().parents if os.path.lexists(parent))
    if not above.is_dir():
        raise ModelError(f"{above} is not a folder; name a new directory elsewhere")


def open_rest(directory: Path) -> Rest:
    """Open a model directory to take weights from. Raises ModelError if a file does not match its hash.

    A view head is left out: it was trained for the image encoder as it was, and the result may have another one.
    """
    manifest = read_manifest(directory)
    verify(directory, manifest)
    state = {name: weight for name, weight in load_weights(directory / WEIGHTS).items() if not name.startswith(HEAD)}
    return Rest(manifest=replace(manifest, views=None, sizes=replace(manifest.sizes, views=None)), state=state)


def _name_of(found: Found, contents: Contents) -> str:
    """Name the model after the folder of its runs. Raises ModelError for a name that a report cannot contain."""
    defaults = {"ChEX": found.model or "chex", "CheXzero": "chex-with-chexzero", "GPT-2": "chex-with-gpt2"}
    name = defaults[contents.kind][:_NAME_LENGTH]
    if not (name.strip() and name.isprintable() and "\\" not in name):
        raise ModelError(f"the folder {name!r} gives the model its name; rename it: printable, without a backslash")
    return name


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `directory` on success; on failure it is removed with its contents."""
    directory = directory.absolute()
    parents = [parent for parent in directory.parents if not parent.exists()]
    aside = directory.with_name(f".{directory.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        aside.mkdir(parents=True)
        yield aside
        for path in (*aside.rglob("*"), aside):
            sync(path)
        aside.rename(directory)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        for parent in parents:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        raise
    sync(directory.parent)


def _manifest(found: Found, contents: Contents, network: Network, *, rest: Rest | None) -> Manifest:
    """Make the manifest, without hashes. If the rest comes from another model, input and decisions are that model's."""
    untrained = _untrained(network)
    mixed = len(set(network.origins.values())) > 1
    manifest = Manifest(
        name=_name_of(found, contents),
        version=f"sha256-{found.sha256[:12]}" if contents.step is None else f"step-{contents.step}",
        licence=_LICENCE,
        trained_on=f"what its publisher says of {found.place}" + (f"; untrained: {untrained}" if untrained else ""),
        intended_use=(
            "demonstration and tests of the program; never any clinical use"
            if untrained
            else "research; never the basis of a clinical decision"
        ),
        gray="mimic_jpg",
        input=InputRule(
            size=network.sizes.image_encoder.image_size, mean=PUBLISHED_MEAN, std=PUBLISHED_STD, resize="via_256"
        ),
        sizes=network.sizes,
        decisions=PUBLISHED_DECISIONS,
        origins=network.origins if mixed else {},
    )
    if rest is None:
        return manifest
    other = rest.manifest
    return replace(
        manifest,
        gray=other.gray,
        input=replace(other.input, size=manifest.input.size),
        decisions=other.decisions,
        report=other.report,
    )


def _card(manifest: Manifest, found: Found, contents: Contents, network: Network) -> str:
    return section(
        "imported",
        name=manifest.name,
        version=manifest.version,
        untrained=_untrained(network),
        what=_WHAT[contents.kind],
        kind=contents.kind,
        place=found.place,
        sha256=found.sha256,
        step=contents.step,
        parameters=network.parameters,
        origins=network.origins if len(set(network.origins.values())) > 1 else {},
    )


def _untrained(network: Network) -> str:
    return ", ".join(part for part, origin in network.origins.items() if UNTRAINED in origin)
