"""The headers of a study's films for its outputs: as received, with the updates of patients that a round follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydicom.dataset import Dataset

from node.dicom import header_reading
from node.dicom.header import read_meta
from node.errors import Undecodable
from node.outputs import patient_update
from node.outputs.patient_update import StoredUpdate
from node.store import received
from node.store.received import sop_instance_uid_of
from node.store.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmHeaders:
    """Reads the headers of one study; updates: in the order of arrival."""

    spool: Spool
    study_uid: str
    updates: Sequence[StoredUpdate] = ()

    def of(self, file: str, *, is_damaged: bool = False) -> Dataset | None:
        """Return the header of a film for its outputs; None when even the file meta information is damaged."""
        header = self.received(file, is_damaged=is_damaged)
        return None if header is None else patient_update.corrected(header, file, self.updates)

    def of_intact(self, file: str) -> Dataset | None:
        """Return the header of a received object as `of` does; None if it is damaged or removed."""
        return self.of(file) if received.is_intact(self.spool.received_path(self.study_uid, file)) else None

    def received(self, file: str, *, is_damaged: bool = False) -> Dataset | None:
        """Return a header as it was received; if it cannot be parsed, what file meta information and path say."""
        path = self.spool.received_path(self.study_uid, file)
        if is_damaged:
            return self._bare(file) if received.has_intact_meta(path) else None
        try:
            return header_reading.read_header(path, character_set=self.spool.character_set)
        except Undecodable:
            return self._bare(file)

    def _bare(self, file: str) -> Dataset:
        header = Dataset()
        path = self.spool.received_path(self.study_uid, file)
        with path.open("rb") as content:
            header.SOPClassUID = read_meta(content).MediaStorageSOPClassUID
        header.SOPInstanceUID = sop_instance_uid_of(file)
        header.StudyInstanceUID = self.study_uid
        return header
