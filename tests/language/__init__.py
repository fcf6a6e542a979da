"""Tests of what sentences say."""
