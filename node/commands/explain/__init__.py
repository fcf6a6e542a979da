"""Explain what the node did, or would do, with one film or study, and why; writes nothing, and needs no running node.

No output shows a patient's name, numbers or dates: `film.shown` decides which header values may be shown.
"""
