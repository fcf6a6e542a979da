"""What `examples/` has: packages that add to a node, programs and a notebook, installed and run as a stranger does."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from node import config, plugins
from node.check_result import CheckState
from node.config import Settings
from node.errors import ConfigError
from node.health.checks import check_destinations
from node.output_kinds import OUTPUTS
from node.outputs.writers import write_objects
from node.settings.destinations import TYPES, DicomDestination
from node.web import words
from tests.node.commands.test_local import read
from tests.paths import REPOSITORY
from tests.support import films, peers, samples, validators
from tests.support.service import Service, settings_for

PACKAGING = pytest.mark.drill(part="packaging")

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
        plugins.installed.cache_clear()
        yield
    for module in MODULES:
        sys.modules.pop(module, None)
    plugins.installed.cache_clear()
    importlib.invalidate_caches()


def with_examples(directory: Path, *, archive_port: int = 104) -> Settings:
    """Settings of a node that sends the kind to an archive, and what it has itself to a folder."""
    table = tomllib.loads(config.render(settings_for(directory / "node", archive_port=archive_port)))
    table["destinations"][0]["outputs"] = ["sr", KEY_FILMS]
    inbox = directory / "inbox"
    inbox.mkdir(exist_ok=True)
    table["destinations"].append({"name": "router", "type": FOLDER, "directory": str(inbox)})
    return config.parse(table)


@PACKAGING
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
    path = file_of(tmp_path, films.thumbnail())

    (report,) = read(tmp_path / "out", path, kinds=(KEY_FILMS,))
    assert f"study.{KEY_FILMS}.dcm" in str(report["outputs"])
    (without,) = read(tmp_path / "out", path, kinds=("gsps",))

    assert KEY_FILMS not in str(without["outputs"])
    assert not list(tmp_path.rglob(f"*.{KEY_FILMS}.dcm"))  # what an earlier run left is removed
    assert words.output_kind(KEY_FILMS) == "films with a finding"


@pytest.mark.usefixtures("installed")
def test_an_added_destination_has_rules_and_is_examined(tmp_path: Path) -> None:
    settings = with_examples(tmp_path)
    table = tomllib.loads(config.render(settings))
    assert config.parse(table) == settings

    *_, found = check_destinations(settings)
    (tmp_path / "inbox").rmdir()
    *_, gone = check_destinations(settings)
    table["destinations"][1] |= {"give_up_hours": 0, "port": 104}
    mistakes = mistakes_of(table)

    assert (found.name, found.state, gone.state) == ("destination router", CheckState.OK, CheckState.FAULT)
    assert f"mount or make {tmp_path / 'inbox'}" in gone.message
    assert [mistake.split(":")[0] for mistake in mistakes] == ["destinations[2].give_up_hours", "destinations[2].port"]


def test_what_no_package_adds_is_refused(tmp_path: Path) -> None:
    plugins.installed.cache_clear()
    table = tomllib.loads(config.render(settings_for(tmp_path / "node", archive_port=104)))
    table["destinations"][0] |= {"outputs": [KEY_FILMS], "type": FOLDER}

    assert mistakes_of(table) == (
        f"destinations[1].type: '{FOLDER}' is unknown; use dicom or hl7 or dicomweb or fhir, or install the "
        "package that adds it",
        f"destinations[1].outputs[1]: '{KEY_FILMS}' is unknown; use sr or sr3d or text or gsps or sc, or install the "
        "package that adds it",
    )


def mistakes_of(table: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        config.parse(table)
    return tuple(refused.value.mistakes)


@pytest.mark.usefixtures("installed")
def test_a_package_that_no_setting_names_is_not_imported(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=104)

    config.parse(tomllib.loads(config.render(settings)))
    OUTPUTS.entry("gsps")

    assert not sys.modules.keys() & set(MODULES)
    assert not [name for name in (*OUTPUTS.own, *TYPES.own) if plugins.is_added(name)], "none has a hyphen"


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
    plugins.installed.cache_clear()
    table = tomllib.loads(config.render(settings_for(tmp_path / "node", archive_port=104)))
    table["destinations"][0]["outputs"] = list(points)

    mistakes = mistakes_of(table)

    plugins.installed.cache_clear()
    assert complaint in str(mistakes)


EXAMPLES = REPOSITORY / "examples"
SEND = EXAMPLES / "send_and_read_back"
HTTP = EXAMPLES / "http_client" / "http_client.py"
NOTEBOOK = EXAMPLES / "notebook" / "boxes.ipynb"

DRAWN = """
import json
drawn = [
    {
        "picture": axes.images[0].get_array().tolist(),
        "extent": axes.images[0].get_extent(),
        "boxes": [[*patch.get_xy(), patch.get_width(), patch.get_height()] for patch in axes.patches],
        "texts": [text.get_text() for text in axes.texts],
        "label": axes.get_xlabel(),
    }
    for axes in (plt.figure(number).axes[0] for number in plt.get_fignums())
]
print(json.dumps(drawn))
"""
"""What a test adds to the notebook: it prints what was drawn."""


def run(*words: object, folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def file_of(folder: Path, film: Dataset) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{film.SOPInstanceUID}.dcm"
    path.write_bytes(films.file_bytes(film))
    return path


def shipped(folder: Path, *, port: int) -> Settings:
    """The settings beside the program, with free ports, a folder of their own and little patience."""
    settings = config.load(SEND / "node.toml")
    [destination] = settings.destinations
    assert isinstance(destination, DicomDestination)
    return dataclasses.replace(
        settings,
        listener=dataclasses.replace(settings.listener, port=0),
        storage=dataclasses.replace(settings.storage, directory=folder, min_free_mib=1),
        study=dataclasses.replace(settings.study, quiet_seconds=0.3),
        http=dataclasses.replace(settings.http, port=0),
        destinations=(dataclasses.replace(destination, port=port),),
    )


class Sending(NamedTuple):
    """A node with a scripted reader, and the port to which it sends its reports."""

    node: Service
    listen: int

    def run(self, film: Path, *words: object) -> subprocess.CompletedProcess[str]:
        ports = ("--port", self.node.dicom_port, "--listen", self.listen)
        return run(SEND / "send_and_read_back.py", film, *ports, *words)


@pytest.fixture(scope="module")
def sending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sending]:
    listen = peers.free_port()
    with Service(shipped(tmp_path_factory.mktemp("sending") / "node", port=listen)) as node:
        yield Sending(node, listen)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return file_of(tmp_path_factory.mktemp("film"), films.thumbnail())


@PACKAGING
def test_a_film_is_sent_and_its_report_read_back(sending: Sending, film: Path) -> None:
    sent = sending.run(film)
    again, copied = (sending.run(film, *words) for words in (("--wait", 1), ("--copy",)))

    assert (sent.returncode, sent.stderr) == (0, "")
    title, head, *lines = sent.stdout.splitlines()
    assert title.startswith("AI findings S1 - RESEARCH, NOT FOR DIAGNOSIS")
    assert head.split() == ["finding", "state", "probability", "side", "box:", "left,", "top,", "right,", "bottom"]
    rows = [tuple(re.split(" {2,}", line.strip())) for line in lines]
    assert ("Pleural effusion", "Present", "83 %", "Right", "46, 116, 92, 139") in rows
    assert ("Lung lesion", "Indeterminate", "46 %", "Left", "139, 97, 185, 120") in rows
    assert ("Fracture of bone", "Not reported, may have been missed", "-", "-", "-") in rows
    assert any("Not looked for: all else" in line for line in lines)
    assert (again.returncode, again.stdout) == (1, "")
    assert "a node answers a film once, --copy asks anew" in again.stderr
    assert (copied.returncode, copied.stdout) == (0, sent.stdout)


@PACKAGING
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ae-title", "STRANGER"), "refuses STRANGER; add it to [[listener.callers]]"),
        (("--listen", "its own"), "cannot be listened on"),
    ],
)
def test_what_hinders_is_named(sending: Sending, film: Path, words: tuple[str, object], said: str) -> None:
    option, value = words

    done = sending.run(film, option, sending.node.dicom_port if value == "its own" else value)

    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


@PACKAGING
@pytest.mark.usefixtures("phantom_model")
def test_a_model_is_asked_by_a_prompt_by_a_box_and_by_both() -> None:
    done = run("-m", "examples.ask_a_model.ask_a_model")

    assert (done.returncode, done.stderr) == (0, "")
    by_prompt, by_box, by_both = done.stdout.split("\n\n")[1:4]
    assert by_prompt.startswith("lung opacity: present, AI probability")
    assert by_box.startswith("the box 120, 270, 240, 400: ")
    assert by_both.startswith("lung opacity in the box 120, 270, 240, 400: ")
    assert "at 120, 270, 240, 400" in by_both
    assert "not for diagnosis" in done.stdout


@PACKAGING
def test_a_film_goes_over_http_and_its_answer_is_corrected(sending: Sending, tmp_path: Path) -> None:
    film = file_of(tmp_path, films.as_another(films.thumbnail(), "http"))
    url = ("--url", f"http://127.0.0.1:{sending.node.http_port}")

    done, refused = (run(HTTP, film, *url, "--reject", name) for name in ("pleural_effusion", "nothing_known"))

    assert (done.returncode, done.stderr) == (0, "")
    rows = [re.split(" {2,}", line.strip()) for line in done.stdout.splitlines() if "pleural_effusion" in line]
    assert rows == [
        ["pleural_effusion", "present", "83%", "-", "46, 116, 92, 139"],
        ["pleural_effusion", "not reported", "83%", "rejected", "-"],
    ]
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "/corrections: 409, " in refused.stderr


def code_cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@PACKAGING
def test_the_notebook_stores_no_outputs_and_draws_the_boxes_of_each_report(tmp_path: Path, opacity_film: Path) -> None:
    (folder := tmp_path / "examples" / "notebook").mkdir(parents=True)
    inverted = file_of(tmp_path / "node" / "commands" / "films", films.thumbnail())
    plain = Path(shutil.copy(opacity_film, inverted.parent))
    reports = read(tmp_path / "demo-out", inverted, plain)
    cells = code_cells()
    assert [(cell["execution_count"], cell["outputs"]) for cell in cells] == [(None, [])] * 3
    code = "\n".join("".join(cell["source"]) for cell in cells)

    done = run("-W", "ignore:FigureCanvasAgg", "-c", code + DRAWN, folder=folder)

    assert (done.returncode, done.stderr) == (0, "")
    first, drawn = done.stdout.splitlines()
    assert first.startswith("2 reports in ../../demo-out, on 2 films that were read; 2 of them are in")
    expected = sorted((json.loads(json.dumps(report))["films"][0] for report in reports), key=lambda film: film["rows"])
    found = sorted(json.loads(drawn), key=lambda axes: axes["extent"][2])
    for film, axes, path in zip(expected, found, (inverted, plain), strict=True):
        assert axes["extent"] == [0, film["columns"], film["rows"], 0]
        places = [box["box"] for finding in film["findings"] for box in finding["boxes"]]
        edges = [(left, top, left + width, top + height) for left, top, width, height in axes["boxes"]]
        assert np.allclose(edges, [film["analyzed"], *places])
        assert "Pleural effusion 83%" in axes["texts"]
        assert "Lung lesion 46%, review" in axes["texts"]
        assert "Not looked for: all else" in axes["label"]
        stored = dcmread(path)
        likeness = np.corrcoef(np.ravel(axes["picture"]), stored.pixel_array.ravel())[0, 1]
        assert (likeness < 0) == (stored.PhotometricInterpretation == "MONOCHROME1")
