"""Tests of whole nodes between real peers."""
