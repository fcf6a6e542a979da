"""Tests of `node/commands`."""
