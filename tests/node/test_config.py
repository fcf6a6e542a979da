from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node import config
from node.config import REMOVED
from node.errors import ConfigError
from node.net import tls
from node.settings.destinations import DicomDestination, TlsSettings
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


def test_the_smallest_file_takes_every_default(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD)

    assert settings.listener.ae_title == "CHEX"
    assert settings.study.quiet_seconds == 5.0
    assert settings.destinations[0].outputs == ("sr", "gsps")


def test_a_node_needs_no_destination(tmp_path: Path) -> None:
    alone = GOOD.partition("[[destinations]]")[0]

    assert load(tmp_path, alone).destinations == ()


def test_rendered_settings_load_as_the_same_settings(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD)

    assert load(tmp_path, config.render(settings)) == settings


def test_every_mistake_is_listed_at_once(tmp_path: Path) -> None:
    found = mistakes_in(
        tmp_path,
        GOOD.replace('directory = "spool"', 'directory = "spool"\nmin_free_mib = -1\nkepe_days = 3')
        + '[study]\nquiet_seconds = 10\nmax_seconds = "long"\n[site]\ntimezone = 7\n',
    )

    assert {line.split(":")[0] for line in found} == {
        "storage.kepe_days",
        "storage.min_free_mib",
        "study.max_seconds",
        "site.timezone",
    }


def test_values_of_the_right_type_are_checked_together(tmp_path: Path) -> None:
    found = mistakes_in(
        tmp_path,
        GOOD.replace("port = 4242", "port = 70000").replace('directory = "spool"', 'directory = "s"\nkeep_days = 0')
        + '[study]\nmax_seconds = inf\n[site]\ntimezone = "Mars/Base"\n[model]\nengine = "magic"\n',
    )

    assert {line.split(":")[0] for line in found} == {
        "storage.keep_days",
        "study.max_seconds",
        "site.timezone",
        "model.engine",
        "destinations[1].port",
    }


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ('directory = "spool"', 'directory = "spool"\ndatabase_url = "mysql://db/chex"', "storage.database_url"),
        ("port = 4242", "port = 4242\nstorage_commitment = 1", "destinations[1].storage_commitment"),
        ("port = 4242", 'port = 4242\ntype = "pigeon"', "destinations[1].type"),
        ("port = 4242", 'port = 4242\noutputs = ["sr", "pdf"]', "destinations[1].outputs[2]"),
        ('hosts = ["127.0.0.1"]', 'hosts = ["127.0.0.1:104"]', "listener.callers[1].hosts[1]"),
        ('hosts = ["127.0.0.1"]', 'hosts = ["pacs.hospital"]', "listener.callers[1].hosts[1]"),
    ],
)
def test_what_this_version_does_not_have_is_refused(tmp_path: Path, before: str, after: str, key: str) -> None:
    found = mistakes_in(tmp_path, GOOD.replace(before, after))

    assert len(found) == 1
    assert found[0].startswith(f"{key}:")


def test_reports_may_be_asked_for_in_several_forms(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD.replace("port = 4242", 'port = 4242\noutputs = ["sr3d", "text", "gsps"]'))

    assert settings.destinations[0].outputs == ("sr3d", "text", "gsps")
    assert load(tmp_path, config.render(settings)) == settings


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


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ('type = "hl7"', 'type = "hl7"\nae_title = "RIS"', {"destinations[2].ae_title"}),
        ('type = "hl7"', 'type = "hl7"\noutputs = ["sr"]', {"destinations[2].outputs[1]"}),
        ('type = "hl7"\n', "", {"destinations[2].ae_title", "destinations[2].receiving_application"}),
        ('"RIS"', '"' + "R" * 21 + '"', {"destinations[2].receiving_application"}),
        ('type = "hl7"', 'type = "hl7"\nprocessing_id = "X"', {"destinations[2].processing_id"}),
        ('ca = "ca.pem"\n', "", {"destinations[2].tls.ca"}),
        ('key = "node.key"\n', "", {"destinations[2].tls.key"}),
        ("[orders]", "[orders]\nport = 8080", {"orders.port"}),
    ],
)
def test_mistakes_of_an_information_system_are_named(tmp_path: Path, before: str, after: str, names: set[str]) -> None:
    found = mistakes_in(tmp_path, GOOD + HL7.replace(before, after))

    assert {line.split(":")[0] for line in found} == names


