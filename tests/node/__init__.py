"""Tests of what the node does, by the package that does it."""
