"""Tests of `node/audit`."""
