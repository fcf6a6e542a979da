"""Runnable: says how well the image features of normal films tell which of two files a film comes from (`sources`).

    python -m models.lab.evaluation.source_probe --model DIR --data A.jsonl --data B.jsonl
        [--held-out FILE] [--out DIR]

`--held-out` names the patients of A that no training saw. A film is normal if somebody says so who saw it.
Exit 0: done; 1: a file could not be written; 2: wrong input.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from models import progress
from models.command import command_parser, exit_status, run
from models.engines import ENGINES
from models.errors import ModelError
from models.lab.evaluation.prompt_set import DEFAULT, read_questions
from models.lab.training.split import read_held_out


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("models.lab.evaluation.source_probe", description="Tell the sources of normal films apart.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("--data", type=Path, required=True, action="append", metavar="FILE.jsonl", help="give two")
    parser.add_argument("--held-out", metavar="SHARE_OR_FILE", help="only these patients of the first file")
    parser.add_argument("--most", type=int, default=600, help="the most films of a file; default: %(default)s")
    parser.add_argument("--engine", choices=ENGINES, default="onnx", help="default: %(default)s")
    parser.add_argument("--resamples", type=int, default=100, help="for the interval; default: %(default)s")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.json for the model card here")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _probe(options))


def _probe(options: argparse.Namespace) -> int:
    if len(options.data) != 2:
        raise ModelError("two sources are compared; give --data twice")
    from models.lab.evaluation.boxes_file import read_films
    from models.lab.evaluation.document import markdown, rounded
    from models.lab.evaluation.evaluated_model import open_model
    from models.lab.evaluation.sources import measure, source_of

    model = open_model(options.model, engine=options.engine, questions=read_questions(DEFAULT))
    held_out = None if options.held_out is None else read_held_out(options.held_out)
    first, second = options.data
    with progress.on(sys.stderr) as report:
        sources = [
            source_of(model, films, path.stem, most=options.most, report=report)
            for path, films in (
                (first, read_films(first, model.manifest, held_out=held_out)),
                (second, read_films(second, model.manifest)),
            )
        ]
    document: dict[str, object] = {
        "data": " and ".join(f"boxes:{path}" for path in options.data),
        "count": sum(len(source.patients) for source in sources),
        "tasks": {"sources": rounded(measure(*sources, resamples=options.resamples))},
        "model": {
            "name": model.manifest.name,
            "version": model.manifest.version,
            "weights_sha256": model.reader.weights_sha256,
            "engine": model.reader.engine,
        },
        "held_out": options.held_out and Path(options.held_out).name,
    }
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "evaluation.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(markdown(document).rstrip())
    return 0


if __name__ == "__main__":
    run(main)
