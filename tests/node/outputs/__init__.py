"""Tests of `node/outputs`."""
