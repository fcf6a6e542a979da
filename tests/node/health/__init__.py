"""Tests of `node/jobs`."""
