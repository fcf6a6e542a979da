"""Tests of `node/service`."""
