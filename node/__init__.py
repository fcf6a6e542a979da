"""DICOM in, DICOM out: the ChEX Node service."""

__version__ = "0.1.0"
