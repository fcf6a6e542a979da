"""Runnable: viewers and validators on the node's objects; the last line is one JSON object with `passed`.

    python -m tests.drills.conformance [--only ohif|dicomscope|validators]... [--case NAME]...
                                         [--studies 60] [--out DIR]

ohif         OHIF beside Orthanc in Chromium: boxes, labels, each film's report, no crash, no tick, for each kind;
             who said what where a reader corrected it; of seven versions of a report on a phantom, on the film of
             a person and on one of unequal spacing the newest, its words beside it, and two answers to questions
dicomscope   DICOMscope on a virtual screen: boxes, contrast of labels, review told from present in presentation states
validators   dciodvfy, dsrdump, dcmpschk and PixelMed on every kind of output of many drawn studies

Pictures go to DIR, demo-out/conformance unless said otherwise. A quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic

import pytest

from models import progress
from models.progress import ProgressReport
from tests.drills.conformance import cases, studies, validation, viewing
from tests.drills.conformance.browser import chromium
from tests.drills.conformance.ohif import ohif
from tests.drills.conformance.studies import Study
from tests.drills.conformance.viewing import Seen

DRAWN_KINDS = ("sr", "sr3d")
"""The kinds of report that hold boxes."""
OHIF_KINDS = (*DRAWN_KINDS, "text")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.drills.conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="only this part")
    parser.add_argument("--case", choices=tuple(cases.MAKERS), action="append", help="in viewers only this study")
    parser.add_argument("--studies", type=int, default=60, help="how many studies the validators get")
    parser.add_argument("--out", type=Path, default=Path("demo-out/conformance"))
    arguments = parser.parse_args()
    begun, results = monotonic(), dict[str, dict[str, object]]()
    with progress.on(sys.stdout) as say, tempfile.TemporaryDirectory(prefix="conformance-") as name:
        folder = Path(name)
        shown = [studies.write(cases.make(case), folder) for case in arguments.case or cases.MAKERS]
        for part in arguments.only or PARTS:
            say(part)
            results[part] = attempt(partial(PARTS[part], shown, arguments, folder, say))
    passed = all(result["passed"] for result in results.values())
    figures = {"passed": passed, "seconds": round(monotonic() - begun), **results}
    sys.stdout.write(json.dumps(figures, ensure_ascii=False) + "\n")
    return 0 if passed else 1


Part = Callable[[Sequence[Study], argparse.Namespace, Path, ProgressReport], dict[str, object]]


def attempt(run: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Run one part; what ends it early, a missing program too, is its failure and no other's."""
    try:
        return run()
    except (AssertionError, pytest.skip.Exception, pytest.fail.Exception) as error:
        return {"passed": False, "reason": str(error)}


def in_ohif(
    shown: Sequence[Study], arguments: argparse.Namespace, folder: Path, say: ProgressReport
) -> dict[str, object]:
    """Show each kind of report in OHIF."""
    seen: dict[str, Seen] = {}
    total = (len(shown) + len(cases.VERSIONS)) * len(OHIF_KINDS)
    for kind in OHIF_KINDS:
        # An archive for each kind: two kinds of report on one study would both be listed.
        place = Path(tempfile.mkdtemp(dir=folder))
        with chromium() as browser, ohif(browser, place) as viewer:
            where = arguments.out / "ohif"
            for study in shown:
                name = f"{study.case.name} {kind}"
                seen[name] = viewing.view_in_ohif(viewer, study, kinds=(kind,), folder=where)
                say("OHIF", len(seen), total)
            for name in cases.VERSIONS:
                kinds = (kind, "text") if kind in DRAWN_KINDS and cases.draws_in_all_versions(name) else (kind,)
                several = studies.versions(name, folder, kinds=kinds)
                seen[f"{name} {kind}"] = viewing.view_versions_in_ohif(viewer, several, kinds=kinds, folder=where)
                say("OHIF", len(seen), total)
    return summary(seen)


def before_validators(
    shown: Sequence[Study], arguments: argparse.Namespace, folder: Path, say: ProgressReport
) -> dict[str, object]:
    """Validate the studies that viewers show, and drawn ones."""
    every = [*(study.case for study in shown), *map(validation.drawn, range(arguments.studies))]
    done = validation.validate(every, folder, say=say, total=len(every))
    figures = {"studies": len(every), "objects": dict(done.objects), "complaints": done.complaints[:20]}
    return {"passed": not done.complaints and len(done.objects) > 1, "errors": len(done.complaints), **figures}


def summary(seen: Mapping[str, Seen]) -> dict[str, object]:
    """Sum up what was seen of all studies."""
    together = Seen()
    for study in seen.values():
        together.faults += study.faults
        together.deviations += study.deviations
        together.contrasts += study.contrasts
    return {"passed": bool(together.deviations) and not together.faults, "studies": len(seen), **together.figures()}


PARTS: dict[str, Part] = {
    "ohif": in_ohif,
    "dicomscope": lambda shown, arguments, folder, _: summary(
        viewing.view_in_dicomscope(shown, arguments.out, scratch=folder / "dicomscope")
    ),
    "validators": before_validators,
}

if __name__ == "__main__":
    sys.exit(main())
