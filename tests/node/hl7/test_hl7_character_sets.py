"""Messages in older character sets: what a receiver reads, what it sees of the rest, what is read of a sender."""

from __future__ import annotations

import dataclasses

import hl7
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from node import config
from node.config import OrdersSettings
from node.deliver.hl7 import address
from node.errors import ConfigError
from node.hl7 import mllp
from node.hl7.acknowledgment import AcknowledgmentCode
from node.hl7.text import CODECS, Delimiters, escape, read, unescape
from node.orders.messages import OrderRefused, read_orders
from node.outputs import oru
from node.settings.destinations import Hl7Destination
from tests.support import peers, samples

RIS = Hl7Destination(name="ris", host=peers.LOOPBACK, port=2575)
ORDER = "MSH|^~\\&|Röntgen|A|CHEX|X|20240131||ORM^O01|77|P|2.3||||||{}\rORC|NW|Größe\r"
LATIN, UTF, CHINESE = "latin-1", "utf-8", "gb18030"


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


KANJI = "山田^太郎"


REQUEST = "MSH|^~\\&|RIS|A|CHEX|B|20240131||ORM^O01|M1|P|2.5.1||||||{}\rPID|||P-1||王^小明\rORC|NW|P1|F1\rOBR|1|||{}\r"


def said(character_set: str, encoding: str, name: str) -> bytes:
    """A message about a patient of a name."""
    return REQUEST.replace("王^小明", name).format(character_set, "Thorax").encode(encoding)


@pytest.mark.parametrize(
    ("character_set", "encoding", "name"),
    [
        ("GB 18030-2000", CHINESE, "王^小明"),
        ("GB18030", CHINESE, "王^小明"),
        ("UNICODE UTF-8", UTF, "王^小明"),
        ("utf-8", UTF, "王^小明"),
        ("BIG-5", "big5", "王^小明"),
        ("8859/1", LATIN, "Müller^Jörg"),
        ("ISO 8859-1", LATIN, "MÜLLER^JÖRG"),
        ("8859/15", "iso8859-15", "Müller^Jörg"),
        ("8859/1~8859/5", LATIN, "Müller^Jörg"),
        ("8859/5", "iso8859-5", "Иванов^Иван"),
        ("KS X 1001", "euc_kr", "김^철수"),
        ("", "ascii", "Smith^John"),
        ("ASCII~ISO IR87", "iso2022_jp", f"{KANJI}^^^^^L^I"),
        ("~ISO IR87", "iso2022_jp", f"Yamada^Tarou^^^^^L^A~{KANJI}^^^^^L^I"),
        ("ISO IR14~ISO IR87~ISO IR159", "iso2022_jp", f"{KANJI}^^^^^L^I"),
    ],
)  # fmt: skip
def test_a_message_is_read_in_the_set_that_it_names(character_set: str, encoding: str, name: str) -> None:
    found = read(said(character_set, encoding, name))

    assert (found.doubt, next(found.named("PID")).fields[5]) == ("", name)


@pytest.mark.parametrize(
    "encoded",
    [
        said("", CHINESE, "王^小明"),  # ASCII, as the standard has it
        said("", UTF, "王^小明"),
        said("", LATIN, "Müller"),
        said("ASCII", UTF, "王^小明"),
        said("UNICODE UTF-8", CHINESE, "王^小明"),
        said("UNICODE UTF-8", LATIN, "Müller"),
        said("8859/1", UTF, "Müller"),
        said("8859/1", UTF, "王^小明"),
        said("8859/5", UTF, "Иванов"),
        said("GB 18030-2000", UTF, "王^小明"),
        said("KS X 1001", UTF, "김^철수"),
        said("8859/3", "iso8859-1", "Ã^Ñ"),  # no such byte there
        said("EBCDIC", "ascii", "SMITH"),
        said("CNS 11643-1992", "ascii", "SMITH"),
        said("UNICODE UTF-16", "ascii", "SMITH"),
        said("UNICODE UTF-8~KLINGON", "ascii", "SMITH"),
        said("UNICODE UTF-8~ISO IR87", "iso2022_jp", KANJI),
        said("8859/1~8859/5", LATIN, "M\x1b-L\xd9"),
        said("8859/1", LATIN, "\\C2D4C\\Müller"),
    ],
)  # fmt: skip
def test_a_message_in_a_doubtful_set_says_so(encoded: bytes) -> None:
    assert read(encoded).doubt


def test_a_site_may_name_the_set_of_messages_that_name_none() -> None:
    found = read(said("", CHINESE, "王^晓明"), default="GB 18030-2000")

    assert (found.doubt, next(found.named("PID")).fields[5]) == ("", "王^晓明")
    assert OrdersSettings(hosts=(), character_set="8859/1").character_set == "8859/1"


@pytest.mark.parametrize(
    ("character_set", "encoding", "procedure"),
    [
        ("GB 18030-2000", CHINESE, "胸部|^|"),
        ("GB 18030-2000", CHINESE, "亅"),  # its second byte is that of the field separator
        ("", UTF, "胸部"),
        ("", LATIN, "Röntgen"),
        ("KLINGON", LATIN, "Röntgen"),
    ],
)
def test_an_order_is_taken_where_its_numbers_are_certain(character_set: str, encoding: str, procedure: str) -> None:
    content = REQUEST.format(character_set, procedure).encode(encoding, errors="replace")

    [change] = read_orders(read(content))

    assert (change.order.placer_number, change.order.filler_number) == (("P1",), ("F1",))


@pytest.mark.parametrize(
    ("character_set", "procedure", "filler"),
    [
        ("KLINGON", b"\x81\x7c", b"F1"),
        ("", b"\x81\x7c", b"F1"),
        ("", b"Thorax", b"F\xfc1"),
        ("CNS 11643-1992", b"Thorax", b"F\xc4\xa11"),
    ],
)
def test_an_order_that_may_be_garbled_is_refused(character_set: str, procedure: bytes, filler: bytes) -> None:
    content = REQUEST.format(character_set, "PROCEDURE").encode(CHINESE)
    content = content.replace(b"PROCEDURE", procedure).replace(b"|F1", b"|" + filler)

    with pytest.raises(OrderRefused) as caught:
        read_orders(read(content))

    assert (caught.value.code, caught.value.complaint.condition) == (AcknowledgmentCode.ERROR, "103")


@pytest.mark.parametrize("encoded", [b"P\xfc-1", b"\xb1\x69-1"])
def test_an_order_whose_patient_may_be_garbled_is_refused(encoded: bytes) -> None:
    content = REQUEST.format("CNS 11643-1992", "Thorax").encode().replace(b"|P-1|", b"|" + encoded + b"|")

    with pytest.raises(OrderRefused) as caught:
        read_orders(read(content))

    assert caught.value.complaint.condition == "103"
