"""Files and folders that the node did not write, and folders of another format: nothing is taken for what it is not."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from node.config import Settings
from node.domain import OutputObject
from node.errors import InputError
from node.service import app
from node.store import files
from node.store.spool import Spool
from tests.support import films

STUDY = "1.2.3"


@pytest.fixture
def spool(settings: Settings) -> Spool:
    return Spool(settings.storage.directory)


STRANGE = [
    "received/film.dcm",
    "received/1.2.3~0001~copy.dcm",
    "received/1.2.3~first~" + "a" * 64 + ".dcm",
    "received/a~b~c.dcm",
    "received/~~.dcm",
    "received/1.2.3~0001~" + "a" * 64 + ".dcm.bak",
    "received/.DS_Store",
    "received/notes\n\x1b[2J.txt",
    "received/folder/file.txt",
    "conflicts/x~y.dcm",
    "readings/Copy of reading.json",
    "outputs/1.2.3~backup.sr.dcm",
    "rounds/latest.json",
    "rounds/000001 (copy).json",
    "corrections/notes.txt",
    "corrections/0 (1).json",
    "questions/0 copy.json",
    "questions/~lock",
]


def test_strange_files_are_nothing_of_a_study_and_stay(spool: Spool) -> None:
    films.keep(spool, films.thumbnail(), study_uid=STUDY)
    output = OutputObject(
        kind="sr", study_uid=STUDY, sop_class_uid="1.2", sop_instance_uid="1.2.3", series_instance_uid="1.2.4"
    )
    strange = {spool.directory / "studies" / STUDY / name: files.to_json({"status": name}) for name in STRANGE}
    for path, content in strange.items():
        files.make_folder(path.parent)
        path.write_bytes(content)
    spool.keep_output(output, b"report")

    again = Spool(spool.directory)
    again.sweep()
    assert again.output(output) == b"report"
    assert len(again.instances(STUDY)) == len(again.versions(STUDY)) == 1
    assert [*again.conflicts(STUDY), *again.rounds(STUDY), *again.readings(STUDY).intact] == []
    assert (again.corrections(STUDY), again.documents(STUDY, "questions")) == ([], [])
    assert {path: path.read_bytes() for path in strange} == strange


def test_a_strange_folder_among_the_studies_is_no_study(spool: Spool) -> None:
    folder = spool.directory / "studies"
    (folder / "backup of monday").mkdir()
    (folder / "backup of monday" / "film.dcm").write_bytes(b"film")
    (folder / "readme.txt").write_bytes(b"read me")
    (folder / "1.2.9").write_bytes(b"no folder")

    found = {study: (spool.instances(study), spool.has_unread(study)) for study in spool.studies()}

    assert found == {"1.2.9": ((), False)}


def test_a_folder_gets_the_number_of_its_format_and_with_studies_and_no_number_is_refused(settings: Settings) -> None:
    folder = settings.storage.directory
    folder.mkdir()
    for studies in ([], [STUDY]):
        assert list(Spool(folder).studies()) == studies
        assert (folder / "format").read_bytes() == b"3\n"
        films.keep(Spool(folder), films.thumbnail(), study_uid=STUDY)
    (folder / "format").unlink()
    before = sorted(folder.rglob("*"))

    with pytest.raises(InputError, match=r"has studies and no file 'format'.*restore the backup"):
        Spool(settings.storage.directory)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("content", ["1\n", "4\n", "17", "", "one", "1.1", "\x00", "1 2"])
def test_an_unknown_format_is_refused_with_the_way_out(settings: Settings, tmp_path: Path, content: str) -> None:
    folder = settings.storage.directory
    folder.mkdir()
    (folder / "format").write_text(content, encoding="utf-8")
    before = sorted(folder.rglob("*"))

    with pytest.raises(InputError, match="go back to the version that wrote it, or restore the backup") as refused:
        Spool(folder)
    assert str(folder) in str(refused.value) and "docs/operate/upgrade.md" in str(refused.value)
    with ExitStack() as parts, pytest.raises(InputError, match="format"):
        parts.enter_context(app.run(settings, stop=Event()))
    assert {path.name for path in folder.rglob("*")} - {path.name for path in before} <= {"lock"}
