import json
import re
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node import config
from node.config import REMOVED
from node.errors import ConfigError
from node.net import tls
from node.settings.destinations import DicomDestination, DicomwebDestination, Hl7Destination, TlsSettings
from tests.paths import REPOSITORY
from tests.support.service import run_command

GOOD = """
[storage]
directory = "spool"
[[listener.callers]]
ae_title = "PACS"
hosts = ["127.0.0.1"]
[[destinations]]
name = "pacs"
ae_title = "PACS"
host = "127.0.0.1"
port = 4242
"""


def load(tmp_path: Path, text: str) -> config.Settings:
    path = tmp_path / "node.toml"
    path.write_text(text, encoding="utf-8")
    return config.load(path)


def mistakes_in(tmp_path: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return caught.value.mistakes


HL7 = """
[[destinations]]
name = "ris"
type = "hl7"
host = "127.0.0.1"
port = 2575
receiving_application = "RIS"
[destinations.tls]
ca = "ca.pem"
certificate = "node.pem"
key = "node.key"
[orders]
hosts = ["127.0.0.1"]
"""


WEB = """
[[destinations]]
name = "web"
type = "dicomweb"
url = "https://pacs.example:8443/dicom-web"
token_file = "token"
[destinations.tls]
ca = "ca.pem"
"""
URL = "https://pacs.example:8443/dicom-web"
TLS = '[destinations.tls]\nca = "ca.pem"\n'
ORDERS_TLS = '[orders.tls]\ncertificate = "node.pem"\nkey = "node.key"\nca = "ca.pem"\n'
PROXY = 'trusted_proxy = ["10.0.0.2"]'


def of_archive(key: str) -> str:
    """GOOD with another key of its archive."""
    return GOOD.replace("port = 4242", f"port = 4242\n{key}")


def of_storage(key: str) -> str:
    return GOOD.replace('directory = "spool"', f'directory = "spool"\n{key}')


def of_system(before: str, after: str) -> str:
    return GOOD + HL7.replace(before, after)


def with_http(keys: str) -> str:
    return f"{GOOD}[http]\n{keys}\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            of_storage("min_free_mib = -1\nkepe_days = 3")
            + '[study]\nquiet_seconds = 10\nmax_seconds = "long"\n[site]\ntimezone = 7\n',
            ["storage.kepe_days", "storage.min_free_mib", "study.max_seconds", "site.timezone"],
        ),
        (
            of_storage("keep_days = 0").replace("port = 4242", "port = 70000")
            + '[study]\nmax_seconds = inf\n[site]\ntimezone = "Mars/Base"\n[model]\nengine = "magic"\n',
            ["storage.keep_days", "study.max_seconds", "site.timezone", "model.engine", "destinations[1].port"],
        ),
        (of_storage('database_url = "mysql://db/chex"'), ["storage.database_url"]),
        (of_archive("storage_commitment = 1"), ["destinations[1].storage_commitment"]),
        (of_archive('type = "pigeon"'), ["destinations[1].type"]),
        (of_archive('outputs = ["sr", "pdf"]'), ["destinations[1].outputs[2]"]),
        (GOOD.replace('"127.0.0.1"]', '"127.0.0.1:104"]'), ["listener.callers[1].hosts[1]"]),
        (GOOD.replace('"127.0.0.1"]', '"pacs.hospital"]'), ["listener.callers[1].hosts[1]"]),
        (of_system('type = "hl7"', 'type = "hl7"\nae_title = "RIS"'), ["destinations[2].ae_title"]),
        (of_system('type = "hl7"', 'type = "hl7"\noutputs = ["sr"]'), ["destinations[2].outputs[1]"]),
        (of_system('type = "hl7"\n', ""), ["destinations[2].ae_title", "destinations[2].receiving_application"]),
        (of_system('"RIS"', '"' + "R" * 21 + '"'), ["destinations[2].receiving_application"]),
        (of_system('type = "hl7"', 'type = "hl7"\nprocessing_id = "X"'), ["destinations[2].processing_id"]),
        (of_system('type = "hl7"', 'type = "hl7"\ncharacter_set = "BIG-5"'), ["destinations[2].character_set"]),
        (f'{GOOD}[site]\ncharacter_set = "latin"\n', ["site.character_set"]),
        (of_system('ca = "ca.pem"\n', ""), ["destinations[2].tls.ca"]),
        (of_system('key = "node.key"\n', ""), ["destinations[2].tls.key"]),
        (of_system("[orders]", "[orders]\nport = 8080"), ["orders.port"]),
        (GOOD + HL7 + ORDERS_TLS.replace('ca = "ca.pem"\n', ""), ["orders.tls.ca"]),
        (
            GOOD + '[[destinations]]\nname = "b"\nae_title = "B"\nhost = "b"\nport = 0\n[destinations.tls]\n',
            ["destinations[2].port", "destinations[2].tls.ca"],
        ),
        (GOOD + '[listener.tls]\nport = 8080\ncertificate = "c"\nkey = "k"\nca = "ca"\n', ["http.port"]),
        (GOOD.replace("[storage]", "[listener]\nport = 8080\n[storage]"), ["http.port"]),
        (GOOD + "[study]\nquiet_seconds = 10\nmax_seconds = 5\n", ["study.max_seconds"]),
        (f"{GOOD}[audit]\n", ["audit.file"]),
        (GOOD + '[log]\nformat = "xml"\nlevel = "loud"\n', ["log.format", "log.level"]),
        ('[storage]\ndirectory = "spool"\n', ["listener.callers"]),
        (with_http('host = "0.0.0.0"\npassword_file = "users"'), ["http.password_file"]),
        (with_http('user_header = "X-Remote-User"'), ["http.user_header"]),
        (with_http(PROXY), ["http.trusted_proxy"]),
        (with_http(f'{PROXY}\nuser_header = "Cookie"'), ["http.user_header"]),
        (with_http(f'{PROXY}\nuser_header = "X User"'), ["http.user_header"]),
        (with_http('trusted_proxy = ["proxy"]'), ["http.trusted_proxy[1]"]),
        (with_http('hosts = ["https://chex"]'), ["http.hosts[1]"]),
        (with_http('hosts = ["chex:8080"]'), ["http.hosts[1]"]),
        (with_http('[http.tls]\ncertificate = "node.pem"'), ["http.tls.key"]),
        (f'{GOOD}[model]\nengine = "onnx"\nprecision = "float16"\n', ["model.precision"]),
        (f'{GOOD}[model]\nengine = "torch"\nprecision = "float16"\n', ["model.precision"]),
        (f'{GOOD}[model]\nengine = "tensorrt"\nprecision = "int8"\n', ["model.precision"]),
        (f'{GOOD}[model]\nengine = "torch-cuda"\nprecision = "int8"\n', ["model.precision"]),
    ],
)
def test_every_mistake_is_named_by_its_key(tmp_path: Path, text: str, names: list[str]) -> None:
    assert sorted({line.split(":")[0] for line in mistakes_in(tmp_path, text)}) == sorted(names)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.partition("[[destinations]]")[0],
        of_archive('outputs = ["sr3d", "text", "gsps"]'),
        of_archive("storage_commitment = true") + TLS,
        GOOD + HL7,
        GOOD + HL7 + ORDERS_TLS,
        GOOD + WEB,
        GOOD + '[log]\nformat = "console"\nlevel = "warning"\n',
        GOOD + '[model]\nengine = "onnx"\nprecision = "int8"\n',
        GOOD + '[model]\nengine = "torch"\nprecision = "int8"\n',
        f"\ufeff{GOOD}",
    ],
)
def test_settings_are_rendered_as_they_were_read(tmp_path: Path, text: str) -> None:
    settings = load(tmp_path, text)

    assert load(tmp_path, config.render(settings)) == settings
    assert settings == load(tmp_path, text.removeprefix("\ufeff")), "with or without a byte order mark"


