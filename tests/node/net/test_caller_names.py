from __future__ import annotations

import json
from pathlib import Path

import pytest

from node import config, log
from node.config import Caller
from node.errors import ConfigError
from node.net.caller_names import CallerNames, is_ambiguous
from node.settings.file import CALLER_HOST

BY_NAME = Caller(ae_title="PACS", hosts=("pacs.hospital", "10.20.0.0/24"))


class Server:
    """A name server whose answers a test sets; a name without an answer is unknown."""

    def __init__(self, **answers: set[str]) -> None:
        self.answers: dict[str, set[str]] = {name.replace("_", "."): found for name, found in answers.items()}

    def resolve(self, name: str) -> frozenset[str]:
        if name not in self.answers:
            raise OSError("no such name")
        return frozenset(self.answers[name])


def names_of(server: Server, *, pause_seconds: float = 3600.0) -> CallerNames:
    return CallerNames([BY_NAME], resolve=server.resolve, pause_seconds=pause_seconds)


def test_a_name_is_one_machine_with_one_address_of_each_version() -> None:
    names = names_of(Server(pacs_hospital={"192.0.2.1", "2001:db8::1"}))

    assert names.of("192.0.2.1") == names.of("2001:db8:0::1") == names.of("::ffff:192.0.2.1") == {"pacs.hospital"}
    assert names.of("192.0.2.2") == frozenset()
    names.close()


def test_an_ambiguous_name_admits_nobody_and_is_logged_once(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    log.configure(form="json")
    names = names_of(Server(pacs_hospital={"192.0.2.1", "192.0.2.2"}))
    names.use([BY_NAME])
    names.close()

    (line,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert (line["event"], line["name"], line["reason"]) == ("caller.unresolved", "pacs.hospital", "ambiguous")
    assert names.of("192.0.2.1") == frozenset()
    assert not is_ambiguous(["192.0.2.1", "2001:db8::1"])


def test_the_last_addresses_stay_while_no_name_server_answers() -> None:
    server = Server(pacs_hospital={"192.0.2.1"})
    names = names_of(server)
    server.answers.clear()
    names.use([BY_NAME])

    assert names.of("192.0.2.1") == {"pacs.hospital"}
    server.answers["pacs.hospital"] = {"192.0.2.9"}
    names.use([BY_NAME])
    assert (names.of("192.0.2.1"), names.of("192.0.2.9")) == (frozenset(), {"pacs.hospital"})
    names.use([])
    assert names.of("192.0.2.9") == frozenset()
    names.close()


@pytest.mark.parametrize("host", ["10.0.0.5", "fd00::1", "10.20.0.0/24", "fd00:20::/64", "pacs", "pacs.hospital.local"])
def test_a_caller_is_an_address_a_network_or_a_name(host: str) -> None:
    assert CALLER_HOST(host) is None


@pytest.mark.parametrize(
    ("host", "remedy"),
    [
        ("10.20.0.5/24", "did you mean 10.20.0.0/24?"),
        ("10.20.0/33", "not an IP address, a network or a host name"),
        ("10.20.0", "not an IP address, a network or a host name"),
        ("10.20.0.256", "not an IP address, a network or a host name"),
        ("dicom://pacs", "not an IP address, a network or a host name"),
        ("", "not an IP address, a network or a host name"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(host: str, remedy: str) -> None:
    assert remedy in str(CALLER_HOST(host))


def test_a_network_with_bits_of_a_host_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    table = '[storage]\ndirectory = "s"\n[[listener.callers]]\nae_title = "A"\nhosts = ["10.0.0.5/8", "pacs"]\n'
    path.write_text(table, encoding="utf-8")

    with pytest.raises(ConfigError, match=r"listener\.callers\.hosts: .* did you mean 10\.0\.0\.0/8\?"):
        config.load(path)
