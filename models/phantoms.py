"""Runnable: writes phantoms as files.

    python -m models.phantoms phantoms:2000000:8 --out DIR [--dicom] [--truth] [--side PIXELS] [--others]

`--truth` writes DIR/truth.jsonl, one line for each film, in the form that `boxes:DIR/truth.jsonl` reads: boxes are
left, top, right, bottom in pixels of the file that the line names.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np

from models.boxes import to_corners
from models.command import command_parser, run
from models.lab.phantoms.non_frontal import OTHER_KINDS, OtherKind, other_film
from models.lab.phantoms.picture import phantom
from models.lab.phantoms.report import hints_of
from models.lab.phantoms.sets import PhantomSet, parse_set, split_of
from models.lab.phantoms.truth import Phantom, UnitBox


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.phantoms", description="Make chest films with exact labels.")
    parser.add_argument("set", type=_set, help="phantoms:SEED:COUNT; seeds from 2000000 on are for tests")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--dicom", action="store_true", help="CR and DX objects instead of PNG files")
    parser.add_argument("--truth", action="store_true", help="write truth.jsonl as well")
    parser.add_argument("--others", action="store_true", help="laterals, other parts of the body and blanks instead")
    parser.add_argument("--side", type=int, default=224, help="of PNG files, in pixels; default: %(default)s")
    options = parser.parse_args(arguments)
    if not 32 <= options.side <= 3000:
        parser.error("--side must lie in 32..3000")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        lines = [
            _save(options.out, seed, side=options.side, as_dicom=options.dicom, others=options.others)
            for seed in options.set.seeds
        ]
        if options.truth:
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (options.out / "truth.jsonl").write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"{options.out} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{options.out}: {len(lines)} films")
    return 0


def truth_line(film: Phantom, name: str, *, columns: int, rows: int) -> dict[str, object]:
    """Write a film's truth for a file of its pixels, whose middle square the film is."""
    side = min(columns, rows)
    offset = np.array([columns - side, rows - side] * 2) / 2

    def pixels(boxes: UnitBox) -> list[float]:
        corners: list[float] = (to_corners(boxes.astype(np.float64)) * side + offset).round(1).tolist()
        return corners

    regions = [{"label": region.title(), "region": region, "xyxy": pixels(box)} for region, box in film.regions.items()]
    found = [
        {
            "label": instance.finding.replace("_", " ").title(),
            "finding": instance.finding,
            "kind": instance.kind,
            "side": instance.side,
            "severity": instance.severity,
            "regions": instance.regions,
            "xyxy": pixels(instance.box),
        }
        for instance in film.instances
    ]
    sentences = [asdict(sentence) | {"boxes": [pixels(box) for box in sentence.boxes]} for sentence in film.sentences]
    hints = [{"text": hint.text, "finding": hint.finding, "side": hint.side} for hint in hints_of(film)]
    return {
        "file": name,
        "size": [columns, rows],
        "view": film.view,
        "is_chest": film.is_chest,
        "patient": f"phantom-{film.seed}",
        "split": split_of(film.seed),
        "cardiothoracic_ratio": round(film.cardiothoracic_ratio, 4),
        "boxes": regions + found,
        "region_findings": {region: sorted(found) for region, found in film.region_findings.items()},
        "sentences": sentences,
        "hints": hints,
    }


def _set(text: str) -> PhantomSet:
    try:
        return parse_set(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _save(folder: Path, seed: int, *, side: int, as_dicom: bool, others: bool) -> dict[str, object]:
    """Write one film; returns its line of truth.jsonl."""
    kind: OtherKind | None = OTHER_KINDS[seed % len(OTHER_KINDS)] if others else None
    stem = f"{kind or 'phantom'}-{seed}"
    if as_dicom:
        # Imported here because pydicom takes half a second.
        from models.lab.phantoms import dicom

        made = dicom.film(seed) if kind is None else dicom.other(seed, kind)
        made.dataset.save_as(folder / f"{stem}.dcm", enforce_file_format=True)
        return truth_line(made.phantom, f"{stem}.dcm", columns=made.dataset.Columns, rows=made.dataset.Rows)
    film = phantom(seed, side) if kind is None else other_film(seed, kind, side)
    _, png = cv2.imencode(".png", film.pixels)
    (folder / f"{stem}.png").write_bytes(png.tobytes())
    return truth_line(film, f"{stem}.png", columns=side, rows=side)


if __name__ == "__main__":
    run(main)