def test_a_destination_is_what_its_type_says(tmp_path: Path) -> None:
    settings = load(tmp_path, of_archive("storage_commitment = true") + TLS + HL7 + ORDERS_TLS + WEB)
    archive, system, web = settings.destinations

    assert isinstance(archive, DicomDestination)
    assert (archive.storage_commitment, archive.tls) == (True, TlsSettings(ca=Path("ca.pem")))
    assert isinstance(system, Hl7Destination)
    assert (system.outputs, system.sending_application, system.receiving_application) == (("oru",), "CHEX", "RIS")
    assert system.tls == TlsSettings(ca=Path("ca.pem"), certificate=Path("node.pem"), key=Path("node.key"))
    assert isinstance(web, DicomwebDestination)
    assert (web.host, web.port, web.outputs) == ("pacs.example", 8443, ("sr", "gsps"))
    assert settings.orders is not None
    assert (settings.orders.port, settings.orders.hosts) == (2575, ("127.0.0.1",))
    assert settings.orders.tls == config.OrdersTlsSettings(
        certificate=Path("node.pem"), key=Path("node.key"), ca=Path("ca.pem")
    )
    with pytest.raises(ConfigError) as missing:
        tls.check_files(settings)
    names = {mistake.split(":")[0] for mistake in missing.value.mistakes}
    assert {f"orders.tls.{key}" for key in ("certificate", "key", "ca")} <= names


