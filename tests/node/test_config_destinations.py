"""The settings of destinations: each type has its own, and what is unsafe is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from node import config
from node.errors import ConfigError
from node.settings.destinations import DicomDestination, DicomwebDestination, Hl7Destination, TlsSettings
from tests.node.test_config import GOOD, HL7, load

WEB = """
[[destinations]]
name = "web"
type = "dicomweb"
url = "https://pacs.example:8443/dicom-web"
token_file = "token"
[destinations.tls]
ca = "ca.pem"
"""


def test_an_archive_on_the_web_has_an_address(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD + WEB)

    _, archive = settings.destinations
    assert isinstance(archive, DicomwebDestination)
    assert (archive.host, archive.port, archive.outputs) == ("pacs.example", 8443, ("sr", "gsps"))
    assert load(tmp_path, config.render(settings)) == settings


@pytest.mark.parametrize(
    ("url", "complaints"),
    [
        ("https:///dicom-web", ["destinations[2].url: must be https://HOST:PORT/PATH"]),
        ("https://user:secret@pacs.example/", ["destinations[2].url: must be https://HOST:PORT/PATH"]),
        ("https://pacs.example/?a=b", ["destinations[2].url: must be https://HOST:PORT/PATH"]),
        (
            "http://pacs.example/",
            ["destinations[2].tls: the url begins", "destinations[2].token_file: a token is sent"],
        ),
        ("http://127.0.0.1:8042/", ["destinations[2].tls: the url begins"]),
    ],
)
def test_an_address_on_the_web_is_safe(tmp_path: Path, url: str, complaints: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, GOOD + WEB.replace("https://pacs.example:8443/dicom-web", url))

    assert [said[: len(wanted)] for said, wanted in zip(caught.value.mistakes, complaints, strict=True)] == complaints
    assert "secret" not in str(caught.value)


def test_a_destination_is_what_its_type_says(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD + HL7)

    archive, system = settings.destinations
    assert isinstance(archive, DicomDestination)
    assert isinstance(system, Hl7Destination)
    assert (system.outputs, system.sending_application, system.receiving_application) == (("oru",), "CHEX", "RIS")
    assert system.tls == TlsSettings(ca=Path("ca.pem"), certificate=Path("node.pem"), key=Path("node.key"))
    assert settings.orders == config.OrdersSettings(port=2575, hosts=("127.0.0.1",))
    assert load(tmp_path, config.render(settings)) == settings
