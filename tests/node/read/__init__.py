"""Tests of `node/read`."""
