"""Thresholds for people: what the command shows, what it changes, and how a node hears of it."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from models import thresholds
from models.checkpoint.files import CARD, verify
from models.contract import Trusted
from models.decisions import Band, Decisions, Measurement, PhantomThreshold
from models.manifest import read_manifest, write_manifest
from models.reading.decision import decide, may_be_denied
from node.audit.message import Reporter, write
from node.config import ModelSettings
from node.errors import InputError
from node.read.model import open_reader
from node.service.model import admit
from tests.support.compared import compared
from tests.support.compared import write as write_comparison
from tests.support.service import settings_for
from tests.support.spoken import PROMPTS

BAND = Band(lower=0.3, below=80, missed=2, within=10, shown=2)
DECISIONS = Decisions(
    temperature=0.5,
    default_threshold=0.5,
    review_band=0.1,
    box_threshold=0.5,
    region_threshold=0.5,
    thresholds={"edema": 0.6, "fracture": 1.0, "pneumonia": 1.0, "lung_opacity": 0.55},
    measurements={
        "edema": Measurement(measured_on="hospital", positives=20, negatives=80, band=BAND),
        "lung_opacity": Measurement(measured_on="hospital", positives=20, negatives=80),
        "fracture": Measurement(measured_on="phantoms", positives=20, negatives=80),
        "pneumonia": Measurement(measured_on="hospital", positives=20, negatives=80),
    },
    phantoms={"fracture": PhantomThreshold(threshold=0.5, positives=20, negatives=80)},
)


@pytest.fixture
def model(tmp_path: Path, phantom_model: Path) -> Path:
    return Path(shutil.copytree(phantom_model, tmp_path / "model"))


def states(decisions: Decisions, key: str | None, *probabilities: float, trusted: Trusted = "real") -> list[str]:
    return [decide(decisions, key, probability, trusted=trusted) for probability in probabilities]


@pytest.mark.parametrize(
    ("key", "threshold", "probabilities", "expected"),
    [
        ("edema", 0.7, (0.29, 0.3, 0.65, 0.7), ["absent", "indeterminate", "indeterminate", "present"]),
        ("edema", 0.4, (0.29, 0.3, 0.4), ["absent", "indeterminate", "present"]),
        ("edema", 0.2, (0.19, 0.2, 0.3), ["absent", "present", "present"]),
        ("edema", 1.0, (0.3, 0.999), ["left_out", "left_out"]),
        ("lung_opacity", 0.9, (0.44, 0.46, 0.9), ["absent", "indeterminate", "present"]),
        ("lung_opacity", 0.4, (0.29, 0.31, 0.4), ["absent", "indeterminate", "present"]),
        ("pneumonia", 0.6, (0.49, 0.51, 0.6), ["absent", "indeterminate", "present"]),
        ("atelectasis", 0.4, (0.29, 0.31, 0.999), ["absent", "uncalibrated", "uncalibrated"]),
    ],
)
def test_a_threshold_by_hand_moves_what_is_present_alone(
    key: str, threshold: float, probabilities: tuple[float, ...], expected: list[str]
) -> None:
    changed = DECISIONS.set_by_hand(key, threshold)

    assert states(changed, key, *probabilities) == expected
    again = changed.set_by_hand(key, DECISIONS.threshold(key))
    assert again.measurements == DECISIONS.measurements
    assert states(again, key, *probabilities) == states(DECISIONS, key, *probabilities)


def test_what_phantoms_said_comes_back_after_real_films() -> None:
    """A threshold by hand is for the films that a person meant, and no measurement of phantoms."""
    drawn = Measurement(measured_on="phantoms", positives=20, negatives=80, band=BAND)
    start = replace(DECISIONS, measurements={"edema": drawn}, phantoms={}).set_by_hand("edema", 0.2)

    measured = start.measured("edema", 0.7, Measurement(measured_on="hospital", positives=9, negatives=9))

    assert measured.phantoms["edema"].threshold == start.leaving_out("edema").phantoms["edema"].threshold == 0.6


@pytest.mark.parametrize(
    ("key", "probability", "trusted", "expected"),
    [
        ("edema", 0.2, "real", True),
        ("edema", 0.28, "real", False),  # near its band
        ("edema", 0.2, "any", True),
        ("edema", 0.2, "phantoms", False),
        ("atelectasis", 0.1, "real", False),
        ("atelectasis", 0.1, "any", False),
        ("pneumonia", 0.1, "any", False),
    ],
)
def test_only_a_measured_finding_far_below_its_threshold_may_be_denied(
    key: str, probability: float, trusted: Trusted, *, expected: bool
) -> None:
    assert may_be_denied(DECISIONS, key, probability, trusted=trusted) is expected


def test_the_table_says_threshold_band_films_and_person(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decisions = DECISIONS.set_by_hand("atelectasis", 0.05)
    write_manifest(model, replace(read_manifest(model), decisions=decisions))

    assert thresholds.main([str(model)]) == 0

    assert (DECISIONS.measured_keys, DECISIONS.left_out) == (("edema", "lung_opacity"), ("fracture", "pneumonia"))
    lines = {line.split()[0]: re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines() if line}
    assert lines["edema"] == ["edema", "0.600", "0.300", "hospital (20 with, 80 without)", "the maker of the model"]
    assert lines["fracture"][1:3] == ["left out", "-"]
    assert lines["consolidation"] == ["consolidation", "0.500", "0.400", "nothing", "nobody"]
    assert lines["atelectasis"][1:3] == ["0.050", "0.000"], "no review begins below 0"


def test_a_change_is_in_table_card_and_manifest(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(model, replace(read_manifest(model), decisions=DECISIONS))
    before = (model / CARD).read_text(encoding="utf-8")

    for value, reason in (("0.7", "three false | alarms a day"), ("0.65", "too few")):
        assert thresholds.main([str(model), "--set", f"edema={value}", "--reason", reason, "--by", "anna"]) == 0

    said = capsys.readouterr().out
    assert "edema: threshold 0.7 before, 0.65 now." in said
    assert "node refuses this directory until it is accepted" in said and f"--model {model}" in said
    manifest = read_manifest(model)
    verify(model, manifest)
    assert [(change.before, change.after, change.reason, change.by) for change in manifest.history] == [
        (0.6, 0.7, "three false | alarms a day", "anna"),
        (0.7, 0.65, "too few", "anna"),
    ]
    assert {datetime.fromisoformat(change.at).utcoffset() for change in manifest.history} == {timedelta(0)}
    card = (model / CARD).read_text(encoding="utf-8")
    kept, now = (text.partition("## Training")[2].rstrip() for text in (before, card))
    assert kept and now.startswith(kept) and card.count("## Thresholds that were chosen again") == 1
    assert "- Calibrated on patient films: edema, lung opacity.\n" in card
    assert f"| {manifest.history[0].at} | edema | 0.6 | 0.7 | three false \\| alarms a day | anna |" in card
    assert thresholds.main([str(model), "--json"]) == 0
    rows = {row["finding"]: row for row in json.loads(capsys.readouterr().out)["thresholds"]}
    assert rows["edema"]["by"] == f"anna, {manifest.history[1].at[:10]}: too few"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "edema=0.6"], "--set and --reason belong together"),
        (["--reason", "why"], "--set and --reason belong together"),
        (["--set", "scoliosis=0.6", "--reason", "why"], "there is no finding 'scoliosis'; choose from atelectasis"),
        (["--set", "fracture=0.6", "--reason", "why"], "fracture is left out, and was measured on phantoms alone"),
    ],
)
def test_what_cannot_be_set_is_exit_2_and_changes_nothing(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    before = read_manifest(model)

    assert thresholds.main([str(model), *arguments]) == 2

    assert said in capsys.readouterr().err
    assert read_manifest(model) == before
    verify(model, before)
    (model / "vocab" / "gpt2_vocab.bpe").write_text("other", encoding="utf-8")
    assert thresholds.main([str(model), "--set", "edema=0.6", "--reason", "why"]) == 2
    assert "is not the file that the manifest names" in capsys.readouterr().err, "it gets no new hash"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        *((f"edema={threshold}", "why") for threshold in ("0", "1.01", "nan", "high")),
        ("=0.5", "why"),
        *(("edema=0.5", reason) for reason in (" ", "x" * 201, "a\u200bb")),
    ],
)
def test_what_is_no_threshold_or_no_reason_is_refused_before_the_model_is_opened(
    changed: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        thresholds.main(["nowhere", "--set", changed, "--reason", reason])

    assert ended.value.code == 2
    assert thresholds.main(["nowhere", "--set", "edema=1", "--reason", "x" * 200]) == 2, "these are taken"
    assert "name a model directory" in capsys.readouterr().err


def test_after_an_interruption_the_command_is_run_again(model: Path) -> None:
    """Between card and manifest the directory is refused, and the same command mends it."""
    with (model / CARD).open("a", encoding="utf-8") as card:
        card.write("\n## Thresholds that were chosen again\n\nhalf of it")

    assert thresholds.main([str(model), "--set", "edema=0.6", "--reason", "why"]) == 0

    verify(model, read_manifest(model))
    assert read_manifest(model).history[-1].by == thresholds.user()
    assert "half of it" not in (model / CARD).read_text(encoding="utf-8")


def test_a_node_refuses_a_change_until_it_is_accepted(tmp_path: Path, model: Path) -> None:
    settings = settings_for(tmp_path, archive_port=1, model=ModelSettings(directory=model))
    first = open_reader(model, prompts=PROMPTS, engine="onnx").identity
    admit(settings, first, PROMPTS)
    assert thresholds.main([str(model), "--set", "edema=0.6", "--reason", "x" * 200, "--by", "anna"]) == 0
    changed = open_reader(model, prompts=PROMPTS, engine="onnx").identity

    with pytest.raises(InputError, match=r"was never compared, .* or set model\.uncompared = \"accept\""):
        admit(settings, changed, PROMPTS)
    write_comparison(model, old=compared(first, PROMPTS), new=compared(changed, PROMPTS))
    with capture_logs() as logged:
        admit(settings, changed, PROMPTS)

    (event,) = logged
    (change,) = read_manifest(model).history
    assert event["thresholds"] == f"edema {change.before:g} to 0.6, {change.at}, anna: {'x' * 200}"
    reporter = Reporter(ae_title="CHEX", machine="reader", executor="node", process_id=1)
    message = write(event, at=datetime.now(UTC), reporter=reporter)
    (detail,) = re.findall(r'type="Alert Description" value="([^"]+)"', message or "")
    assert event["thresholds"] in base64.b64decode(detail).decode()
