"""A site calibrates a model on its own films: the published network as it is imported, and what stays off, with why."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from models import site_films
from models.calibrate import main
from models.checkpoint.files import CARD, verify
from models.contract import Box, ChangeError, FindingState, Side
from models.decisions import Measurement, RatioError
from models.errors import ModelError
from models.evaluate import main as evaluate
from models.lab.evaluation import calibrating
from models.lab.evaluation.boxes_file import read_films
from models.lab.evaluation.calibrating import (
    LEAST_MEASURED,
    Calibrated,
    Request,
    calibrate,
    is_chosen,
    with_ages,
    with_ratio,
)
from models.lab.evaluation.cases import CaseSource, EvaluationCase, Truth
from models.lab.evaluation.evaluated_model import Weighed, open_model, read_questions
from models.lab.evaluation.request import DEFAULT
from models.lab.evaluation.tuning import digest
from models.lab.phantoms import phantom
from models.manifest import MANIFEST, Ages, Manifest, read_manifest, write_manifest
from models.progress import ProgressReport, quiet
from models.reading.cardiothoracic import ChestWidths, Extent
from models.reading.tokenizers import VOCABULARIES
from models.site_films import LEAST_PAIRS, differences, error_of, read_list
from models.thresholds import rows_of, user
from node.domain import Film
from tests.paths import REPOSITORY
from tests.support import films, recorded, samples
from tests.support.samples import EFFUSION, finding

SHIPPED = VOCABULARIES.parent
FILMS = 60
QUICK = ["--resamples", "5", "--by", "anna"]
EXTRAS = ("matplotlib", "pycocotools", "rouge_score", "sacrebleu", "sklearn")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures."""
    folder = tmp_path_factory.mktemp("site")
    for number in range(FILMS):
        cv2.imwrite(str(folder / f"{number}.png"), phantom(number, side=224).pixels)
    return folder


def shows_edema(model: Path, films: CaseSource) -> list[int]:
    """Label half of the pictures as edema: those of which the model says it first."""
    opened = open_model(model, engine="onnx", questions=read_questions(DEFAULT))
    scores = [opened.weigh(films.load(number)).differences["edema"] for number in range(FILMS)]
    return [int(score > np.median(scores)) for score in scores]


def listed(path: Path, names: Sequence[str], **columns: object) -> Path:
    """Write a CSV of pictures; columns: a value of all lines, or a function of the number of one."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", *columns])
        for number, name in enumerate(names):
            writer.writerow([name, *(each(number) if callable(each) else each for each in columns.values())])
    return path


@pytest.fixture
def model(tmp_path: Path, imported_model: Path) -> Path:
    return Path(shutil.copytree(imported_model, tmp_path / "model"))


def refused(model: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Try to calibrate, which must change nothing; returns what is said."""
    before = (model / MANIFEST).read_bytes()
    assert main([*QUICK, "--model", str(model), *arguments]) == 2
    assert (model / MANIFEST).read_bytes() == before
    return capsys.readouterr().err