def test_tls_for_orders_needs_three_files_and_each_is_looked_for(tmp_path: Path) -> None:
    table = '[orders.tls]\ncertificate = "node.pem"\nkey = "node.key"\nca = "ca.pem"\n'
    settings = load(tmp_path, GOOD + HL7 + table)

    assert settings.orders is not None
    assert settings.orders.tls == config.OrdersTlsSettings(
        certificate=Path("node.pem"), key=Path("node.key"), ca=Path("ca.pem")
    )
    assert load(tmp_path, config.render(settings)) == settings
    with pytest.raises(ConfigError) as missing:
        tls.check_files(settings)
    names = {mistake.split(":")[0] for mistake in missing.value.mistakes}
    assert {f"orders.tls.{key}" for key in ("certificate", "key", "ca")} <= names
    assert {
        mistake.split(":")[0] for mistake in mistakes_in(tmp_path, GOOD + HL7 + table.replace('ca = "ca.pem"\n', ""))
    } == {"orders.tls.ca"}


@pytest.mark.parametrize("verb", ["check", "serve"])
def test_missing_tls_files_are_named_before_anything_starts(tmp_path: Path, verb: str) -> None:
    (tmp_path / "ca.pem").touch()
    settings = tmp_path / "node.toml"
    text = (GOOD + HL7).replace('"ca.pem"', f'"{tmp_path / "ca.pem"}"').replace('"spool"', f'"{tmp_path / "spool"}"')
    settings.write_text(text, encoding="utf-8")

    said = run_command(verb, settings)

    assert said.returncode == 2
    names = [line.removeprefix("error: ").split(":")[0] for line in said.stderr.splitlines()]
    assert names == ["destinations[2].tls.certificate", "destinations[2].tls.key"]


def test_a_mistake_in_one_of_several_tables_tells_which(tmp_path: Path) -> None:
    second = '[[destinations]]\nname = "b"\nae_title = "B"\nhost = "127.0.0.1"\nport = 0\n[destinations.tls]\n'

    found = mistakes_in(tmp_path, GOOD + second)

    assert {line.split(":")[0] for line in found} == {"destinations[2].port", "destinations[2].tls.ca"}


def test_an_archive_may_be_asked_to_commit_and_spoken_to_by_tls(tmp_path: Path) -> None:
    tls = '[destinations.tls]\nca = "ca.pem"\n'
    settings = load(tmp_path, GOOD.replace("port = 4242", "port = 4242\nstorage_commitment = true") + tls)

    (archive,) = settings.destinations
    assert isinstance(archive, DicomDestination)
    assert archive.storage_commitment
    assert archive.tls == TlsSettings(ca=Path("ca.pem"))
    assert load(tmp_path, config.render(settings)) == settings


def test_no_two_ports_are_the_same(tmp_path: Path) -> None:
    tls = '[listener.tls]\nport = 8080\ncertificate = "c"\nkey = "k"\nca = "ca"\n'

    (mistake,) = mistakes_in(tmp_path, GOOD + tls)

    assert mistake.startswith("http.port: must not be listener.tls.port as well")


def test_values_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    study = mistakes_in(tmp_path, GOOD + "[study]\nquiet_seconds = 10\nmax_seconds = 5\n")
    port = mistakes_in(tmp_path, GOOD.replace("[storage]", "[listener]\nport = 8080\n[storage]"))

    assert [line.split(":")[0] for line in (*study, *port)] == ["study.max_seconds", "http.port"]


def test_an_audit_trail_needs_a_file(tmp_path: Path) -> None:
    (found,) = mistakes_in(tmp_path, f"{GOOD}[audit]\n")

    assert found == "audit.file: is missing; add it"


@pytest.mark.parametrize(
    "text", ["storage = 1", '[[listener.callers]]\nae_title = "A"\nhosts = []', "destinations = [3]"]
)
def test_a_table_of_the_wrong_kind_is_named(tmp_path: Path, text: str) -> None:
    assert mistakes_in(tmp_path, text)


@pytest.mark.parametrize(
    ("engine", "precision", "device"),
    [
        ("onnx", "float16", "GPU"),
        ("torch", "float16", "GPU"),
        ("tensorrt", "int8", "CPU"),
        ("torch-cuda", "int8", "CPU"),
    ],
)
def test_a_precision_is_refused_on_the_wrong_device(tmp_path: Path, engine: str, precision: str, device: str) -> None:
    (mistake,) = mistakes_in(tmp_path, GOOD + f'[model]\nengine = "{engine}"\nprecision = "{precision}"\n')

    assert mistake.startswith(f"model.precision: {precision} is for a {device}; set model.engine to ")


@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_sentences_may_be_of_eight_bits_on_a_cpu(tmp_path: Path, engine: str) -> None:
    settings = load(tmp_path, GOOD + f'[model]\nengine = "{engine}"\nprecision = "int8"\n')

    assert settings.model.precision == "int8"


def test_a_node_that_lets_nobody_in_is_refused(tmp_path: Path) -> None:
    found = mistakes_in(tmp_path, '[storage]\ndirectory = "spool"\n')

    assert {line.split(":")[0] for line in found} == {"listener.callers"}


