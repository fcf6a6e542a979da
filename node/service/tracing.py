"""Sends traces of this process, if the settings name a collector."""

from __future__ import annotations

from contextlib import AbstractContextManager

from node import trace
from node.config import Settings
from node.dicom.identity import VERSION
from node.jobs.processes import Process


def traced(settings: Settings, process: Process) -> AbstractContextManager[None]:
    """Trace until the end of the block, see `trace.sending`."""
    return trace.sending(
        settings.trace.endpoint,
        settings.trace.ca,
        node=settings.listener.ae_title,
        version=VERSION,
        executor=process.executor,
    )
