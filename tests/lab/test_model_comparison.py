"""Another model beside the one in use, on films of the site: what it changes, and that a node takes it by that."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import cv2
import pytest
from structlog.testing import capture_logs

from language.labels import class_rules
from models.contract import COMPARISON, LEAST_COMPARED, ComparedModel, FindingState
from models.evaluate import main
from models.lab.evaluation.model_comparison import FilmsByModel, SiteAnswer, compare, table
from models.lab.phantoms import phantom
from models.manifest import read_manifest, write_manifest
from models.progress import quiet
from models.reading.named_reader import hash_of
from models.site_films import answer_films, films_to_compare
from node.config import ModelSettings
from node.errors import InputError
from node.read import prompts
from node.read.model import open_reader
from node.service.model import admit
from tests.support import films
from tests.support.compared import compared as compared_model
from tests.support.service import settings_for
from tests.support.spoken import PROMPTS

PRESENT, REVIEW, ABSENT = FindingState.PRESENT, FindingState.INDETERMINATE, FindingState.ABSENT


def side(name: str, *answers: SiteAnswer, findings: tuple[str, ...] = ("edema",)) -> FilmsByModel:
    model = ComparedModel(
        model=f"m {name}", weights_sha256=name, manifest_sha256="", prompts="own 1", prompts_sha256=""
    )
    return FilmsByModel(model=model, findings=findings, measured=findings, answers=answers)


def answer(**states: FindingState) -> SiteAnswer:
    return SiteAnswer(reason=None, states=states)


def test_states_and_labels_are_compared_film_by_film() -> None:
    labels = [{"edema": True}, {"edema": False}, {}, {"edema": True}]
    unread = SiteAnswer(reason="age", states={})
    old = side("1", answer(edema=PRESENT), answer(edema=PRESENT), answer(edema=REVIEW), answer(edema=ABSENT))
    new = side("2", answer(edema=PRESENT), answer(edema=ABSENT), answer(edema=REVIEW), unread)

    found = compare(labels, old, new, data="films.csv", at="now", by="ada")

    (edema,) = found.findings
    assert (found.films, found.changed) == (4, 2), "a film that is not read any more has changed, too"
    assert (edema.films, edema.changed, edema.present) == (3, 1, (2, 1))
    assert (edema.labelled, edema.right) == (2, (1, 2))
    assert "edema    3      1        2 -> 1   1 -> 2 of 2" in table(found)


def test_what_loses_its_measured_threshold_is_named() -> None:
    old = side("1", answer(edema=PRESENT, fracture=ABSENT), findings=("edema", "fracture", "pneumonia"))
    old = replace(old, measured=("edema", "fracture"))
    new = replace(side("2", answer(edema=PRESENT), findings=("edema",)), measured=())

    found = compare([{}], old, new, data="films.csv", at="now", by="ada")

    assert (found.measured, found.unmeasured) == (0, ("edema", "fracture"))
    assert f"A node asks for {LEAST_COMPARED} films" in table(found)


def listed(folder: Path, *, name: str = "films.csv") -> Path:
    """As many films as a node asks for, one of them with a header, one twice."""
    (folder / "0.dcm").write_bytes(films.file_bytes(films.thumbnail()))
    names = ["0.dcm", *(f"{number}.png" for number in range(1, LEAST_COMPARED))]
    for number in range(1, LEAST_COMPARED):
        cv2.imwrite(str(folder / f"{number}.png"), phantom(number, side=224).pixels)
    path = folder / name
    path.write_text("\n".join(["file", *names, "1.png"]), encoding="utf-8")
    return path


@pytest.mark.drill(part="laboratory")
def test_a_node_takes_a_model_that_was_compared_on_films_of_the_site(
    tmp_path: Path, phantom_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(phantom_model, tmp_path / "stricter"))
    manifest = read_manifest(other)
    thresholds = {**manifest.decisions.thresholds, "lung_opacity": 0.95}
    stricter = replace(manifest.decisions, thresholds=thresholds)
    write_manifest(other, replace(manifest, version="stricter", decisions=stricter))
    settings = settings_for(tmp_path / "node", archive_port=1, model=ModelSettings(directory=other))
    first, second = (open_reader(model, prompts=PROMPTS, engine="onnx").identity for model in (phantom_model, other))
    admit(settings, first, PROMPTS)
    with pytest.raises(InputError, match="never compared"):
        admit(settings, second, PROMPTS)

    data, out = listed(tmp_path), other / COMPARISON
    command = ["--model", str(other), "--against", str(phantom_model), "--data", str(data), "--out", str(out)]
    assert main([*command, "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(out.read_text(encoding="utf-8"))
    assert (document["films"], document["data"]) == (LEAST_COMPARED, "films.csv")
    opacity = next(found for found in document["findings"] if found["finding"] == "lung_opacity")
    assert opacity["present"][1] <= opacity["present"][0]
    with capture_logs() as logged:
        admit(settings, second, PROMPTS)
    assert [(line["event"], line["films"]) for line in logged] == [("model.promoted", LEAST_COMPARED)]


def test_a_comparison_tells_the_new_model_from_that_in_use(tmp_path: Path) -> None:
    (tmp_path / "films.csv").write_text("file\n0.dcm\n", encoding="utf-8")
    (tmp_path / "0.dcm").write_bytes(films.file_bytes(films.thumbnail()))
    new, old, out = tmp_path / "new", tmp_path / "old", tmp_path / COMPARISON
    for model in (new, old):
        model.mkdir()
        (model / "weights").write_text(model.name)
    network = "tests.node.read.test_named_reader:open_scripted"
    compared = ["--model", str(new), "--against", str(old), "--data", str(tmp_path / "films.csv"), "--out", str(out)]

    assert main([*compared, "--reader", network, "--against-reader", network]) == 0

    document = json.loads(out.read_text(encoding="utf-8"))
    found = films_to_compare(str(tmp_path / "films.csv"))
    chexpert = prompts.load("chexpert14")
    for model in (new, old):
        identity = open_reader(model, prompts=chexpert, engine="onnx", reader=network).identity
        assert document[model.name] == asdict(compared_model(identity, chexpert))
        assert identity.weights_sha256 == hash_of(model) != identity.manifest_sha256
    known = {key for key in class_rules() if key != "no_finding"}
    assert {found["finding"] for found in document["findings"]} == known
    [unread] = answer_films(new, found, network=network, engine="onnx", prompt_set="chexpert14", report=quiet).answers
    assert unread == SiteAnswer(reason="reader_failed", states={})
    failing = "tests.node.read.test_named_reader:open_failing"
    assert main([*compared, "--reader", network, "--against-reader", failing]) == 2
    assert main([*compared, "--reader", failing, "--against-reader", network]) == 2
    readers = ["--reader", network, "--against-reader", network]
    assert main([*compared, *readers, "--against-prompts", "nowhere.toml"]) == 2


def test_a_film_counts_once_whatever_its_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        cv2.imwrite(str(tmp_path / folder / "0.png"), phantom(0, side=64).pixels)
    (tmp_path / "films.csv").write_text("file\na/0.png\nb/0.png\na/../a/0.png\n", encoding="utf-8")

    found = films_to_compare(str(tmp_path / "films.csv"))

    assert sorted(film.path.resolve() for film in found) == [tmp_path / "a" / "0.png", tmp_path / "b" / "0.png"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--reader", "other"], "--reader is for --against"),
        (["--against-reader", "other"], "--against-reader is for --against"),
        (["--against-prompts", "other"], "--against-prompts is for --against"),
        (["--against", "old"], f"a node looks for --out new/{COMPARISON}"),
        (["--analysis", "figure.toml", "--task", "report"], "leave out --task"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["--model", "new", "--data", "films.csv", *options]) == 2

    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "phantoms:1:50"], "phantoms do not count"),
        (["--data", "phantoms.csv"], "phantoms do not count"),
        (["--data", "boxes:films.jsonl"], "needs films of your site"),
        (["--data", "nowhere.csv"], "nowhere.csv cannot be read"),
        (["--data", "films.csv", "--task", "report"], "--task is not for --against"),
    ],
)
def test_what_is_no_comparison_on_films_of_the_site_is_refused(
    tmp_path: Path, phantom_model: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    model = ["--model", str(phantom_model), "--against", str(phantom_model), "--out", str(tmp_path / "out.json")]

    assert main([*model, *options]) == 2

    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
