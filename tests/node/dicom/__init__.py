"""Tests of `node/dicom`."""
