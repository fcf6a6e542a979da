"""DICOM in, DICOM out: the ChEX Node service."""
