"""A model that was opened once opens with what was kept, and nothing of it leaves before its hashes are compared."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models import engines
from models.checkpoint.files import compare_hashes
from models.engines import Engine, open_engine, open_kept, opening_store, samples, torch_engine
from models.engines.proof import Precision, read_proof
from models.errors import DeviceLost, ModelError, NotConfirmed
from models.manifest import WEIGHTS, NetworkSizes, read_manifest
from models.network import packed_decoding
from models.network.products import Choice, Form, Products
from models.reading.reader import open_reader
from node.__main__ import main
from node.errors import InputError, ModelRefused
from node.read import open_model, prompts
from node.read.model import open_reader as open_for_node
from tests.support import films

pytestmark = pytest.mark.drill(part="runtimes")

FORMS: tuple[tuple[Precision, Form], ...] = (
    ("float32", "prepacked"),
    ("float32", "eager"),
    ("int8", "int8"),
    ("int4", "int4"),
)


@pytest.fixture
def model(phantom_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(phantom_model, tmp_path / "model"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "spool" / "opened"


def entry_of(store: Path) -> Path:
    [entry] = store.iterdir()
    return entry


def opened(model: Path, store: Path, **options: object) -> Engine:
    engine, confirm = open_kept(model, engine="onnx", store=store, threads=1, **options)  # type: ignore[arg-type]
    confirm()
    return engine


def outputs_of(engine: Engine, sizes: NetworkSizes) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    patches = engine.encode_image(samples.films(random, 1, side=sizes.image_encoder.image_size))
    phrases = engine.encode_prompts(samples.phrases(random, 5, sizes))
    found = engine.find(patches, phrases[np.newaxis])
    return [patches.features, phrases, found.boxes, found.features, engine.write(found.features[0])]


def replace_byte(path: Path) -> None:
    """Change a byte, and neither size nor time."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        [byte] = file.read(1)
        file.seek(-100, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("engine", ["onnx", "torch"])
@pytest.mark.parametrize(("precision", "form"), FORMS)
def test_a_kept_model_answers_with_the_same_bits(
    phantom_model: Path,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    precision: Precision,
    form: Form,
) -> None:
    sizes = read_manifest(phantom_model).sizes
    monkeypatch.setattr(torch_engine, "int8_fault", lambda: "")  # where 8-bit products overflow, they do so twice
    monkeypatch.setattr(packed_decoding, "faster_form", lambda _: Choice(form=form, reason="of this test"))
    first, _ = open_kept(phantom_model, engine=engine, store=store, threads=1, precision=precision)
    expected = outputs_of(first, sizes)
    monkeypatch.setattr(packed_decoding, "faster_form", lambda _: pytest.fail("the weights were packed again"))

    again, confirm = open_kept(phantom_model, engine=engine, store=store, threads=1, precision=precision)
    confirm()

    assert all(map(np.array_equal, outputs_of(again, sizes), expected))


def truncate(entry: Path) -> None:
    os.truncate(entry / "find.onnx.data", 1000)


def damage_content(entry: Path) -> None:
    replace_byte(entry / "entry.json")


def put_a_link(entry: Path) -> None:
    (entry / "find.onnx").rename(entry.parents[1] / "find.onnx")
    (entry / "find.onnx").symlink_to(entry.parents[1] / "find.onnx")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(truncate, id="a truncated file"),
        pytest.param(damage_content, id="a damaged table of contents"),
        pytest.param(put_a_link, id="a link"),
        pytest.param(lambda entry: (entry / "weights").unlink(), id="a missing file"),
        pytest.param(lambda entry: (entry / "find.onnx").chmod(0o644), id="a file that others may read"),
        pytest.param(lambda entry: entry.chmod(0o770), id="an entry that others may write"),
        pytest.param(lambda entry: entry.parent.chmod(0o777), id="a store that others may write"),
        pytest.param(lambda entry: os.utime(entry.parents[1] / "model"), id="weights of another time"),
    ],
)
def test_a_damaged_or_foreign_entry_is_removed(tmp_path: Path, change: Callable[[Path], None]) -> None:
    model = tmp_path / "model"
    model.write_bytes(b"weights")
    place = opening_store.OpeningStore(root=tmp_path / "opened", key="key", sources={"model": model})
    with place.making() as entry:
        assert entry is not None
        for name in ("find.onnx", "find.onnx.data"):
            (entry.folder / name).write_bytes(bytes(2000))
        entry.keep(Products("eager"), Choice(form="eager", reason="of this test"))
    assert place.find() is not None
    change(place.folder)

    assert place.find() is None
    assert not place.folder.exists()


def test_a_damaged_entry_and_an_open_store_are_made_anew(model: Path, store: Path) -> None:
    opened(model, store)
    truncate(entry_of(store))
    store.chmod(0o777)
    (store / "left.part").mkdir()

    opened(model, store)

    entry = entry_of(store)
    assert (entry / "find.onnx.data").stat().st_size > 1000
    assert {path.stat().st_mode & 0o777 for path in (store, entry)} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in entry.iterdir()} == {0o600}


