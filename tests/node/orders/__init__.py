"""Tests of `node/orders`."""
