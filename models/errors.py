"""The errors of a model directory, its weights or its numbers, and of the device that computes with them."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be used. The message says which file or key and what to do; it holds no patient data."""


class ReaderFault(ModelError):
    """A network that a setting names failed, or gave what breaks the contract. Names no patient, only place and key."""


class DeviceError(ModelError):
    """The GPU cannot do this work: its memory is full, for example. Other work may succeed."""


class DeviceLost(DeviceError):
    """The GPU is unusable in this process; only a new process can use it."""


class Abandoned(Exception):
    """The call was cancelled, because its client has gone."""
