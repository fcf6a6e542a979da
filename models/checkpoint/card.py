"""The card of a model directory, which one template fills, and decisions that are written anew (design §4).

`MODEL_CARD.md.jinja` has the sections. A card begins with ten lines on what a model is for and what it must not be used
for. It says where the model came from, and may have `Measured`, `Calibrated` and a history of thresholds. Where
decisions change it is written first and the manifest, with the card's hash, last: after an interruption between them
the directory is refused until the command is run again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from models.checkpoint.files import CARD, compare_hashes, file_sha256, require_plain_files
from models.decisions import PHANTOMS, ThresholdChange
from models.errors import ModelError
from models.files import replacing
from models.manifest import WEIGHTS, Ages, Manifest, read_manifest, write_manifest
from models.reading.tokenizers import VOCABULARIES

TEN_LINES: Final = "## In ten lines"
"""The heading of the first section of a card, below its title."""
CALIBRATED: Final = "## Calibrated"
HISTORY: Final = "## Thresholds that were chosen again"
"""The headings of the last two sections of a card; `models.calibrate` writes the first."""
_FIGURE: Final = "- Figure: "
_FIRST: Final = re.compile(rf"^{TEN_LINES}\n\n(?:.+\n)*\n*", re.MULTILINE)
_BEGINNING: Final = re.compile(r"^(?=## )", re.MULTILINE)
"""Where a section begins; parts of it have more signs before their headings."""


def section(name: str, /, **values: object) -> str:
    """Fill a section of the template, which is a macro of this name."""
    return str(getattr(_template().module, name)(**values))


@cache
def _template() -> Template:
    loader = FileSystemLoader(Path(__file__).parent)
    texts = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    texts.globals |= {"shown": shown, "bounded": bounded}
    return texts.get_template(f"{CARD}.jinja")


def bounded(figures: Mapping[str, object], name: str) -> str:
    """Format a figure of an evaluation with its interval, or its deviation, if it has one."""
    for beside, form in (("intervals", " ({})"), ("deviations", " +/- {}")):
        known = figures.get(beside)
        if isinstance(known, Mapping) and name in known:
            return shown(figures.get(name)) + form.format(shown(known[name]))
    return shown(figures.get(name))


def shown(value: object) -> str:
    """Format a figure, or the bounds of one; an unknown one is a dash."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " to ".join(map(shown, value))
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def complete(directory: Path, manifest: Manifest, *, card: str) -> None:
    """Write the vocabularies, the card and, last, the manifest of a new model directory, which has its weights already.

    manifest: without hashes; those of all files are added
    """
    (directory / "vocab").mkdir(exist_ok=True)
    for vocabulary in sorted(VOCABULARIES.iterdir()):
        shutil.copyfile(vocabulary, directory / "vocab" / vocabulary.name)
    (directory / CARD).write_text(with_ten_lines(card, manifest), encoding="utf-8")
    names = [WEIGHTS, CARD, *(f"vocab/{path.name}" for path in sorted((directory / "vocab").iterdir()))]
    write_manifest(directory, replace(manifest, files={name: file_sha256(directory / name) for name in names}))
    read_manifest(directory)


def open_to_change(directory: Path) -> Manifest:
    """Read the manifest of a model directory, whose files except the card must match its hashes.

    The card is written again in any case, perhaps after an interruption. Raises ModelError as `files.verify`.
    """
    manifest = read_manifest(directory)
    require_plain_files(directory, manifest)
    others = {name: sha256 for name, sha256 in manifest.files.items() if name != CARD}
    compare_hashes(directory, replace(manifest, files=others))
    return manifest


def rewrite(directory: Path, manifest: Manifest, *, calibrated: str = "", figures: Sequence[str] = ()) -> None:
    """Write a manifest with its history in the card, and the card's hash. Raises ModelError, or OSError.

    calibrated: what replaces the card's section of that name; "" to keep it
    figures: what replaces the figures in the card's first lines; empty to keep them
    """
    card = directory / CARD
    try:
        body, kept = parts_of(card.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{card} cannot be read ({error}); restore the model directory") from error
    if calibrated:
        body = with_line(body, "- Thresholds:", "- Thresholds: see Calibrated, below; of other findings as they came.")
        body = with_line(body, "- Performance here:", "- Performance here: see Calibrated, below.")
    with replacing(card) as file:
        body = with_ten_lines(body, manifest, figures)
        file.write(joined(body, calibrated or kept, manifest.history).encode())
    write_manifest(directory, replace(manifest, files=dict(manifest.files) | {CARD: file_sha256(card)}))


def with_ten_lines(card: str, manifest: Manifest, figures: Sequence[str] = ()) -> str:
    """Return a card whose first section has, in ten lines, a model's intended use and its limits.

    figures: up to three, with their intervals; if empty, those that the card has are kept
    """
    decisions, ages = manifest.decisions, manifest.ages or Ages()
    real = sorted(key for key, own in decisions.measurements.items() if own.measured_on != PHANTOMS)
    limits = f" of patients from {ages.least}" + (f" to {ages.most}" if ages.most is not None else "") + " years"
    first = section(
        "ten_lines",
        manifest=manifest,
        ages="" if manifest.ages is None else limits,
        calibrated=_named([key for key in real if key not in decisions.left_out]),
        left_out=_named(sorted(decisions.left_out)),
        figures=figures or figures_of(card),
    )
    title, *rest = _FIRST.sub("", card).split("\n", 1)
    return "\n".join([title, "", TEN_LINES, "", first, "".join(rest).lstrip("\n")])


def figures_of(card: str) -> list[str]:
    """Return the figures that a card begins with; none if it says there that none was measured."""
    return [line.removeprefix(_FIGURE) for line in card.splitlines() if line.startswith(_FIGURE)]


def _named(keys: Sequence[str]) -> str:
    return ", ".join(key.replace("_", " ") for key in keys) or "nothing"


def parts_of(card: str) -> tuple[str, str]:
    """Divide a card into its body and the section of its calibration, "" without one; the history is left out."""
    sections = _BEGINNING.split(card)
    calibrated = "".join(section for section in sections if section.startswith(f"{CALIBRATED}\n"))
    body = "".join(section for section in sections if not section.startswith((f"{CALIBRATED}\n", f"{HISTORY}\n")))
    return body.rstrip() + "\n", f"{calibrated.rstrip()}\n" if calibrated else ""


def joined(body: str, calibrated: str, history: Sequence[ThresholdChange]) -> str:
    """Join a card that `parts_of` divided, with the thresholds that were chosen again at its end."""
    rows = [
        (change.at, change.finding, f"{change.before:g}", f"{change.after:g}", _cell(change.reason), _cell(change.by))
        for change in history
    ]
    return "\n".join(filter(None, [body, calibrated, section("history", changes=rows) if rows else ""]))


def with_line(text: str, start: str, line: str) -> str:
    """Replace each line that begins so, with the indented lines that continue it, by one line."""
    lines: list[str] = []
    replaced = False
    for own in text.splitlines():
        if replaced and own.startswith("  "):
            continue
        replaced = own.startswith(start)
        lines.append(line if replaced else own)
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Return a text that stays in its cell of a table."""
    return text.replace("\\", "\\\\").replace("|", "\\|")
