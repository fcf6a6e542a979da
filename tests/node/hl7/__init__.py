"""Tests of `node/hl7`."""
