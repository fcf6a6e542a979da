"""Which checkpoint is taken: the one that the published code takes (spec §12)."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from models.checkpoint.find import find
from models.errors import ModelError
from models.progress import quiet

RUN, LATER = "run_2024-01-01_00-00-00", "run_2024-02-01_00-00-00"


def lay_out(root: Path, *names: str) -> Path:
    """Make files, each a minute younger than the one before."""
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (60 * number, 60 * number))
    return root


def chosen(root: Path) -> str:
    return find(root, work=root, report=quiet).place.partition("/")[2]


def zipped(path: Path, *entries: tuple[str, tuple[int, int, int, int, int, int]]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, date_time in entries:
            archive.writestr(zipfile.ZipInfo(name, date_time), name)
    return path


def test_the_newest_checkpoint_of_the_last_run_is_taken(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        f"{LATER}/checkpoints/checkpoint_000000009.pth",
        f"{LATER}/checkpoints/checkpoint_000000005.pth",
        f"{LATER}/checkpoints/checkpoint_best.pth",
        f"{LATER}/model_config.yaml",
        f"{RUN}/checkpoints/checkpoint_000000100.pth",
        "eval_run_2025/checkpoints/checkpoint_000000100.pth",
    )

    assert chosen(tmp_path) == f"{LATER}/checkpoints/checkpoint_000000005.pth"


def test_the_best_checkpoint_is_taken_where_it_is_the_only_one(tmp_path: Path) -> None:
    lay_out(tmp_path, f"{RUN}/checkpoints/checkpoint_best.pth")

    assert chosen(tmp_path) == f"{RUN}/checkpoints/checkpoint_best.pth"


def test_of_two_that_are_equally_new_the_later_step_is_taken(tmp_path: Path) -> None:
    for name in ("checkpoint_000000020.pth", "checkpoint_000000100.pth", "checkpoint_000000003.pth"):
        lay_out(tmp_path, f"{RUN}/checkpoints/{name}")

    assert chosen(tmp_path) == f"{RUN}/checkpoints/checkpoint_000000100.pth"


@pytest.mark.parametrize("above", ["model.n_head=8", "x/chex_stage3", "x/y/chex_stage3", "1/2/3/4/5/6"])
def test_any_number_of_folders_may_stand_above_the_runs(tmp_path: Path, above: str) -> None:
    name = f"{above}/{RUN}/checkpoints/checkpoint_000000001.pth"
    folder = lay_out(tmp_path / "folder", name, "eval_x/run_9/a.txt")
    archive = zipped(tmp_path / "a.zip", (name, (2024, 1, 1, 0, 0, 0)))

    assert chosen(folder) == name
    assert find(archive, work=tmp_path, report=quiet).place == f"a.zip: {name}"


def test_runs_and_checkpoints_may_be_links_to_folders(tmp_path: Path) -> None:
    disk = lay_out(tmp_path / "disk", f"{LATER}/checkpoints/checkpoint_000000001.pth")
    lay_out(tmp_path / "folder", f"{RUN}/checkpoints/checkpoint_000000002.pth")
    (tmp_path / "folder" / LATER).mkdir()
    (tmp_path / "folder" / LATER / "checkpoints").symlink_to(disk / LATER / "checkpoints")
    (tmp_path / "folder" / "run_0_latest").symlink_to(RUN)
    (tmp_path / "folder" / "up").symlink_to(tmp_path / "folder")

    assert chosen(tmp_path / "folder") == f"{LATER}/checkpoints/checkpoint_000000001.pth"


@pytest.mark.parametrize("other", ["b", "c/d"])
def test_runs_in_several_folders_are_a_question(tmp_path: Path, other: str) -> None:
    lay_out(tmp_path, *(f"{folder}/{RUN}/checkpoints/checkpoint_000000001.pth" for folder in ("a", other)))

    with pytest.raises(ModelError, match=f"there are runs in a, {other}; name one of these folders"):
        chosen(tmp_path)


def test_a_last_run_without_checkpoint_is_not_passed_over(tmp_path: Path) -> None:
    lay_out(tmp_path, f"{RUN}/checkpoints/checkpoint_000000001.pth", f"{LATER}/experiment_config.yaml")

    with pytest.raises(ModelError, match=f"{LATER}, the last run, holds no checkpoints/checkpoint_"):
        chosen(tmp_path)


def test_a_source_without_checkpoint_is_refused(tmp_path: Path) -> None:
    lay_out(tmp_path / "folder", "readme.txt", "eval_a/run_1/checkpoints/checkpoint_000000001.pth")
    archive = zipped(tmp_path / "a.zip", ("readme.txt", (2024, 1, 1, 0, 0, 0)))

    for source in (tmp_path / "folder", archive):
        with pytest.raises(ModelError, match="there is no checkpoint in it; expected run_"):
            find(source, work=tmp_path, report=quiet)


def test_a_zip_is_judged_by_its_own_times(tmp_path: Path) -> None:
    below = f"chex_stage3/{RUN}/checkpoints"
    archive = zipped(
        tmp_path / "a.zip",
        (f"{below}/checkpoint_000000001.pth", (2024, 3, 1, 0, 0, 0)),
        (f"{below}/checkpoint_000000002.pth", (2024, 2, 28, 0, 0, 0)),
        (f"{below}/checkpoint_best.pth", (2025, 1, 1, 0, 0, 0)),
        (f"__MACOSX/{below}/checkpoint_000000003.pth", (2025, 1, 1, 0, 0, 0)),
    )

    found = find(archive, work=tmp_path, report=quiet)

    assert found.place == f"a.zip: {below}/checkpoint_000000001.pth"
    assert found.model == "chex_stage3"
    assert found.path.read_text() == f"{below}/checkpoint_000000001.pth"
