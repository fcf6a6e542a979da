"""Messages in older character sets: what a receiver reads, what it sees of the rest, what is read of a sender."""

from __future__ import annotations

import dataclasses

import hl7
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from node import config
from node.deliver.hl7 import address
from node.errors import ConfigError
from node.hl7 import mllp
from node.hl7.text import CODECS, Delimiters, escape, read, unescape
from node.outputs import oru
from node.settings.destinations import Hl7Destination
from tests.support import peers, samples

RIS = Hl7Destination(name="ris", host=peers.LOOPBACK, port=2575)
ORDER = "MSH|^~\\&|Röntgen|A|CHEX|X|20240131||ORM^O01|77|P|2.3||||||{}\rORC|NW|Größe\r"


def message(name: str) -> bytes:
    """The result of a patient of this name, as it lies on disk."""
    source: Dataset = samples.cr()
    source.SpecificCharacterSet = "ISO_IR 192"
    source.PatientName = name
    report = samples.report(samples.several())
    return oru.write(report, samples.sources(source), samples.BERLIN, order=None, documents=[])[1]


def names(content: bytes, encoding: str) -> list[str]:
    """The repetitions of the patient's name, as another library reads them."""
    parsed = hl7.parse(content, encoding=encoding)
    return [str(repetition) for repetition in parsed.segment("PID")[5]]


@pytest.mark.parametrize(
    ("character_set", "encoding", "name", "seen"),
    [
        ("UNICODE UTF-8", "utf-8", "Łukasz^Ж=山田^太郎", ["Łukasz^Ж^^^^^L^A", "山田^太郎^^^^^L^I"]),
        ("8859/1", "latin-1", "Müller^José", ["Müller^José^^^^^L^A"]),
        ("8859/2", "iso8859-2", "Łukasz^Ж", ["Łukasz^?^^^^^L^A"]),
        ("8859/5", "iso8859-5", "Жуков^Łu", ["Жуков^?u^^^^^L^A"]),
        ("8859/15", "iso8859-15", "Œuvre^€", ["Œuvre^€^^^^^L^A"]),
        ("KS X 1001", "euc_kr", "Hong^Gildong=洪^吉洞=홍^길동", [
            "Hong^Gildong^^^^^L^A", "洪^吉洞^^^^^L^I", "홍^길동^^^^^L^P",
        ]),
        ("ASCII", "ascii", "Müller^José=山田^太郎", ["M?ller^Jos?^^^^^L^A", "??^??^^^^^L^I"]),
    ],
)  # fmt: skip
def test_a_receiver_reads_its_own_set_and_sees_what_that_lacks(
    character_set: str, encoding: str, name: str, seen: list[str]
) -> None:
    sent = address(message(name), dataclasses.replace(RIS, character_set=character_set))

    assert names(sent, encoding) == seen
    assert str(hl7.parse(sent, encoding=encoding).segment("MSH")[18]) == character_set


@pytest.mark.parametrize("character_set", CODECS)
def test_a_repeat_has_the_same_bytes_and_id_in_every_charset(character_set: str) -> None:
    content, destination = message("Müller^José"), dataclasses.replace(RIS, character_set=character_set)

    first, again = address(content, destination), address(content, destination)

    assert first == again
    assert read(first).header.text(10) == read(content).header.text(10)


@given(
    name=st.text(st.characters(exclude_categories=["Cs"]), max_size=30), character_set=st.sampled_from(sorted(CODECS))
)
def test_no_text_breaks_a_message_in_any_set(name: str, character_set: str) -> None:
    line = f"MSH|^~\\&|A|B|C|D|20240131||ORU^R01|1|P|2.5.1||||||UNICODE UTF-8\rZZZ|{escape(name)}|end\r"

    sent = address(line.encode(), dataclasses.replace(RIS, character_set=character_set))

    assert mllp.frame(sent)
    raw = sent.split(b"\r")[1].split(b"|")
    assert (len(raw), raw[2]) == (3, b"end")  # also for those that cut bytes before they decode
    text = name.encode(CODECS[character_set], errors="replace").decode(CODECS[character_set])
    assert unescape(raw[1].decode(CODECS[character_set]), Delimiters()) == text or "\\X" in escape(name)


@pytest.mark.parametrize(
    ("said", "encoding"),
    [
        ("", "utf-8"),
        ("", "latin-1"),
        ("UNICODE UTF-8", "utf-8"),
        ("UNICODE UTF-8", "latin-1"),  # not what it says
        ("8859/1", "latin-1"),
        ("8859/1~8859/5", "latin-1"),
        ("8859/2", "iso8859-2"),
        ("8859/15", "iso8859-15"),
        ("ASCII", "utf-8"),
        ("SOMETHING", "latin-1"),
    ],
)
def test_an_order_is_read_in_the_set_that_it_names_or_really_has(said: str, encoding: str) -> None:
    found = read(ORDER.format(said).encode(encoding))

    assert found.header.text(3) == "Röntgen"
    assert next(found.named("ORC")).text(2) == "Größe"


def test_the_named_character_set_decides_where_two_would_fit() -> None:
    content = ORDER.format("8859/2").replace("Größe", "Łódź").encode("iso8859-2")

    assert next(read(content).named("ORC")).text(2) == "Łódź"


def test_a_set_that_breaks_frames_or_delimiters_is_refused() -> None:
    table = {
        "storage": {"directory": "node"},
        "listener": {"callers": [{"ae_title": "PACS", "hosts": ["127.0.0.1"]}]},
        "destinations": [{"name": "ris", "type": "hl7", "host": "ris", "port": 2575, "character_set": "BIG-5"}],
    }

    with pytest.raises(ConfigError, match="character_set: 'BIG-5' is unknown; use UNICODE UTF-8 or ASCII or 8859/1"):
        config.parse(table)
