"""Debian's Orthanc as `deploy/orthanc` sets it up: its settings and routing script, on the ports of the test.

The script that tests add only writes down what arrives: Orthanc itself keeps no count of copies it already has.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Self, cast

from pydicom import Dataset, dcmread, dcmwrite

from node.config import ModelSettings, Settings
from tests.paths import REPOSITORY
from tests.support.peers import DIRECT, LOOPBACK, free_port, require, responds, wait_until
from tests.support.service import settings_for

DEPLOYED = REPOSITORY / "deploy" / "orthanc"

_COUNTER = """
function ReceivedInstanceFilter(tags, origin)
   local file = io.open([[{path}]], 'a')
   file:write(origin['RemoteAet'] or '', '\\t', tags['SOPInstanceUID'], '\\n')
   file:close()
   return true
end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One object that reached Orthanc, a copy of what it has already too. `calling_ae` is empty after an upload."""

    calling_ae: str
    sop_instance_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of Orthanc. State is Pending, Running, Success or Failure; resources are Orthanc's names of instances."""

    id: str
    kind: str
    state: str
    resources: tuple[str, ...]


class Orthanc:
    """One Orthanc that runs while its block does, with the node `CHEX` at `node_port`.

    settings: what a test wants otherwise than in orthanc.json
    """

    ae_title = "ORTHANC"

    def __init__(self, folder: Path, *, node_port: int, settings: Mapping[str, object] | None = None) -> None:
        self._program, self._compiler = require("Orthanc"), require("gcc")
        self._folder = folder / "orthanc"
        self._arrivals, self._shim = self._folder / "arrivals.tsv", self._folder / "loopback.so"
        self._process: subprocess.Popen[bytes] | None = None
        self.dicom_port, self.http_port = free_port(), free_port()
        self._prepare(node=["CHEX", LOOPBACK, node_port], changes=settings or {})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)  # its folder goes away too, and an orderly end takes three seconds

    def start(self) -> None:
        """Run, after `stop` with the same ports and content again."""
        environment = {**os.environ, "LD_PRELOAD": str(self._shim)}
        with (self._folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, str(self._folder / "orthanc.json")], env=environment, stdout=log, stderr=log
            )
        try:
            wait_until(self._answers, what="Orthanc answers")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the program in good order; twice does no harm."""
        self._end(signal.SIGTERM)

    @property
    def log(self) -> str:
        """What the program printed."""
        return (self._folder / "log.txt").read_text(encoding="utf-8", errors="replace")

    def upload(self, source: Path | Dataset) -> str:
        """Store one object through HTTP. Returns Orthanc's name of the instance."""
        if isinstance(source, Path):
            content = source.read_bytes()
        else:
            buffer = BytesIO()
            dcmwrite(buffer, source, enforce_file_format=True)
            content = buffer.getvalue()
        return cast(str, cast(dict[str, object], json.loads(self._request("/instances", content)))["ID"])

    def instances(self, study_uid: str | None = None) -> list[Dataset]:
        """Fetch every object, or those of one study."""
        datasets = [dcmread(BytesIO(content)) for content in self.files()]
        return [dataset for dataset in datasets if study_uid in (None, dataset.StudyInstanceUID)]

    def files(self) -> list[bytes]:
        """Fetch every object, byte for byte as Orthanc keeps it."""
        names = cast(list[str], self._get("/instances"))
        return [self._request(f"/instances/{name}/file") for name in sorted(names)]

    def count(self, study_uid: str | None = None) -> int:
        """Count the objects, or those of one study."""
        return sum(
            cast(int, self._get(f"/studies/{study['ID']}/statistics")["CountInstances"])
            for study in self._expanded("studies")
            if study_uid in (None, cast(dict[str, str], study["MainDicomTags"])["StudyInstanceUID"])
        )

    def study_uids(self) -> list[str]:
        """List the studies by their Study Instance UID."""
        return sorted(
            cast(dict[str, str], study["MainDicomTags"])["StudyInstanceUID"] for study in self._expanded("studies")
        )

    def arrivals(self, *, calling_ae: str | None = None) -> list[Arrival]:
        """List what reached Orthanc, in order and each time anew, or only what one AE title sent by C-STORE."""
        if not self._arrivals.exists():
            return []
        rows = [line.split("\t") for line in self._arrivals.read_text(encoding="ascii").splitlines()]
        return [Arrival(calling_ae=ae, sop_instance_uid=uid) for ae, uid in rows if calling_ae in (None, ae)]

    def changes(self) -> list[tuple[str, str]]:
        """List what happened: the kind of change (NewInstance, StableStudy, ...) and Orthanc's name of the object."""
        log = self._get("/changes?limit=100000")
        return [(change["ChangeType"], change["ID"]) for change in cast(list[dict[str, str]], log["Changes"])]

    def jobs(self) -> list[Job]:
        """List the jobs that route films to the node, finished ones too."""
        return [
            Job(
                id=cast(str, job["ID"]),
                kind=cast(str, job["Type"]),
                state=cast(str, job["State"]),
                resources=tuple(cast(dict[str, list[str]], job["Content"]).get("ParentResources", ())),
            )
            for job in self._expanded("jobs")
        ]

    def wait_for_count(self, count: int, *, study_uid: str | None = None) -> None:
        """Wait until Orthanc, or one study in it, has so many objects."""
        wait_until(lambda: self.count(study_uid) >= count, what=f"Orthanc has {count} objects", limit_seconds=60.0)

    def wait_until_idle(self) -> None:
        """Wait until every job has ended."""
        wait_until(
            lambda: all(job.state in ("Success", "Failure") for job in self.jobs()),
            what="Orthanc's jobs have ended",
            limit_seconds=60.0,
        )

    def _prepare(self, *, node: list[object], changes: Mapping[str, object]) -> None:
        self._folder.mkdir()
        shim_source = Path(__file__).with_name("loopback.c")
        subprocess.run([self._compiler, "-shared", "-fPIC", "-o", self._shim, shim_source, "-ldl"], check=True)
        counter = self._folder / "count.lua"
        counter.write_text(_COUNTER.format(path=self._arrivals), encoding="utf-8")
        settings = json.loads((DEPLOYED / "orthanc.json").read_text(encoding="utf-8"))
        settings |= {
            "StorageDirectory": str(self._folder / "storage"),
            "IndexDirectory": str(self._folder / "storage"),
            "LuaScripts": [*(str(DEPLOYED / name) for name in settings["LuaScripts"]), str(counter)],
            "DicomModalities": {name: node for name in settings["DicomModalities"]},
            "DicomPort": self.dicom_port,
            "HttpPort": self.http_port,
            **changes,
        }
        (self._folder / "orthanc.json").write_text(json.dumps(settings), encoding="utf-8")

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(f"Orthanc ended at its start:\n{self.log[-2000:]}")
        return responds(f"http://{LOOPBACK}:{self.http_port}/system")

    def _expanded(self, level: str) -> list[dict[str, object]]:
        return cast(list[dict[str, object]], json.loads(self._request(f"/{level}?expand")))

    def _get(self, path: str) -> dict[str, object]:
        return cast(dict[str, object], json.loads(self._request(path)))

    def _request(self, path: str, content: bytes | None = None) -> bytes:
        with DIRECT.open(f"http://{LOOPBACK}:{self.http_port}{path}", content, 30) as answer:
            return cast(bytes, answer.read())


def routing_questions(folder: Path) -> dict[str, object]:
    """Return the settings with which questions of readers go to the node, too; writes the script into a folder."""
    script = (DEPLOYED / "route.lua").read_text(encoding="utf-8")
    asking = folder / "route.lua"
    asking.write_text(script.replace("local QUESTIONS = false", "local QUESTIONS = true"), encoding="utf-8")
    assert asking.read_text(encoding="utf-8") != script
    return {"LuaScripts": [str(asking)]}


@contextmanager
def beside_node(
    folder: Path, *, changes: Mapping[str, object] | None = None, model: ModelSettings | None = None
) -> Iterator[tuple[Orthanc, Settings]]:
    """Run an Orthanc and yield it with the settings of a node; each knows the other.

    changes: what a test wants otherwise than in orthanc.json
    """
    dicom_port = free_port()
    with Orthanc(folder, node_port=dicom_port, settings=changes) as orthanc:
        yield (
            orthanc,
            settings_for(
                folder / "node",
                archive_port=orthanc.dicom_port,
                archive_ae=orthanc.ae_title,
                callers=(orthanc.ae_title,),
                dicom_port=dicom_port,
                model=model,
            ),
        )
