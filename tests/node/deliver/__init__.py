"""Tests of `node/deliver`."""
