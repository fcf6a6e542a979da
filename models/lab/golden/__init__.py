"""Compares this network with numbers recorded from the published one: the proof that it is ChEX (spec §14).

`recording` reads a recording, `comparison` has the table of all parts and compares them, and `network` and `tasks`
compute them again.
"""
