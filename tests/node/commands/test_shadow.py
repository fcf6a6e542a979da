"""Another model beside the one in use: what it changes on stored films, and that it is not served unseen."""

from __future__ import annotations

import base64
import getpass
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from pydicom import dcmread

from models.manifest import read_manifest, write_manifest
from models.reading.tokenizers import VOCABULARIES
from node import config
from node.commands.shadow.comparison import FilmPair, calibration_error, compare, reliability
from node.config import ModelSettings, Settings
from node.domain import Box, Film, FindingState, JsonObject, ModelIdentity, Reason
from node.errors import InputError
from node.service import promotion
from node.settings.audit import AuditSettings
from node.store.promotions import Promotions, key_of
from tests.node.web.test_web_replies import Node
from tests.support import films, peers, samples
from tests.support.peers import ReceivingArchive
from tests.support.samples import EFFUSION, finding
from tests.support.service import Service, run_command, settings_for
from tests.support.spoken import PROMPTS

pytestmark = pytest.mark.drill(part="peers")

Content = dict[str, object]

KEY = finding().prompt
IN_USE, STRICTER = f"chex-phantom {read_manifest(VOCABULARIES.parent).version}", "chex-phantom stricter"
COMPARED: JsonObject = {"measured": 3, "at": "", "by": "", "films": 50, "changed": 1, "unmeasured": []}
HERE, THERE = Box(left=0, top=0, right=100, bottom=100), Box(left=50, top=0, right=150, bottom=100)


def film(state: FindingState, *boxes: Box, probability: float = 0.5) -> Film:
    return samples.film(findings=(finding(EFFUSION, state=state, boxes=boxes, probability=probability),))


def pair(old: Film, new: Film, *, judged: bool | None = None) -> FilmPair:
    return FilmPair(old=old, new=new, judged={} if judged is None else {KEY: judged})


def test_states_boxes_and_probabilities_are_compared() -> None:
    present, absent = film(FindingState.PRESENT, HERE, probability=0.8), film(FindingState.ABSENT, probability=0.2)
    moved = film(FindingState.PRESENT, THERE, probability=0.6)

    found = compare([pair(present, moved), pair(present, absent), pair(absent, absent)], old=[KEY], new=[KEY])

    (only,) = found.findings
    assert (found.films, found.changed, only.films, only.changed) == (3, 1, 3, 1)
    assert (only.present(0), only.present(1), only.boxes) == (2, 1, (2, 1))
    assert list(only.overlaps) == pytest.approx([1 / 3])
    assert (only.mean_probability(0), only.mean_probability(1)) == (pytest.approx(0.6), pytest.approx(1 / 3))


def test_each_box_counts_with_the_nearest_of_the_other_model() -> None:
    both, single = film(FindingState.PRESENT, HERE, THERE), film(FindingState.PRESENT, HERE)

    (only,) = compare([pair(both, single)], old=[KEY], new=[KEY]).findings

    assert list(only.overlaps) == pytest.approx([(1 + 1 / 3 + 1) / 3])


def test_what_readers_said_counts_for_both() -> None:
    present, absent = film(FindingState.PRESENT, HERE, probability=0.9), film(FindingState.ABSENT, probability=0.4)
    pairs = [pair(present, absent, judged=True), pair(present, absent, judged=False), pair(present, absent)]

    (only,) = compare(pairs, old=[KEY], new=[KEY]).findings

    assert (only.judged, only.right) == (2, (1, 1))
    assert only.squared_errors == (pytest.approx((0.01 + 0.81) / 2), pytest.approx((0.36 + 0.16) / 2))


def test_probabilities_are_held_against_what_readers_said() -> None:
    def judged(old: float, new: float, *, there: bool) -> FilmPair:
        states = (film(FindingState.PRESENT, HERE, probability=old), film(FindingState.PRESENT, HERE, probability=new))
        return pair(*states, judged=there)

    pairs = [judged(0.9, 0.5, there=True), judged(0.9, 0.5, there=False), judged(1.0, 0.0, there=True)]
    findings = compare(pairs, old=[KEY], new=[KEY]).findings

    old, new = (reliability(findings, which) for which in (0, 1))
    assert [(tenth.number, tenth.judged, tenth.present) for tenth in old] == [(9, 3, 2)]
    assert [(tenth.number, tenth.judged, tenth.present) for tenth in new] == [(0, 1, 1), (5, 2, 1)]
    assert calibration_error(old) == pytest.approx(abs(2.8 - 2) / 3)
    assert calibration_error(new) == pytest.approx(1 / 3)


