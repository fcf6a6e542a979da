"""Tests of the network, its engines, its checkpoints and what is read with it."""
