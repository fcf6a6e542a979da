"""Opens the spool of the settings for a command beside the node: what it writes goes into the bucket, too."""

from __future__ import annotations

from node.config import StorageSettings
from node.store.bucket import Bucket
from node.store.mirror import Mirror
from node.store.spool import Spool


def spool_of(storage: StorageSettings) -> Spool:
    """Open the spool. Raises InputError when a file of the settings cannot be read."""
    place = None if storage.s3 is None else Mirror(storage.directory, Bucket(storage.s3))
    return Spool(storage.directory, place=place)