def test_a_store_of_another_user_is_not_used(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = opening_store.OpeningStore(root=store, key="key", sources={})
    with place.making() as entry:
        assert entry is not None
        entry.keep(Products("eager"), Choice(form="eager", reason="of this test"))
    assert place.find() is not None

    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert place.find() is None


def test_a_store_that_cannot_be_written_hinders_nobody(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    engine = opened(model, tmp_path / "file" / "opened")

    assert engine.name == "onnx"


def test_the_key_changes_with_what_the_entry_depends_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(**opened_with: object) -> str:
        return opening_store.store_of(model, root=Path(), files=(), opened_with=opened_with).key

    keys = [key(engine="onnx"), key(engine="torch")]
    for name, other in (
        ("__version__", "0.0.0"),
        ("_version", lambda _: "0.0.0"),
        ("_processor", lambda: "another processor"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(opening_store, name, other)
            keys.append(key(engine="onnx"))
    (model / "manifest.toml").write_text((model / "manifest.toml").read_text(encoding="utf-8") + "\n", encoding="utf-8")
    keys.append(key(engine="onnx"))

    assert len(set(keys)) == 6


def test_the_two_entries_that_were_used_last_are_kept(store: Path) -> None:
    first, second, third = (opening_store.OpeningStore(root=store, key=key, sources={}) for key in ("1", "2", "3"))
    for place in (first, second):
        keep_nothing(place)
        os.utime(place.folder / "entry.json", (0, 0))  # long ago
    assert first.find() is not None

    keep_nothing(third)

    assert {entry.name for entry in store.iterdir()} == {"1", "3"}


def test_an_entry_is_used_where_nothing_can_be_written(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = opening_store.OpeningStore(root=store, key="1", sources={})
    keep_nothing(place)

    def refused(_path: Path) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(Path, "touch", refused)

    assert place.find() is not None
    assert place.folder.is_dir()


def keep_nothing(place: opening_store.OpeningStore) -> None:
    """Make an entry without weights."""
    with place.making() as entry:
        assert entry is not None
        entry.keep(Products("eager"), Choice(form="eager", reason="of this test"))


def test_nothing_is_said_with_other_weights(model: Path, store: Path) -> None:
    open_kept(model, engine="onnx", store=store)
    replace_byte(model / WEIGHTS)
    with pytest.raises(ModelError) as refused:
        open_engine(model, engine="onnx")
    reader = open_reader(model, engine="onnx", store=store)
    film = reader.look(np.zeros((512, 512), dtype=np.float32))

    for said in (
        lambda: reader.report(film, prompts.load("chexpert14").prompts),
        lambda: reader.locate_all(film, prompts.load("chexpert14").prompts),
        lambda: reader.ask(film, []),
        lambda: reader.view(film),
    ):
        with pytest.raises(NotConfirmed) as error:
            said()
        assert str(error.value) == str(refused.value)


def test_an_exchanged_graph_is_noticed(model: Path, store: Path) -> None:
    open_kept(model, engine="onnx", store=store)
    proof = read_proof(model)
    assert proof is not None
    replace_byte(model / max(proof.graphs))

    _, confirm = open_kept(model, engine="onnx", store=store)

    with pytest.raises(NotConfirmed, match=r"parity\.json was made with other graphs"):
        confirm()


def test_a_damaged_file_of_the_store_ends_the_process(
    model: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_kept(model, engine="onnx", store=store)
    replace_byte(entry_of(store) / "find.onnx.data")
    is_open, compare = threading.Event(), compare_hashes
    monkeypatch.setattr(engines, "compare_hashes", lambda *files: (is_open.wait(), compare(*files)))

    _, confirm = open_kept(model, engine="onnx", store=store)

    is_open.set()
    with pytest.raises(DeviceLost, match="start again to make it anew"):
        confirm()
    assert list(store.iterdir()) == []


def test_a_node_refuses_other_weights_as_at_the_start(model: Path, store: Path) -> None:
    prompt_set = prompts.load("chexpert14")
    open_for_node(model, prompts=prompt_set, engine="onnx", store=store)
    replace_byte(model / WEIGHTS)
    with pytest.raises(InputError) as refused:
        open_for_node(model, prompts=prompt_set, engine="onnx")

    reader = open_for_node(model, prompts=prompt_set, engine="onnx", store=store)

    with pytest.raises(ModelRefused) as error:
        reader.confirm()
    assert str(error.value) == str(refused.value)


def test_read_gives_out_nothing_with_other_weights(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(open_model, "user_store", lambda: tmp_path / "cache")
    film = tmp_path / "film.dcm"
    film.write_bytes(films.file_bytes(films.thumbnail()))
    command = ["read", str(film), "--model", str(model), "--out"]
    assert main([*command, str(tmp_path / "first")]) == 0
    replace_byte(model / WEIGHTS)

    assert main([*command, str(tmp_path / "out")]) == 2

    assert "is not the file that the manifest names" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*.*"))
