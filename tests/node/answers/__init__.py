"""Tests of `node/answers`."""