def test_a_missing_file_and_broken_toml_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name an existing settings file"):
        config.load(tmp_path / "nothing.toml")
    assert "is not valid TOML" in mistakes_in(tmp_path, "[storage")[0]


def test_a_misspelt_key_is_answered_with_the_right_one(tmp_path: Path) -> None:
    found = mistakes_in(tmp_path, GOOD.replace("[storage]", "[storage]\nkepe_days = 3") + "[lisener]\n[zebra]\n")

    assert [line for line in found if "unknown key" in line] == [
        "storage.kepe_days: unknown key; did you mean keep_days?",
        "lisener: unknown key; did you mean listener?",
        "zebra: unknown key; remove it, correct its spelling, or use a newer program",
    ]


@pytest.mark.parametrize(("key", "instead"), REMOVED.items())
def test_a_removed_key_is_answered_with_what_serves_instead(key: str, instead: str) -> None:
    table: object = 1
    for name in reversed(key.split(".")):
        table = {name: [table] if name in ("callers", "destinations") else table}

    with pytest.raises(ConfigError) as caught:
        config.parse(cast(dict[str, object], table))

    assert f"{key}: removed; use {instead}" in caught.value.mistakes


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    assert load(tmp_path, f"\ufeff{GOOD}") == load(tmp_path, GOOD)


def test_form_and_level_of_the_log_are_settings(tmp_path: Path) -> None:
    settings = load(tmp_path, GOOD + '[log]\nformat = "console"\nlevel = "warning"\n')

    assert settings.log == config.LogSettings(format="console", level="warning")
    assert {line.split(":")[0] for line in mistakes_in(tmp_path, GOOD + '[log]\nformat = "xml"\nlevel = "loud"\n')} == {
        "log.format",
        "log.level",
    }


@given(st.text(max_size=20))
def test_an_ae_title_is_at_most_sixteen_printable_ascii_letters(title: str) -> None:
    table = {
        "storage": {"directory": "spool"},
        "listener": {"ae_title": title, "callers": [{"ae_title": "PACS", "hosts": ["127.0.0.1"]}]},
        "destinations": [{"name": "pacs", "ae_title": "PACS", "host": "127.0.0.1", "port": 4242}],
    }
    legal = 1 <= len(title.strip()) <= 16 and all(" " <= letter <= "~" and letter != "\\" for letter in title)

    if legal:
        assert config.parse(table).listener.ae_title == title
    else:
        with pytest.raises(ConfigError, match=r"listener\.ae_title"):
            config.parse(table)


def with_http(keys: str) -> str:
    return f"{GOOD}[http]\n{keys}\n"


PROXY = 'trusted_proxy = ["10.0.0.2"]'
HTTP_TLS = '[http.tls]\ncertificate = "node.pem"\nkey = "node.key"'


@pytest.mark.parametrize(
    ("keys", "is_served"),
    [
        ("", True),
        ('host = "::1"', True),
        ('host = "localhost"', True),
        ('host = "0.0.0.0"', False),
        ('host = "node.hospital"', False),
        (f'host = "0.0.0.0"\n{PROXY}\nuser_header = "X-Remote-User"', True),
        (f'host = "0.0.0.0"\npassword_file = "users"\n{HTTP_TLS}', True),
        (f'host = "0.0.0.0"\npassword_file = "users"\n{PROXY}', True),
        ('password_file = "users"\nhosts = ["chex.hospital", "10.0.0.1", "::2"]', True),
    ],
)
def test_pages_need_users_unless_only_this_machine_asks(tmp_path: Path, keys: str, is_served: bool) -> None:
    settings = load(tmp_path, with_http(keys))

    assert settings.http.serves_pages == is_served
    assert load(tmp_path, config.render(settings)) == settings


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ('host = "0.0.0.0"\npassword_file = "users"', {"http.password_file"}),
        ('user_header = "X-Remote-User"', {"http.user_header"}),
        (PROXY, {"http.trusted_proxy"}),
        (f'{PROXY}\nuser_header = "Cookie"', {"http.user_header"}),
        (f'{PROXY}\nuser_header = "X User"', {"http.user_header"}),
        ('trusted_proxy = ["proxy"]', {"http.trusted_proxy[1]"}),
        ('hosts = ["https://chex"]', {"http.hosts[1]"}),
        ('hosts = ["chex:8080"]', {"http.hosts[1]"}),
        ('[http.tls]\ncertificate = "node.pem"', {"http.tls.key"}),
    ],
)
def test_unsafe_access_to_the_pages_is_refused(tmp_path: Path, keys: str, names: set[str]) -> None:
    assert {line.split(":")[0] for line in mistakes_in(tmp_path, with_http(keys))} == names