@pytest.mark.drill(part="laboratory")
def test_a_published_checkpoint_is_calibrated_without_extras(model: Path, site: Path) -> None:
    """The way of docs/model/weights.md, after the import, without one library of the extra `evaluate`."""
    before = read_manifest(model)
    names = [f"{number}.png" for number in range(FILMS)]
    edema = shows_edema(model, read_list(listed(site / "all.csv", names, edema=1), before))
    columns = {
        "Edema": lambda number: edema[number],
        "No Finding": lambda number: 1 - edema[number],
        "unchanged_since": lambda number: "0.png" if 0 < number <= LEAST_PAIRS else "",
    }
    films = listed(site / "hospital.csv", names, age="61", **columns)
    block = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r})); from models.calibrate import main; "
    command = [sys.executable, "-c", f"{block}sys.exit(main(sys.argv[1:]))", "--model", str(model), *QUICK]

    done = subprocess.run([*command, "--share", "0.7", str(films)], cwd=REPOSITORY, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    after = read_manifest(model)
    verify(model, after)
    chosen = sum(is_chosen(f"{number}.png", share=0.7) for number in range(FILMS))
    own = after.decisions.measurements["edema"]
    assert "edema" in after.decisions.readout and after.decisions.readout.keys() <= {"edema", "no_finding"}
    assert own.measured_on == "hospital" and own.positives + own.negatives == chosen
    assert after.decisions.temperature == before.decisions.temperature
    assert after.ages == Ages(least=18)
    assert after.change is not None and (after.change.measured_on, after.change.films) == ("hospital", LEAST_PAIRS)
    assert after.cardiothoracic is None
    assert len(after.chosen_on) == chosen
    told = replace(after, ages=None, change=None, history=(), chosen_on=(), files=before.files)
    assert replace(told, decisions=before.decisions) == before
    row = next(row for row in rows_of(after) if row.finding == "edema")
    assert row.by == f"anna, {after.history[0].at[:10]}: calibrated on {chosen} films of hospital"
    card = (model / CARD).read_text(encoding="utf-8")
    assert "not calibrated" not in card and "Set `decisions`" not in card
    said = done.stdout
    assert said.partition("\n\nNext:")[0].strip() in card
    assert f"on {chosen} films of {chosen} patients" in said and f"{FILMS - chosen} films, of" in said
    assert "- pneumonia: 0 films with it and 0 without; 15 of each are needed." in said
    assert "- cardiothoracic ratio: stays as it was (off): 0 films have a known ratio and a measured one" in said
    assert "node refuses this directory until it is accepted" in said


@pytest.mark.drill(part="laboratory")
def test_films_that_chose_are_not_reported_on(model: Path, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = site / "chose.jsonl"
    lines: list[dict[str, object]] = [{"file": f"{number}.png", "patient": f"p{number}"} for number in range(FILMS)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for line, there in zip(lines, shows_edema(model, read_films(path, read_manifest(model))), strict=True):
        line["labels"] = {"edema": bool(there), "no_finding": not there}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    command = ["--model", str(model), str(path), "--share", "1", "--json"]
    assert main([*QUICK, *command, "--sensitivity", "0.9", "--false-findings", "0.5"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["chosen_on"] == {"films": FILMS, "patients": FILMS} and made["reported_on"]["films"] == 0
    assert made["aim"] == "each at a sensitivity of 0.9"
    assert read_manifest(model).decisions.measurements["edema"].positives == FILMS // 2
    asked = ["--model", str(model), "--data", f"boxes:{path}", "--resamples", "0"]

    assert evaluate([*asked, "--task", "report"]) == 2
    assert f"{FILMS} of {FILMS} films chose the thresholds" in capsys.readouterr().err
    assert evaluate([*asked, "--task", "films", "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["folds"]
    assert evaluate([*asked, "--task", "report", "--folds", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folds"]


PICTURES = 160
OWN = [f"{number}.png" for number in range(PICTURES)]
PATIENT = [f"p{number // 2}" for number in range(PICTURES)]
CHOSEN = [is_chosen(patient, share=0.6) for patient in PATIENT]
SICK = [number // 2 % 2 == 0 for number in range(PICTURES)]
RNG = np.random.default_rng(3)
SAID = {
    name: {
        "edema": float(RNG.normal()) + 3 * sick,
        "pneumonia": float(RNG.normal()) + 3 * (sick if is_own else not sick),
        "fracture": float(RNG.normal()),
        "support_devices": 9.0,
        "no_finding": -3.0 * sick,
    }
    for name, sick, is_own in zip(OWN, SICK, CHOSEN, strict=True)
}
LEAST = min((number for number in range(PICTURES) if CHOSEN[number]), key=lambda number: SAID[OWN[number]]["edema"])
"""The film to choose on that shows an edema least."""


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped model whose network is scripted, and 160 pictures of 80 patients beside it.

    It tells an edema. A pneumonia it tells on the films to choose on alone, a fracture by chance, devices always.
    """
    ignored = shutil.ignore_patterns("onnx", "parity.json")
    model = Path(shutil.copytree(SHIPPED, tmp_path / "model", ignore=ignored))
    gray = np.random.default_rng(4).integers(0, 256, (PICTURES, 64, 64), dtype=np.uint8)
    for name, pixels in zip(OWN, gray, strict=True):
        cv2.imwrite(str(tmp_path / name), pixels)

    def weigh(case: EvaluationCase, *, located: bool, chest: bool) -> Weighed:
        return Weighed(differences=dict(SAID[case.name]), positiveness={}, chest=chest_of(0.52) if chest else None)

    monkeypatch.setattr(calibrating, "open_model", lambda *_arguments, **_options: SimpleNamespace(weigh=weigh))
    return model


def hospital_list(model: Path, **columns: object) -> Path:
    own: dict[str, object] = {
        "patient": lambda number: PATIENT[number],
        "age": lambda number: 61 if number % 4 == 0 else "",
        "edema": lambda number: int(SICK[number]),
        "pneumonia": lambda number: int(SICK[number]),
        "fracture": lambda number: number % 2,
        "atelectasis": lambda number: int(number < 3),
        "no_finding": lambda number: int(not SICK[number]),
    }
    return listed(model.parent / "hospital.csv", OWN, **own | columns)


def with_decisions_of_phantoms(manifest: Manifest) -> Manifest:
    """Every finding has a threshold of phantoms, and a change an error of other probabilities."""
    drawn = Measurement(measured_on="phantoms", positives=30, negatives=70)
    keys = ("edema", "pneumonia", "fracture", "support_devices", "no_finding")
    own: dict[str, Any] = {"thresholds": dict.fromkeys(keys, 0.5), "measurements": dict.fromkeys(keys, drawn)}
    own |= {"phantoms": {}, "boxes": {}, "sides": {}, "readout": {}}
    decisions = replace(manifest.decisions, temperature=1.0, **own)
    change = ChangeError(measured_on="clinic", films=30, extent=0.1, probability=0.1)
    return replace(manifest, decisions=decisions, change=change, ages=None, history=(), chosen_on=("0" * 16,))


def test_decisions_are_chosen_on_some_patients_and_reported_on_the_others(
    hospital: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = with_decisions_of_phantoms(read_manifest(hospital))
    write_manifest(hospital, before)

    command = ["--model", str(hospital), "--by", "ada", "--json", "--resamples", "40"]
    path = hospital_list(hospital)
    (hospital.parent / "side.dcm").write_bytes(films.file_bytes(films.lateral()))
    with path.open("a", encoding="utf-8") as file:
        file.write("side.dcm\n")

    assert main([*command, str(path)]) == 0

    made, after = json.loads(capsys.readouterr().out), read_manifest(hospital)
    verify(hospital, after)
    findings = {key: own | {"off": bool(own["off"])} for key, own in made["findings"].items()}
    figures = {name: made[name] for name in ("chosen_on", "reported_on", "share", "temperature", "false_findings")}
    recorded.check("calibrated", figures | {"findings": findings, "decisions": after.decisions})
    listed_films = read_list(hospital.parent / "hospital.csv", after)
    digests = {digest(listed_films.load(number).gray) for number in range(PICTURES) if CHOSEN[number]}
    assert after.chosen_on == tuple(sorted({"0" * 16, *digests}))
    findings = made["findings"]
    assert "reported on, which may be chance" in findings["pneumonia"]["off"]
    assert "may be chance" in findings["fracture"]["off"]
    assert [key for key, own in findings.items() if own["off"].endswith("; it is left out")] == ["support_devices"]
    assert set(after.decisions.left_out) == {"pneumonia", "fracture", "support_devices"}, "devices are on every film"
    assert after.ages == Ages(least=18) and after.change is None
    assert made["off"]["films that a node does not read (lateral)"] == "1"
    assert made["off"]["change between two films"].startswith("off: it was of other probabilities")
    history = [(change.finding, change.by, change.reason) for change in after.history]
    assert history[0] == ("edema", "ada", f"calibrated on {sum(CHOSEN)} films of hospital") and len(history) == 2
    error = ChangeError(measured_on="hospital", films=30, extent=0.2, probability=0.2)
    asked: list[tuple[Path, Path]] = []

    def measured(_model: Path, pairs: Sequence[tuple[Path, Path]], **_options: object) -> ChangeError:
        asked.extend(pairs)
        return error

    monkeypatch.setattr(site_films, "change_error", measured)
    for pairs in (LEAST_PAIRS - 1, LEAST_PAIRS):
        paired = hospital_list(hospital, unchanged_since=lambda number: "0.png" if 0 < number <= pairs else "")  # noqa: B023
        assert main([*command, str(paired)]) == 0
        off = json.loads(capsys.readouterr().out)["off"].get("change between two films")
        assert off == ("29 pairs of films say where nothing changed; 30 are needed" if pairs < 30 else None)
    assert asked == [(hospital.parent / "0.png", hospital.parent / name) for name in OWN[1 : LEAST_PAIRS + 1]]
    assert read_manifest(hospital).change == error
    verify(hospital, read_manifest(hospital))


def test_what_is_called_is_counted_before_and_after_on_the_films_reported_on(hospital: Path) -> None:
    write_manifest(hospital, with_decisions_of_phantoms(read_manifest(hospital)))
    request = Request(model=hospital, population="hospital", share=0.6, by="ada", at="2026-01-01", resamples=9)

    made = calibrate(request, read_list(hospital_list(hospital), read_manifest(hospital)), quiet)

    differences = np.array([SAID[name]["edema"] for name, is_chosen in zip(OWN, CHOSEN, strict=True) if not is_chosen])
    own, was = made.after.decisions, made.before.decisions
    said = own.probability("edema", differences)
    present, shown = said >= own.threshold("edema"), said >= own.lower("edema")
    shown_before = was.probability("edema", differences) >= was.lower("edema")
    assert made.called["edema"] == (0, shown_before.sum(), present.sum(), (shown & ~present).sum())
    assert made.called["edema"][3] > 0 < made.called["edema"][1]


NONE = dict.fromkeys(("edema", "pneumonia", "fracture", "no_finding"), "")
BY_CHANCE = {"fracture": lambda number: number % 2, "no_finding": lambda number: 1 - number % 2}
ALL_CALLED = {"edema": lambda number: int(SICK[number] or number == LEAST)}
"""The film that shows an edema least has one, so a sensitivity of 1 calls all films."""


def is_well(number: int) -> int:
    return int(not SICK[number] and number != LEAST)


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        (NONE | {"edema": lambda number: int(number < 3)}, ["--share", "1"], "with and without it: edema 3 and 157"),
        (NONE | BY_CHANCE, [], "no finding has an AUROC that is surely above chance (fracture: AUROC 0."),
        ({"no_finding": lambda number: int(is_well(number) and number < 9)}, [], "15 are needed to know what"),
        (ALL_CALLED, ["--sensitivity", "1"], "1.00 findings would be called present on the average film without a fin"),
        (
            ALL_CALLED | {"no_finding": lambda number: is_well(number) if CHOSEN[number] else ""},
            ["--sensitivity", "1"],
            "1.00 findings would be called present on the average film",
        ),
        (ALL_CALLED | {"no_finding": ""}, ["--sensitivity", "1"], "no film is labelled no_finding by somebody who saw"),
    ],
    ids=["too few", "by chance", "few normal", "normal called", "normal among those to choose on", "normal nowhere"],
)
def test_labels_that_do_not_suffice_and_thresholds_that_call_normal_films_change_nothing(
    hospital: Path, capsys: pytest.CaptureFixture[str], columns: dict[str, object], options: list[str], reason: str
) -> None:
    path = str(hospital_list(hospital, **columns))

    assert reason in refused(hospital, [path, *options], capsys)

    if "--sensitivity" in options:
        command = [*QUICK, "--model", str(hospital), path, *options, "--false-findings", "2", "--json"]
        assert main(command) == 0
        assert json.loads(capsys.readouterr().out)["aim"] == "each at a sensitivity of 1"


def test_a_dicom_film_gives_patient_and_age(tmp_path: Path) -> None:
    """A film that a node does not read, such as a lateral, is no film to calibrate on."""
    frontal = films.thumbnail({"PatientID": "P1", "PatientAge": "044Y"})
    for name, film in (("a.dcm", frontal), ("b.dcm", films.lateral())):
        (tmp_path / name).write_bytes(films.file_bytes(film))
    path = tmp_path / "films.csv"
    rows = "a.dcm,1,u,-1,,\nb.dcm,0,,,,\nb.dcm,0,,,,\na.dcm,false,1.0,0,P2,51\n"
    path.write_text(f"file,edema,Lung Opacity,fracture,patient,age\n{rows}", encoding="utf-8-sig")

    found = read_list(path, read_manifest(SHIPPED))

    assert (len(found), dict(found.skipped)) == (2, {"lateral": 2})
    other = found.load(1).truth
    assert (other.patient, other.age) == ("P2", 51), "columns go before the header"
    assert other.labels == {"edema": False, "lung_opacity": True, "fracture": False}
    case = found.load(0)
    assert (case.truth.patient, case.truth.age, case.truth.labels) == ("P1", 44, {"edema": True})
    assert case.gray.ndim == 2 and 0 <= case.gray.min() < case.gray.max() <= 1


@pytest.mark.parametrize(
    ("films", "text", "said"),
    [
        ("films.csv", "file,scoliosis\n0.png,1\n", "the column 'scoliosis' is unknown; remove it"),
        ("films.csv", "file,age\n0.png,1\n", "needs the column file and one for each labelled finding"),
        ("films.csv", "edema\n1\n", "needs the column file"),
        ("films.csv", "file,edema\n0.png,perhaps\n", "line 2: edema is 'perhaps'; write 1, 0, or nothing"),
        ("films.csv", "file,edema\nnowhere.png,1\n", "nowhere.png does not exist"),
        ("films.csv", "file,edema,age\n0.png,1,old\n", "line 2: age must be a whole number"),
        (
            "films.csv",
            "file,edema,cardiothoracic_ratio\n0.png,1,nan\n",
            "cardiothoracic_ratio must lie between 0 and 1",
        ),
        ("films.csv", "file,edema\nfilms.csv,1\n", "name a DICOM, PNG or JPEG file"),
        ("films.csv", "file,edema\n", "lists no film that a node reads"),
        ("films.csv --held-out 0.5", "file,edema\n", "--held-out is for a file of a training run"),
        ("films.jsonl --held-out 0.001", "", "holds no film of patients that were held out"),
        ("phantoms.csv", "", "its name would be taken for drawn films; rename it"),
        ("phantoms:2000000:5", "", "seeds 1000000 to 1999999 only"),
        ("phantoms:1000000", "", "write phantoms:SEED:COUNT"),
    ],
)
def test_what_is_no_list_to_calibrate_on_is_refused_and_a_wrong_line_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    films: str,
    text: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("0.png").touch()
    Path("films.csv").write_text(text, encoding="utf-8")
    Path("films.jsonl").write_text('{"file": "a.png", "patient": "p"}\n', encoding="utf-8")

    assert said in refused(SHIPPED, films.split(), capsys)


def test_each_option_reaches_the_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []

    def noted(request: Request, _films: CaseSource, _report: ProgressReport) -> Calibrated:
        asked.append(request)
        raise ModelError("that will do")

    monkeypatch.setattr(calibrating, "calibrate", noted)
    (tmp_path / "0.png").touch()
    command = ["--model", str(SHIPPED), str(listed(tmp_path / "asked.csv", ["0.png"], edema=1))]
    given = ["--share", "0.7", "--by", "ada", "--engine", "torch", "--prompts", "own.toml", "--resamples", "9"]
    assert main(command) == main([*command, *given, "--sensitivity", "0.9", "--false-findings", "0.3"]) == 2

    plain, own = asked
    assert plain == Request(model=SHIPPED, population="asked", share=0.6, by=user(), at=plain.at)
    more: dict[str, Any] = {"engine": "torch", "prompts": Path("own.toml"), "sensitivity": 0.9, "false_findings": 0.3}
    assert own == replace(plain, share=0.7, by="ada", at=own.at, resamples=9, **more)


ADULTS, CHILDREN = [61] * LEAST_MEASURED, [9] * LEAST_MEASURED


@pytest.mark.parametrize(
    ("own", "ages", "expected"),
    [
        (None, ADULTS, Ages(least=18)),
        (None, CHILDREN, Ages(most=17)),
        (None, [*ADULTS, *CHILDREN], None),
        (None, [*ADULTS, *CHILDREN[1:]], Ages(least=18)),
        (Ages(least=16, most=90), ADULTS, Ages(least=18, most=90)),
        (Ages(least=18), [*ADULTS, *CHILDREN], Ages(least=18)),
        (Ages(least=18), CHILDREN, Ages(least=18)),
        (Ages(least=21), ADULTS, Ages(least=21)),
        (Ages(most=9), CHILDREN, Ages(most=9)),
        (None, ADULTS[1:], None),
        (None, [None] * 99, None),
    ],
)
def test_a_model_is_for_the_ages_it_was_calibrated_on_and_never_for_more_than_before(
    own: Ages | None, ages: list[int | None], expected: Ages | None
) -> None:
    assert with_ages(replace(read_manifest(SHIPPED), ages=own), ages)[0].ages == expected


def chest_of(ratio: float) -> ChestWidths:
    thorax = Extent(left=0.1, right=0.9, height=0.7)
    return ChestWidths(heart=Extent(left=0.3, right=0.3 + 0.8 * ratio, height=0.6), thorax=thorax)


@pytest.mark.parametrize(
    ("stated", "population", "films", "measured_on"),
    [
        (None, "hospital", LEAST_MEASURED, "hospital"),
        (None, "hospital", LEAST_MEASURED - 1, None),
        ("phantoms", "hospital", LEAST_MEASURED, "hospital"),
        ("phantoms", "hospital", 3, "phantoms"),
        ("clinic", "phantoms", LEAST_MEASURED, "clinic"),
    ],
)
def test_the_error_of_the_ratio_is_of_enough_films_and_none_of_phantoms_replaces_one_of_people(
    stated: str | None, population: str, films: int, measured_on: str | None
) -> None:
    error = RatioError(measured_on=stated or "none", films=9, mean_absolute_error=0.1, bias=0.0, lower=-0.1, upper=0.1)
    manifest = replace(read_manifest(SHIPPED), cardiothoracic=error if stated else None)
    chests = [chest_of(0.52 if number % 2 else 0.5) for number in range(films)]

    now = with_ratio(manifest, [Truth(cardiothoracic_ratio=0.5)] * films, chests, population=population)[0]

    own = now.cardiothoracic
    assert (own and own.measured_on) == measured_on
    if own is not None and own != error:
        assert (own.films, own.mean_absolute_error, own.bias) == (films, 0.01, pytest.approx(0.01))


def test_differences_of_unchanged_pairs_are_the_error_of_change() -> None:
    box = Box(left=0, top=0, right=10, bottom=10)

    def film(probability: float, state: FindingState = FindingState.PRESENT, side: Side | None = Side.RIGHT) -> Film:
        shown = finding(EFFUSION, boxes=(box,), probability=probability, state=state, side=side)
        return samples.film(findings=(shown,))

    pairs = [(film(0.5), film(0.5 + 0.01 * number)) for number in range(20)]
    pairs[1::2] = [(later, earlier) for earlier, later in pairs[1::2]]
    pairs.append((film(0.5), film(0.7, FindingState.ABSENT)))
    nowhere = film(0.5, side=None)

    assert error_of(pairs, population="hospital").probability == pytest.approx(np.percentile(np.arange(21), 95) / 100)
    assert differences([(film(0.5), nowhere)])[0] == [], "one of them lies in no zone"
    for none in ([], [(nowhere, nowhere)]):
        with pytest.raises(ModelError, match="add pairs that show findings"):
            error_of(none, population="hospital")
