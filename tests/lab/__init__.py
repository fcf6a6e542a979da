"""Tests of training, evaluation, phantoms and golden data."""
