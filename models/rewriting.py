"""Writes other decisions into a model directory: manifest, card and hashes (design §4).

The card is written first and the manifest, with the card's hash, last: after an interruption between them the directory
is refused until the command is run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from models.checkpoint.files import CARD, compare_hashes, file_sha256, require_plain_files
from models.decisions import PHANTOMS, ThresholdChange
from models.errors import ModelError
from models.files import replacing
from models.manifest import Ages, Manifest, read_manifest, write_manifest

TEN_LINES: Final = "## In ten lines"
"""The heading of the first section of a card, below its title."""
CALIBRATED: Final = "## Calibrated"
HISTORY: Final = "## Thresholds that were chosen again"
"""The headings of the last two sections of a card; `models.calibrate` writes the first."""
_FIGURE: Final = "- Figure: "
_FIRST: Final = re.compile(rf"^{TEN_LINES}\n\n(?:.+\n)*\n*", re.MULTILINE)
_BEGINNING: Final = re.compile(r"^(?=## )", re.MULTILINE)
"""Where a section begins; parts of it have more signs before their headings."""
_UNMEASURED: Final = "none was measured here; `models.calibrate` and `models.evaluate` measure"


def open_to_change(directory: Path) -> Manifest:
    """Read the manifest of a model directory whose files are those that it names, but for the card.

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
    """Return a card whose first section says in ten lines what a model is for, and what it must not be used for.

    figures: up to three, with their intervals; if empty, those that the card has are kept
    """
    figures = figures or figures_of(card)
    title, *rest = _FIRST.sub("", card).split("\n", 1)
    return "\n".join([title, "", TEN_LINES, "", *_ten_lines(manifest, figures), "", "".join(rest).lstrip("\n")])


def figures_of(card: str) -> list[str]:
    """Return the figures that a card begins with."""
    return [line.removeprefix(_FIGURE) for line in card.splitlines() if line.startswith(_FIGURE)]


def _ten_lines(manifest: Manifest, figures: Sequence[str]) -> Iterator[str]:
    decisions = manifest.decisions
    real = sorted(key for key, own in decisions.measurements.items() if own.measured_on != PHANTOMS)
    left_out = sorted(decisions.left_out)
    ages = manifest.ages or Ages()
    limits = f" of patients from {ages.least}" + (f" to {ages.most}" if ages.most is not None else "") + " years"
    yield f"- For: {manifest.intended_use}."
    yield "- Not for: a clinical decision, or the proof that a film is normal. It is no medical device."
    yield f"- Reads: frontal films of the chest{'' if manifest.ages is None else limits}."
    yield f"- Calibrated on films of people: {_named([key for key in real if key not in left_out])}."
    yield f"- Left out on films of people: {_named(left_out)}."
    yield from (f"{_FIGURE}{figure}" for figure in figures or [_UNMEASURED])
    yield f"- Trained on: {manifest.trained_on}."
    yield f"- Licence: {manifest.licence}."


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
        f"| {change.at} | {change.finding} | {change.before:g} | {change.after:g} | {_cell(change.reason)} | "
        f"{_cell(change.by)} |\n"
        for change in history
    ]
    head = f"{HISTORY}\n\n| when | finding | before | after | why | by whom |\n{'|---' * 6}|\n"
    return "\n".join(filter(None, [body, calibrated, "".join([head, *rows]) if rows else ""]))


def with_line(text: str, start: str, line: str) -> str:
    """Return a text in which a line stands for each that begins so, and for the indented lines that continue it."""
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
