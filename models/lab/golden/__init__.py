"""Compares this network with numbers recorded from the published one: the proof that it is ChEX (spec §14).

`recording` reads a recording, `comparison` does the comparison, and each other file computes one part again.
"""