SENT = "its content is sent over TLS only"


@pytest.mark.parametrize(
    ("before", "after", "complaints"),
    [
        (URL, "https:///dicom-web", ["url: must be https://HOST:PORT/PATH"]),
        (URL, "https://user:secret@pacs.example/", ["url: must be https://HOST:PORT/PATH"]),
        (URL, "https://pacs.example/?a=b", ["url: must be https://HOST:PORT/PATH"]),
        (URL, "http://pacs.example/", ["tls: the url begins", f"token_file: {SENT}"]),
        (URL, "http://127.0.0.1:8042/", ["tls: the url begins"]),
        ("[destinations.tls]", 'login_file = "login"\n[destinations.tls]',
         ["login_file: the service asks for a token or a login"]),
        (f'{URL}"\ntoken_file = "token"\n{TLS}', 'http://pacs.example/"\nlogin_file = "login"\n',
         [f"login_file: {SENT}"]),
    ],
)  # fmt: skip
def test_an_address_on_the_web_is_safe(tmp_path: Path, before: str, after: str, complaints: list[str]) -> None:
    found = [said.removeprefix("destinations[2].") for said in mistakes_in(tmp_path, GOOD + WEB.replace(before, after))]

    assert [said[: len(wanted)] for said, wanted in zip(found, complaints, strict=True)] == complaints
    assert "secret" not in str(found)


EVERY: dict[str, object] = {
    "storage": {"directory": "x"},
    "listener": {
        "callers": [{"ae_title": "A", "hosts": ["192.0.2.1"]}],
        "tls": {"certificate": "c", "key": "k", "ca": "a"},
    },
    "http": {"oidc": {"issuer": "https://a", "client_id": "c", "client_secret_file": "s", "reader_groups": ["g"]}},
    "orders": {"hosts": ["192.0.2.1"]},
    "alerts": {"webhook": {"url": "https://a"}},
    "destinations": [
        {"name": "1", "ae_title": "A", "host": "a", "port": 104, "tls": {"ca": "a"}},
        {"name": "2", "type": "hl7", "host": "a", "port": 2575},
        {"name": "3", "type": "dicomweb", "url": "https://a"},
        {"name": "4", "type": "fhir", "url": "https://a"},
    ],
}
"""Every table that has a default, with no more than it must have."""


def in_force(settings: config.Settings, key: str) -> str:
    """The value of a setting as the document writes it; of a list of tables, that of the first that has the key."""
    value: object = settings
    for name in key.split("."):
        tables = value if isinstance(value, tuple) else (value,)
        value = next(getattr(table, name) for table in tables if hasattr(table, name))
    match value:
        case None | "" | ():
            return ""
        case tuple():
            return json.dumps(value)
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:g}"
    return str(value)


