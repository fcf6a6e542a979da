"""A running node beside the archive that it sends to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pydicom.dataset import Dataset

from node.config import ModelSettings, Settings
from node.settings.http import HttpSettings
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, settings_for
from tests.support.web_access import users_in


@dataclass(frozen=True, kw_only=True)
class ArchivedNode:
    """A running node, its archive, and the folder where it keeps its files."""

    service: Service
    archive: ReceivingArchive
    directory: Path

    def objects(self, study: str, modality: str = "") -> list[Dataset]:
        """What the archive has of a study, in the order in which it came; modality: of this alone."""
        found = [kept.dataset for kept in list(self.archive.kept)]
        return [each for each in found if each.StudyInstanceUID == study and modality in ("", each.Modality)]


StartNode = Callable[..., ArchivedNode]
"""Starts a node as `archived_node` does, in a folder of its own; it ends after the last test of the module."""


@contextmanager
def archived_node(
    folder: Path,
    *,
    model: ModelSettings | None = None,
    quiet_seconds: float = 0.3,
    users: Sequence[str] = (),
    change: Callable[[Settings], Settings] | None = None,
    is_fresh: bool = False,
    ready_seconds: float = 60.0,
) -> Iterator[ArchivedNode]:
    """Run a node in a folder with the scripted reader, or with a model, beside an archive of its own.

    users: who may sign in, where somebody has to; is_fresh, ready_seconds: as `Service` takes them
    """
    with ReceivingArchive() as archive:
        settings = settings_for(folder / "node", archive_port=archive.port, model=model, quiet_seconds=quiet_seconds)
        if users:
            settings = replace(settings, http=HttpSettings(port=0, password_file=users_in(folder, *users)))
        if change is not None:
            settings = change(settings)
        with Service(settings, scripted=model is None, is_fresh=is_fresh, ready_seconds=ready_seconds) as service:
            yield ArchivedNode(service=service, archive=archive, directory=folder / "node")
