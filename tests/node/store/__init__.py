"""Tests of `node/store`."""
