"""What `examples/` adds to a node: a kind of output and a type of destination, installed as a stranger would."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pydicom import dcmread

from node import config, plugs
from node.check_result import CheckState
from node.config import Settings
from node.errors import ConfigError
from node.health.checks import check_destinations
from node.output_kinds import OUTPUTS
from node.outputs.writers import write_objects
from node.settings.destinations import TYPES
from node.web import words
from tests.node.commands.test_local import read
from tests.paths import REPOSITORY
from tests.support import films, peers, samples, validators
from tests.support.service import Service, settings_for

KEY_FILMS, FOLDER = "example-key-films", "example-folder"
MODULES = ("key_films", "watched_folder")


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which both examples were installed."""
    folder = tmp_path_factory.mktemp("packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target", str(folder)]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    examples = [str(REPOSITORY / "examples" / name) for name in ("output_kind", "destination")]
    subprocess.run([*pip, *offline, *examples], check=True)
    return folder


@pytest.fixture
def installed(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(packages))
        plugs.installed.cache_clear()
        yield
    for module in MODULES:
        sys.modules.pop(module, None)
    plugs.installed.cache_clear()
    importlib.invalidate_caches()


def with_examples(directory: Path, *, archive_port: int = 104) -> Settings:
    """Settings of a node that sends the kind to an archive, and what it has itself to a folder."""
    table = tomllib.loads(config.render(settings_for(directory / "node", archive_port=archive_port)))
    table["destinations"][0]["outputs"] = ["sr", KEY_FILMS]
    inbox = directory / "inbox"
    inbox.mkdir(exist_ok=True)
    table["destinations"].append({"name": "router", "type": FOLDER, "directory": str(inbox)})
    return config.parse(table)


@pytest.mark.drill(part="packaging")
@pytest.mark.usefixtures("installed")
def test_a_node_writes_and_sends_what_packages_add(tmp_path: Path) -> None:
    film = films.thumbnail()
    with peers.ReceivingArchive() as archive, Service(with_examples(tmp_path, archive_port=archive.port)) as node:
        assert peers.send(film, port=node.dicom_port) == 0
        archive.wait_for_kept(2, limit_seconds=60.0)
        node.wait_for("delivery.sent", count=4)
        assert node.stop() == 0

    [selection] = (found.dataset for found in archive.kept if found.dataset.Modality == "KO")
    [evidence] = selection.CurrentRequestedProcedureEvidenceSequence[0].ReferencedSeriesSequence
    assert evidence.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == film.SOPInstanceUID
    dropped = [dcmread(path) for path in (tmp_path / "inbox").iterdir()]
    assert sorted(dataset.Modality for dataset in dropped) == ["PR", "SR"]
    assert sorted(path.suffixes[-2] for path in tmp_path.rglob("outputs/*")) == [f".{KEY_FILMS}", ".gsps", ".sr"]


@pytest.mark.usefixtures("installed")
def test_key_films_are_an_object_that_validators_accept() -> None:
    report = samples.report(samples.several(), samples.unread(2), samples.film(3))
    received = samples.received(*(samples.cr(number) for number in (1, 2, 3)))

    [first], [again] = (
        list(write_objects(report, received, zone=samples.BERLIN, kinds=(KEY_FILMS,))) for _ in range(2)
    )

    assert first.dataset.SOPInstanceUID == again.dataset.SOPInstanceUID
    assert validators.dciodvfy(first.dataset) == []
    assert list(write_objects(samples.report(samples.film(3)), received, zone=samples.BERLIN, kinds=(KEY_FILMS,))) == []


@pytest.mark.usefixtures("installed")
def test_an_added_kind_has_its_place_in_folder_and_pages(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    path.write_bytes(films.file_bytes(films.thumbnail()))

    (report,) = read(tmp_path / "out", path, kinds=(KEY_FILMS,))
    assert f"study.{KEY_FILMS}.dcm" in str(report["outputs"])
    (without,) = read(tmp_path / "out", path, kinds=("gsps",))

    assert KEY_FILMS not in str(without["outputs"])
    assert not list(tmp_path.rglob(f"*.{KEY_FILMS}.dcm"))  # what an earlier run left is removed
    assert words.output_kind(KEY_FILMS) == "films with a finding"


@pytest.mark.usefixtures("installed")
def test_doctor_examines_an_added_destination(tmp_path: Path) -> None:
    settings = with_examples(tmp_path)

    *_, found = check_destinations(settings)
    (tmp_path / "inbox").rmdir()
    *_, gone = check_destinations(settings)

    assert (found.name, found.state) == ("destination router", CheckState.OK)
    assert gone.state is CheckState.FAULT
    assert f"mount or make {tmp_path / 'inbox'}" in gone.message


@pytest.mark.usefixtures("installed")
def test_the_settings_of_an_added_destination_have_rules(tmp_path: Path) -> None:
    settings = with_examples(tmp_path)
    table = tomllib.loads(config.render(settings))
    assert config.parse(table) == settings
    table["destinations"][1] |= {"give_up_hours": 0, "port": 104}

    with pytest.raises(ConfigError) as refused:
        config.parse(table)

    assert [mistake.split(":")[0] for mistake in refused.value.mistakes] == [
        "destinations[2].give_up_hours", "destinations[2].port",
    ]  # fmt: skip


def test_what_no_package_adds_is_refused(tmp_path: Path) -> None:
    plugs.installed.cache_clear()
    table = tomllib.loads(config.render(settings_for(tmp_path / "node", archive_port=104)))
    table["destinations"][0] |= {"outputs": [KEY_FILMS], "type": FOLDER}

    with pytest.raises(ConfigError) as refused:
        config.parse(table)

    assert refused.value.mistakes == (
        f"destinations[1].type: '{FOLDER}' is unknown; use dicom or hl7 or dicomweb or fhir, or install the "
        "package that adds it",
        f"destinations[1].outputs[1]: '{KEY_FILMS}' is unknown; use sr or sr3d or text or gsps or sc, or install the "
        "package that adds it",
    )


@pytest.mark.usefixtures("installed")
def test_a_package_that_no_setting_names_is_not_imported(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=104)

    config.parse(tomllib.loads(config.render(settings)))
    OUTPUTS.entry("gsps")

    assert not sys.modules.keys() & set(MODULES)


BAD = {
    "cannot be imported: ModuleNotFoundError": {"bad-kind": "no_such_module:KIND"},
    "there is no OutputKind under pathlib:Path": {"bad-kind": "pathlib:Path"},
    "is unknown; use sr": {"kind": "key_films:KIND"},
}


@pytest.mark.parametrize(("complaint", "points"), BAD.items(), ids=BAD)
def test_a_package_that_is_no_good_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaint: str, points: Mapping[str, str]
) -> None:
    folder = tmp_path / "bad-1.0.dist-info"
    folder.mkdir()
    lines = [f"{name} = {place}" for name, place in points.items()]
    (folder / "entry_points.txt").write_text("\n".join((f"[{OUTPUTS.group}]", *lines)), encoding="utf-8")
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugs.installed.cache_clear()
    table = tomllib.loads(config.render(settings_for(tmp_path / "node", archive_port=104)))
    table["destinations"][0]["outputs"] = list(points)

    with pytest.raises(ConfigError) as refused:
        config.parse(table)

    plugs.installed.cache_clear()
    assert complaint in str(refused.value)


def test_no_kind_or_type_of_the_nodes_own_has_a_hyphen() -> None:
    assert not [name for name in (*OUTPUTS.own, *TYPES.own) if plugs.is_added(name)]
