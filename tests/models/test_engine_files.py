"""Built engines on disk: used for what they are, built again when they are anything else, and never half there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier

import pytest

from models.engines import EngineUnavailable
from models.engines.engine_files import Compiler, EngineFiles


@dataclass
class FakeCompiler:
    """Keeps the protocol of a compiler; an engine is its graph's bytes behind a word."""

    gpu: str = "NVIDIA H100 80GB HBM3"
    version: str = "11.4.0.106"
    refused: tuple[bytes, ...] = ()
    broken: bool = False
    built: list[bytes] = field(default_factory=list)

    def build(self, graph: bytes) -> bytes:
        if self.broken:
            raise EngineUnavailable("not_built", "no")
        self.built.append(graph)
        return b"engine of\n" + graph

    def load(self, engine: bytes) -> str:
        if engine in self.refused:
            raise EngineUnavailable("not_loaded", "no")
        return engine.decode()


_: type[Compiler[str]] = FakeCompiler


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "find.float16.onnx"
    path.write_bytes(b"a graph")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "storage" / "engines"


def only_engine(folder: Path) -> Path:
    (path,) = folder.glob("*.engine")
    return path


def test_an_engine_is_built_once_per_graph_gpu_and_version(graph: Path, folder: Path) -> None:
    files, compiler = EngineFiles(folder), FakeCompiler()

    opened = [files.open(graph, compiler) for _ in range(3)]

    assert opened == ["engine of\na graph"] * 3
    assert compiler.built == [b"a graph"]
    name = hashlib.sha256(b"a graph").hexdigest()
    assert [path.name for path in folder.iterdir()] == [f"{name}-nvidia-h100-80gb-hbm3-11.4.0.106.engine"]
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]
    for other in (FakeCompiler(gpu="NVIDIA L4"), FakeCompiler(version="11.5.0.1")):
        files.open(graph, other)
        assert other.built == [b"a graph"]
    assert len(list(folder.glob("*.engine"))) == 3
    graph.write_bytes(b"another graph")
    assert files.open(graph, compiler) == "engine of\nanother graph"


def with_another_bit(place: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[place] ^= 1
        return bytes(changed)

    return change


def for_other_ranges(content: bytes) -> bytes:
    line, _, engine = content.partition(b"\n")
    facts = json.loads(line)
    facts["ranges"]["prompt"]["most"] += 1
    return json.dumps(facts).encode() + b"\n" + engine


@pytest.mark.parametrize(
    "damage",
    [
        *map(with_another_bit, (0, 20, -1)),
        for_other_ranges,
        *(lambda _, content=content: content for content in (b"", b"no\n", b"[]\n", b'{"gpu": 1}\n', b"\xff\n")),
    ],
)
def test_a_file_that_is_not_the_engine_is_built_again(
    graph: Path, folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    files, compiler = EngineFiles(folder), FakeCompiler()
    files.open(graph, compiler)
    good = only_engine(folder).read_bytes()
    only_engine(folder).write_bytes(damage(good))

    assert files.open(graph, compiler) == "engine of\na graph"
    assert len(compiler.built) == 2
    assert only_engine(folder).read_bytes() == good


def test_an_engine_the_runtime_refuses_is_built_again_once(graph: Path, folder: Path) -> None:
    files, compiler = EngineFiles(folder), FakeCompiler()
    files.open(graph, compiler)
    compiler.refused = (b"engine of\na graph",)

    with pytest.raises(EngineUnavailable, match=r"find\.float16\.onnx: no") as refused:
        files.open(graph, compiler)
    assert refused.value.reason == "not_loaded"
    assert len(compiler.built) == 2


def test_a_build_that_fails_leaves_nothing_and_an_unusable_folder_lets_another_engine_open(
    graph: Path, folder: Path
) -> None:
    with pytest.raises(EngineUnavailable):
        EngineFiles(folder).open(graph, FakeCompiler(broken=True))
    assert list(folder.iterdir()) == []
    folder.rmdir()
    folder.write_bytes(b"a file")
    compiler = FakeCompiler()

    with pytest.raises(EngineUnavailable, match=r"engines: cannot be used \(.+\); make it a folder") as refused:
        EngineFiles(folder).open(graph, compiler)

    assert refused.value.reason == "not_built"
    assert compiler.built == [], "minutes of building would have been for nothing"


def test_builds_at_the_same_time_leave_one_good_file(graph: Path, folder: Path) -> None:
    together = Barrier(4)

    class Meeting(FakeCompiler):
        def build(self, graph: bytes) -> bytes:
            together.wait(timeout=60)
            return super().build(graph)

    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: EngineFiles(folder).open(graph, Meeting()), range(4)))

    compiler = FakeCompiler()
    assert set(opened) == {"engine of\na graph"}
    assert EngineFiles(folder).open(graph, compiler) == "engine of\na graph"
    assert compiler.built == []
