"""Bent bytes: whatever a file holds, it is read, answered with a reason, or refused; nothing else is raised."""

from __future__ import annotations

import random
import struct
import tempfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.datadict import tag_for_keyword
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEG2000Lossless

from models.progress import quiet
from node.errors import Undecodable
from node.output_kinds import OUTPUTS
from node.outputs.source import from_files
from node.outputs.writers import make_report, write_objects
from node.read import prompts
from node.read.film import answer_film
from tests.drills.fuzz import associations, pixels, spoil
from tests.support import films
from tests.support.fakes import ScriptedReader

# The commands silence pydicom, which warns of what it finds in objects (`log.mute`).
pytestmark = [pytest.mark.drill(part="fuzz"), pytest.mark.filterwarnings("ignore::UserWarning")]

PROMPTS = prompts.load("chexpert14")
CASES = 60
"""Films with damaged pixels."""

EXAMPLES = round(0.35 * (settings.default.max_examples if settings.default is not None else 100))
"""Fewer than others, for each is slow; more of them with another profile (`make fuzz`)."""

LIVE_SECONDS = 3.0
"""Other tests keep the cores busy meanwhile; a decoder that holds the interpreter does so for 13 s."""


@cache
def contents() -> tuple[bytes, ...]:
    """A film uncompressed, in JPEG 2000, without preamble, and deflated."""
    deflated = films.thumbnail()
    deflated.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    return (
        films.file_bytes(films.thumbnail()),
        films.file_bytes(films.compressed(films.thumbnail(), JPEG2000Lossless)),
        films.headerless_bytes(films.thumbnail()),
        films.file_bytes(deflated),
    )


def ends_well(content: bytes) -> bool:
    """Read and answer bytes as a film: refused as undecodable, analyzed with objects, or not analyzed with a reason."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.dcm"
        path.write_bytes(content)
        try:
            answered = answer_film(path, ScriptedReader(), PROMPTS)
        except Undecodable as error:
            return bool(str(error))
        if answered.film is not None:
            report = make_report(
                "1.2.3",
                [answered.film],
                model=ScriptedReader().identity,
                prompts=PROMPTS,
                created_at=datetime.now(UTC),
            )
            uid = answered.film.source
            sources = from_files({uid: answered.dataset}, {uid: path})
            return bool(list(write_objects(report, sources, zone=ZoneInfo("UTC"), kinds=tuple(OUTPUTS.own))))
        return answered.reason is not None


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 3), st.booleans(), st.integers(0, 2**32 - 1))
def test_a_file_with_a_bent_header_or_bent_pixels_is_read_or_refused(number: int, is_header: bool, seed: int) -> None:
    content = contents()[number]
    pixels_begin = content.rfind(b"\xe0\x7f\x10\x00")
    place = len(content) - len(films.body_of(content)) if pixels_begin < 0 else pixels_begin + 12
    parts = [bytearray(content[:place]), bytearray(content[place:])]

    spoil(random.Random(seed), parts[not is_header])

    assert ends_well(b"".join(parts))


@pytest.mark.parametrize("keyword", ["StudyInstanceUID", "Modality", "Rows"])
def test_a_value_of_no_known_representation_counts_as_absent(keyword: str) -> None:
    content = films.file_bytes(films.thumbnail())
    element = struct.pack("<HH", *divmod(tag_for_keyword(keyword) or 0, 1 << 16))
    place = content.index(element, 132 + 200) + len(element)

    assert ends_well(content[:place] + b"U\0" + content[place + 2 :])


def test_a_length_that_leads_astray_is_no_failure_of_the_disk(tmp_path: Path) -> None:
    content = bytearray(contents()[1])
    high_bit = content.index(b"\x28\x00\x02\x01US")
    content[high_bit + 6] = 44
    path = tmp_path / "film.dcm"
    path.write_bytes(content)

    with pytest.raises(Undecodable):
        answer_film(path, ScriptedReader(), PROMPTS)


def test_bent_associations_neither_stop_nor_fool_the_listener(tmp_path: Path) -> None:
    tally = associations.run(tmp_path, seed=6, seconds=4.0)

    assert tally.passed, tally.figures


def test_damaged_pixels_hurt_no_other_film(tmp_path: Path) -> None:
    tally = pixels.run(tmp_path, numbers=range(CASES), seed=38, say=quiet, most_live_seconds=LIVE_SECONDS)

    assert tally.passed, tally.figures
    assert tally.counts.total() == CASES
