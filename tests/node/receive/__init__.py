"""Tests of `node/receive`."""
