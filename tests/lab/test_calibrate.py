"""A site calibrates a model on its own films: the published network as it is imported, and what stays off, with why."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.calibrate import main
from models.checkpoint.files import CARD, verify
from models.contract import Box, FindingState
from models.decisions import RatioError
from models.errors import ModelError
from models.evaluate import main as evaluate
from models.lab.evaluation.boxes_file import read_films
from models.lab.evaluation.calibrating import LEAST_MEASURED, is_chosen, with_ages, with_ratio
from models.lab.evaluation.cases import CaseSource, Truth
from models.lab.evaluation.evaluated_model import open_model, read_questions
from models.lab.evaluation.request import DEFAULT
from models.lab.phantoms import phantom
from models.manifest import MANIFEST, Ages, read_manifest
from models.reading.cardiothoracic import ChestWidths, Extent
from models.reading.tokenizers import VOCABULARIES
from models.site_films import LEAST_PAIRS, error_of, read_list
from models.thresholds import rows_of
from node.domain import Film
from tests.paths import REPOSITORY
from tests.support import films, samples
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


@pytest.fixture(scope="module")
def scores(site: Path, imported_model: Path) -> list[float]:
    """What the model says of an edema on each picture of a CSV."""
    path = site / "all.csv"
    path.write_text("".join(["file,edema\n", *(f"{number}.png,1\n" for number in range(FILMS))]), encoding="utf-8")
    return scored(imported_model, read_list(path, read_manifest(imported_model)))


@pytest.fixture(scope="module")
def edema(scores: list[float]) -> list[int]:
    """Of each picture of a CSV, whether it shows an edema."""
    return upper_half(scores)


@pytest.fixture(scope="module")
def edema_of_lines(site: Path, imported_model: Path) -> list[int]:
    """The same for a file of lines, which reads pictures in other gray values."""
    path = site / "all.jsonl"
    path.write_text("".join(json.dumps({"file": f"{number}.png"}) + "\n" for number in range(FILMS)), encoding="utf-8")
    return upper_half(scored(imported_model, read_films(path, read_manifest(imported_model))))


def scored(model: Path, films: CaseSource) -> list[float]:
    opened = open_model(model, engine="onnx", questions=read_questions(DEFAULT))
    return [opened.weigh(films.load(number)).differences["edema"] for number in range(FILMS)]


def upper_half(scores: Sequence[float]) -> list[int]:
    """Label half of the pictures as edema: those of which the model says it first."""
    return [int(score > np.median(scores)) for score in scores]


def listed(path: Path, edema: Sequence[int], **columns: object) -> Path:
    """Write a CSV of the site's pictures; columns: a value of all lines, or a function of the number of one."""
    own = {"Edema": lambda number: edema[number], "No Finding": lambda number: 1 - edema[number]} | columns
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", *own])
        for number in range(FILMS):
            writer.writerow([f"{number}.png", *(each(number) if callable(each) else each for each in own.values())])
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
def test_a_published_checkpoint_is_calibrated_without_extras(model: Path, site: Path, edema: list[int]) -> None:
    """The way of docs/model/weights.md, after the import, without one library of the extra `evaluate`."""
    pairs = {"unchanged_since": lambda number: "0.png" if 0 < number <= LEAST_PAIRS else ""}
    films = listed(site / "hospital.csv", edema, age="61", **pairs)
    before = read_manifest(model)
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
def test_films_that_chose_are_not_reported_on(
    model: Path, site: Path, edema_of_lines: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    path = site / "chose.jsonl"
    lines = [
        {"file": f"{number}.png", "patient": f"p{number}", "labels": {"edema": bool(there), "no_finding": not there}}
        for number, there in enumerate(edema_of_lines)
    ]
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


@pytest.mark.drill(part="laboratory")
def test_too_few_labels_are_told_and_change_nothing(
    model: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    films = listed(site / "few.csv", [1] * 3 + [0] * (FILMS - 3), **{"No Finding": ""})

    said = refused(model, [str(films), "--share", "1"], capsys)

    assert "no finding is on 15 films and missing on 15" in said
    assert f"edema 3 and {FILMS - 3}" in said and "no_finding" not in said


@pytest.mark.drill(part="laboratory")
def test_what_is_told_by_chance_stays_uncalibrated(
    model: Path, site: Path, edema: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights that know nothing were calibrated to a node that called effusions present."""
    by_chance = [number % 2 for number in range(FILMS)]
    command = ["--share", "1", "--resamples", "200"]

    said = refused(model, [*command, str(listed(site / "chance.csv", by_chance))], capsys)
    assert (
        "no finding has an AUROC that is surely above chance (edema: AUROC 0." in said and "which may be chance" in said
    )

    films = listed(site / "half.csv", edema, fracture=lambda number: number % 2)
    assert main([*QUICK, "--model", str(model), *command, str(films)]) == 0
    assert read_manifest(model).decisions.measurements.keys() & {"edema", "fracture"} == {"edema"}
    assert "- fracture: AUROC 0." in capsys.readouterr().out


@pytest.mark.drill(part="laboratory")
def test_thresholds_that_call_normal_films_are_refused(
    model: Path, site: Path, scores: list[float], edema: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The least likely film shows an edema, so a sensitivity of 1 calls all films."""
    films = listed(
        site / "noisy.csv", [int(there or score == min(scores)) for there, score in zip(edema, scores, strict=True)]
    )
    command = ["--share", "1"]

    said = refused(model, [*command, str(films), "--sensitivity", "1"], capsys)
    assert "1.00 findings would be called present on the average film without a finding, more than 0.5" in said
    few = listed(site / "few_normal.csv", edema, **{"No Finding": lambda number: int(not edema[number] and number < 9)})
    assert "15 are needed to know what is called on normal films" in refused(model, [*command, str(few)], capsys)

    assert (
        main([*QUICK, "--model", str(model), *command, str(films), "--sensitivity", "1", "--false-findings", "2"]) == 0
    )


@pytest.mark.drill(part="laboratory")
@pytest.mark.parametrize(
    ("is_normal", "reason"),
    [
        (
            lambda number: is_chosen(f"{number}.png", share=0.8),
            "1.00 findings would be called present on the average film",
        ),
        (lambda _number: False, "no film is labelled no_finding by somebody who saw it"),
    ],
    ids=["only among the films to choose on", "nowhere"],
)
def test_what_is_called_on_normal_films_is_asked_wherever_they_are(
    model: Path,
    site: Path,
    scores: list[float],
    edema: list[int],
    capsys: pytest.CaptureFixture[str],
    is_normal: Callable[[int], bool],
    reason: str,
) -> None:
    """A limit that no film of the others could be asked for was no limit."""
    least = min((number for number in range(FILMS) if is_chosen(f"{number}.png", share=0.8)), key=scores.__getitem__)
    there = [int(shows or number == least) for number, shows in enumerate(edema)]
    column = {"No Finding": lambda number: int(not there[number]) if is_normal(number) else ""}
    command = ["--share", "0.8", str(listed(site / "normal.csv", there, **column))]

    assert reason in refused(model, [*command, "--sensitivity", "1"], capsys)

    assert main([*QUICK, "--model", str(model), *command, "--sensitivity", "1", "--false-findings", "2"]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file,scoliosis\n0.png,1\n", "the column 'scoliosis' is unknown; remove it"),
        ("file,age\n0.png,1\n", "needs the column file and one for each labelled finding"),
        ("edema\n1\n", "needs the column file"),
        ("file,edema\n0.png,perhaps\n", "line 2: edema is 'perhaps'; write 1, 0, or nothing"),
        ("file,edema\nnowhere.png,1\n", "nowhere.png does not exist"),
        ("file,edema,age\n0.png,1,old\n", "line 2: age must be a whole number"),
        ("file,edema,cardiothoracic_ratio\n0.png,1,nan\n", "cardiothoracic_ratio must lie between 0 and 1"),
        ("file,edema\nfilms.csv,1\n", "name a DICOM, PNG or JPEG file"),
        ("file,edema\n", "lists no film that a node reads"),
    ],
)
def test_a_wrong_list_is_told_by_its_line(site: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    (site / "films.csv").write_text(text, encoding="utf-8")

    assert said in refused(SHIPPED, [str(site / "films.csv")], capsys)


def test_a_dicom_film_gives_patient_and_age(tmp_path: Path) -> None:
    """A film that a node does not read, such as a lateral, is no film to calibrate on."""
    frontal = films.thumbnail({"PatientID": "P1", "PatientAge": "044Y"})
    for name, film in (("a.dcm", frontal), ("b.dcm", films.lateral())):
        (tmp_path / name).write_bytes(films.file_bytes(film))
    path = tmp_path / "films.csv"
    path.write_text("file,edema\na.dcm,1\nb.dcm,0\n", encoding="utf-8")

    found = read_list(path, read_manifest(SHIPPED))

    assert (len(found), dict(found.skipped)) == (1, {"lateral": 1})
    case = found.load(0)
    assert (case.truth.patient, case.truth.age, case.truth.labels) == ("P1", 44, {"edema": True})
    assert case.gray.ndim == 2 and 0 <= case.gray.min() < case.gray.max() <= 1


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
def test_a_model_is_for_the_ages_it_was_calibrated_on(
    own: Ages | None, ages: list[int | None], expected: Ages | None
) -> None:
    """Never for more than it was for before."""
    assert with_ages(replace(read_manifest(SHIPPED), ages=own), ages)[0].ages == expected


def chest(ratio: float) -> ChestWidths:
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
def test_the_error_of_the_ratio_is_of_enough_films(
    stated: str | None, population: str, films: int, measured_on: str | None
) -> None:
    """One of films of people is not replaced by one of phantoms."""
    manifest = replace(read_manifest(SHIPPED), cardiothoracic=None)
    if stated is not None:
        error = RatioError(measured_on=stated, films=9, mean_absolute_error=0.1, bias=0.0, lower=-0.1, upper=0.1)
        manifest = replace(manifest, cardiothoracic=error)
    truths = [Truth(cardiothoracic_ratio=0.5)] * films
    chests = [chest(0.52 if number % 2 else 0.5) for number in range(films)]

    now = with_ratio(manifest, truths, chests, population=population)[0].cardiothoracic

    assert (now and now.measured_on) == measured_on
    if now is not None and now.measured_on == population and films == LEAST_MEASURED:
        assert (now.films, now.mean_absolute_error, now.bias) == (films, 0.01, pytest.approx(0.01))


def test_differences_of_unchanged_pairs_are_the_error_of_change() -> None:
    box = Box(left=0, top=0, right=10, bottom=10)

    def film(probability: float, state: FindingState = FindingState.PRESENT) -> Film:
        return samples.film(findings=(finding(EFFUSION, boxes=(box,), probability=probability, state=state),))

    pairs = [(film(0.5), film(0.5 + 0.01 * number)) for number in range(20)]
    pairs.append((film(0.5), film(0.7, FindingState.ABSENT)))

    with pytest.raises(ModelError, match="add pairs that show findings"):
        error_of(pairs[:0], population="hospital")
    assert error_of(pairs, population="hospital").probability == pytest.approx(np.percentile(np.arange(21), 95) / 100)
