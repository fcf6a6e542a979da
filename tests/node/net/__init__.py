"""Tests of `node/net`."""
