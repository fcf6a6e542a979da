"""Tests of `node/web`."""