def test_films_that_are_not_read_are_counted_by_reason() -> None:
    unread, present = samples.unread(1, Reason.AGE), film(FindingState.PRESENT, HERE)

    found = compare([pair(present, unread), pair(unread, unread)], old=[KEY], new=[KEY])

    assert dict(found.outcomes) == {("read", "age"): 1, ("age", "age"): 1}
    assert (found.changed, found.findings) == (1, ())


def test_prompts_of_one_set_only_are_named() -> None:
    present = film(FindingState.PRESENT, HERE)

    found = compare([pair(present, present)], old=[KEY, "edema"], new=[KEY, "scoliosis"])

    assert (found.only_old, found.only_new) == (("edema",), ("scoliosis",))
    assert [each.prompt for each in found.findings] == [KEY]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A stopped node that has read one film with an opacity, which a reader accepted; other: another model."""

    settings: Settings
    path: Path
    other: Path
    archive: ReceivingArchive
    sent: int

    @property
    def promoted(self) -> Settings:
        return replace(self.settings, model=replace(self.settings.model, directory=self.other))

    def shadow(self, *options: object) -> subprocess.CompletedProcess[str]:
        return run_command("shadow", self.path, "--model", self.other, *options)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path, opacity_film: Path) -> Iterator[Stored]:
    folder = tmp_path_factory.mktemp("shadow")
    other = Path(shutil.copytree(phantom_model, folder / "other"))
    manifest = read_manifest(other)
    measured = replace(manifest.decisions.measurements["lung_opacity"], band=None)
    stricter = replace(
        manifest.decisions,
        thresholds={**manifest.decisions.thresholds, "lung_opacity": 0.95},
        measurements={**manifest.decisions.measurements, "lung_opacity": measured},
    )
    write_manifest(other, replace(manifest, version="stricter", decisions=stricter))
    with ReceivingArchive() as archive:
        settings = settings_for(
            folder / "node", archive_port=archive.port, model=ModelSettings(directory=phantom_model)
        )
        settings = replace(settings, audit=AuditSettings(file=folder / "audit.log"))
        with Service(settings, scripted=False) as service:
            film = films.as_another(dcmread(opacity_film), "shadow")
            assert peers.send(film, port=service.dicom_port) == 0
            service.wait_for("study.finished")
            node = Node(service=service, directory=folder, film=film, headers={})
            path = f"/api/v1/films/{film.SOPInstanceUID}/corrections"
            assert node.ask("POST", path, {"kind": "accept", "prompt": "lung_opacity"})[0] == 202
            service.wait_for("study.finished", count=2)
            service.stop()
        (path_of_settings := folder / "in use.toml").write_text(config.render(settings), encoding="utf-8")
        yield Stored(settings=settings, path=path_of_settings, other=other, archive=archive, sent=len(archive.kept))


def described(path: Path) -> list[str]:
    """The descriptions of the alerts in an audit trail."""
    found = re.findall(r'type="Alert Description" value="([^"]+)"', path.read_text(encoding="utf-8"))
    return [base64.b64decode(value).decode() for value in found]


def test_a_model_is_compared_before_it_is_served(stored: Stored) -> None:
    refused = Service(stored.promoted, scripted=False)
    assert refused.wait_until_dead() == 2
    refused.kill()

    done = stored.shadow("--json")

    assert done.returncode == 0, done.stderr
    found = cast(Content, json.loads(done.stdout))
    assert (found["models"], found["films"], found["changed"]) == ([IN_USE, STRICTER], 1, 1)
    opacity = next(each for each in cast(list[Content], found["findings"]) if each["prompt"] == "lung_opacity")
    assert opacity["present"] == [1, 0]
    assert (opacity["judged"], opacity["right"]) == (1, [1, 0])
    assert len(stored.archive.kept) == stored.sent, "a comparison sends nothing"
    with Service(stored.promoted, scripted=False) as promoted:
        (line,) = promoted.logged("model.promoted")
        assert (line["model"], line["films"], line["changed"]) == (STRICTER, 1, 1)
    told = [text for text in described(stored.path.parent / "audit.log") if STRICTER in text]
    assert len(told) == 2, "the comparison and the promotion"
    assert all(f"compared_by={getpass.getuser()}; compared_at=20" in text for text in told)
    assert all("films=1; changed=1" in text for text in told)
    with Service(stored.settings, scripted=False) as back:
        assert back.logged("model.promoted") == [], "it was served before"


def test_a_comparison_is_shown_as_tables(stored: Stored) -> None:
    done = stored.shadow()

    assert done.returncode == 0, done.stderr
    assert "films compared: 1, changed: 1, skipped because they are removed or damaged: 0" in done.stdout
    assert "lung_opacity: 1 x present -> not reported" in done.stdout
    assert re.search(
        r"lung_opacity +1 +1 +1 -> 0 +(0\.\d\d) -> \1 +1 -> 0 +- +1 -> 0 of 1 +0\.\d{3} -> 0\.\d{3}", done.stdout
    )
    assert "expected calibration error: 0." in done.stdout
    assert "0.7 to 0.8: 1 of 1 -> 1 of 1" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--prompt-set", "chexpert14"], "the settings name this model and these prompts already"),
        (["--model", "nowhere"], "nowhere"),
        (["--last", "0"], "is not a number of films; give 1 or more"),
    ],
)
def test_what_cannot_be_compared_is_refused(stored: Stored, options: list[str], said: str) -> None:
    done = run_command("shadow", stored.path, *options)

    assert (done.returncode, said in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("compared", "uncompared", "said"),
    [
        (None, "refuse", "was never compared"),
        ({**COMPARED, "measured": 0}, "refuse", "no threshold of this model was measured"),
        (None, "accept", None),
        ({**COMPARED, "films": 49}, "refuse", "was compared on 49 films, which is too few"),
        ({**COMPARED, "films": 9, "wanted": 9}, "refuse", None),
        ({**COMPARED, "unmeasured": ["edema", "fracture"]}, "refuse", "measured threshold for edema, fracture"),
        ({**COMPARED, "unmeasured": ["edema"]}, "accept", None),
        (COMPARED, "refuse", None),
    ],
)
def test_a_model_is_admitted_by_its_comparison(
    tmp_path: Path, compared: JsonObject | None, uncompared: str, said: str | None
) -> None:
    settings = settings_for(tmp_path, archive_port=1, model=ModelSettings(uncompared=uncompared))
    first, second = (ModelIdentity(name="m", version=name, weights_sha256=name, engine="torch") for name in "12")
    promotion.admit(settings, first, PROMPTS)
    if compared is not None:
        Promotions(tmp_path).keep_comparison(key_of(second, PROMPTS), compared)

    if said is None:
        promotion.admit(settings, second, PROMPTS)
        assert Promotions(tmp_path).has_served(key_of(second, PROMPTS))
    else:
        with pytest.raises(InputError, match=said):
            promotion.admit(settings, second, PROMPTS)
        promotion.admit(settings, first, PROMPTS)


@pytest.mark.parametrize("look", ["has_served", "has_served_any"])
def test_processes_that_start_together_admit_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    settings = settings_for(tmp_path, archive_port=1)
    only = ModelIdentity(name="m", version="1", weights_sha256="1", engine="torch")
    looked = getattr(Promotions, look)

    def look_before_the_other(promotions: Promotions, *key: str) -> bool:
        seen = bool(looked(promotions, *key))
        Promotions(tmp_path).mark_served(key_of(only, PROMPTS), {})
        return seen

    monkeypatch.setattr(Promotions, look, look_before_the_other)

    promotion.admit(settings, only, PROMPTS)

    assert Promotions(tmp_path).has_served(key_of(only, PROMPTS))
