"""Our network against numbers that were recorded from the published one: the proof that it is ChEX (SPEC.md 14).

`subject` reads a recording, each other file computes one part of it again, `comparison` holds the two together.
"""