def test_every_default_is_the_one_of_the_document() -> None:
    document = (REPOSITORY / "docs" / "operate" / "settings.md").read_text(encoding="utf-8")
    stated: dict[str, str] = {}
    for names, default in re.findall(r"^\| (`[a-z_.`, ]+`) \| ((?:`|none|empty)[^|]*) \|", document, re.MULTILINE):
        if "required" in default:
            continue
        keys, values = re.findall("[a-z_.]+", names), re.findall("`([^`]*)`", default.replace("empty", "``"))
        stated |= zip(keys, values if default.startswith("`") else [""] * len(keys), strict=False)

    settings = config.parse(EVERY)

    found = {key: in_force(settings, key) for key in stated if key != "http.oidc"}
    assert len(found) > 60
    assert found == {key: re.sub(r"^(\d+)\.0$", r"\1", stated[key]) for key in found}


def test_missing_tls_files_are_named_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    settings = tmp_path / "node.toml"
    text = (GOOD + HL7).replace('"ca.pem"', f'"{tmp_path / "ca.pem"}"').replace('"spool"', f'"{tmp_path / "spool"}"')
    settings.write_text(text, encoding="utf-8")

    for verb in ("check", "serve"):
        said = run_command(verb, settings)

        assert said.returncode == 2
        names = [line.removeprefix("error: ").split(":")[0] for line in said.stderr.splitlines()]
        assert names == ["destinations[2].tls.certificate", "destinations[2].tls.key"]


def test_a_missing_file_broken_toml_a_misspelt_key_and_a_table_of_the_wrong_kind_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name an existing settings file"):
        config.load(tmp_path / "nothing.toml")
    assert "is not valid TOML" in mistakes_in(tmp_path, "[storage")[0]
    for text, name in (
        ("storage = 1", "storage"),
        ('[[listener.callers]]\nae_title = "A"\nhosts = []', "listener.callers[1].hosts"),
        ("destinations = [3]", "destinations[1]"),
    ):
        assert name in {line.split(":")[0] for line in mistakes_in(tmp_path, text)}
    misspelt = mistakes_in(tmp_path, of_storage("kepe_days = 3") + "[lisener]\n[zebra]\n")
    assert [line for line in misspelt if "unknown key" in line] == [
        "storage.kepe_days: unknown key; did you mean keep_days?",
        "lisener: unknown key; did you mean listener?",
        "zebra: unknown key; remove it, correct its spelling, or use a newer program",
    ]


def test_a_removed_key_is_answered_with_what_serves_instead() -> None:
    for key, instead in REMOVED.items():
        table: object = 1
        for name in reversed(key.split(".")):
            table = {name: [table] if name in ("callers", "destinations") else table}

        with pytest.raises(ConfigError) as caught:
            config.parse(cast(dict[str, object], table))

        assert f"{key}: removed; use {instead}" in caught.value.mistakes


@given(st.text(max_size=20))
def test_an_ae_title_is_at_most_sixteen_printable_ascii_letters(title: str) -> None:
    callers = [{"ae_title": "PACS", "hosts": ["127.0.0.1"]}]
    table = {"storage": {"directory": "spool"}, "listener": {"ae_title": title, "callers": callers}}
    legal = 1 <= len(title.strip()) <= 16 and all(" " <= letter <= "~" and letter != "\\" for letter in title)

    if legal:
        assert config.parse(table).listener.ae_title == title
    else:
        with pytest.raises(ConfigError, match=r"listener\.ae_title"):
            config.parse(table)


@pytest.mark.parametrize(
    ("keys", "is_served"),
    [
        ("", True),
        ('host = "::1"', True),
        ('host = "localhost"', True),
        ('host = "0.0.0.0"', False),
        ('host = "node.hospital"', False),
        (f'host = "0.0.0.0"\n{PROXY}\nuser_header = "X-Remote-User"', True),
        ('host = "0.0.0.0"\npassword_file = "users"\n[http.tls]\ncertificate = "node.pem"\nkey = "node.key"', True),
        (f'host = "0.0.0.0"\npassword_file = "users"\n{PROXY}', True),
        ('password_file = "users"\nhosts = ["chex.hospital", "10.0.0.1", "::2"]', True),
    ],
)
def test_pages_need_users_unless_only_this_machine_asks(tmp_path: Path, keys: str, is_served: bool) -> None:
    settings = load(tmp_path, with_http(keys))

    assert settings.http.serves_pages == is_served
    assert load(tmp_path, config.render(settings)) == settings
